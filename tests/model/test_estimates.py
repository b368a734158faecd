"""Estimates and their combination: closed forms, limits and integrals."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch

from cirm.environments import Task
from cirm.model.abstention import _estimate_shift_of_error_log_odds
from cirm.model.comparison import _compare_calibration_errors, adjust_p_values_by_holm
from cirm.model.conformal import (
    LEVELS,
    _estimate_quantile_of_scores,
    _find_threshold_by_random_effects,
    collect_nonconformity_scores,
)
from cirm.model.estimates import (
    SPREADS,
    USUAL_SPREAD,
    ScoreEstimate,
    _compute_tail_by_gamma_approximation,
    build_calibration_gap_estimate,
    collect_score_statistics,
    compute_hanley_mcneil_variance,
    compute_prediction_interval_half_width,
    predict_score_of_new_environment,
)
from cirm.model.facts import NonconformitySummary
from cirm.model.new_place import SPREADS as PLACE_SPREADS
from cirm.model.new_place import USUAL_SPREAD as PLACE_SPREAD
from cirm.model.new_place import predict_quantity_at_new_place

MODEL = SimpleNamespace(task=Task(("no", "yes")), threshold=None)


def make_probabilities(second):
    second = torch.as_tensor(second)
    return torch.stack([1 - second, second], 1)


def average_over_spreads(values, variances, spreads, log_prior):
    """Mean and variance at a new place, by the trapezoidal rule over many spreads."""
    precisions = 1 / (np.array(variances)[:, None] + spreads**2)
    total = precisions.sum(0)
    means = (precisions * np.array(values)[:, None]).sum(0) / total
    squares = (precisions * (np.array(values)[:, None] - means) ** 2).sum(0)
    logs = 0.5 * (np.log(precisions).sum(0) - np.log(total) - squares) + log_prior
    density = np.exp(logs - logs.max())
    density /= np.trapezoid(density, spreads)
    mean = np.trapezoid(density * means, spreads)
    ahead = 1 / total + spreads**2 + (means - mean) ** 2
    return mean, np.trapezoid(density * ahead, spreads)


def test_spreads_have_a_half_cauchy_prior_whatever_their_grid():
    values, variances = [0.70, 0.78, 0.90], [4e-4, 1e-4, 2e-4]
    found = predict_score_of_new_environment(
        list(map(ScoreEstimate, values, variances))
    )
    scale = USUAL_SPREAD * math.sqrt(2e-4)
    spreads = np.linspace(0, 1.0, 400_001)  # beyond that the density is negligible
    assert scale * SPREADS[-1] < 1
    prior = -np.log1p((spreads / scale) ** 2)
    inside = spreads <= scale * SPREADS[-1]
    wanted = average_over_spreads(values, variances, spreads[inside], prior[inside])
    assert (found.value, found.variance) == pytest.approx(wanted, rel=0.03)


def test_third_cumulants_add_up_with_cubes_of_the_weights_of_a_mean():
    variances, thirds = np.array([4e-4, 1e-4, 2e-4]), np.array([3e-6, 1e-6, 2e-6])
    found = predict_score_of_new_environment(
        [
            ScoreEstimate(0.5, v, third)
            for v, third in zip(variances, thirds, strict=True)
        ]
    )
    weights = (1 / variances) / (1 / variances).sum()
    assert found.third == pytest.approx(weights**3 @ thirds, rel=1e-9, abs=0)


def test_places_that_agree_still_have_the_least_spread_and_a_single_one_none():
    exact = ScoreEstimate(0.8, 1e-12)
    # Of the mean of two places and of a third one, by the same spread.
    found = predict_score_of_new_environment([exact, exact], min_spread=0.01)
    assert found.variance == pytest.approx(0.01**2 * (1 / 2 + 1), rel=1e-3)
    assert predict_score_of_new_environment([exact], min_spread=0.01) == exact


def test_spreads_of_a_new_place_have_a_half_normal_prior_whatever_their_grid():
    values, variances = np.array([0.2, 0.9, 0.4]), np.array([0.02, 0.01, 0.05])
    found = predict_quantity_at_new_place(values, variances)
    spreads = np.linspace(PLACE_SPREADS[0], PLACE_SPREADS[-1], 200_001)
    prior = -0.5 * (spreads / PLACE_SPREAD) ** 2
    mean = found.weights @ found.means
    variance = found.weights @ (found.deviations**2 + (found.means - mean) ** 2)
    wanted = average_over_spreads(values, variances, spreads, prior)
    assert (mean, variance) == pytest.approx(wanted, rel=0.01)


def test_the_variance_of_an_area_is_that_of_exponential_scores():
    # With scores of exponential distributions the formula of 1982 is exact.
    rng = np.random.default_rng(0)
    ratio, positives, others = 9.0, 5, 200
    first = rng.exponential(ratio, (4000, positives, 1))
    second = rng.exponential(1.0, (4000, 1, others))
    areas = (first > second).mean((1, 2))
    found = compute_hanley_mcneil_variance(
        ratio / (1 + ratio), positives, positives + others
    )
    assert found == pytest.approx(areas.var(), rel=0.1)


def test_weights_leave_fewer_rows_for_the_area():
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(400) % 2
    scores = (torch.randn(400, generator=generator) + targets).sigmoid().double()
    weights = torch.tensor([1.0, 1.0, 0.0, 0.0]).repeat(100)
    mean = make_probabilities(scores)
    plain = collect_score_statistics(MODEL, mean, targets)["ranking"]
    half = collect_score_statistics(MODEL, mean, targets, weights)["ranking"]
    assert half["variance"] == pytest.approx(2 * plain["variance"])


def test_a_ranking_needs_two_classes_and_rows_of_both():
    even = make_probabilities(torch.full((6,), 0.4))
    both = collect_score_statistics(MODEL, even, torch.arange(6) % 2)
    alike = collect_score_statistics(MODEL, even, torch.zeros(6, dtype=torch.int64))
    assert "ranking" in both and "ranking" not in alike
    three = SimpleNamespace(task=Task(("a", "b", "c")), threshold=None)
    mean, targets = torch.full((6, 3), 1 / 3), torch.arange(6) % 3
    assert "ranking" not in collect_score_statistics(three, mean, targets)


@pytest.mark.parametrize("skewness", [-2.0, -0.3, 0.5, 1.5])
def test_skewed_tails_are_those_of_the_pearson_distribution(skewness):
    for z in (-2.5, -1.0, 0.0, 1.0, 3.0):
        expected = scipy.stats.pearson3.sf(z, skewness)
        found = _compute_tail_by_gamma_approximation(z, skewness)
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 4])
def test_squared_gaps_of_calibrated_bins_are_as_skewed_as_chi_squared(bins):
    confidence = torch.tensor([0.55, 0.65, 0.75, 0.85])[:bins].double()
    chosen = confidence.repeat_interleave(1000)
    # Noise of all bins alike, so that they have the same part in the sum.
    targets = torch.cat([(torch.arange(1000) < 1000 * c).long() for c in confidence])
    measured = collect_score_statistics(MODEL, make_probabilities(chosen), targets)
    found = build_calibration_gap_estimate(measured["calibration"], 0.0)
    noises = (confidence * (1 - confidence)).numpy()
    skewness = math.sqrt(8) * (noises**3).sum() / (noises**2).sum() ** 1.5
    assert found.third / found.variance**1.5 == pytest.approx(skewness, rel=1e-3)


def test_a_certain_calibration_error_leaves_the_interval_of_the_other():
    certain = {"value": 0.04, "variance": 0.0, "slope": 0.0}
    certain |= {"third": 0.0, "third_slope": 0.0}
    vague = {**certain, "value": 0.01, "variance": 4e-6}
    half = compute_prediction_interval_half_width(ScoreEstimate(0.01, 4e-6))
    ends = [100 * math.sqrt(0.01 - half), 100 * math.sqrt(0.01 + half)]
    found = _compare_calibration_errors(certain, [vague])
    assert (found.low, found.high) == pytest.approx((20 - ends[1], 20 - ends[0]))
    found = _compare_calibration_errors(vague, [certain])
    assert (found.low, found.high) == pytest.approx((ends[0] - 20, ends[1] - 20))


def test_a_larger_p_value_is_never_adjusted_to_a_smaller_one():
    assert adjust_p_values_by_holm([0.012, 0.5, 0.01]) == pytest.approx(
        [0.03, 0.5, 0.03]
    )


def test_the_error_of_a_quantile_is_that_of_order_statistics():
    # Of uniform scores, the quantile of a level varies by level * (1 - level) / rows.
    centre, variance = _estimate_quantile_of_scores(300, LEVELS, 0.8)
    assert centre == pytest.approx(0.8 * (1 + 1 / 300))
    assert variance == pytest.approx(0.8 * 0.2 / 300, rel=1e-6)


def test_a_place_of_a_few_rows_hardly_changes_a_threshold():
    usual = [(200, LEVELS - 0.9)] * 3
    with_other = [*usual, (10, 20 * (LEVELS - 0.9))]
    found = _find_threshold_by_random_effects(with_other, 0.9)
    assert found == pytest.approx(
        _find_threshold_by_random_effects(usual, 0.9), abs=0.005
    )


def test_intervals_shrink_as_much_as_an_adaptation_shrinks_residuals():
    scores = NonconformitySummary({"": 100}, {"": tuple(np.log(LEVELS).tolist())})
    entry = SimpleNamespace(
        metrics_before={"rmse": 1.0}, nonconformity=scores, nonconformity_adapted=None
    )
    model = SimpleNamespace(
        task=Task.regression(),
        history=(entry,),
        adaptation="somewhere",
        get_residual_ratio_after_adapting=lambda: 0.5,
    )
    (found,), _ = collect_nonconformity_scores(model)
    assert np.exp(found.quantiles[""]) == pytest.approx(LEVELS / 2)


def test_the_log_odds_of_errors_vary_as_those_of_a_binomial_rate():
    rows, wrong = np.array([4000.0]), np.array([400.0])
    shift, variance = _estimate_shift_of_error_log_odds(rows, wrong, np.zeros(1))
    assert shift == pytest.approx(math.log(0.1 / 0.9), abs=2e-3)
    assert variance == pytest.approx(1 / (4000 * 0.1 * 0.9), rel=0.01)
