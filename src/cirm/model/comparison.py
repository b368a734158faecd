"""Compare the scores at a place with those on arrival at places that were new then.

The tests are one-sided (is it worse here?). Their p-values are adjusted by a closed
test, so that a false alarm has a probability of about 5 % whatever the number of
lines: a line counts as worse if every set of lines that it belongs to does. A set is
tested by the Cauchy combination of its p-values (Liu and Xie 2020), which loses little
where lines say nearly the same, as accuracy, ranking and the mean probability of the
true class do. The last has the largest weight, since a fall shows in it with the fewest
rows; calibration, and all classes together, have the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from cirm.model.estimates import (
    ScoreEstimate,
    build_calibration_gap_estimate,
    collect_score_statistics,
    compute_difference_interval,
    compute_p_value_of_difference,
    compute_prediction_interval_half_width,
    estimate_proportion,
    predict_score_of_new_environment,
)
from cirm.model.model import Model
from cirm.p_values import combine_p_values

Measured = Mapping[str, Mapping[str, float]]
"""What `collect_score_statistics` returns, or only the `accuracy` of all classes."""

# The Cauchy combination is a little too bold: at this level, 5 % of the verdicts at
# most are false alarms where places do not differ (benchmarks/verdict_rates.py).
LEVEL = 0.042
WEIGHTS = {"probability": 3.0, "roc_auc": 1.0, "accuracy": 0.25}
OTHER_WEIGHT = 0.1  # of calibration, and of the recalls of all classes together
# Standard deviation of the accuracy between places that the tests assume at least after
# several arrivals: no two places are quite alike, and few arrivals do not show by how
# much. With 0.01, 4 to 5 % are false alarms where places differ by so much; with 0.013
# more than 10 % of falls by five points would be missed where they do not differ
# (benchmarks/verdict_rates.py, docs/warnings.md).
LEAST_SPREAD = 0.01
MOST_P_VALUE = 0.95  # so that a score that is much better hides none that is worse
FEWEST_OF_CLASS = 10  # rows of a class whose recall is compared
TITLES = {
    "calibration_error": "calibration error",
    "probability": "mean probability of the true class",
    "roc_auc": "ROC AUC",
    "rmse": "root mean squared error",
}


@dataclass(frozen=True)
class ScoreComparisonWithPast:
    """A score here, compared with what was measured before.

    Attributes:
        score: "accuracy", "probability" (of the true class), "calibration_error",
            "roc_auc", "recall" or "rmse".
        label: The class, for a recall.
        value: The score here.
        expected: The score that was measured before; over several environments their
            mean.
        difference: How much worse it is here: in points, for `roc_auc` in its own
            unit, and for `rmse` in percent of what was expected.
        low: Lower end of the 90 % interval of the difference.
        high: Upper end of that interval.
        p_value: Of the hypothesis that it is not worse, adjusted for all comparisons.
        note: What the value is, in words.
        spread: Limit that the standard deviation between places is below with a
            probability of 95 %, in the unit of the difference; 0 if it is not known.
        reason: Why the difference is not judged, in words; empty if it is.
    """

    score: str
    label: str
    value: float
    expected: float
    difference: float
    low: float
    high: float
    p_value: float
    note: str = ""
    spread: float = 0.0
    reason: str = ""

    @property
    def is_worse(self) -> bool:
        """Whether the score is significantly worse, by the test and the interval."""
        return not self.reason and self.p_value <= LEVEL and self.low > 0

    @property
    def title(self) -> str:
        """The name of the score for readers."""
        label = f"recall of {self.label}" if self.label else self.score
        return TITLES.get(self.score, label)

    def describe_score_difference(self, where: str) -> str:
        """Return a line with the score, the difference, its interval and the result."""
        is_loss = self.score in ("calibration_error", "rmse")
        unit = {"roc_auc": "", "rmse": " %"}.get(self.score, " points")
        digits = 3 if self.score == "roc_auc" else 1
        side = "above" if (self.difference > 0) == is_loss else "below"
        sign = 1 if self.difference > 0 else -1
        low, high = sorted((sign * self.low, sign * self.high))
        result = "significantly worse" if self.is_worse else "not significantly worse"
        if self.low > 0 and not self.is_worse:
            result += ", considering how many scores are compared"
        return (
            f"{self.title} {self._format_score(self.value)}"
            f"{f' ({self.note})' if self.note else ''}: "
            f"{abs(self.difference):.{digits}f}{unit} {side} the "
            f"{self._format_score(self.expected)} {where} (90 % interval of the "
            f"difference {low:.{digits}f} to {high:.{digits}f}); "
            f"{self.reason or result}"
        )

    def as_dict(self, where: str) -> dict[str, Any]:
        """Return plain values for JSON, with the line."""
        named = {"score": self.score} | ({"class": self.label} if self.label else {})
        numbers = {
            name: getattr(self, name)
            for name in ("value", "expected", "difference", "low", "high", "p_value")
        }
        line = self.describe_score_difference(where)
        return {**named, **numbers, "significant": self.is_worse, "line": line}

    def _format_score(self, value: float) -> str:
        if self.score == "rmse":
            return f"{value:.4g}"
        return f"{value:.3f}" if self.score == "roc_auc" else f"{value:.1f} %"


def compare_scores_with_past_environments(
    model: Model,
    mean: Tensor,
    targets: Tensor,
    past: Sequence[Measured],
    weights: Tensor | None = None,
) -> list[ScoreComparisonWithPast]:
    """Compare predictions with what was measured in other environments.

    Args:
        model: The model that made the predictions.
        mean: Class probabilities [n, classes] or standardised values [n, 1].
        targets: Class indices or standardised values [n].
        past: What `collect_score_statistics` returned for each other environment.
        weights: Weights of the rows [n].

    Returns:
        A comparison for each score that both sides have.
    """
    here = collect_score_statistics(model, mean, targets, weights)
    if not model.task.classes:
        error = _compare_root_mean_squared_errors(
            *_estimate_score_and_expected_score(here, past, "error")
        )
        scale = model.schema.target.scale
        value, expected = scale * error.value, scale * error.expected
        return [replace(error, value=value, expected=expected)]
    found = [
        *_compare_accuracies_with_past(here, past),
        *_compare_true_class_probabilities(here, past),
    ]
    if known := [one["calibration"] for one in past if "calibration" in one]:
        found.append(_compare_calibration_errors(here["calibration"], known))
    if "ranking" in here and any("ranking" in one for one in past):
        new, old = _estimate_score_and_expected_score(here, past, "ranking", True)
        found.append(_compare_higher_is_better_scores("roc_auc", "", new, old, 1.0))
    return _adjust_p_values_for_multiple_tests(
        [*found, *_compare_recalls_with_past(here, past)]
    )


def _estimate_score_and_expected_score(
    here: Measured, past: Sequence[Measured], name: str, is_class_score: bool = False
) -> tuple[ScoreEstimate, ScoreEstimate]:
    """Return an estimate here, and what the others predict for it."""
    olds = [
        ScoreEstimate(one[name]["value"], one[name]["variance"])
        for one in past
        if name in one
    ]
    new = ScoreEstimate(here[name]["value"], here[name]["variance"])
    least = _compute_least_detectable_spread(olds, past) if is_class_score else 0.0
    return new, predict_score_of_new_environment(olds, least)


def _compute_least_detectable_spread(
    olds: Sequence[ScoreEstimate], past: Sequence[Measured]
) -> float:
    """Return the least spread of a score that is measured on the rows of the accuracy.

    In units of their sampling errors, scores of the same rows differ about as much.
    """
    known = [one for one in past if "correct" in one or "accuracy" in one]
    if not known:
        return LEAST_SPREAD
    accuracy = np.median(
        [_estimate_accuracy_from_counts(one).variance for one in known]
    )
    ratio = np.median([old.variance for old in olds]) / accuracy
    return LEAST_SPREAD * math.sqrt(float(ratio))


def _compare_root_mean_squared_errors(
    score_here: ScoreEstimate, expected_score: ScoreEstimate
) -> ScoreComparisonWithPast:
    """Compare root mean squared errors by their logarithms."""
    numbers = (
        score_here.value - expected_score.value,
        *compute_difference_interval(score_here, expected_score),
    )
    difference, low, high = (100 * math.expm1(min(number, 700)) for number in numbers)
    value, expected = math.exp(score_here.value), math.exp(expected_score.value)
    p_value = compute_p_value_of_difference(score_here, expected_score)
    spread = 100 * math.expm1(min(expected_score.compute_upper_limit_of_spread(), 700))
    scores = (value, expected, difference, low, high, p_value)
    return ScoreComparisonWithPast("rmse", "", *scores, spread=spread)


def _compare_calibration_errors(
    here: Mapping[str, float], past: Sequence[Mapping[str, float]]
) -> ScoreComparisonWithPast:
    """Compare mean squared calibration errors; report their roots in percent."""
    old = predict_score_of_new_environment(
        [build_calibration_gap_estimate(one) for one in past]
    )
    new = build_calibration_gap_estimate(here)
    (a, a_low, a_high), (b, b_low, b_high) = map(
        _compute_square_root_in_percent, (new, old)
    )
    # Zou and Donner 2008: an interval of the difference from those of its two parts.
    low = a - b - math.hypot(a - a_low, b_high - b)
    high = a - b + math.hypot(a_high - a, b - b_low)
    # The test takes the variance for granted that holds if nothing is worse.
    p_value = compute_p_value_of_difference(
        build_calibration_gap_estimate(here, old.value), old
    )
    note = "root mean square, corrected for chance"
    return ScoreComparisonWithPast(
        "calibration_error", "", a, b, a - b, low, high, p_value, note
    )


def _compute_square_root_in_percent(
    estimate: ScoreEstimate,
) -> tuple[float, float, float]:
    """Return the root of a mean square in percent, with its 90 % interval."""
    half = compute_prediction_interval_half_width(estimate)
    ends = (estimate.value, estimate.value - half, estimate.value + half)
    value, low, high = (100 * math.sqrt(max(end, 0.0)) for end in ends)
    return value, low, high


def _compare_higher_is_better_scores(
    score: str,
    label: str,
    score_here: ScoreEstimate,
    expected_score: ScoreEstimate,
    scale: float,
) -> ScoreComparisonWithPast:
    """Compare scores of which more is better."""
    ends = compute_difference_interval(expected_score, score_here)
    numbers = (
        score_here.value,
        expected_score.value,
        expected_score.value - score_here.value,
        *ends,
    )
    value, expected, difference, low, high = (scale * number for number in numbers)
    scores = (
        value,
        expected,
        difference,
        low,
        high,
        compute_p_value_of_difference(expected_score, score_here),
    )
    return ScoreComparisonWithPast(
        score,
        label,
        *scores,
        spread=scale * expected_score.compute_upper_limit_of_spread(),
    )


def _compare_accuracies_with_past(
    here: Measured, past: Sequence[Measured]
) -> list[ScoreComparisonWithPast]:
    """Compare accuracies, at the class frequencies of the others if they are known."""
    plain = _estimate_accuracy_from_counts(here)
    past = [one for one in past if "correct" in one or "accuracy" in one]
    if not past:
        return []
    if any("accuracy" in one for one in past):
        new, olds = plain, [_estimate_accuracy_from_counts(one) for one in past]
    elif mix := _compute_past_class_frequencies(here, past):
        new, *olds = (
            _average_estimates_over_classes(_estimate_recall_of_each_class(o), mix)
            for o in (here, *past)
        )
    else:
        return []
    found = _compare_higher_is_better_scores(
        "accuracy", "", new, predict_score_of_new_environment(olds, LEAST_SPREAD), 100.0
    )
    if abs(new.value - plain.value) < 0.0005:
        return [found]
    note = f"{found.value:.1f} % at the class frequencies of the earlier places"
    return [replace(found, value=100 * plain.value, note=note)]


def _estimate_accuracy_from_counts(statistics: Measured) -> ScoreEstimate:
    if "accuracy" in statistics:
        return estimate_proportion(
            statistics["accuracy"]["correct"], statistics["accuracy"]["rows"]
        )
    correct, rows = (sum(statistics[name].values()) for name in ("correct", "rows"))
    return estimate_proportion(correct, rows)


def _compute_past_class_frequencies(
    here: Measured, past: Sequence[Measured]
) -> dict[str, float]:
    """Return the class frequencies of the past, of classes that all places have."""
    places = [here, *past]
    names = [n for n in here["rows"] if all(one["rows"][n] for one in places)]
    totals = {name: sum(one["rows"][name] for one in past) for name in names}
    return {name: count / sum(totals.values()) for name, count in totals.items()}


def _average_estimates_over_classes(
    estimate_by_class: Mapping[str, ScoreEstimate],
    class_frequencies: Mapping[str, float],
) -> ScoreEstimate:
    """Return the mean over classes that have the frequencies of a mix."""
    return ScoreEstimate(
        sum(
            share * estimate_by_class[name].value
            for name, share in class_frequencies.items()
        ),
        sum(
            share**2 * estimate_by_class[name].variance
            for name, share in class_frequencies.items()
        ),
    )


def _estimate_recall_of_each_class(statistics: Measured) -> dict[str, ScoreEstimate]:
    rows, correct = statistics["rows"], statistics["correct"]
    return {n: estimate_proportion(correct[n], rows[n]) for n in rows if rows[n]}


def _compare_true_class_probabilities(
    here: Measured, past: Sequence[Measured]
) -> list[ScoreComparisonWithPast]:
    """Compare the probabilities of true classes, at the frequencies of the others."""
    past = [one for one in past if "probability" in one]
    mix = _compute_past_class_frequencies(here, past) if past else {}
    if not mix:
        return []
    new, *olds = (
        _average_estimates_over_classes(
            {
                name: ScoreEstimate(
                    one["probability"][name], one["probability_variance"][name]
                )
                for name in mix
            },
            mix,
        )
        for one in (here, *past)
    )
    old = predict_score_of_new_environment(
        olds, _compute_least_detectable_spread(olds, past)
    )
    return [_compare_higher_is_better_scores("probability", "", new, old, 100.0)]


def _compare_recalls_with_past(
    here: Measured, past: Sequence[Measured]
) -> list[ScoreComparisonWithPast]:
    found = []
    for name, rows in here["rows"].items():
        olds = [
            estimate_proportion(one["correct"][name], one["rows"][name])
            for one in past
            if "correct" in one and one["rows"][name] >= FEWEST_OF_CLASS
        ]
        if rows >= FEWEST_OF_CLASS and olds:
            new = estimate_proportion(here["correct"][name], rows)
            old = predict_score_of_new_environment(olds, LEAST_SPREAD)
            found.append(
                _compare_higher_is_better_scores("recall", name, new, old, 100.0)
            )
    return found


def _adjust_p_values_for_multiple_tests(
    comparisons: list[ScoreComparisonWithPast],
) -> list[ScoreComparisonWithPast]:
    """Adjust p-values by a closed test; all recalls together are one line of it."""
    recalls = [one.p_value for one in comparisons if one.score == "recall"]
    groups = {one.score: one.p_value for one in comparisons if one.score != "recall"}
    if recalls:
        groups["recall"] = max(adjust_p_values_by_holm(recalls))
    own = iter(adjust_p_values_by_holm(recalls))
    return [
        replace(
            one,
            p_value=_compute_closed_test_p_value(
                one.score, next(own) if one.score == "recall" else one.p_value, groups
            ),
        )
        for one in comparisons
    ]


def adjust_p_values_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, by Holm's method."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    raised = np.minimum(np.maximum.accumulate(np.sort(p_values) * factors), 1.0)
    return raised[np.argsort(order)].tolist()


def _compute_closed_test_p_value(
    score: str, p_value: float, groups: Mapping[str, float]
) -> float:
    """Return the largest combined p-value of the sets of groups that a score is in.

    The combination is a weighted mean, so the largest one is found by adding the other
    groups in decreasing order of their p-values.
    """
    others = sorted((p, name) for name, p in groups.items() if name != score)
    tests = [(p_value, score), *reversed(others)]
    p_values = [p for p, _ in tests]
    weights = [WEIGHTS.get(name, OTHER_WEIGHT) for _, name in tests]
    return max(
        combine_p_values(p_values[:count], weights[:count], MOST_P_VALUE)
        for count in range(1, len(tests) + 1)
    )
