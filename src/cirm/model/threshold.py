"""Thresholds: from which probability on one of two classes is predicted.

A threshold is a number, or a rule that chooses one on held-out rows: `recall=0.9`,
`precision=0.5`, `rate=0.05` (the fraction of rows that may be predicted positive) or
`cost=5:1` (the cost of a missed positive row, and of a false alarm). The probabilities
of held-out rows are kept as quantiles, so that a rule can be applied later too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cirm.intervals import compute_wilson_interval

if TYPE_CHECKING:
    from torch import Tensor

MOST_SCORES = 500  # of a class: quantiles beyond that hardly change a threshold
FEWEST_POSITIVES = 10  # held-out rows; a recall of fewer is hardly known
EXAMPLES = (
    "Give a number such as 0.2, or a rule: recall=0.9, precision=0.5, rate=0.05 or "
    "cost=5:1."
)


@dataclass(frozen=True)
class HeldOutProbabilities:
    """Probabilities of the positive class on rows that were not trained on.

    Attributes:
        rows: Number of those rows that are of the positive class, and of the other.
        positives: Quantiles of the probabilities of the positive rows, ascending.
        others: Those of the other rows.
    """

    rows: tuple[float, float]
    positives: tuple[float, ...]
    others: tuple[float, ...]


@dataclass(frozen=True)
class DecisionThreshold:
    """The least probability of the positive class at which it is predicted.

    Attributes:
        value: The probability.
        rule: How it was chosen, as the user wrote it.
        positive: The positive class.
    """

    value: float
    rule: str
    positive: str


class DecisionThresholdRule(NamedTuple):
    """A rule by its name ("value" for a plain number) and its numbers."""

    name: str
    first: float
    second: float = 0.0


def predict_classes_by_threshold(
    probabilities: Any,  # noqa: ANN401  a tensor or an array
    classes: tuple[str, ...],
    threshold: DecisionThreshold | None,
) -> Any:  # noqa: ANN401
    """Return the predicted classes [n] of probabilities [n, classes], by index."""
    if threshold is None:
        return probabilities.argmax(-1)
    positive = classes.index(threshold.positive)
    is_positive = probabilities[:, positive] >= threshold.value
    return (is_positive if positive else ~is_positive) * 1


def parse_threshold_rule(text: str) -> DecisionThresholdRule:
    """Parse a threshold as a user writes it."""
    name, equals, value = text.partition("=")
    name, value = (name.strip(), value) if equals else ("value", text)
    try:
        first, second = (
            map(float, value.split(":")) if name == "cost" else (float(value), 0.0)
        )
    except ValueError:
        raise ValueError(f"--threshold: {text!r} is not valid. {EXAMPLES}") from None
    if name not in ("value", "recall", "precision", "rate", "cost"):
        raise ValueError(f"--threshold: {text!r} is not valid. {EXAMPLES}")
    is_valid = min(first, second) > 0 if name == "cost" else 0 < first < 1
    if not is_valid or not np.isfinite([first, second]).all():
        allowed = "positive numbers" if name == "cost" else "a number between 0 and 1"
        raise ValueError(f"--threshold: {value!r} is out of range. Give {allowed}.")
    return DecisionThresholdRule(name, first, second)


def summarise_held_out_probabilities(
    probabilities: Tensor, is_positive: Tensor, weights: Tensor | None = None
) -> HeldOutProbabilities:
    """Return the scores of held-out rows from their probabilities [n]."""
    parts = []
    for chosen in (is_positive, ~is_positive):
        own = probabilities[chosen].double().numpy()
        mass = np.ones(len(own)) if weights is None else weights[chosen].numpy()
        parts.append((float(mass.sum()), _compute_probability_quantiles(own, mass)))
    (count, positives), (rest, others) = parts
    return HeldOutProbabilities((count, rest), positives, others)


def _compute_probability_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, ...]:
    """Return the values in order, or evenly spaced quantiles if weighted or many."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    if len(values) > MOST_SCORES or len(np.unique(weights)) > 1:
        ends = np.cumsum(weights) / weights.sum()
        places = (np.arange(MOST_SCORES) + 0.5) / MOST_SCORES
        values = values[np.searchsorted(ends, places).clip(max=len(values) - 1)]
    return tuple(float(f"{value:.6g}") for value in values)


def choose_decision_threshold(
    rule_text: str, positive_class: str, held_out: HeldOutProbabilities | None
) -> DecisionThreshold:
    """Return the threshold that a rule, as the user wrote it, gives."""
    rule = parse_threshold_rule(rule_text)
    if rule.name == "value":
        return DecisionThreshold(rule.first, rule_text, positive_class)
    count, rest = held_out.rows if held_out else (0.0, 0.0)
    if held_out is None or min(count, rest) < FEWEST_POSITIVES:
        which = "of" if count <= rest else "not of"
        raise ValueError(
            f"--threshold {rule_text}: choosing a threshold needs {FEWEST_POSITIVES} "
            f"held-out rows {which} the class {positive_class!r}, but there are only "
            f"{min(count, rest):.0f}. Fit with more rows or a larger --held-out (up "
            "to 0.5), or give a number, as in --threshold 0.2."
        )
    cuts, recall, alarms = _compute_recall_and_false_positive_rate(held_out)
    found, false = recall * count, alarms * rest
    if rule.name == "cost":
        best = np.argmin(rule.first * (count - found) + rule.second * false)
        return DecisionThreshold(float(cuts[best]), rule_text, positive_class)
    precision = found / np.maximum(found + false, 1e-12)
    reached = {
        "recall": recall >= rule.first - 1e-9,
        "precision": precision >= rule.first,
        "rate": found + false <= rule.first * sum(held_out.rows),
    }
    allowed = cuts[reached[rule.name] & (found + false > 0)]
    if not len(allowed):
        raise ValueError(
            f"--threshold {rule_text}: no threshold meets this rule on the held-out "
            f"rows, where the highest precision is {precision.max():.2f}. Ask for a "
            "lower precision or a higher rate."
        )
    # The highest one that finds enough, or else the lowest, which finds most.
    value = allowed[-1] if rule.name == "recall" else allowed[0]
    return DecisionThreshold(float(value), rule_text, positive_class)


def _compute_recall_and_false_positive_rate(
    held_out: HeldOutProbabilities,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return thresholds, ascending, with recall and false positive rate at each.

    A threshold lies between two probabilities that occur, so that rounding does not
    change what is predicted.
    """
    positives, others = np.array(held_out.positives), np.array(held_out.others)
    values = np.unique(np.concatenate([positives, others, [0.0, 1.0]]))
    cuts = (values[1:] + values[:-1]) / 2
    at_least = [
        1 - np.searchsorted(part, cuts) / max(len(part), 1)
        for part in (positives, others)
    ]
    return cuts, at_least[0], at_least[1]


def describe_threshold_in_words(
    threshold: DecisionThreshold, held_out: HeldOutProbabilities | None
) -> str:
    """Return a sentence about a threshold and what it gives on held-out rows."""
    text = (
        f"Predicts {threshold.positive!r} if its probability is {threshold.value:.4g} "
        f"or more (threshold {threshold.rule}"
    )
    if held_out is None or min(held_out.rows) < 1:
        return f"{text})."
    recall, alarms = (
        float((np.array(part) >= threshold.value).mean())
        for part in (held_out.positives, held_out.others)
    )
    found, false = recall * held_out.rows[0], alarms * held_out.rows[1]
    parts = [_format_rate_with_interval("recall", found, held_out.rows[0])]
    if found + false > 0:
        parts.append(_format_rate_with_interval("precision", found, found + false))
    return (
        f"{text}; on {sum(held_out.rows):,.0f} held-out rows, {held_out.rows[0]:,.0f} "
        f"of them {threshold.positive!r}: {', '.join(parts)})."
    )


def _format_rate_with_interval(name: str, count: float, n_rows: float) -> str:
    low, high = (100 * end for end in compute_wilson_interval(count, n_rows))
    rate = 100 * count / n_rows
    return f"{name} {rate:.0f} % (95 % interval {low:.0f} to {high:.0f})"
