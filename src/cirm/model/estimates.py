"""Scores as estimates with a sampling variance, combined over places and compared.

The estimates of several arrivals are combined by a random-effects meta-analysis whose
unknown spread is averaged over, so that the difference between places counts. A single
one leaves only the sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, ndtr
from torch import Tensor

from cirm.model.metrics import (
    assign_confidence_bins,
    compute_delong_variance,
    compute_roc_auc,
    compute_weighted_mean,
)
from cirm.model.model import Model
from cirm.model.threshold import predict_classes_by_threshold

SPREADS = np.concatenate(
    [[0.0], np.geomspace(0.02, 200.0, 40)]
)  # in units of the scale
USUAL_SPREAD = 0.16  # scale of the prior, in sampling errors: with it, of the values
# tried, a fall of five points is seldom missed where places do not differ, and false
# alarms are fewest where they do (docs/warnings.md)
BISECTIONS = 40  # each halves the error of a quantile


class PredictionForOneSpread(NamedTuple):
    """What a spread between places would mean for the value of a new one.

    Attributes:
        spread: The standard deviation between places.
        mean: Expected value at a new place.
        variance: Its variance, in the sampling of the mean and between places.
        weight: Posterior probability of the spread.
    """

    spread: float
    mean: float
    variance: float
    weight: float


class ScoreEstimate(NamedTuple):
    """A score with its sampling variance and third cumulant.

    If it is predicted from several places, `parts` hold what their unknown spread may
    be; `value` and `variance` are then the mean and variance of the prediction.
    """

    value: float
    variance: float
    third: float = 0.0
    parts: tuple[PredictionForOneSpread, ...] = ()

    def list_predictions_by_spread(self) -> tuple[PredictionForOneSpread, ...]:
        """Return the parts, or the estimate itself as the only one."""
        return self.parts or (
            PredictionForOneSpread(0.0, self.value, self.variance, 1.0),
        )

    def compute_upper_limit_of_spread(self) -> float:
        """Return the limit that the spread between places is below with 95 %."""
        total = 0.0
        for part in self.parts:
            total += part.weight
            if total >= 0.95:
                return part.spread
        return 0.0


def collect_score_statistics(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None = None
) -> dict[str, dict[str, float]]:
    """Return what a later comparison needs of predictions [n, k] and targets [n].

    If rows have weights [n], means are weighted, and the number of rows is the
    effective one.

    Classification: the `rows` of each class, how many are `correct`, and the mean
    `probability` that they were given, with its sampling variance
    (`probability_variance`); the estimates of `calibration` and, with two classes,
    `ranking`. Regression: that of the `error`.
    """
    if not model.task.classes:
        squares = (mean[:, 0] - targets).double().square()
        level = max(compute_weighted_mean(squares, weights), 1e-24)
        spread = compute_weighted_mean((squares - level).square(), weights)
        variance = spread / count_effective_rows(squares, weights) / (2 * level) ** 2
        return {"error": {"value": 0.5 * math.log(level), "variance": variance}}
    correct = (
        predict_classes_by_threshold(mean, model.task.classes, model.threshold)
        == targets
    )
    given = mean.double().gather(1, targets[:, None])[:, 0]
    names = ("rows", "correct", "probability", "probability_variance")
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    rows = found["rows"]
    for index, name in enumerate(model.task.classes):
        is_class = targets == index
        own = None if weights is None else weights[is_class]
        rows[name] = count_effective_rows(targets[is_class], own)
        for key in names[1:]:
            found[key][name] = 0.0
        if not rows[name]:
            continue
        rate = compute_weighted_mean(correct[is_class].double(), own)
        found["correct"][name] = min(rate * rows[name], rows[name])
        part = given[is_class]
        level = compute_weighted_mean(part, own)
        total = rows[name] * compute_weighted_mean((part - level).square(), own)
        found["probability"][name] = level
        # As with one more row, 0.5 away: the variance of few rows is not zero.
        noise = (total + 0.25) / (rows[name] + 1) / rows[name]
        found["probability_variance"][name] = min(noise, 1.0)
    is_likeliest = mean.argmax(-1) == targets
    found["calibration"] = _measure_calibration_gap(mean, is_likeliest, weights)
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


def _measure_calibration_gap(
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
        rows, mean_gap = (
            count_effective_rows(part, inside),
            compute_weighted_mean(part, inside),
        )
        # The noise is at least that of a calibrated model with one more row.
        chance = compute_weighted_mean(own * (1 - own), inside) / (rows + 1)
        spread = compute_weighted_mean((part - mean_gap).square(), inside)
        noise = max(chance, spread / (rows - 1) if rows > 1 else 0.0)
        found["value"] += weight * (mean_gap**2 - noise)
        found["variance"] += 2 * (weight * noise) ** 2
        found["slope"] += 4 * weight**2 * noise
        found["third"] += 8 * (weight * noise) ** 3
        found["third_slope"] += 24 * weight**3 * noise**2
    return found


def build_calibration_gap_estimate(
    measured: Mapping[str, float], true_mean_square: float | None = None
) -> ScoreEstimate:
    """Return a mean squared gap, with the variance that it has at a true mean square.

    Without `true_mean_square`, the estimate itself is taken for the true one.
    """
    true = max(measured["value"] if true_mean_square is None else true_mean_square, 0.0)
    return ScoreEstimate(
        measured["value"],
        measured["variance"] + true * measured["slope"],
        measured["third"] + true * measured["third_slope"],
    )


def estimate_proportion(n_correct: float, n_rows: float) -> ScoreEstimate:
    """Return a proportion; its variance is that with two more rows, one correct.

    Agresti and Caffo 2000: so it is not zero if all rows are correct, or none.
    """
    smooth = (n_correct + 1) / (n_rows + 2)
    return ScoreEstimate(n_correct / n_rows, smooth * (1 - smooth) / (n_rows + 2))


def predict_score_of_new_environment(
    estimates: Sequence[ScoreEstimate], min_spread: float = 0.0
) -> ScoreEstimate:
    """Return what the estimates of several environments predict for a new one.

    The prior of the spread between environments, beyond the least one, is a half Cauchy
    distribution: it expects them to differ less than their sampling errors, but gives
    way as soon as they do differ more.

    Args:
        estimates: The estimate of each environment.
        min_spread: The least standard deviation between environments, if there are
            several.
    """
    if len(estimates) == 1:
        return estimates[0]
    values, variances, thirds = (
        np.array([getattr(one, name) for one in estimates])
        for name in ("value", "variance", "third")
    )
    scale = USUAL_SPREAD * math.sqrt(float(np.median(variances)) + 1e-24)
    beyond = scale * SPREADS
    spreads = np.hypot(beyond, min_spread)
    precisions = 1 / (variances[:, None] + 1e-24 + spreads**2)
    total = precisions.sum(0)
    means = (precisions * values[:, None]).sum(0) / total
    squares = (precisions * (values[:, None] - means) ** 2).sum(0)
    logs = 0.5 * (np.log(precisions).sum(0) - np.log(total) - squares)
    logs += np.log(np.gradient(beyond)) - np.log1p(SPREADS**2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    ahead = 1 / total + spreads**2
    mean = float(weights @ means)
    shares = precisions[:, 0] / precisions[:, 0].sum()
    columns = zip(*(p.tolist() for p in (spreads, means, ahead, weights)), strict=True)
    return ScoreEstimate(
        mean,
        float(weights @ (ahead + (means - mean) ** 2)),
        float(shares**3 @ thirds),
        tuple(PredictionForOneSpread(*column) for column in columns),
    )


def compute_difference_interval(
    first: ScoreEstimate, second: ScoreEstimate
) -> tuple[float, float]:
    """Return the 90 % interval of a difference, first - second.

    It goes with a one-sided test at 5 %: the test finds a difference where the interval
    lies above 0.
    """
    difference = _build_normal_mixture_of_difference(first, second)
    return difference.find_quantile(0.05), difference.find_quantile(0.95)


def compute_prediction_interval_half_width(estimate: ScoreEstimate) -> float:
    """Return half the width of the 90 % interval of a new environment's value."""
    low, high = compute_difference_interval(estimate, ScoreEstimate(0.0, 0.0))
    return (high - low) / 2


def _build_normal_mixture_of_difference(
    first: ScoreEstimate, second: ScoreEstimate
) -> NormalMixture:
    """Return the mixture of a difference; each part of a side with all of the other."""
    parts = [
        (a.mean - b.mean, a.variance + b.variance, a.weight * b.weight)
        for a in first.list_predictions_by_spread()
        for b in second.list_predictions_by_spread()
    ]
    means, variances, weights = np.array(parts).T
    return NormalMixture(means, np.sqrt(variances) + 1e-12, weights)


class NormalMixture(NamedTuple):
    """A mixture of normal variables: means, deviations and weights, [m]."""

    means: NDArray[np.float64]
    deviations: NDArray[np.float64]
    weights: NDArray[np.float64]

    def compute_probability_below_value(self, value: float) -> float:
        """Return the probability of a value below a point."""
        return float(ndtr((value - self.means) / self.deviations) @ self.weights)

    def find_quantile(self, level: float) -> float:
        """Return a quantile of the mixture, by bisection."""
        reach = 10 * self.deviations
        low = float((self.means - reach).min())
        high = float((self.means + reach).max())
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if self.compute_probability_below_value(middle) < level:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def compute_p_value_of_difference(first: ScoreEstimate, second: ScoreEstimate) -> float:
    """Return the one-sided p-value of the hypothesis that first is not above second."""
    by_spread = _build_normal_mixture_of_difference(
        first, second
    ).compute_probability_below_value(0.0)
    deviation = max(math.sqrt(first.variance + second.variance), 1e-12)
    skewness = (first.third - second.third) / deviation**3
    if abs(skewness) < 1e-9:
        return by_spread
    z = (first.value - second.value) / deviation
    return float(max(by_spread, _compute_tail_by_gamma_approximation(z, skewness)))


def _compute_tail_by_gamma_approximation(z: float, skewness: float) -> float:
    """Return the probability above z of a standard gamma variable with a skewness.

    This is the Pearson distribution of type 3; a negative skewness mirrors it.
    """
    shape = 4 / skewness**2
    point = max(shape + z * math.copysign(shape**0.5, skewness), 0.0)
    return float((gammaincc if skewness > 0 else gammainc)(shape, point))


def compute_hanley_mcneil_variance(
    area: float, n_positives: float, n_rows: float
) -> float:
    """Return the variance of an area under the ROC curve from the numbers of rows.

    Hanley and McNeil, "The meaning and use of the area under a receiver operating
    characteristic (ROC) curve", 1982.
    """
    count = min(max(n_positives, 1.0), max(n_rows - 1, 1.0))
    rest = max(n_rows - count, 1.0)
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = (count - 1) * (first - area**2) + (rest - 1) * (second - area**2)
    return max((area * (1 - area) + spread) / (count * rest), 1e-12)
