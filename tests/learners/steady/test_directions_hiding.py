"""Features of vectors that are hidden, and those that are the classes themselves."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady import Steady
from cirm.learners.steady.directions_hiding import FeatureHider
from cirm.learners.steady.directions_stable import (
    HeldOutLogits,
    RowsWithKnownFeatures,
    compute_z_of_recall,
    does_stable_model_tell_class,
)
from cirm.learners.steady.directions_statistics import ImageStatisticsScale
from cirm.learners.steady.directions_tables import FeatureLeakIntoLogits
from cirm.learners.steady.directions_views import hide_feature_in_rows
from cirm.randomness import Randomness

WIDTH = 100


def draw_gaps(seed, classes, sizes):
    """Return the generator and, for each size, means [class, d] that far apart."""
    generator = torch.Generator().manual_seed(seed)
    means = [torch.randn(classes, WIDTH, generator=generator) for _ in sizes]
    gaps = [float((m[0] - m[1]).norm()) for m in means]
    return generator, [
        size * m / gap for size, m, gap in zip(sizes, means, gaps, strict=True)
    ]


def learn(places):
    """Return what the learner by direction has learned from places in sequence."""
    learner = create(Steady(view="directions"), places[0])
    state = learner.init(Randomness((0,)))
    for index, stage in enumerate(Stream.create_sequential(places)):
        state = learner.observe(state, stage, Randomness((0,)).at("stage", index))
    return learner, state


def score(learner, state, place):
    with torch.no_grad():
        prediction = learner.predict(state, place.inputs[None])
    return float(learner.likelihood.compute_scores(prediction, place.targets).mean())


@pytest.mark.integration
@pytest.mark.parametrize(("classes", "rows"), [(2, 300), (5, 600)])
def test_labels_that_are_wrong_more_often_at_one_place_are_no_shortcut(classes, rows):
    generator, (means,) = draw_gaps(1, classes, [9.0])

    def make_place(name, noise):
        y = torch.randint(classes, (rows,), generator=generator)
        other = torch.randint(classes, (rows,), generator=generator)
        wrong = torch.rand(rows, generator=generator) < noise
        x = means[y] + torch.randn(rows, WIDTH, generator=generator)
        task = Task.classification(classes)
        return Environment(name, x, torch.where(wrong, other, y), task)

    *places, unseen = [
        make_place(n, q) for n, q in zip("abc", (0.02, 0.3, 0.1), strict=True)
    ]
    learner, state = learn(places)
    assert learner.list_unstable_features(state) == [[]]
    assert score(learner, state, unseen) > 90  # 63 and 25 without the classes
    explanation = learner.explain(state)
    assert "no direction explains it" in explanation["verdict"]
    assert "wrong more often" in explanation["evidence"][0]


@pytest.mark.integration
@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_hidden_direction_leaks_is_known_at_the_unseen_place(seed):
    generator, (means, marks) = draw_gaps(100 + seed, 2, [3.5, 6.0])

    def make_place(name, contradicted, rows=1000):
        y = torch.randint(2, (rows,), generator=generator)
        noisy = torch.where(torch.rand(rows, generator=generator) < 0.25, 1 - y, y)
        contradicts = torch.rand(rows, generator=generator) < contradicted
        u = torch.where(contradicts, 1 - noisy, noisy)
        x = means[y] + marks[u] + torch.randn(rows, WIDTH, generator=generator)
        return Environment(name, x, noisy, Task.classification(2))

    *places, unseen = [
        make_place(n, q) for n, q in zip("abc", (0.2, 0.1, 0.9), strict=True)
    ]
    learner, state = learn(places)
    assert learner.list_unstable_features(state) == [["direction 1"]]
    assert score(learner, state, unseen) > 58  # 72 without marks, 10 by them
    adapted = learner.adapt(state, unseen.inputs[None])
    assert score(learner, adapted, unseen) > 86  # the limit is 90


def test_rows_that_a_member_leaves_out_do_not_change_its_view():
    generator, (marks,) = draw_gaps(3, 2, [6.0])
    rows = 200
    y = torch.arange(rows) % 2
    u = torch.where(torch.arange(rows) % 7 == 0, 1 - y, y)
    folds = torch.arange(rows) % 5
    x = (marks[u] + torch.randn(rows, WIDTH, generator=generator)).double()
    scale = ImageStatisticsScale(*[torch.zeros(0)] * len(ImageStatisticsScale._fields))
    hider = FeatureHider(y, 2, (WIDTH,), scale)
    views, shown = hider.fit_views_that_hide_features(x, [u], [False], 0)
    assert views[0].pattern.any()
    by_member = hider.show_rows_to_members(x, [u], views, folds)
    assert by_member.shape == (5, rows, WIDTH)
    moved = torch.where((folds == 2)[:, None], x + 10 * torch.randn_like(x), x)
    again = hider.show_rows_to_members(moved, [u], views, folds)
    torch.testing.assert_close(again[2][folds != 2], by_member[2][folds != 2])
    assert not torch.allclose(again[1][folds != 2], by_member[1][folds != 2])
    # All are shown as if they had the value that is most frequent in all rows.
    common = int(u.bincount().argmax())
    same = x[u == common].float()
    assert all(torch.equal(own[u == common], same) for own in by_member)
    torch.testing.assert_close(hide_feature_in_rows(views[0], x, u), shown)
    pictures = FeatureHider(y, 2, (1, 5, WIDTH // 5), scale)
    assert pictures.show_rows_to_members(x, [u], views, folds) is None


@pytest.mark.parametrize(
    ("before", "held_out", "tells"),
    [(1.0, 1.0, True), (0.0, 0.0, False), (-1.0, 1.0, True), (None, 1.0, True)],
)
def test_the_stable_model_must_tell_the_class(before, held_out, tells):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (400,), generator=generator)
    sign = torch.stack([1 - 2 * y, 2 * y - 1], 1).double()

    def make_logits(strength):
        if strength is None:  # new networks say nothing
            return torch.zeros(400, 2).double()
        return strength * sign + torch.randn(400, 2, generator=generator).double()

    values = torch.randint(2, (1, 400), generator=generator)
    rows = RowsWithKnownFeatures(values, y, torch.zeros(400).long(), [True], 2)
    none = torch.zeros(1, 2, 2).double()
    leak = FeatureLeakIntoLogits(none, 0.0, 0.0)
    judged = HeldOutLogits(make_logits(held_out), none, leak, torch.ones(1, 2).double())
    assert does_stable_model_tell_class(make_logits(before), judged, rows) is tells


def test_chance_has_standard_normal_z():
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(300) % 3
    z = torch.tensor(
        [
            compute_z_of_recall(torch.randn(300, 3, generator=generator), y)
            for _ in range(400)
        ]
    )
    assert abs(float(z.mean())) < 0.15
    assert 0.85 < float(z.std()) <= 1.0  # the error is the largest possible one
    assert compute_z_of_recall(torch.eye(3)[y], y) == pytest.approx(
        2 / (3 * 0.25 / 100) ** 0.5
    )
