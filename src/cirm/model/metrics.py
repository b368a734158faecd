"""Predictions of a model, and how good they are."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cirm.model.model import Model

CONFIDENCE_BINS = 10  # of confidence, the usual number for the calibration error


class Predictions(NamedTuple):
    """Predictions for n rows, with their standard deviation over the networks.

    `mean` holds class probabilities [n, classes] or standardised values [n, 1]. `std`
    has the same shape and is the standard deviation over the posterior samples or
    ensemble members: zero if the learner has a single network.
    """

    mean: Tensor
    std: Tensor


def compute_metrics(
    model: Model, predictions: Predictions, targets: Tensor
) -> dict[str, float]:
    """Score predictions for n rows against targets [n].

    Classification: accuracy and calibration error in percent, the mean log loss and,
    if there are two classes and both occur, the area under the ROC curve. Regression,
    in the units of the target: root mean squared error and mean absolute error; and r2,
    the fraction of the variance that is explained.
    """
    mean = predictions.mean
    if model.task.classes:
        chosen = mean.double().gather(1, targets[:, None])
        metrics = {
            "accuracy": 100 * float((mean.argmax(-1) == targets).double().mean()),
            "calibration_error": compute_expected_calibration_error(mean, targets),
            # Clamped, so that one confident mistake does not make the mean infinite.
            "log_loss": float(-chosen.clamp(min=1e-12).log().mean()),
        }
        if len(model.task.classes) == 2 and 0 < int(targets.sum()) < len(targets):
            metrics["roc_auc"] = compute_roc_auc(mean[:, 1], targets)
        return metrics
    scale = model.schema.target.scale
    residuals = (mean[:, 0] - targets).double()
    squares = float(residuals.square().sum())
    variation = float((targets - targets.double().mean()).square().sum())
    metrics = {
        "rmse": scale * (squares / len(targets)) ** 0.5,
        "mae": scale * float(residuals.abs().mean()),
    }
    if variation > 0:
        metrics["r2"] = 1 - squares / variation
    return metrics


def compute_roc_auc(probabilities: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve of probabilities [n] for targets [n] of 0 and 1."""
    ranks = torch.tensor(pd.Series(probabilities.double().numpy()).rank().to_numpy())
    positive = targets == 1
    count, rest = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * rest))


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


def compute_expected_calibration_error(probabilities: Tensor, targets: Tensor) -> float:
    """Expected calibration error in percent, over ten equal bins of confidence.

    The mean distance between the probability of the most likely class and how often
    that class is correct.
    """
    confidence, guess = probabilities.double().max(-1)
    correct = (guess == targets).double()
    gaps = torch.zeros(CONFIDENCE_BINS, dtype=torch.float64)
    gaps = gaps.index_add(0, assign_confidence_bins(confidence), correct - confidence)
    return 100 * float(gaps.abs().sum()) / len(targets)


def assign_confidence_bins(confidence: Tensor) -> Tensor:
    """Return the bin of each confidence [n], from 0."""
    return (confidence * CONFIDENCE_BINS).long().clamp(max=CONFIDENCE_BINS - 1)
