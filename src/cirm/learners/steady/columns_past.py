"""How well the environments learned before are still predicted, without their rows.

The moments of basis and targets give the mean squared error of a linear regression
exactly. For classes they give the mean and the covariance of the logits within each
class, and with a normal distribution the accuracy: within some points, since the logits
of a few categories are not normal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_state import CoefficientSamples, SteadyTableState
from cirm.randomness import Randomness

DRAWS = 4_000  # per class: the accuracy of draws differs by less than a point


def score_predictors_on_past_rows(
    before: SteadyTableState, after: SteadyTableState, is_regression: bool
) -> dict[str, float]:
    """Score two predictors on the rows that the first state has learned from."""
    rows = float(before.places.rows.sum())
    if (
        not rows
        or before.predictor.coefficients.shape[1:]
        != (after.predictor.coefficients.shape[1:])
    ):
        return {}
    score = _compute_squared_error if is_regression else _estimate_accuracy
    scores = [score(before, state.predictor) for state in (before, after)]
    return {"rows": rows, "stored": 0.0, "before": scores[0], "after": scores[1]}


def _compute_squared_error(
    past: SteadyTableState, predictor: CoefficientSamples
) -> float:
    """Return the mean squared error of the mean regression."""
    coefficients = _average_coefficients(predictor)[0]
    vector = torch.cat([coefficients, coefficients.new_full((1,), -1.0)])
    total = vector @ past.moments @ vector / past.places.rows.sum()
    return float(total.clamp(min=0))


def _estimate_accuracy(past: SteadyTableState, predictor: CoefficientSamples) -> float:
    """Return the accuracy in percent, if logits are normal within each class."""
    coefficients = _average_coefficients(predictor)
    p = coefficients.shape[1]
    counts = past.moments[p - 1, p:]  # the last basis function is the constant
    centres = (past.moments[:p, p:] / counts.clamp(min=1)).T
    scatter = past.moments[:p, :p] - (centres * counts[:, None]).T @ centres
    spread = coefficients @ (scatter / counts.sum()) @ coefficients.T
    values, vectors = torch.linalg.eigh(spread)
    root = vectors * values.clamp(min=0).sqrt()
    draws = Randomness((0,), ("past",)).start_draws()
    noise = draws.normal(DRAWS, len(root))[0].double() @ root.T
    correct = [
        float(
            (_predict_most_probable_class(centre @ coefficients.T + noise) == c)
            .double()
            .mean()
        )
        for c, centre in enumerate(centres)
    ]
    return float(100 * (counts * counts.new_tensor(correct)).sum() / counts.sum())


def _average_coefficients(predictor: CoefficientSamples) -> Tensor:
    """Return mean coefficients [k, p], with mean intercepts in the constant's place."""
    coefficients = predictor.coefficients.mean(0).clone()
    coefficients[:, -1] += predictor.levels.mean(0)
    return coefficients


def _predict_most_probable_class(logits: Tensor) -> Tensor:
    """Return the most probable class [n] for logits [n, k]."""
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).long()
    return logits.argmax(1)
