"""Predictions for new rows, as a table in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cirm.data.encoded_chunks import (
    find_missing_numeric_cells,
    iterate_encoded_rows_of_source,
    prefetch_chunks,
)
from cirm.data.open_sources import open_sources_for_model
from cirm.data.sources import (
    Data,
    DataSource,
    Progress,
    ignore_progress_message,
    report_progress_of_reading_rows,
)
from cirm.data.values import Flags
from cirm.model.abstention import AbstentionThreshold, choose_abstention_threshold
from cirm.model.conformal import ConformalThresholds, compute_conformal_thresholds
from cirm.model.facts import ModelMetadata, set_decision_threshold
from cirm.model.outputs import ArrayPredictions, check_predictions_are_finite
from cirm.model.threshold import predict_classes_by_threshold
from cirm.model.warnings import list_input_warnings

if TYPE_CHECKING:
    from cirm.model.model import Model


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
    progress: Progress = ignore_progress_message,
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
        progress: Called with a description and the fraction of the rows that is done,
            or their number so far if it is not known how many there are.

    Returns:
        A table with one row per input row, in the same order, and with the index of a
        DataFrame of pandas. The columns that identify a row and those in `keep` come
        first, then `prediction`. For classification, `probability` is that of the
        predicted class; for regression, `low` and `high` are the ends of a prediction
        interval. `uncertainty` is the standard deviation of the probability or value
        over the learner's posterior samples or ensemble members, and empty if it has a
        single network.

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
    model = set_decision_threshold(model, threshold)
    frames = [
        frame
        for source in open_sources_for_model(data, model.schema)
        for frame in predict_source_in_chunks(
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
    found = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    return found.set_index(data.index) if isinstance(data, pd.DataFrame) else found


def predict_source_in_chunks(
    model: ModelMetadata,
    source: DataSource,
    columns_to_copy: Sequence[str] = (),
    probabilities: bool = False,
    fill_missing: bool = False,
    progress: Progress = ignore_progress_message,
    notes: list[str] | None = None,
    *,
    sets: bool = False,
    level: float = 0.9,
    abstain: float | None = None,
) -> Iterator[pd.DataFrame]:
    """Yield predictions for a source, chunk by chunk; warnings go to `notes`."""
    done = 0
    report_progress_of_reading_rows(progress, "predicting", [source], done)
    is_calibrated = sets or not model.task.classes
    calibration = compute_conformal_thresholds(model, level) if is_calibrated else None
    abstention = (
        None if abstain is None else choose_abstention_threshold(model, abstain)
    )
    chunks = iterate_encoded_rows_of_source(
        source, model.schema, fill_missing, columns_to_copy=columns_to_copy
    )
    for frame, inputs, _, changes in prefetch_chunks(source, chunks):
        if not done and notes is not None:
            notes += changes
            notes += list_input_warnings(
                model.schema, inputs, find_missing_numeric_cells(frame, model.schema)
            )
        names = _select_columns_to_copy(model, frame, columns_to_copy)
        predictions = model.predict_from_inputs(inputs)
        check_predictions_are_finite(predictions.mean, source.where)
        columns = _build_prediction_columns(
            model, predictions, probabilities, calibration, abstention
        )
        if clash := [name for name in columns if name in names]:
            raise ValueError(
                f"{source.where}: the column {clash[0]!r}, which --keep adds to the "
                "predictions, has the same name as one of the columns of "
                "predictions. Rename the column in the data, or leave it out of "
                "--keep."
            )
        table = pd.DataFrame(columns)
        if names:
            kept = frame[names].reset_index(drop=True)
            table = pd.concat([kept, table], axis=1)
        yield table
        done += len(frame)
        report_progress_of_reading_rows(progress, "predicting", [source], done)


def _select_columns_to_copy(
    model: ModelMetadata, frame: pd.DataFrame, columns_to_copy: Sequence[str]
) -> list[str]:
    """Return the columns of a table that predictions repeat."""
    encoding = model.schema.treatment.encoding
    columns = encoding.columns if encoding else ()
    known = [column.name for column in columns if column.kind == "identifier"]
    wanted = [*model.schema.ids, *known, *columns_to_copy]
    if encoding is None:
        wanted.insert(0, "image")
    return [name for name in dict.fromkeys(wanted) if name in frame.columns]


def _build_prediction_columns(
    model: ModelMetadata,
    predictions: ArrayPredictions,
    probabilities: bool,
    calibration: ConformalThresholds | None,
    abstention: AbstentionThreshold | None,
) -> dict[str, Any]:
    mean, std = (part.astype(np.float64) for part in predictions)
    has_spread = bool(predictions.std.any())
    empty = np.full(len(mean), np.nan)
    if not model.task.classes:
        assert calibration is not None
        target = model.schema.target
        values = target.centre + target.scale * mean[:, 0]
        half = target.scale * calibration.half_width
        spread = target.scale * std[:, 0] if has_spread else empty
        # Without a limit the cells stay empty: infinity is no number in JSON.
        half = half if np.isfinite(half) else np.nan
        ends = {"low": values - half, "high": values + half}
        return {"prediction": values, **ends, "uncertainty": spread}
    index = predict_classes_by_threshold(mean, model.task.classes, model.threshold)
    rows = np.arange(len(mean))
    probability, spread = mean[rows, index], std[rows, index].round(6)
    places = index
    if abstention is not None:
        places = np.where(probability < abstention.confidence, -1, index)
    # By position: making text of every label takes longer than predicting it.
    labels = pd.Series(model.task.classes).array.take(places, allow_fill=True)
    columns: dict[str, Any] = {
        "prediction": labels,
        "probability": probability.round(6),
        "uncertainty": spread if has_spread else empty,
    }
    if calibration is not None:
        columns["set"] = _join_names_of_predicted_classes(
            calibration.choose_prediction_sets(mean, index), model.task.classes
        )
    if probabilities:
        for position, name in enumerate(model.task.classes):
            columns[f"probability of {name}"] = mean[:, position].round(6)
    return columns


def _join_names_of_predicted_classes(
    chosen: Flags, classes: Sequence[str]
) -> np.ndarray:
    """Return the names of the chosen classes [n, classes] of each row, such as a|b."""
    different, codes = np.unique(chosen, axis=0, return_inverse=True)
    names = [
        "|".join(name for name, is_in in zip(classes, row, strict=True) if is_in)
        for row in different
    ]
    return np.array(names, dtype=object)[codes.reshape(-1)]
