"""How a user's data are read: columns, target, task and weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from cirm.data.columns import ColumnEncoding, TableEncoding
from cirm.data.encoders import EncoderIdentity
from cirm.data.sources import DataSource
from cirm.tasks import Task

TaskName = Literal["auto", "classification", "regression"]
SCHEMA_ROWS = 100_000  # rows that decide how columns are encoded
KIND_NAMES = {"table": "a table", "array": "arrays [n, ...]", "images": "images"}


@dataclass(frozen=True)
class InputEncoding:
    """How a user's data become inputs of `shape`.

    The columns of a table are encoded as the first environment suggests. Arrays are
    not scaled, and images are resized, or turned into features by `encoder`. Bytes,
    which the first data may be, stand for numbers from 0 to 1.
    """

    kind: Literal["table", "array", "images"]
    shape: tuple[int, ...]
    encoding: TableEncoding | None = None
    encoder: EncoderIdentity | None = None
    has_bytes: bool = False


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


def check_columns_have_one_role(target: str, environment: str, weight: str) -> None:
    """Refuse a column that has two roles, which is a slip of the pen."""
    roles = {"target": target, "environment": environment, "weight": weight}
    for (role, name), (other, same) in combinations(roles.items(), 2):
        if name and name == same:
            raise ValueError(
                f"column {name!r} is used twice: as the {role} and as the {other}. "
                "Name another column for one of the two."
            )


def check_source_matches_schema(source: DataSource, kind: str) -> None:
    """Refuse a table where images are needed, and the like."""
    if source.kind != kind:
        raise ValueError(
            f"{source.where}: the data are {KIND_NAMES[source.kind]}, but the model "
            f"was first fitted to {KIND_NAMES[kind]}. Give {KIND_NAMES[kind]}."
        )


def list_numeric_columns(schema: Schema) -> list[str]:
    """Return the columns that the schema reads as numbers."""
    encoding = schema.treatment.encoding
    columns = (*(encoding.columns if encoding else ()), schema.target)
    return [c.name for c in columns if c.kind == "number" and not c.format]
