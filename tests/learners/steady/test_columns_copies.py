"""Shortcuts that are stored in several columns: copies, dummies, noisy versions."""

import numpy as np
import pytest

from cirm import InvariantClassifier, InvariantRegressor


def draw_rows(seed, agreement, copies=1, noise=0.0, rows=600):
    """Three of five causes tell the class; the last columns agree with it."""
    draws = np.random.default_rng(seed)
    causes = draws.normal(size=(rows, 5))
    y = (causes[:, :3].sum(1) + 1.2 * draws.normal(size=rows) > 0).astype(int)
    mark = np.where(draws.random(rows) < agreement, y, 1 - y)
    marks = [mark + noise * draws.normal(size=rows) for _ in range(copies)]
    return np.column_stack([causes, *marks]), y


def score(seed, change=lambda x: x, **options):
    """The accuracy at a third place, before and after adapting, and the sentences."""
    one, other, new = (
        draw_rows(seed + n, agreement, **options)
        for n, agreement in enumerate((0.9, 0.75, 0.1))
    )
    x = change(np.concatenate([one[0], other[0]]))
    y = np.concatenate([one[1], other[1]])
    places = np.repeat(["a", "b"], [len(one[1]), len(other[1])])
    model = InvariantClassifier().fit(x, y, environments=places)
    adapted = model.adapt(change(new[0]))
    effects = adapted.model_.explain()["adaptation"]["effects"]
    found = [100 * m.score(change(new[0]), new[1]) for m in (model, adapted)]
    return *found, [one["sentence"] for one in effects]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.column_stack([x, x[:, -1]]),
        lambda x: np.column_stack([x, 1 - x[:, -1]]),
        lambda x: np.column_stack([x, 2.54 * x[:, -1] + 1]),
    ],
    ids=["copy", "dummy", "unit"],
)
def test_copies_of_a_shortcut_are_adapted_as_one_column(change):
    before, after, sentences = score(0, change)
    alone = score(0)
    assert before == pytest.approx(alone[0], abs=1)
    assert after == pytest.approx(alone[1], abs=1)
    assert after > before + 5
    assert len(sentences) == 1  # the copy adds nothing, and nothing is said of it


@pytest.mark.parametrize("copies", [4, 12])
@pytest.mark.parametrize("seed", [0, 100, 200])
def test_many_noisy_versions_turn_no_other_column_around(seed, copies):
    """Which of the two groups has turned around the rows do not show."""
    before, after, _ = score(seed, copies=copies, noise=0.5, rows=400)
    assert after >= before - 2


@pytest.mark.integration
def test_a_direction_of_many_columns_predicts_though_columns_were_found():
    weights = np.random.default_rng(5).normal(size=(2, 512)) * 1.5 / 512**0.5

    def draw(seed, slope, rows=500):
        draws = np.random.default_rng(seed)
        cause = draws.normal(size=rows)
        y = cause + 0.7 * draws.normal(size=rows)
        mark = slope * y + 0.5 * draws.normal(size=rows)
        noise = 0.2 * draws.normal(size=(rows, 512))
        return noise + np.stack([cause, mark], 1) @ weights, y

    places = [draw(30 + n, slope) for n, slope in enumerate((2, 1, -1))]
    x, y = (np.concatenate([place[n] for place in places[:2]]) for n in range(2))
    model = InvariantRegressor().fit(x, y, environments=np.repeat(["a", "b"], 500))
    assert bool(model.model_.state.leads)
    assert model.score(*places[2]) > 0.4
    assert model.adapt(places[2][0]).score(*places[2]) > 0.7
