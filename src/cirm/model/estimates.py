"""Scores as estimates with a sampling variance, combined over places and compared.

The estimates of several arrivals are combined by a random-effects meta-analysis, so
that the difference between places counts. A single one leaves only the sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from cirm.learners.steady.meta_analysis import combine_effects
from cirm.model.metrics import (
    assign_confidence_bins,
    compute_delong_variance,
    compute_mean,
    compute_roc_auc,
)
from cirm.model.model import Model
from cirm.model.threshold import decide_classes


class Estimate(NamedTuple):
    """A score with its sampling variance and third cumulant, and what else varies.

    `between` is the variance between places and `places` their number.
    """

    value: float
    variance: float
    third: float = 0.0
    between: float = 0.0
    places: float = 1.0


def collect_score_statistics(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None = None
) -> dict[str, dict[str, float]]:
    """Return what a later comparison needs of predictions [n, k] and targets [n].

    If rows have weights [n], means are weighted, and the number of rows is the
    effective one.

    Classification: the `rows` of each class and how many are `correct`, and the
    estimates of `calibration` and, with two classes, `ranking`. Regression: that of
    the `error`.
    """
    if not model.task.classes:
        squares = (mean[:, 0] - targets).double().square()
        level = max(compute_mean(squares, weights), 1e-24)
        spread = compute_mean((squares - level).square(), weights)
        variance = spread / count_effective_rows(squares, weights) / (2 * level) ** 2
        return {"error": {"value": 0.5 * math.log(level), "variance": variance}}
    correct = decide_classes(mean, model.task.classes, model.threshold) == targets
    rows, right = {}, {}
    for index, name in enumerate(model.task.classes):
        is_class = targets == index
        own = None if weights is None else weights[is_class]
        rows[name] = count_effective_rows(targets[is_class], own)
        rate = compute_mean(correct[is_class].double(), own) if rows[name] else 0.0
        right[name] = min(rate * rows[name], rows[name])
    found = {"rows": rows, "correct": right}
    is_likeliest = mean.argmax(-1) == targets
    found["calibration"] = _measure_calibration(mean, is_likeliest, weights)
    if len(rows) == 2 and min(rows.values()) > 0:
        variance = compute_delong_variance(mean[:, 1], targets)
        area = compute_roc_auc(mean[:, 1], targets, weights)
        # Without weights the ratio is 1; with them fewer rows count.
        variance *= len(targets) / count_effective_rows(targets, weights)
        found["ranking"] = {"value": area, "variance": variance}
    return found


def count_effective_rows(rows: Tensor, weights: Tensor | None) -> float:
    """Return the number of rows [n], or with weights [n] the effective one (Kish)."""
    if weights is None:
        return float(len(rows))
    total = weights.double().sum()
    return float(total**2 / weights.double().square().sum().clamp(min=1e-300))


def _measure_calibration(
    mean: Tensor, correct: Tensor, weights: Tensor | None = None
) -> dict[str, float]:
    """Return the mean squared gap of accuracy and confidence over bins, less noise.

    The square of a bin's mean gap exceeds that of its expectation by the variance of
    the mean, on average. Subtracting it makes samples of different sizes comparable.
    The other values give the variance and third cumulant of the result, as linear
    functions of the true mean square: those of a noncentral chi-squared variable.
    """
    confidence = mean.double().max(-1).values
    gaps, bins = correct.double() - confidence, assign_confidence_bins(confidence)
    found = dict.fromkeys(("value", "variance", "slope", "third", "third_slope"), 0.0)
    mass = torch.ones_like(gaps) if weights is None else weights.double()
    for index in bins.unique().tolist():
        part, own = gaps[bins == index], confidence[bins == index]
        inside = None if weights is None else weights[bins == index]
        weight = float(mass[bins == index].sum() / mass.sum())
        rows, mean_gap = count_effective_rows(part, inside), compute_mean(part, inside)
        # The noise is at least that of a calibrated model with one more row.
        chance = compute_mean(own * (1 - own), inside) / (rows + 1)
        spread = compute_mean((part - mean_gap).square(), inside)
        noise = max(chance, spread / (rows - 1) if rows > 1 else 0.0)
        found["value"] += weight * (mean_gap**2 - noise)
        found["variance"] += 2 * (weight * noise) ** 2
        found["slope"] += 4 * weight**2 * noise
        found["third"] += 8 * (weight * noise) ** 3
        found["third_slope"] += 24 * weight**3 * noise**2
    return found


def estimate_calibration(
    measured: Mapping[str, float], square: float | None = None
) -> Estimate:
    """Return a mean squared gap, with the variance that it has at a true mean square.

    Without `square`, the estimate itself is taken for the true one.
    """
    true = max(measured["value"] if square is None else square, 0.0)
    return Estimate(
        measured["value"],
        measured["variance"] + true * measured["slope"],
        measured["third"] + true * measured["third_slope"],
    )


def estimate_proportion(correct: float, rows: float) -> Estimate:
    """Return a proportion; its variance is that with two more rows, one correct.

    Agresti and Caffo 2000: so it is not zero if all rows are correct, or none.
    """
    smooth = (correct + 1) / (rows + 2)
    return Estimate(correct / rows, smooth * (1 - smooth) / (rows + 2))


def combine_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Return what the estimates of several environments predict for a new one."""
    if len(estimates) == 1:
        return estimates[0]
    values, variances = (
        torch.tensor([getattr(one, name) for one in estimates], dtype=torch.float64)
        for name in ("value", "variance")
    )
    summary = combine_effects(values, variances)
    between = float(summary.spread) ** 2
    weights = 1 / (variances + between)
    thirds = zip((weights / weights.sum()).tolist(), estimates, strict=True)
    return Estimate(
        float(summary.mean),
        float(summary.error) ** 2,
        sum(weight**3 * one.third for weight, one in thirds),
        between,
        len(estimates),
    )


def compute_difference_interval(one: Estimate, other: Estimate) -> tuple[float, float]:
    """Return the 95 % interval of a difference, one - other."""
    difference = Estimate(
        one.value - other.value,
        one.variance + other.variance,
        0.0,
        one.between + other.between,
        max(one.places, other.places),
    )
    half = compute_half_width(difference)
    return difference.value - half, difference.value + half


def compute_half_width(estimate: Estimate) -> float:
    """Return half the width of the 95 % interval of a new environment's value."""
    total = estimate.variance + estimate.between
    quantile = stats.t.ppf(0.975, _compute_degrees_of_freedom(estimate))
    return float(quantile) * math.sqrt(total)


def _compute_degrees_of_freedom(estimate: Estimate) -> float:
    """Return Satterthwaite's degrees of freedom; those of the spread are places - 1."""
    if estimate.between == 0:
        return 1e9
    share = estimate.between / (estimate.variance + estimate.between)
    return (estimate.places - 1) / share**2


def compute_p_value(one: Estimate, other: Estimate) -> float:
    """Return the one-sided p-value of the hypothesis that one is not above other."""
    between = one.between + other.between
    variance = one.variance + other.variance
    places = max(one.places, other.places)
    freedom = _compute_degrees_of_freedom(Estimate(0.0, variance, 0.0, between, places))
    deviation = max(math.sqrt(variance + between), 1e-12)
    z = (one.value - other.value) / deviation
    skewness = (one.third - other.third) / deviation**3
    by_spread, by_skewness = stats.t.sf(z, freedom), stats.pearson3.sf(z, skewness)
    return float(max(by_spread, by_skewness))


def compute_hanley_mcneil_variance(area: float, positives: float, rows: float) -> float:
    """Return the variance of an area under the ROC curve from the numbers of rows.

    Hanley and McNeil, "The meaning and use of the area under a receiver operating
    characteristic (ROC) curve", 1982.
    """
    count = min(max(positives, 1.0), max(rows - 1, 1.0))
    rest = max(rows - count, 1.0)
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = (count - 1) * (first - area**2) + (rest - 1) * (second - area**2)
    return max((area * (1 - area) + spread) / (count * rest), 1e-12)
