"""Regression on images and long vectors: unstable numbers are found and re-learned."""

from dataclasses import replace

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.steady.directions_compare import EnvironmentComparison
from cirm.learners.steady.directions_inputs import fit_input_scale, scale_inputs
from cirm.learners.steady.directions_regression_adapt import (
    PriorOfSlope,
    combine_predictions_with_numbers,
    estimate_slope_without_labels,
)
from cirm.learners.steady.directions_regression_search import (
    fit_reader_of_changed_number,
)
from cirm.learners.steady.directions_regression_slopes import (
    compute_slope_moments,
    compute_slopes_of_halves,
    get_slope_of_moments,
)
from cirm.learners.steady.directions_regression_views import (
    fit_number_hiding_view,
    hide_number_in_rows,
    measure_visibility_of_number,
)
from cirm.learners.steady.directions_search import (
    find_principal_axes_within_classes,
    measure_change_of_class_means,
    pool_class_moments_of_environments,
)
from cirm.learners.steady.directions_statistics import fit_image_statistics_scale
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    train_ensemble_members,
)
from cirm.learners.steady.learner import Steady
from cirm.model.state_tensors import (
    flatten_state_to_tensors_by_path,
    restore_state_from_tensors,
)
from cirm.randomness import Randomness

WIDE = PriorOfSlope(0.0, 10.0, 1.0)
FEATURES = 30


def draw_rows(seed, slope, size=500, features=FEATURES):
    """Return vectors and targets; their last entry is slope * target + noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, features, generator=generator)
    y = x[:, :4].sum(1) / 2 + 0.6 * torch.randn(size, generator=generator)
    x[:, -1] = slope * y + 0.5 * x[:, -1]
    return x, y


def make_place(name, seed, slope, size=500):
    return Environment(name, *draw_rows(seed, slope, size), Task.regression())


def observe(learner, *places):
    state = learner.init(Randomness((0,)))
    for i, place in enumerate(places):
        state = learner.observe(state, (place,), Randomness((0,)).at(i))
    return state


def explain_variance(learner, state, x, y):
    with torch.no_grad():
        predictions = learner.predict(state, x[None])[0, :, 0]
    return 1 - float((predictions - y).square().mean() / y.var())


@pytest.fixture(scope="module")
def trained():
    places = [make_place("a", 1, 1.0), make_place("b", 2, 0.4)]
    learner = create(Steady(view="directions"), places[0])
    return learner, observe(learner, *places)


def test_slopes_and_their_precision_are_those_of_least_squares():
    x, y = draw_rows(0, 1.0)
    moments = compute_slope_moments(x, y)
    line = y / 2  # in units of two standard deviations, given its square
    design = torch.stack([torch.ones_like(line), line, line.square()], 1).double()
    expected = torch.linalg.lstsq(design, x.double()).solution[1]
    torch.testing.assert_close(
        get_slope_of_moments(moments), expected, atol=0.1, rtol=0
    )
    covariance = torch.linalg.inv(design.T @ design)
    assert float(moments.counts[0]) == pytest.approx(
        2 / float(covariance[1, 1]), rel=0.1
    )


def test_a_stable_slope_is_called_unstable_at_the_level():
    p_values = []
    for seed in range(200):
        before, here = (
            compute_slope_moments(*draw_rows(2 * seed + i, 0.7, 200, 12))
            for i in (0, 1)
        )
        pooled = pool_class_moments_of_environments(before, here)
        axes = find_principal_axes_within_classes(pooled)
        p_values.append(measure_change_of_class_means(before, here, axes).p_value)
    share = float((torch.tensor(p_values) < 0.05).double().mean())
    assert 0.01 < share < 0.09


def test_the_number_behind_a_change_of_slopes_is_read_along_its_direction():
    rows = [draw_rows(seed, slope) for seed, slope in ((1, 1.0), (2, 0.4))]
    moments = [compute_slope_moments(*pair) for pair in rows]
    axes = find_principal_axes_within_classes(
        pool_class_moments_of_environments(*moments)
    )
    halves = [compute_slopes_of_halves(*pair) for pair in rows]
    comparison = EnvironmentComparison(0.0, *moments, axes)
    reader = fit_reader_of_changed_number(comparison, *halves)
    assert float(reader.scores @ reader.pattern) == pytest.approx(1)
    assert float(reader.pattern[-1].abs() / reader.pattern.norm()) > 0.9
    same = EnvironmentComparison(0.0, moments[0], moments[0], axes)
    assert fit_reader_of_changed_number(same, halves[0], halves[0]) is None


def test_the_closed_form_is_exact_if_everything_is_normal():
    generator = torch.Generator().manual_seed(0)
    f, e, d = torch.randn(3, 200_000, generator=generator).double()
    y = f + e  # V = 1
    u = 2 * y + 3 + d  # a = 2, b = 3, a noise of variance 1
    estimate = estimate_slope_without_labels(f, u, 1.0, WIDE)
    means, variances = combine_predictions_with_numbers(
        f, u[None], estimate.draws[:, None], 1.0
    )
    exact = f + 0.4 * (u - 2 * f - 3)  # a V / W with W = 5
    torch.testing.assert_close(means.mean(0), exact, atol=0.05, rtol=0)
    assert float(variances.mean()) == pytest.approx(0.2, abs=0.01)
    assert float((means.mean(0) - y).square().mean()) == pytest.approx(0.2, abs=0.01)


def test_rows_that_tell_nothing_leave_the_prior():
    u = torch.linspace(-3, 3, 50)
    prior = PriorOfSlope(0.5, 0.2, 5.0)
    estimate = estimate_slope_without_labels(torch.zeros(50), u, 1.0, prior)
    slopes = estimate.draws[:, 0]
    assert estimate.gain == pytest.approx(0, abs=1e-6)
    assert float(slopes.median()) == pytest.approx(0.5, abs=0.05)
    means, _ = combine_predictions_with_numbers(
        torch.zeros(50), u[None], torch.zeros(1, 1, 3), 1.0
    )
    assert not means.any()  # a number without a slope says nothing


@pytest.mark.parametrize("is_colour", [True, False])
def test_a_view_hides_a_colour_and_a_mark(is_colour):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(600, 1, 6, 6, generator=generator)
    y = (images[:, 0, :, :3].mean((1, 2)) - 0.5) / 0.07
    u = y + 0.5 * torch.randn(600, generator=generator)
    u = u / u.std()
    share = (0.5 + 0.1 * u).clamp(0.1, 0.9)[:, None, None, None]
    x = torch.cat([images * share, images * (1 - share)], 1)
    if not is_colour:
        x = torch.cat([images, images], 1)
        x[:, :, :2, :2] += u[:, None, None, None]
    rows, shape = x.flatten(1).double(), (2, 6, 6)
    scale = fit_image_statistics_scale(rows, (y > 0).long(), shape)
    parts = u.double(), y, shape, scale
    assert measure_visibility_of_number(rows, *parts) > 0.8
    view, seen, is_hidden = fit_number_hiding_view(rows, *parts, rows[0])
    assert is_hidden and (bool(view.gains.any()) or not is_colour)
    assert measure_visibility_of_number(seen, *parts) < 0.3
    torch.testing.assert_close(hide_number_in_rows(view, rows, parts[0]), seen)


def test_a_number_with_another_slope_is_found_and_adapted(trained):
    learner, state = trained
    assert state.found.tolist() == [1]
    x, y = draw_rows(3, -1.0, 2000)
    plain = create("erm", make_place("a", 1, 1.0))
    pooled = observe(plain, make_place("a", 1, 1.0), make_place("b", 2, 0.4))
    unseen = explain_variance(learner, state, x, y)
    assert unseen > 0.3 > explain_variance(plain, pooled, x, y)
    adapted = learner.adapt(state, x[None, :300])
    assert explain_variance(learner, adapted, x[300:], y[300:]) > unseen + 0.1
    told = learner.explain(adapted)
    (effect,) = told["adaptation"]["effects"]
    seen = [one["effect"] for one in told["unstable"][0]["effects"]]
    assert abs(seen[0]) > abs(seen[1]) and seen[0] * effect["here"] < 0
    assert effect["low"] < effect["here"] < effect["high"]
    assert learner.list_unstable_features(state) == [["direction 1"]]
    assert learner.get_residual_ratio_after_adapting(adapted) < 0.9
    forgotten = learner.forget_adaptation(adapted)
    assert learner.get_residual_ratio_after_adapting(forgotten) == 1
    assert explain_variance(learner, forgotten, x, y) == pytest.approx(unseen)


def test_adapting_depends_neither_on_the_order_of_rows_nor_on_chance(trained):
    learner, state = trained
    x, _ = draw_rows(4, -1.0, 200)
    first, again, turned = (
        learner.adapt(s, rows[None])
        for s, rows in (
            (state, x),
            (learner.adapt(state, x[None]), x),
            (state, x.flip(0)),
        )
    )
    assert torch.equal(first.adaptation.draws, again.adaptation.draws)
    torch.testing.assert_close(
        first.adaptation.draws, turned.adaptation.draws, atol=1e-3, rtol=1e-3
    )


def test_few_rows_and_an_unexplained_change_are_not_adapted_to(trained):
    learner, state = trained
    x, y = draw_rows(5, -1.0, 200)
    before = explain_variance(learner, state, x, y)
    few = learner.adapt(state, x[None, :10])
    assert "fewer than 30 rows" in learner.explain(few)["adaptation"]["refusals"][0]
    doubtful = state._replace(unexplained=torch.ones(1))
    doubtful = learner.adapt(doubtful, x[None])
    assert "may do so" in learner.explain(doubtful)["adaptation"]["refusals"][0]
    assert explain_variance(learner, few, x, y) == before
    assert explain_variance(learner, doubtful, x, y) == before


def test_trust_decides_what_a_number_counts_for_at_an_unknown_place(trained):
    learner, state = trained
    x, y = draw_rows(6, 0.7, 2000)
    scores = {
        trust: explain_variance(replace(learner, trust=trust), state, x, y)
        for trust in ("invariant", "interval", "average")
    }
    assert scores["average"] > scores["invariant"] + 0.05
    assert scores["interval"] == scores["invariant"]  # two places are not enough


def test_without_a_shortcut_the_learner_is_the_plain_ensemble():
    places = [make_place("a", 7, 0.5), make_place("b", 8, 0.5)]
    learner = create(Steady(view="directions"), places[0])
    state = observe(learner, *places)
    assert state.found.tolist() == [0] and state.looks.tolist() == [1]
    engine = learner._create_engine_for_inputs()
    params = learner.init(Randomness((0,))).members
    x = places[0].take_all(1).x
    scale, frame = fit_input_scale(x), state.frame
    for i, place in enumerate(places):
        x, y = place.take_all(1)[:2]
        y = (y - frame[:, :1]) / frame[:, 1:]
        rows = LabelledTrainingRows(scale_inputs(x, scale), y, torch.zeros(1, 500, 1))
        params = train_ensemble_members(
            engine._compute_network_outputs,
            params,
            rows,
            learner.likelihood,
            learner.descent,
            Randomness((0,)).at(i, "train"),
        ).params
    torch.testing.assert_close(state.members, params)


def test_a_state_is_restored_and_one_of_an_earlier_version_learns_on(trained):
    learner, state = trained
    tensors = flatten_state_to_tensors_by_path(state)
    restored = restore_state_from_tensors(learner, dict(tensors))
    learner.check_state(restored, (FEATURES,))
    broken = state._replace(correction=state.correction[:, :1])
    with pytest.raises(ValueError, match="correction"):
        learner.check_state(broken, (FEATURES,))
    first = learner.init(Randomness((0,)))
    earlier = first._replace(places=torch.ones(1), frame=torch.tensor([[1.0, 2.0]]))
    tensors = {
        name: tensor
        for name, tensor in flatten_state_to_tensors_by_path(earlier).items()
        if "numbers" not in name
    }
    restored = restore_state_from_tensors(learner, tensors)
    learner.check_state(restored, (FEATURES,))
    x, _ = draw_rows(0, 1.0, 40)
    with torch.no_grad():
        assert learner.predict(restored, x[None]).eq(1.0).all()
    updated = learner.observe(restored, (make_place("b", 2, 0.4),), Randomness((0,)))
    assert updated.places.tolist() == [2] and updated.frame.tolist() == [[1.0, 2.0]]
    learner.check_state(updated, (FEATURES,))


@pytest.mark.parametrize("size", [1, 3, 12])
def test_tiny_places_and_constant_targets_give_finite_predictions(size):
    large, small = make_place("a", 1, 1.0, 60), make_place("b", 2, 0.4, size)
    x, _ = draw_rows(9, 0.4, size)
    constant = Environment("c", x, torch.ones(size), Task.regression())
    learner = create(Steady(view="directions"), large)
    for places in ((large, small, constant), (small, constant, large)):
        state = observe(learner, *places)
        with torch.no_grad():
            assert learner.predict(state, x[None]).isfinite().all()
