"""From the outputs of networks to predictions: probabilities or values, by NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of single or double precision


class ArrayPredictions(NamedTuple):
    """Predictions for n rows, and their standard deviation over the networks.

    Both are class probabilities [n, classes] or standardised values [n, 1]. The
    deviations are zero if the learner has a single network.
    """

    mean: Array
    std: Array


def check_predictions_are_finite(predictions: Array, where: str) -> None:
    """Raise an error, which names the source of the rows, if a prediction is NaN."""
    if np.isfinite(predictions.sum()):  # a single pass where all numbers are finite
        return
    if bad := int((~np.isfinite(predictions).all(1)).sum()):
        raise ValueError(
            f"{where}: the predictions of {bad:,} rows are NaN or infinite. Check the "
            "data for very large values, or fit the model again."
        )


@np.errstate(all="ignore")  # predictions that are not finite are refused later
def compute_prediction_mean_and_std(
    outputs: Array, n_classes: int, logit_shifts: Array | None = None
) -> ArrayPredictions:
    """Return the mean prediction and its standard deviation over samples.

    Args:
        outputs: Logits or values of each sample, [samples, n, k]; of two classes there
            may be one logit, that of the second class.
        n_classes: Number of classes; 0 for regression.
        logit_shifts: What is added to the logit of each class, [classes].
    """
    if not n_classes:
        return ArrayPredictions(
            *(part.T for part in _compute_weighted_mean_and_std(outputs[..., 0][None]))
        )
    if n_classes > 2:
        logits = np.moveaxis(outputs, -1, 0)  # rows last: sums over classes are fast
        if logit_shifts is not None:
            logits = logits + logit_shifts[:, None, None].astype(outputs.dtype)
        values = np.exp(logits - logits.max(0))
        values /= values.sum(0)
        mean, std = _compute_weighted_mean_and_std(values)
        return ArrayPredictions(mean.T, std.T)
    odds = (
        outputs[..., 0] if outputs.shape[-1] == 1 else outputs[..., 1] - outputs[..., 0]
    )
    if logit_shifts is not None:
        odds = odds + (logit_shifts[1] - logit_shifts[0]).astype(outputs.dtype)
    if not np.isfinite(odds.sum()):  # a single pass where all are finite
        odds = np.where(np.isfinite(odds), odds, np.nan)
    exponentials = np.exp(-odds.clip(-80, 80))  # beyond, single precision overflows
    second = 1 / (1 + exponentials)
    mean, std = _compute_weighted_mean_and_std(second[None])
    first = (exponentials * second).mean(0)
    return ArrayPredictions(np.stack([first, mean[0]], 1), std.repeat(2, 0).T)


def _compute_weighted_mean_and_std(values: Array) -> tuple[Array, Array]:
    """Return the mean and standard deviation [k, n] of values [k, samples, n]."""
    if values.shape[1] == 1:
        return values[:, 0], np.zeros_like(values[:, 0])
    deviations = values - values[:, :1]  # exactly zero where all samples agree
    deviations -= deviations.mean(1, keepdims=True)
    return values.mean(1), np.sqrt(np.square(deviations, out=deviations).mean(1))
