"""Places that show little: one class, a class without rows, hardly any rows."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady import Steady
from cirm.learners.steady import directions_search as search
from cirm.learners.steady.directions_start import FEW_ROWS, weigh_training_on_few_rows
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    train_ensemble_members,
)
from cirm.randomness import Randomness

CLASSES = 3
PATTERNS = torch.randn(CLASSES, 1, 6, 6, generator=torch.Generator().manual_seed(9))


def draw_place(name, n, seed, classes=(0, 1, 2)):
    """Pictures of the patterns of some classes, with noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=generator)]
    x = PATTERNS[y] + 2 * torch.randn(n, 1, 6, 6, generator=generator)
    return Environment(name, x, y, Task.classification(CLASSES))


def train(*places):
    learner = create(Steady(view="directions"), places[0])
    randomness = Randomness((0,))
    state = learner.init(randomness.at("init"))
    states = []
    for i, stage in enumerate(Stream.from_order(places, "sequential")):
        state = learner.observe(state, stage, randomness.at("stage", i))
        states.append(state)
    return learner, states


def score(learner, state, place):
    with torch.no_grad():
        outputs = learner.predict(state, place.take_all(1).x)[0]
    right = (outputs.argmax(-1) == place.targets).float()
    return torch.stack([right[place.targets == c].mean() for c in range(CLASSES)])


@pytest.fixture(scope="module")
def first_place():
    return draw_place("a", 300, 1)


def test_a_place_of_one_class_changes_nothing_and_this_is_said(first_place):
    one = draw_place("b", 100, 2, classes=(1,))
    learner, (before, after) = train(first_place, one)
    test = draw_place("test", 600, 3)
    assert torch.equal(score(learner, before, test), score(learner, after, test))
    assert score(learner, before, test).min() > 0.6
    sentences = learner.explain(after, {}, 2)["evidence"]
    assert any(s.startswith("At 1 of the 2 places all rows") for s in sentences)
    assert not any(
        "same class" in s for s in learner.explain(before, {}, 1)["evidence"]
    )


def test_a_class_without_rows_at_a_place_is_not_forgotten(first_place):
    learner, (before, after) = train(first_place, draw_place("b", 300, 2, (0, 1)))
    test = draw_place("test", 600, 3)
    assert score(learner, after, test)[2] > score(learner, before, test)[2] - 0.1
    assert score(learner, after, test)[:2].min() > 0.6


@pytest.mark.parametrize("n", [1, 5, 29])
def test_a_place_of_few_rows_changes_little(first_place, n):
    learner, (before, after) = train(first_place, draw_place("b", n, 2))
    test = draw_place("test", 600, 3)
    change = score(learner, after, test).mean() - score(learner, before, test).mean()
    assert change.abs() < 0.02


def test_few_rows_count_as_rows_seen_before_and_many_decide_alone():
    start, trained = torch.zeros(2, 1, 1), torch.ones(2, 1, 1)
    seen = torch.tensor([0.0, 90.0])
    moved = weigh_training_on_few_rows(trained, start, seen, 10)
    assert moved.flatten().tolist() == pytest.approx([1.0, 0.1])
    assert weigh_training_on_few_rows(trained, start, seen, FEW_ROWS) is trained


def test_axes_of_few_rows_keep_their_level():
    # The variances of axes come from the same few rows.
    generator = torch.Generator().manual_seed(0)
    p_values = []
    for _ in range(200):
        places = []
        for _ in range(2):
            rows = torch.randn(27, 100, generator=generator).double()
            y = torch.randint(2, (27,), generator=generator)
            places.append(search.compute_class_moments(rows, y, 2))
        pooled = search.pool_class_moments_of_environments(*places)
        axes = search.find_principal_axes_within_classes(pooled)
        change = search.measure_change_of_class_means(*places, axes)
        p_values.append(change.corrected_p_value_of_axes)
    assert (torch.tensor(p_values) < 0.05).double().mean() < 0.09


def test_progress_ends_where_training_does():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (1, 100), generator=generator)
    x = torch.randn(1, 100, 3, generator=generator)  # says nothing of the classes
    place = Environment("a", x[0], y[0], Task.classification(2))
    learner = create(Steady(view="directions"), place)
    reports = []
    train_ensemble_members(
        lambda params, inputs, noise: inputs @ params.view(-1, 3, 2),
        torch.zeros(1, 2, 6),
        LabelledTrainingRows(x, y, torch.zeros(1, 100, 2)),
        learner.likelihood,
        learner.descent,
        Randomness((0,)),
        lambda step, steps, terms: reports.append((step, steps)),
    )
    step, steps = reports[-1]
    assert step == steps < learner.descent.epochs
    assert all(step <= steps for step, steps in reports)


def draw_numbers(name, n, seed, constant=False):
    """Pictures whose pattern grows with a number."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(n, generator=generator)
    x = torch.randn(n, 1, 6, 6, generator=generator)
    x = x + y[:, None, None, None] * PATTERNS[0]
    return Environment(name, x, torch.ones(n) if constant else y, Task.regression())


@pytest.mark.parametrize(("n", "constant"), [(1, False), (10, False), (60, True)])
def test_a_regression_keeps_what_it_knows_where_a_place_shows_little(n, constant):
    learner, (before, after) = train(
        draw_numbers("a", 200, 1), draw_numbers("b", n, 2, constant)
    )
    test = draw_numbers("test", 500, 3)
    with torch.no_grad():
        errors = [
            (learner.predict(s, test.inputs[None])[0, :, 0] - test.targets).square()
            for s in (before, after)
        ]
    assert float(errors[0].mean()) < 0.4
    assert float(errors[1].mean()) == pytest.approx(float(errors[0].mean()), abs=0.02)
