"""How a user's data are read: columns, target, task and weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.cell_errors import (
    describe_row_location,
    raise_for_first_bad_value,
)
from cirm.data.columns import ColumnEncoding, TableEncoding
from cirm.data.encoders import EncoderIdentity
from cirm.data.sources import Source
from cirm.data.values import (
    Numbers,
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    is_missing,
)
from cirm.tasks import Task

TaskName = Literal["auto", "classification", "regression"]
SCHEMA_ROWS = 100_000  # rows that decide how columns are encoded
SYNONYMS = {"0": "false", "1": "true", "false": "0", "true": "1"}  # of two classes
KIND_NAMES = {"table": "a table", "array": "arrays [n, ...]", "images": "images"}


@dataclass(frozen=True)
class InputEncoding:
    """How a user's data become inputs of `shape`.

    The columns of a table are encoded as the first environment suggests. Arrays are
    taken as they are, and images are resized, or turned into features by `encoder`.
    """

    kind: Literal["table", "array", "images"]
    shape: tuple[int, ...]
    encoding: TableEncoding | None = None
    encoder: EncoderIdentity | None = None


@dataclass(frozen=True)
class Schema:
    """How a user's data are read.

    Attributes:
        treatment: How rows become inputs.
        task: Classification with these classes, or regression.
        target: The column to predict, with its mean and standard deviation if it is
            a number.
        environment: The column that names the environments.
        ids: Columns that identify rows; predictions keep them.
        ignored: Columns that the user asked to ignore.
        weight: The column with the weights of rows; empty if all count once.
        every: The length of a period, if the environments are periods and the column
            of environments holds dates; empty otherwise.
    """

    treatment: InputEncoding
    task: Task
    target: ColumnEncoding
    environment: str = ""
    ids: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    weight: str = ""
    every: str = ""


def encode_targets(
    values: Values, schema: Schema
) -> NDArray[np.int64] | NDArray[np.float32]:
    """Return targets [n] as the schema says: class indices or standardised numbers."""
    check_targets_present(values)
    if schema.task.classes:
        return encode_classes_as_indices(values, schema.target)
    numbers = convert_values_to_numbers(
        values, "number", "remove the row", schema.target.format
    )
    raise_for_first_bad_value(values, ~np.isfinite(numbers), "which is not finite")
    return schema.target.standardise(numbers, values)


def encode_classes_as_indices(
    values: Values, column: ColumnEncoding
) -> NDArray[np.int64]:
    """Return the index of each class, [n]; a class that is not declared is refused."""
    text, places = convert_values_to_text(values), range(len(column.categories))
    positions = dict(zip(map(str.lower, column.categories), places, strict=True))
    if len(positions) < len(places):  # classes that differ in capitals only
        indices = text.map(dict(zip(column.categories, places, strict=True)))
    else:
        if positions.keys() in ({"0", "1"}, {"false", "true"}):
            positions |= {SYNONYMS[name]: place for name, place in positions.items()}
        indices = text.str.lower().map(positions)
    listed = ", ".join(column.categories[:20])
    raise_for_first_bad_value(
        values,
        indices.isna().to_numpy(dtype=bool),
        f"which is not one of the known classes ({listed})",
        "Correct it, or fit a new model and declare all classes with --classes.",
    )
    return indices.to_numpy(dtype=np.int64, copy=True)


def check_column_roles(target: str, environment: str, weight: str) -> None:
    """Refuse a column that has two roles, which is a slip of the pen."""
    roles = {"target": target, "environment": environment, "weight": weight}
    for (role, name), (other, same) in combinations(roles.items(), 2):
        if name and name == same:
            raise ValueError(
                f"column {name!r} is given both as the {role} and as the {other}. "
                "Choose another column for one of them."
            )


def read_row_weights(frame: pd.DataFrame, column: str) -> Numbers | None:
    """Return the weight of each row [n]; None if the table has no such column."""
    if not column or column not in frame.columns:
        return None
    values = frame[column]
    numbers = convert_values_to_numbers(values, "number", "remove the row")
    if values.isna().any():
        row = describe_row_location(values, int(values.isna().argmax()))
        raise ValueError(f"{row}: column {column!r} has no weight. Fill it in.")
    is_bad = ~np.isfinite(numbers) | (numbers < 0)
    remedy = "Use numbers that are not negative."
    raise_for_first_bad_value(values, is_bad, "which is not a valid weight", remedy)
    return numbers.astype(np.float64)


def drop_weightless_rows(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows whose weight is not zero."""
    weights = read_row_weights(frame, column)
    return frame if weights is None else frame[weights > 0]


def check_source_kind(source: Source, kind: str) -> None:
    """Refuse a table where images are needed, and the like."""
    if source.kind != kind:
        raise ValueError(
            f"{source.where}: it contains {KIND_NAMES[source.kind]}, but the first "
            f"data were {KIND_NAMES[kind]}. Use data of the same kind."
        )


def read_environment_names(
    frame: pd.DataFrame, column: str, name: str
) -> NDArray[np.object_]:
    """Return the environment of each row [n]: from a column, or all of one name."""
    if not column:
        return np.full(len(frame), name, dtype=object)
    values = frame[column]
    names = convert_values_to_text(values)
    gaps = (values.isna() | (names == "")).to_numpy(dtype=bool)
    raise_for_first_bad_value(
        values, gaps, "which is not the name of an environment", "Fill the cell."
    )
    return names.to_numpy(dtype=object)


def list_numeric_columns(schema: Schema) -> list[str]:
    """Return the columns that the schema reads as numbers."""
    encoding = schema.treatment.encoding
    columns = (*(encoding.columns if encoding else ()), schema.target)
    return [c.name for c in columns if c.kind == "number" and not c.format]


def check_targets_present(values: Values) -> None:
    """Raise an error if a target is missing."""
    gaps = is_missing(values)
    if count := int(gaps.sum()):
        more = f" (in {count} rows altogether)" if count > 1 else ""
        raise ValueError(
            f"{describe_row_location(values, int(gaps.argmax()))}: the target in "
            f"column {values.name!r} is missing{more}. Fill it in, or remove the row."
        )
