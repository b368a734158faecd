"""A model's predictions of a user's rows, as a table in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from cirm.data.columns import check_columns
from cirm.data.prefetch import prefetch
from cirm.data.rows import (
    Progress,
    check_source_kinds,
    describe_column_changes,
    encode_chunk,
    ignore_progress,
    list_numeric_columns,
)
from cirm.data.sources import Data, Source, open_sources
from cirm.model import warnings as notes
from cirm.model.metrics import (
    CHUNK,
    Answers,
    answers,
    half_widths,
    joined,
    workers,
)
from cirm.model.model import Model
from cirm.model.state import doubled
from cirm.model.threads import shared_out


def predict(
    model: Model,
    data: Data,
    *,
    keep: Sequence[str] = (),
    probabilities: bool = False,
    fill_missing: bool = False,
    progress: Progress = ignore_progress,
) -> pd.DataFrame:
    """Predictions of all rows of the data, one row each, in order.

    First come the columns that identify a row and those in `keep`; then `prediction`,
    and for classes its `probability`, for values the ends `low` and `high` of a 90 %
    interval; then `uncertainty`, the standard deviation of the probability or value
    over the learner's networks (draws of a posterior, or the members of `cirm`), empty
    where it has one.
    """
    found = open_sources(data, model.schema.treatment.shape)
    pieces = [
        frame
        for source in found
        for frame in predict_chunks(
            model, source, keep, probabilities, fill_missing, progress
        )
    ]
    return pd.concat(pieces, ignore_index=True)


def predict_chunks(
    model: Model,
    source: Source,
    keep: Sequence[str] = (),
    probabilities: bool = False,
    fill_missing: bool = False,
    progress: Progress = ignore_progress,
    said: list[str] | None = None,
) -> Iterator[pd.DataFrame]:
    """Predictions of a source, portion by portion; `said` gets what is to be said."""
    check_source_kinds([source], model.schema.treatment.kind)
    done = 0
    for frame, inputs in prefetch(_encoded(model, source, keep, fill_missing)):
        if not done and said is not None:
            said += describe_column_changes(frame, model.schema, "", source.where)
            said += oddities(model, inputs)
        kept = frame[kept_columns(model, frame, keep)].reset_index(drop=True)
        columns = _columns(model, predict_inputs(model, inputs), probabilities)
        if clash := [name for name in columns if name in kept.columns]:
            raise ValueError(
                f"{source.where}: a column that is kept must not be called as one of "
                f"the predictions; got {clash[0]!r}"
            )
        yield pd.concat([kept, pd.DataFrame(columns)], axis=1)
        done += len(frame)
        progress("predicting", done)


def _encoded(
    model: Model, source: Source, keep: Sequence[str], fill_missing: bool
) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """Columns and inputs [n, *shape], portion by portion."""
    for portion in prefetch(source.portions(list_numeric_columns(model.schema))):
        check_columns(portion.frame, keep, source.where)
        yield (
            portion.frame,
            encode_chunk(portion, model.schema, source.where, fill_missing),
        )


def predict_inputs(model: Model, inputs: np.ndarray, exact: bool = False) -> Answers:
    """Predictions of inputs [n, *shape], some rows at a time.

    If they are to be `exact`, in double precision: a row's prediction then does not
    depend on the rows beside it, not even in the seventh digit.
    """
    rows = torch.from_numpy(inputs)
    if exact:
        model, rows = replace(model, state=doubled(model.state)), rows.double()
    asked = partial(answers, model)
    return joined(shared_out(asked, rows.split(CHUNK), workers(model)))


def oddities(model: Model, inputs: np.ndarray) -> list[str]:
    """What is odd about inputs [n, *shape]: other units, a place far away."""
    own = torch.from_numpy(inputs)
    units = notes.units(model.schema, own)
    doubts = [
        f"{unit}; what is predicted from it is not to be trusted" for unit in units
    ]
    return doubts + notes.far(model.schema, own) + notes.unknown(model.schema, own)


def kept_columns(model: Model, frame: pd.DataFrame, keep: Sequence[str]) -> list[str]:
    """The columns of a table that predictions keep."""
    encoding = model.schema.treatment.encoding
    columns = encoding.columns if encoding else ()
    known = [column.name for column in columns if column.kind == "identifier"]
    wanted = [*model.schema.ids, *known, *keep]
    if encoding is None and "image" in frame.columns:
        wanted.insert(0, "image")
    return [name for name in dict.fromkeys(wanted) if name in frame.columns]


def _columns(
    model: Model, answer: Answers, probabilities: bool
) -> dict[str, np.ndarray]:
    known = bool(answer.spread.any())
    if not model.task.classes:
        target = model.schema.target
        values = target.centre + target.scale * answer.mean[:, 0].double().numpy()
        spread = target.scale * answer.spread[:, 0].double().numpy()
        half = target.scale * half_widths(model, answer.spread[:, 0]).numpy()
        columns = {"prediction": values, "low": values - half, "high": values + half}
        return columns | {
            "uncertainty": spread if known else np.full(len(spread), np.nan)
        }
    chance, place = answer.mean.max(-1)
    spread = answer.spread.gather(1, place[:, None])[:, 0].double().numpy()
    names = np.array(model.task.classes, dtype=object)
    columns = {
        "prediction": names[place.numpy()],
        "probability": chance.double().numpy().round(6),
        "uncertainty": spread.round(6) if known else np.full(len(spread), np.nan),
    }
    if probabilities:
        for index, name in enumerate(model.task.classes):
            own = answer.mean[:, index].double().numpy().round(6)
            columns[f"probability of {name}"] = own
    return columns
