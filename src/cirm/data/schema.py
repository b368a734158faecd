"""How a user's data are read: inputs, the target and the other columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cirm.data.columns import Column, Encoding
from cirm.environments import Task


@dataclass(frozen=True)
class Treatment:
    """How a user's data become inputs of `shape`.

    The columns of a table are encoded as the first environment suggested, and never
    otherwise. Arrays are taken as they are, images brought to one size.
    """

    kind: Literal["table", "array", "images"]
    shape: tuple[int, ...]
    encoding: Encoding | None = None


@dataclass(frozen=True)
class Schema:
    """How a user's data are read: inputs, what is predicted, and other columns.

    `target` is the column that is predicted, with its scale if it is a number. In
    other columns are the names of `environment`s, `ids` that predictions keep, and
    those that were `ignored` as asked.
    """

    treatment: Treatment
    task: Task
    target: Column
    environment: str = ""
    ids: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
