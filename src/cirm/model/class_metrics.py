"""How well each class is recognised: recall, precision, and the confusion matrix.

Rows may have weights. Rates and areas are then weighted, as in scikit-learn, and their
intervals follow from the effective number of rows, (sum of w)^2 / sum of w^2 (Kish).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cirm.evaluation.metrics import (
    compute_average_precision,
    compute_confusion_matrix,
    fill_in_row_weights,
)
from cirm.intervals import compute_interval_on_logit_scale, compute_wilson_interval

CONSTANT = 0.95  # of the rows of other classes, predicted as the same class
FEWEST_OTHERS = 5  # rows of other classes; a useful model might miss fewer


def describe_confusion_matrix(
    predicted_classes: Tensor,
    targets: Tensor,
    classes: tuple[str, ...],
    weights: Tensor | None = None,
) -> dict[str, Any]:
    """Return the confusion matrix in plain values, with intervals of its rates.

    Returns:
        `classes`; `counts` [class, predicted class]; and `percent`, `low` and `high`,
        the same in percent of the rows of a class with 95 % intervals.
    """
    counts = compute_confusion_matrix(predicted_classes, targets, len(classes), weights)
    totals = counts.sum(1).tolist()
    factors = [
        _compute_effective_rows_per_weight(targets == index, weights)
        for index in range(len(classes))
    ]
    found: dict[str, Any] = {"classes": list(classes), "counts": counts.tolist()}
    found |= {"percent": [], "low": [], "high": []}
    for row, total, factor in zip(counts.tolist(), totals, factors, strict=True):
        ends = [compute_wilson_interval(factor * n, factor * total) for n in row]
        found["percent"].append([100 * n / total if total else 0.0 for n in row])
        found["low"].append([100 * low for low, _ in ends])
        found["high"].append([100 * high for _, high in ends])
    return found


def compute_class_metrics(
    mean: Tensor,
    predicted_classes: Tensor,
    targets: Tensor,
    classes: tuple[str, ...],
    weights: Tensor | None = None,
) -> dict[str, dict[str, float]]:
    """Return precision, recall and the area under the precision-recall curve by class.

    Percentages, with the ends of their 95 % intervals (`recall_low`, `recall_high`,
    ...). A value that no row can show is left out.
    """
    counts = compute_confusion_matrix(predicted_classes, targets, len(classes), weights)
    scores = {}
    for index, name in enumerate(classes):
        right = float(counts[index, index])
        found = {"predicted": float(counts[:, index].sum())}
        for rate, rows in (
            ("recall", targets == index),
            ("precision", predicted_classes == index),
        ):
            total = float(fill_in_row_weights(weights, targets)[rows].sum())
            if total > 0:
                factor = _compute_effective_rows_per_weight(rows, weights)
                low, high = compute_wilson_interval(factor * right, factor * total)
                ends = {f"{rate}_low": 100 * low, f"{rate}_high": 100 * high}
                found |= {rate: 100 * right / total} | ends
        is_class = targets == index
        if 0 < int(is_class.sum()) < len(targets):
            area = compute_average_precision(mean[:, index], is_class, weights)
            low, high = compute_average_precision_interval(area, is_class, weights)
            found |= {"average_precision": area}
            found |= {"average_precision_low": low, "average_precision_high": high}
        scores[name] = found
    return scores


def compute_average_precision_interval(
    area: float, is_positive: Tensor, weights: Tensor | None = None
) -> tuple[float, float]:
    """Return the 95 % interval of an area (Boyd, Eng and Page 2013, logit interval)."""
    rows = _compute_effective_rows_per_weight(is_positive, weights)
    rows *= float(fill_in_row_weights(weights, is_positive)[is_positive].sum())
    # Their variance of the logit, 1 / (n a (1 - a)), by the delta method.
    return compute_interval_on_logit_scale(area, area * (1 - area) / max(rows, 1.0))


def find_always_predicted_class(
    predicted_classes: Tensor, targets: Tensor
) -> int | None:
    """Return the class that nearly every row of every class is predicted as, if any.

    Judged on rows of the other classes, so that it does not matter how rare they are:
    a model that finds none of one percent of positive rows is constant.
    """
    most = int(predicted_classes.mode().values)
    others = predicted_classes[targets != most]
    if len(others) < FEWEST_OTHERS:
        return None
    return most if float((others == most).double().mean()) >= CONSTANT else None


def _compute_effective_rows_per_weight(rows: Tensor, weights: Tensor | None) -> float:
    """Return the effective number of the chosen rows [n] over their total weight."""
    if weights is None:
        return 1.0
    own = weights[rows].double()
    return float(own.sum() / own.square().sum().clamp(min=1e-300))
