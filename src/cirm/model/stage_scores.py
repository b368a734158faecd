"""Predictions of the rows of a stage, before, during and after it is learned."""

from __future__ import annotations

from torch import Tensor

from cirm.data.rows import EncodedRows
from cirm.model.adapt import adapt_learner_to_inputs
from cirm.model.compute import predict_rows_by_index
from cirm.model.conformal import measure_nonconformity
from cirm.model.facts import NonconformitySummary
from cirm.model.model import Model
from cirm.model.rare_classes import PredictionsWithTargetsAndWeights
from cirm.training import DivergenceError

MOST_SCORED = 100_000  # rows of an environment that the metrics are computed on
MOST_ADAPTED = 10_000  # rows to which the model is adapted on trial, on arrival


def predict_rows_to_score(
    model: Model, rows: EncodedRows, indices: Tensor
) -> PredictionsWithTargetsAndWeights:
    """Return predictions of the rows that are scored, up to a limit."""
    indices = indices[:: -(-len(indices) // MOST_SCORED)]
    predictions = predict_rows_by_index(model, rows, indices)
    if not predictions.mean.isfinite().all():
        raise DivergenceError(
            "Training has diverged: the predictions are NaN or infinite. Use a "
            "smaller learning rate, such as --set rate=0.0001, or a smaller penalty."
        )
    return PredictionsWithTargetsAndWeights(
        predictions, rows.targets[indices], rows.take_weights(indices)
    )


def measure_nonconformity_after_adapting(
    model: Model, rows: EncodedRows, indices: Tensor
) -> NonconformitySummary | None:
    """Measure predictions after adapting to the rows, as if targets were unknown."""
    if not model.learner.adapts:
        return None
    indices = indices[:: -(-len(indices) // MOST_ADAPTED)]
    adapted = adapt_learner_to_inputs(model, rows.store.take(indices))
    scored = predict_rows_to_score(adapted, rows, indices)
    return measure_nonconformity(adapted, *scored[:2])
