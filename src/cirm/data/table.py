"""The user's own table: CSV, TSV, Parquet or a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirm.data import cells, columns, supplied, table_files
from cirm.data.base import Dataset
from cirm.data.cells import Values
from cirm.data.columns import Column, Encoding
from cirm.data.supplied import Array, TaskName
from cirm.environments import Environment, Problem, Task


@dataclass(frozen=True)
class Prepared:
    """A table's problem, how its columns were encoded, and both in words.

    The targets of a regression are (value - target.centre) / target.scale.
    """

    problem: Problem
    encoding: Encoding
    target: Column
    description: str


@dataclass(frozen=True)
class Table(Dataset):
    """Rows with a target column, from one or several environments.

    `path` is a file, or several separated by commas. Environments are the values of
    the column `environment`, in order of appearance; without it each file is one,
    named after the file. `test` names those to hold out, separated by commas: left
    empty the last one, "none" for none. The task is detected unless it is given: text,
    true or false, and at most ten different whole numbers are classes. `categories`
    are columns whose numbers are codes, `ignore` are columns to leave out. The first
    training environment alone decides how columns are encoded (see the module
    columns) and, with `standardise`, the scale of a regression target; of the unseen
    environments only the classes are known. Messages count rows from 1 below the
    header. Draws are the same for every seed.
    """

    path: str = ""
    target: str = ""
    environment: str = ""
    task: TaskName = "auto"
    test: str = ""
    categories: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    standardise: bool = True

    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """The environments of the files, [n, features], shared by all seeds."""
        return self.read().problem

    def files(self) -> tuple[Path, ...]:
        """Return the files that `path` names."""
        return tuple(supplied.split_paths(self.path))

    def describe(self) -> str:
        """The task, the environments, and the treatment of each column."""
        return self.read().description

    def read(self) -> Prepared:
        """The files, encoded."""
        paths = supplied.files(self.path, "table")
        frames = [table_files.read(path) for path in paths]
        for path, frame in zip(paths, frames, strict=True):
            columns.check_columns(frame, self._named(), f"file {str(path)!r}")
            table_files.check_same(path, frame, paths[0], frames[0])
        labels = list(map(str, paths))
        stems = [path.stem for path in paths]
        called = stems if len(set(stems)) == len(stems) else labels
        names = np.repeat(np.array(called), [len(frame) for frame in frames])
        joined = pd.concat(frames, keys=labels, names=["file", "row"])
        return self._prepared(joined, names)

    def encode(self, frame: pd.DataFrame) -> Prepared:
        """A DataFrame, encoded; `path` plays no part."""
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        columns.check_columns(frame, self._named())
        if frame.empty:
            raise ValueError("table: there must be rows; got none")
        return self._prepared(frame, np.repeat("table", len(frame)))

    def _named(self) -> list[str]:
        if not self.target:
            raise ValueError("table: target must name a column; got ''")
        named = [self.target, self.environment, *self.categories, *self.ignore]
        return [name for name in named if name]

    def _prepared(self, frame: pd.DataFrame, names: Array) -> Prepared:
        if self.environment:
            names = environment_names(frame[self.environment])
        rows = rows_by_name(names)
        unseen = supplied.held_out(list(rows), self.test, "table")
        first = next(name for name in rows if name not in unseen)
        targets, task, target = self._targets(frame[self.target], rows[first])
        apart = {self.target, self.environment, *self.ignore} - {""}
        inputs = frame.drop(columns=list(apart))
        encoding = Encoding.fit(inputs.iloc[rows[first]], self.categories)
        if not encoding.features:
            raise ValueError(
                f"environment {first!r}: a column besides the target must vary in it; "
                f"got {encoding.describe() or 'none'}".replace("\n", "; ")
            )
        environments = [
            Environment(name, encoding.encode(inputs.iloc[own]), targets[own], task)
            for name, own in rows.items()
        ]
        problem = supplied.problem(environments, self.test, "table")
        text = self._description(problem, encoding, target)
        return Prepared(problem, encoding, target, text)

    def _targets(self, values: Values, first: Array) -> tuple[Tensor, Task, Column]:
        gaps = cells.absent(values)
        if gaps.any():
            raise ValueError(
                f"{cells.place(values, int(gaps.argmax()))}, column "
                f"{values.name!r}: the target must not be missing; "
                f"got {int(gaps.sum())} missing values, of which this is the first"
            )
        plain = plain_target(values, self.task)
        where = f"column {values.name!r}: the target"
        targets, task = supplied.encoded_targets(plain, self.task, where)
        column = Column(str(values.name), "category", categories=task.classes)
        if not task.classes:
            column = Column.fit(values.iloc[first])
            if not self.standardise or column.kind == "constant":
                column = Column(column.name, "number")
            with np.errstate(over="ignore"):  # the environment reports what is infinite
                scaled = ((plain - column.centre) / column.scale).astype(np.float32)
            targets = torch.from_numpy(scaled)
        return targets, task, column

    def _description(self, problem: Problem, encoding: Encoding, target: Column) -> str:
        lines = [supplied.described_problem(problem, self.task)]
        if target.kind == "number":
            lines.append(
                f"target: {target.name}, in deviations of {target.scale:.4g} "
                f"from {target.centre:.4g}"
            )
        if self.ignore:
            lines.append(f"left out as asked: {', '.join(self.ignore)}")
        lines.append(f"columns, as {problem.train[0].name} has them:")
        return "\n".join([*lines, encoding.describe()])


def from_frame(
    frame: pd.DataFrame,
    target: str,
    environment: str = "",
    task: TaskName = "auto",
    test: str = "",
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    standardise: bool = True,
) -> Prepared:
    """A DataFrame, encoded as `Table` says; without `environment` it is one."""
    return Table(
        target=target,
        environment=environment,
        task=task,
        test=test,
        categories=tuple(categories),
        ignore=tuple(ignore),
        standardise=standardise,
    ).encode(frame)


def environment_names(values: Values) -> Array:
    """Names of the rows' environments, [n]."""
    names = cells.as_text(values)
    gaps = (values.isna() | (names == "")).to_numpy(dtype=bool)
    cells.refuse(values, gaps, "an environment's name in every row")
    return names.to_numpy(dtype=object)


def rows_by_name(names: Array) -> dict[str, Array]:
    """Positions of each environment's rows, in order of appearance."""
    codes, found = pd.factorize(names)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))[:-1]
    return dict(zip(map(str, found), np.split(order, ends), strict=True))


def plain_target(values: Values, task: TaskName) -> Array:
    """A target as an array of numbers or of text."""
    if task == "classification":
        try:
            return cells.converted(values, "number")
        except ValueError:
            return cells.as_text(values).to_numpy(dtype=str)
    kind = "number"
    if task == "auto":
        kind = cells.detected(values, "the task be classification")
    if kind == "date":
        raise ValueError(
            f"column {values.name!r}: the target must be numbers or classes; got dates"
        )
    if kind != "number":
        return cells.as_text(values).to_numpy(dtype=str)
    numbers = cells.converted(values, "number")
    cells.refuse(values, ~np.isfinite(numbers), "a finite number")
    return numbers
