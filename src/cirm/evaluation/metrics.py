"""Scores of predicted classes that models and runs share, with their definitions.

Percentages are from 0 to 100. Where scikit-learn has the score, the value is the same.
Rows may have weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def compute_average_precision(
    scores: Tensor, is_positive: Tensor, weights: Tensor | None = None
) -> float:
    """Area under the precision-recall curve, as scikit-learn's average precision.

    Args:
        scores: Scores [n]; higher ones mean positive.
        is_positive: Which rows are positive, [n]; at least one is.
        weights: Weights of the rows, [n].
    """
    order = scores.double().argsort(descending=True, stable=True)
    scores, mass = scores[order], fill_in_row_weights(weights, scores)[order]
    found = (mass * is_positive[order]).cumsum(0)
    is_last = torch.ones(len(scores), dtype=torch.bool)
    is_last[:-1] = scores[1:] != scores[:-1]  # rows of equal scores count together
    found, total = found[is_last], mass.cumsum(0)[is_last]
    gains = found.diff(prepend=found.new_zeros(1))
    precision = found / total.clamp(min=1e-300)
    return float((precision * gains).sum() / found[-1])


def compute_balanced_accuracy(
    predicted_classes: Tensor, targets: Tensor, weights: Tensor | None = None
) -> float:
    """Mean recall, in percent, of the classes that occur among the targets."""
    mass = fill_in_row_weights(weights, targets)
    correct = (predicted_classes == targets).double()
    recalls = [
        (mass * correct)[targets == index].sum() / mass[targets == index].sum()
        for index in targets.unique()
    ]
    return 100 * float(torch.stack(recalls).mean())


def compute_confusion_matrix(
    predicted_classes: Tensor,
    targets: Tensor,
    n_classes: int,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the confusion matrix [class, predicted class], as weights of rows."""
    matrix = torch.zeros(n_classes * n_classes, dtype=torch.float64)
    places = targets * n_classes + predicted_classes
    mass = fill_in_row_weights(weights, targets)
    return matrix.index_add(0, places, mass).reshape(n_classes, n_classes)


def compute_f1_score(
    predicted_classes: Tensor,
    targets: Tensor,
    n_classes: int,
    weights: Tensor | None = None,
) -> float:
    """Harmonic mean of precision and recall, in percent.

    With two classes it is that of the second one; with more, the mean over the classes
    that occur among predictions or targets (macro F1). A class that is never predicted
    correctly has 0.
    """
    matrix = compute_confusion_matrix(predicted_classes, targets, n_classes, weights)
    correct, both = matrix.diagonal(), matrix.sum(0) + matrix.sum(1)
    scores = 2 * correct / both.clamp(min=1e-300)
    if n_classes == 2:
        return 100 * float(scores[1])
    return 100 * float(scores[both > 0].mean())


def compute_brier_score(
    probabilities: Tensor, targets: Tensor, weights: Tensor | None = None
) -> float:
    """Mean squared distance of probabilities [n, k] from the classes that occurred.

    It is summed over the classes; with two classes, whose distances are equal, it is
    that of one of them. The range is from 0 to 1, or to 2 with more classes.
    """
    classes = probabilities.shape[1]
    gaps = probabilities.double() - F.one_hot(targets, classes)
    squares = gaps.square().sum(-1) / (2 if classes == 2 else 1)
    mass = fill_in_row_weights(weights, targets)
    return float((mass * squares).sum() / mass.sum())


def compute_mean_average_precision(probabilities: Tensor, targets: Tensor) -> float:
    """Area under the precision-recall curve, as a fraction.

    With two classes it is that of the second one; with more, the mean over the classes
    that occur among the targets. NaN if there is no such class.
    """
    count = probabilities.shape[1]
    classes = [1] if count == 2 else targets.unique().tolist()
    areas = [
        compute_average_precision(probabilities[:, index], targets == index)
        for index in classes
        if bool((targets == index).any())
    ]
    return sum(areas) / len(areas) if areas else float("nan")


def compute_worst_group_accuracy(
    predicted_classes: Tensor, targets: Tensor, groups: Tensor
) -> float:
    """Lowest accuracy, in percent, over groups that are given for the rows, [n]."""
    correct = (predicted_classes == targets).double()
    rates = [correct[groups == group].mean() for group in groups.unique()]
    return 100 * float(torch.stack(rates).min())


def fill_in_row_weights(weights: Tensor | None, rows: Tensor) -> Tensor:
    """Return the weights [n] of rows [n]; one each by default."""
    if weights is not None:
        return weights.double()
    return torch.ones(len(rows), dtype=torch.float64)
