"""Targets as class indices or scaled values, first detected and then as decided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cirm.data import cells
from cirm.data.cells import Values
from cirm.data.columns import Column
from cirm.data.schema import Schema
from cirm.data.supplied import TaskName, encoded_targets
from cirm.data.table import plain_target
from cirm.environments import Task


def infer_targets(
    values: Values, first: NDArray[np.bool_], task: TaskName, classes: Sequence[str]
) -> tuple[Tensor, Task, Column]:
    """Targets [n], their task and their column, as all rows suggest.

    `classes` may be declared, for those that only come later; the scale of values is
    that of the `first` environment's rows.
    """
    check_present(values)
    name = str(values.name)
    if classes:
        declared = Task(tuple(classes))
        column = Column(name, "category", categories=declared.classes)
        return encode_classes(values, column), declared, column
    plain = plain_target(values, task)
    where = f"column {name!r}: the target"
    try:
        targets, found = encoded_targets(plain, task, where)
    except ValueError as error:
        if "two or more classes" in str(error):
            raise ValueError(
                f"{error} (declare classes that come later, as by --classes a,b)"
            ) from None
        raise
    if found.classes:
        return targets, found, Column(name, "category", categories=found.classes)
    column = Column.fit(values[first])
    if column.kind != "number":
        column = Column(name, "number")
    return scale_values(plain, column, values), found, column


def encode_targets(values: Values, schema: Schema) -> Tensor:
    """Targets [n] of later rows, as decided at the first fit."""
    check_present(values)
    if schema.task.classes:
        return encode_classes(values, schema.target)
    numbers = cells.converted(values, "number")
    cells.refuse(values, ~np.isfinite(numbers), "a finite number")
    return scale_values(numbers, schema.target, values)


def encode_classes(values: Values, column: Column) -> Tensor:
    """The index of each class; one that is not declared is refused."""
    known = {name.lower(): place for place, name in enumerate(column.categories)}
    if len(known) == len(column.categories):
        found = cells.as_text(values).str.lower().map(known)
    else:  # classes that differ in capitals only
        exact = {name: place for place, name in enumerate(column.categories)}
        found = cells.as_text(values).map(exact)
    listed = ", ".join(column.categories[:20])
    wanted = (
        f"one of the classes of the first fit ({listed}; --classes, in Python "
        "classes=, declares more)"
    )
    cells.refuse(values, found.isna().to_numpy(dtype=bool), wanted)
    return torch.from_numpy(found.to_numpy(dtype=np.int64, copy=True))


def scale_values(
    numbers: NDArray[np.float64], column: Column, values: Values
) -> Tensor:
    """Values in deviations of the first environment from its mean, [n]."""
    with np.errstate(over="ignore"):
        found = ((numbers - column.centre) / column.scale).astype(np.float32)
    cells.refuse(values, ~np.isfinite(found), "of ordinary size")
    return torch.from_numpy(found)


def check_present(values: Values) -> None:
    """Refuse targets that are missing."""
    gaps = cells.absent(values)
    if gaps.any():
        raise ValueError(
            f"{cells.place(values, int(gaps.argmax()))}, column {values.name!r}: the "
            f"target must not be missing; got {int(gaps.sum())} missing values, of "
            "which this is the first"
        )
