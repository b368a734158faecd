"""Predictions for new rows, as a table in the order of the rows.

Rows are predicted in chunks, by one thread per core. Within each thread torch computes
on that thread only: by default it splits every single operation among all cores, which
gains little on small networks and takes many times as long on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirm.data.encoded_sources import open_later_sources
from cirm.data.rows import EncodedRows, encode_source_chunks, find_missing_numbers
from cirm.data.sources import (
    Data,
    Progress,
    Source,
    ignore_progress,
    prefetch_items,
)
from cirm.data.values import Flags
from cirm.likelihoods import CrossEntropy
from cirm.model.abstention import Abstention, choose_abstention
from cirm.model.conformal import Calibration, calibrate_model
from cirm.model.metrics import Predictions
from cirm.model.model import Model, apply_threshold
from cirm.model.threshold import decide_classes
from cirm.model.warnings import list_input_warnings

ROWS_AT_ONCE = 2048  # rows predicted at once, so that the layers stay in the cache
MOST_THREADS = 4  # more would wait for one another and for reading the files

In = TypeVar("In")
Out = TypeVar("Out")


def predict(
    model: Model,
    data: Data,
    *,
    keep: Sequence[str] = (),
    probabilities: bool = False,
    sets: bool = False,
    level: float = 0.9,
    abstain: float | None = None,
    threshold: str = "",
    fill_missing: bool = False,
    progress: Progress = ignore_progress,
) -> pd.DataFrame:
    """Predict the target of every row.

    Args:
        model: A trained model.
        data: The rows: a path to a CSV, TSV, Parquet or NPZ file or to a folder of
            images, a table of pandas, polars or pyarrow, or a list of these. The
            target may be missing.
        keep: Columns to copy into the result, besides identifier columns.
        probabilities: Whether to add a column with the probability of each class.
        sets: Whether to add the column `set` for classification: the classes that are
            to be expected in a new environment, joined by "|".
        level: Coverage of the sets, or of the intervals of a regression, in a new
            environment: a fraction from 0.5 to 0.99.
        abstain: Leave predictions out, least certain first, until at most this fraction
            of the others is expected to be wrong in a new environment. They are
            missing values in the column `prediction`.
        threshold: Of two classes, from which probability of the positive one on it is
            predicted: a number, or a rule that chooses one on the rows that were held
            out in training ("recall=0.9", "precision=0.5", "rate=0.05", "cost=5:1").
            By default the model's own.
        fill_missing: Whether to treat columns that the data lack as missing values.
            Otherwise they raise an error.
        progress: Called with a description and the number of rows so far.

    Returns:
        A table with one row per input row, in the same order. The columns that
        identify a row and those in `keep` come first, then `prediction`. For
        classification, `probability` is that of the predicted class; for regression,
        `low` and `high` are the ends of a prediction interval. `uncertainty` is the
        standard deviation of the probability or value over the learner's posterior
        samples or ensemble members, and empty if it has a single network.

    Raises:
        ValueError: If the data cannot be read as the model reads them (the message
            names file, row and column), if `level` or `abstain` is out of range, or if
            the model does not predict classes and `abstain` is given.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit, predict
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings)
        >>> predictions = predict(model, table[:3], keep=["age"])
        >>> list(predictions.columns)
        ['age', 'prediction', 'probability', 'uncertainty']
        >>> len(predictions)
        3
    """
    model = apply_threshold(model, threshold)
    frames = [
        frame
        for source in open_later_sources(data, model.schema)
        for frame in predict_chunks(
            model,
            source,
            keep,
            probabilities,
            fill_missing,
            progress,
            sets=sets,
            level=level,
            abstain=abstain,
        )
    ]
    return pd.concat(frames, ignore_index=True)


def predict_chunks(
    model: Model,
    source: Source,
    keep: Sequence[str] = (),
    probabilities: bool = False,
    fill_missing: bool = False,
    progress: Progress = ignore_progress,
    notes: list[str] | None = None,
    *,
    sets: bool = False,
    level: float = 0.9,
    abstain: float | None = None,
) -> Iterator[pd.DataFrame]:
    """Yield predictions for a source, chunk by chunk; warnings go to `notes`."""
    done = 0
    is_calibrated = sets or not model.task.classes
    calibration = calibrate_model(model, level) if is_calibrated else None
    abstention = None if abstain is None else choose_abstention(model, abstain)
    chunks = encode_source_chunks(source, model.schema, fill_missing, needed=keep)
    for frame, inputs, _, changes in prefetch_items(chunks):
        if not done and notes is not None:
            notes += changes
            notes += list_input_warnings(
                model.schema,
                torch.from_numpy(inputs),
                find_missing_numbers(frame, model.schema),
            )
        names = _select_kept_columns(model, frame, keep)
        predictions = predict_inputs_in_chunks(model, inputs)
        if bad := int((~predictions.mean.isfinite().all(1)).sum()):
            raise ValueError(
                f"{source.where}: the predictions of {bad} rows are not finite. Check "
                "these rows for very large values, or fit the model again."
            )
        columns = _build_prediction_columns(
            model, predictions, probabilities, calibration, abstention
        )
        if clash := [name for name in columns if name in names]:
            raise ValueError(
                f"{source.where}: the kept column {clash[0]!r} has the name of a "
                "column of the predictions. Rename it."
            )
        kept = frame[names].reset_index(drop=True)
        yield pd.concat([kept, pd.DataFrame(columns)], axis=1)
        done += len(frame)
        progress("predicting", done)


def _select_kept_columns(
    model: Model, frame: pd.DataFrame, keep: Sequence[str]
) -> list[str]:
    """Return the columns of a table that predictions repeat."""
    encoding = model.schema.treatment.encoding
    columns = encoding.columns if encoding else ()
    known = [column.name for column in columns if column.kind == "identifier"]
    wanted = [*model.schema.ids, *known, *keep]
    if encoding is None:
        wanted.insert(0, "image")
    return [name for name in dict.fromkeys(wanted) if name in frame.columns]


def _build_prediction_columns(
    model: Model,
    predictions: Predictions,
    probabilities: bool,
    calibration: Calibration | None,
    abstention: Abstention | None,
) -> dict[str, np.ndarray]:
    mean, std = (part.double() for part in predictions)
    empty = np.full(len(mean), np.nan)
    if not model.task.classes:
        assert calibration is not None
        target = model.schema.target
        values = target.centre + target.scale * mean[:, 0].numpy()
        half = target.scale * calibration.half_width
        spread = target.scale * std[:, 0].numpy() if std.any() else empty
        columns = {"prediction": values, "low": values - half, "high": values + half}
        return columns | {"uncertainty": spread}
    index = decide_classes(mean, model.task.classes, model.threshold)
    probability = mean.gather(1, index[:, None])[:, 0]
    spread = std.gather(1, index[:, None])[:, 0].numpy().round(6)
    names = np.array(model.task.classes, dtype=object)
    labels = names[index.numpy()]
    if abstention is not None:
        labels[probability.numpy() < abstention.confidence] = None
    columns = {
        "prediction": labels,
        "probability": probability.numpy().round(6),
        "uncertainty": spread if std.any() else empty,
    }
    if calibration is not None:
        columns["set"] = _join_class_names(
            calibration.choose_sets(mean.numpy(), index.numpy()), model.task.classes
        )
    if probabilities:
        for position, name in enumerate(model.task.classes):
            columns[f"probability of {name}"] = mean[:, position].numpy().round(6)
    return columns


def _join_class_names(chosen: Flags, classes: Sequence[str]) -> np.ndarray:
    """Return the names of the chosen classes [n, classes] of each row, such as a|b."""
    different, codes = np.unique(chosen, axis=0, return_inverse=True)
    names = [
        "|".join(name for name, is_in in zip(classes, row, strict=True) if is_in)
        for row in different
    ]
    return np.array(names, dtype=object)[codes.reshape(-1)]


def predict_inputs_in_chunks(
    model: Model, inputs: np.ndarray, exact: bool = False
) -> Predictions:
    """Return predictions for inputs [n, *shape], computed chunk by chunk.

    With `exact`, in double precision: then the prediction for a row does not depend on
    the rows beside it, not even in the seventh digit.
    """
    rows = torch.from_numpy(inputs)
    if exact:
        state = _convert_state_to_double(model.state)
        model, rows = replace(model, state=state), rows.double()
    work = partial(predict_inputs_at_once, model)
    return join_predictions(
        map_in_threads(work, rows.split(ROWS_AT_ONCE), _count_prediction_threads(model))
    )


def predict_rows(model: Model, rows: EncodedRows, indices: Tensor) -> Predictions:
    """Return predictions for some rows, given by their indices [m]."""
    return join_predictions(
        [
            predict_inputs_at_once(model, rows.store.take(part))
            for part in indices.split(ROWS_AT_ONCE)
        ]
    )


@torch.no_grad()
def predict_inputs_at_once(model: Model, inputs: Tensor) -> Predictions:
    """Return predictions for inputs [n, *shape] that fit into memory."""
    device = model.learner.descent.device
    outputs = model.learner.outputs(model.state, inputs[None].to(device))
    likelihood = model.learner.likelihood
    if isinstance(likelihood, CrossEntropy):
        outputs = likelihood.logits(outputs) + compute_class_shifts(model).to(device)
    # Rows last, [k, sample, n]: sums over few classes or samples are fast that way.
    values = outputs[0].movedim(-1, 0).contiguous()
    if isinstance(likelihood, CrossEntropy):
        values = values.softmax(0)
    values = values.cpu()
    deviations = values - values[:, :1]  # exactly zero where all samples agree
    deviations -= deviations.mean(1, keepdim=True)
    return Predictions(values.mean(1).T, deviations.square_().mean(1).sqrt_().T)


def compute_class_shifts(model: Model) -> Tensor:
    """Return what the weights of classes add to the logits, [classes].

    A learner that honours weights has learned them. For any other one the logarithm of
    the weight is added: to a calibrated model that is the same.
    """
    weights = model.plan.class_weight
    if not weights or model.learner.weighs_examples:
        return torch.zeros(1)
    return torch.tensor([weights[name] for name in model.task.classes]).log()


def join_predictions(pieces: Sequence[Predictions]) -> Predictions:
    """Join the predictions of consecutive chunks."""
    return Predictions(*(torch.cat(part) for part in zip(*pieces, strict=True)))


def _convert_state_to_double(state: Any) -> Any:  # noqa: ANN401  nested tuples of tensors
    if isinstance(state, Tensor):
        return state.double() if state.is_floating_point() else state
    return type(state)(*(_convert_state_to_double(part) for part in state))


def _count_prediction_threads(model: Model) -> int:
    """Return the number of threads; one for a user's module, which may not be safe."""
    safe = model.learner.network.is_thread_safe
    return (
        count_available_threads()
        if safe and model.learner.descent.device == "cpu"
        else 1
    )


def map_in_threads(
    work: Callable[[In], Out], items: Sequence[In], workers: int
) -> list[Out]:
    """Return `work` of each item, in order, computed by at most so many threads."""
    threads = min(workers, len(items))
    with _limit_torch_threads():
        if threads < 2:
            return [work(item) for item in items]
        # Torch keeps the number of threads per thread, so each one must set it.
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(work, items))


def count_available_threads() -> int:
    """Return the number of cores or OMP_NUM_THREADS, at most four."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return min(int(wanted), MOST_THREADS)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_THREADS)
    return min(os.cpu_count() or 1, MOST_THREADS)


@contextmanager
def _limit_torch_threads() -> Iterator[None]:
    """Make torch compute on the calling thread only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
