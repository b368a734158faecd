"""Predictions of a model, and how good they are."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cirm.evaluation.metrics import (
    compute_average_precision,
    compute_balanced_accuracy,
)
from cirm.model.model import Model
from cirm.model.threshold import predict_classes_by_threshold

CONFIDENCE_BINS = 10  # of confidence, the usual number for the calibration error


class PredictionsWithDeviation(NamedTuple):
    """Predictions for n rows, with their standard deviation over the networks.

    `mean` holds class probabilities [n, classes] or standardised values [n, 1]. `std`
    has the same shape and is the standard deviation over the posterior samples or
    ensemble members: zero if the learner has a single network.
    """

    mean: Tensor
    std: Tensor


def compute_metrics(
    model: Model,
    predictions: PredictionsWithDeviation,
    targets: Tensor,
    weights: Tensor | None = None,
) -> dict[str, float]:
    """Score predictions for n rows against targets [n], with weights of the rows [n].

    Classification: accuracy and calibration error in percent, the mean log loss and,
    if several classes occur, the balanced accuracy in percent; of two classes also the
    area under the ROC curve and that under the precision-recall curve of the positive
    one. Regression, in the units of the target: root mean squared error and mean
    absolute error; and r2, the fraction of the variance that is explained.
    """
    if model.task.classes:
        return _compute_probability_metrics(model, predictions.mean, targets, weights)
    scale = model.schema.target.scale
    residuals = (predictions.mean[:, 0] - targets).double()
    deviations = targets - compute_weighted_mean(targets.double(), weights)
    error = compute_weighted_mean(residuals.square(), weights)
    variance = compute_weighted_mean(deviations.square(), weights)
    metrics = {
        "rmse": scale * error**0.5,
        "mae": scale * compute_weighted_mean(residuals.abs(), weights),
    }
    if variance > 0:
        metrics["r2"] = 1 - error / variance
    return metrics


def _compute_probability_metrics(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None
) -> dict[str, float]:
    classes = model.task.classes
    decided = predict_classes_by_threshold(mean, classes, model.threshold)
    chosen = mean.double().gather(1, targets[:, None])[:, 0]
    metrics = {
        "accuracy": 100 * compute_weighted_mean((decided == targets).double(), weights),
        "calibration_error": compute_expected_calibration_error(mean, targets, weights),
        # Clamped, so that one confident mistake does not make the mean infinite.
        "log_loss": compute_weighted_mean(-chosen.clamp(min=1e-12).log(), weights),
    }
    if len(targets.unique()) < 2:
        return metrics
    balanced = compute_balanced_accuracy(decided, targets, weights)
    metrics["balanced_accuracy"] = balanced
    if len(classes) == 2:
        index = classes.index(model.positive)
        area = compute_average_precision(mean[:, index], targets == index, weights)
        metrics["roc_auc"] = compute_roc_auc(mean[:, 1], targets, weights)
        metrics["average_precision"] = area
    return metrics


def compute_weighted_mean(values: Tensor, weights: Tensor | None = None) -> float:
    """Return the mean of values [n], with weights [n]."""
    if weights is None:
        return float(values.mean())
    return float((weights.double() * values).sum() / weights.double().sum())


def compute_roc_auc(
    probabilities: Tensor, targets: Tensor, weights: Tensor | None = None
) -> float:
    """Area under the ROC curve of probabilities [n] for targets [n] of 0 and 1."""
    positive = targets == 1
    if weights is None:
        ranks = pd.Series(probabilities.double().numpy()).rank().to_numpy()
        count, rest = int(positive.sum()), int((~positive).sum())
        total = ranks[positive.numpy()].sum()
        return float((total - count * (count + 1) / 2) / (count * rest))
    # The weight of negative rows below each value, and half of that at it.
    values, places = probabilities.double().unique(return_inverse=True)
    below = torch.zeros((2, len(values)), dtype=torch.float64)
    for index, part in enumerate((positive, ~positive)):
        below[index].index_add_(0, places[part], weights[part].double())
    won = below[0] @ (below[1].cumsum(0) - below[1] / 2)
    return float(won / below.sum(1).prod())


def compute_delong_variance(probabilities: Tensor, targets: Tensor) -> float:
    """Sampling variance of the area under the ROC curve, after DeLong et al. 1988.

    It has a lower bound, so that a perfect ranking of few rows is not taken for
    certain.
    """
    values = probabilities.double().numpy()
    positive = targets.numpy() == 1
    ranks = pd.Series(values).rank().to_numpy()
    shares = []  # of the other class that a row is on the right side of
    for own in (positive, ~positive):
        within = pd.Series(values[own]).rank().to_numpy()
        shares.append((ranks[own] - within) / (~own).sum())
    bound = 1 / (min(map(len, shares)) + 2) ** 2
    variance = sum(float(part.var(ddof=len(part) > 1)) / len(part) for part in shares)
    return max(variance, bound)


def compute_expected_calibration_error(
    probabilities: Tensor, targets: Tensor, weights: Tensor | None = None
) -> float:
    """Expected calibration error in percent, over ten equal bins of confidence.

    The mean distance between the probability of the most likely class and how often
    that class is correct.
    """
    confidence, guess = probabilities.double().max(-1)
    differences = (guess == targets).double() - confidence
    mass = torch.ones_like(confidence) if weights is None else weights.double()
    gaps = torch.zeros(CONFIDENCE_BINS, dtype=torch.float64)
    bins = assign_confidence_bins(confidence)
    gaps = gaps.index_add(0, bins, mass * differences)
    return 100 * float(gaps.abs().sum() / mass.sum())


def assign_confidence_bins(confidence: Tensor) -> Tensor:
    """Return the bin of each confidence [n], from 0."""
    return (confidence * CONFIDENCE_BINS).long().clamp(max=CONFIDENCE_BINS - 1)
