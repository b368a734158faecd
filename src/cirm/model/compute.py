"""Predictions computed by torch.

Rows are predicted in chunks, by one thread per core. Within each thread torch computes
on that thread only: by default it splits every single operation among all cores, which
gains little on small networks and takes many times as long on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cirm.data.rows import EncodedRows
from cirm.learners import LEARNERS, get_learner_class
from cirm.model.metrics import PredictionsWithDeviation
from cirm.model.model import Model
from cirm.model.numpy_predict import (
    ROWS_AT_ONCE,
    build_numpy_predictor,
    count_available_threads,
    predict_inputs_by_numpy,
)
from cirm.model.outputs import ArrayPredictions, compute_prediction_mean_and_std
from cirm.model.state_tensors import flatten_state_to_tensors_by_path

In = TypeVar("In")
Out = TypeVar("Out")


def predict_inputs_as_arrays(model: Model, inputs: np.ndarray) -> ArrayPredictions:
    """Return predictions for inputs [n, *shape], by NumPy where it can."""
    key = model.plan.learner
    is_known = key in LEARNERS and get_learner_class(key) is type(model.learner)
    if is_known and model.learner.descent.device == "cpu":
        tensors = flatten_state_to_tensors_by_path(model.state, copy=False)
        state = {
            name.removeprefix("state."): tensor[0].numpy()
            for name, tensor in tensors.items()
        }
        predictor = build_numpy_predictor(model.plan, state)
        if predictor is not None:
            shifts = compute_logit_shifts_from_class_weights(model)
            return predict_inputs_by_numpy(
                predictor, inputs, len(model.task.classes), shifts
            )
    predictions = predict_inputs_in_chunks(model, inputs)
    return ArrayPredictions(*(part.numpy() for part in predictions))


def predict_inputs_in_chunks(
    model: Model, inputs: np.ndarray, in_double_precision: bool = False
) -> PredictionsWithDeviation:
    """Return predictions for inputs [n, *shape], computed chunk by chunk.

    With `in_double_precision`, in double precision: then the prediction for a row does
    not depend on the rows beside it, not even in the seventh digit.
    """
    rows = torch.from_numpy(inputs)
    if in_double_precision:
        state = convert_state_to_double_precision(model.state)
        model, rows = replace(model, state=state), rows.double()
    work = partial(predict_inputs_in_one_batch, model)
    return join_predictions_of_chunks(
        apply_function_in_threads(
            work, rows.split(ROWS_AT_ONCE), _count_prediction_threads(model)
        )
    )


def predict_rows_by_index(
    model: Model, rows: EncodedRows, indices: Tensor
) -> PredictionsWithDeviation:
    """Return predictions for some rows, given by their indices [m]."""
    return join_predictions_of_chunks(
        [
            predict_inputs_in_one_batch(model, rows.store.take(part))
            for part in indices.split(ROWS_AT_ONCE)
        ]
    )


@torch.no_grad()
def predict_inputs_in_one_batch(
    model: Model, inputs: Tensor
) -> PredictionsWithDeviation:
    """Return predictions for inputs [n, *shape] that fit into memory."""
    device = model.learner.descent.device
    outputs = model.learner.outputs(model.state, inputs[None].to(device))[0]
    found = compute_prediction_mean_and_std(
        outputs.cpu().numpy(),
        len(model.task.classes),
        compute_logit_shifts_from_class_weights(model),
    )
    return PredictionsWithDeviation(*map(torch.from_numpy, found))


def compute_logit_shifts_from_class_weights(model: Model) -> np.ndarray | None:
    """Return what the weights of classes add to the logits, [classes]; None if nothing.

    A learner that honours weights has learned them. For any other one the logarithm of
    the weight is added: to a calibrated model that is the same.
    """
    weights = model.plan.class_weight
    if not weights or model.learner.weighs_examples:
        return None
    return np.log([weights[name] for name in model.task.classes])


def join_predictions_of_chunks(
    pieces: Sequence[PredictionsWithDeviation],
) -> PredictionsWithDeviation:
    """Join the predictions of consecutive chunks."""
    return PredictionsWithDeviation(
        *(torch.cat(part) for part in zip(*pieces, strict=True))
    )


def convert_state_to_double_precision(state: Any) -> Any:  # noqa: ANN401  nested tuples of tensors
    """Return a state whose numbers have double precision."""
    if isinstance(state, Tensor):
        return state.double() if state.is_floating_point() else state
    return type(state)(*(convert_state_to_double_precision(part) for part in state))


def _count_prediction_threads(model: Model) -> int:
    """Return the number of threads; one for a user's module, which may not be safe."""
    safe = model.learner.network.is_thread_safe
    return (
        count_available_threads()
        if safe and model.learner.descent.device == "cpu"
        else 1
    )


def apply_function_in_threads(
    work: Callable[[In], Out], items: Sequence[In], n_workers: int
) -> list[Out]:
    """Apply `work` to each item by several threads; return the results in order."""
    threads = min(n_workers, len(items))
    with _limit_torch_to_calling_thread():
        if threads < 2:
            return [work(item) for item in items]
        # Torch keeps the number of threads per thread, so each one must set it.
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(work, items))


@contextmanager
def _limit_torch_to_calling_thread() -> Iterator[None]:
    """Make torch compute on the calling thread only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
