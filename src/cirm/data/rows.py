"""The user's rows, encoded: what the first environment suggests, and all after it.

A file is read twice for the first fit and once afterwards, in portions, so that memory
does not grow with it. The first reading draws at most 100,000 rows of the first
environment, evenly from all of it, which alone decide how columns are treated; classes
are those of all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirm.data import cells
from cirm.data.cells import Values
from cirm.data.columns import Column, Encoding, check_columns
from cirm.data.prefetch import prefetch
from cirm.data.reservoir import Reservoir
from cirm.data.row_store import Lazy, Store
from cirm.data.schema import Schema, Treatment
from cirm.data.sources import Chunk, Source
from cirm.data.supplied import TaskName
from cirm.data.table import environment_names, rows_by_name
from cirm.data.targets import encode_targets, infer_targets
from cirm.environments import Environment

SAMPLE = 100_000  # rows that decide how columns are treated
PEEKED = 1_000  # rows that tell which columns look like numbers

Progress = Callable[[str, float], None]
"""Is told what is being done, and how much of it: a part, or a count above one."""


def ignore_progress(what: str, part: float) -> None:
    """The watcher that does nothing."""


@dataclass(frozen=True)
class ReadOptions:
    """What the user says of the data at the first fit."""

    target: str = ""
    environment: str = ""
    task: TaskName = "auto"
    classes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


def compute_fingerprint(portions: Iterable[tuple[np.ndarray, np.ndarray]]) -> str:
    """A digest of inputs and targets, in portions of `SAMPLE` rows."""
    whole = hashlib.sha256()
    for inputs, targets in portions:
        whole.update(np.ascontiguousarray(inputs).data)
        whole.update(np.ascontiguousarray(targets).data)
    return whole.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows of one call, encoded: inputs, targets [n], and each environment's rows."""

    store: Store
    targets: Tensor
    rows: dict[str, Tensor]
    notes: tuple[str, ...]

    def mark(self, name: str) -> str:
        """A digest of an environment's rows, by which they are known again."""
        return compute_fingerprint(
            (self.store.take(rows).numpy(), self.targets[rows].numpy())
            for rows in self.rows[name].split(SAMPLE)
        )

    def environment(self, name: str, rows: Tensor, schema: Schema) -> Environment:
        """The environment of some of the rows [m]."""
        targets = self.targets[rows]
        if self.store.on_disk:
            lazy = Lazy(self.store, rows)
            return Environment(name, lazy, targets[None], schema.task, replicated=True)
        return Environment(name, self.store.take(rows), targets, schema.task)


@dataclass(frozen=True, eq=False)
class SchemaDraft:
    """What the first reading found: how to read, and rows [m] of the first place."""

    schema: Schema
    sample: pd.DataFrame
    targets: Tensor


def infer_schema(
    sources: Sequence[Source], wishes: ReadOptions, progress: Progress
) -> SchemaDraft:
    """How the data are to be read, by the first environment."""
    first = sources[0]
    check_source_kinds(sources, first.kind)
    target = wishes.target or first.target
    if not target:
        raise ValueError(f"{first.where}: target must name its column; got none")
    column = wishes.environment or first.environment
    apart = [n for n in (target, column, *wishes.ids, *wishes.ignore) if n]
    needed = [*apart, *(wishes.categories if first.kind == "table" else ())]
    numbers = guess_numeric_columns(first, {*apart, *wishes.categories} - {target})
    kept = Reservoir(SAMPLE)
    pieces: list[Values] = []
    marks, shape = [], ()
    for source in sources:
        for portion in prefetch(source.portions(numbers)):
            check_columns(portion.frame, needed, source.where)
            names = read_environment_names(portion, column, source.name)
            kept.first = kept.first or str(names[0])
            marks.append(kept.offer(portion.frame, names == kept.first))
            pieces.append(portion.frame[target])
            if portion.inputs is not None:
                shape = portion.inputs.shape[1:]
            progress("reading", kept.seen)
    targets, task, about = infer_targets(
        pd.concat(pieces), np.concatenate(marks), wishes.task, wishes.classes
    )
    treatment = Treatment(first.kind, shape)
    if first.kind == "table":
        treatment = _of_table(kept, apart, wishes.categories)
    schema = Schema(treatment, task, about, column, wishes.ids, wishes.ignore)
    return SchemaDraft(schema, kept.frame, targets[torch.from_numpy(kept.rows)])


def _of_table(
    kept: Reservoir, apart: Collection[str], categories: Collection[str]
) -> Treatment:
    """The treatment that rows of the first environment suggest."""
    inputs = kept.frame.drop(columns=list(dict.fromkeys(apart)))
    encoding = Encoding.fit(inputs, categories)
    if not encoding.features:
        raise ValueError(
            f"environment {kept.first!r}: a column besides the target must vary in "
            f"it; got {encoding.describe() or 'none'}".replace("\n", "; ")
        )
    return Treatment("table", (len(encoding.features),), encoding)


def read_rows(
    sources: Sequence[Source],
    schema: Schema,
    progress: Progress,
    fill: bool = False,
    environment: str = "",
) -> EncodedRows:
    """All rows, encoded as the schema says, with their targets and environments."""
    store = Store(schema.treatment.shape)
    targets, names = [], []
    notes: list[str] = []
    for source in sources:
        column = choose_environment_column(source, schema, environment)
        check_source_kinds([source], schema.treatment.kind)
        for portion in prefetch(source.portions(list_numeric_columns(schema))):
            frame = portion.frame
            check_columns(frame, [schema.target.name], source.where)
            if environment:
                check_columns(frame, [environment], source.where)
            own = column if column in frame.columns else ""
            names.append(read_environment_names(portion, own, source.name))
            notes.extend(describe_column_changes(frame, schema, own, source.where))
            store.add(encode_chunk(portion, schema, source.where, fill))
            targets.append(encode_targets(frame[schema.target.name], schema))
            progress("encoding", store.count)
    rows = rows_by_name(np.concatenate(names))
    places = {name: torch.from_numpy(own) for name, own in rows.items()}
    return EncodedRows(store, torch.cat(targets), places, tuple(dict.fromkeys(notes)))


def encode_chunk(
    portion: Chunk, schema: Schema, where: str, fill: bool = False
) -> np.ndarray:
    """Inputs [n, *shape]; with `fill`, columns that are lacking count as missing."""
    if portion.inputs is None:
        encoding = schema.treatment.encoding
        assert encoding is not None
        frame = portion.frame
        wanted = [column.name for column in encoding.columns if column.features]
        lacking = [name for name in wanted if name not in frame.columns]
        if lacking and fill:
            frame = frame.assign(**dict.fromkeys(lacking, np.nan))
        elif lacking:
            check_columns(frame, wanted, where)
        return encoding.encode(frame).numpy()
    shape = portion.inputs.shape[1:]
    if shape != schema.treatment.shape:
        raise ValueError(
            f"{where}: inputs must be [n, *{list(schema.treatment.shape)}] as at the "
            f"first fit; got [n, *{list(shape)}]"
        )
    if not np.isfinite(portion.inputs).all():
        raise ValueError(f"{where}: inputs must be finite; got NaN or infinite values")
    return portion.inputs


def describe_column_changes(
    frame: pd.DataFrame, schema: Schema, environment: str, where: str
) -> Iterator[str]:
    """What a user should know of a table's columns."""
    encoding = schema.treatment.encoding
    if encoding is None:
        return
    wanted = [column.name for column in encoding.columns]
    known = {*wanted, schema.target.name, schema.environment, environment}
    more = [n for n in frame.columns if n not in known | {*schema.ids, *schema.ignored}]
    if more:
        listed = ", ".join(map(repr, more))
        yield f"{where}: columns that the model does not know are not used: {listed}"
    lacking = [name for name in wanted if name not in frame.columns]
    if lacking:
        listed = ", ".join(map(repr, lacking))
        yield f"{where}: columns that are lacking count as missing: {listed}"


def check_source_kinds(sources: Sequence[Source], kind: str) -> None:
    """Refuse a table where images are wanted, and the like."""
    for source in sources:
        if source.kind != kind:
            raise ValueError(
                f"{source.where}: it must be {_KINDS[kind]}, as at the first fit; "
                f"got {_KINDS[source.kind]}"
            )


_KINDS = {"table": "a table", "array": "arrays [n, ...]", "images": "images"}


def choose_environment_column(source: Source, schema: Schema, asked: str = "") -> str:
    """The column that may name rows' environments: as asked for, known, or its own."""
    return asked or schema.environment or source.environment


def read_environment_names(portion: Chunk, column: str, name: str) -> np.ndarray:
    """The environment's name of each row, [n]."""
    if column:
        return environment_names(portion.frame[column])
    return np.full(len(portion.frame), name, dtype=object)


def guess_numeric_columns(source: Source, other: Collection[str]) -> list[str]:
    """The columns that look like numbers in the first rows of a table."""
    if source.kind != "table":
        return []
    head = next(source.portions()).frame.iloc[:PEEKED]
    if head.columns.has_duplicates:
        return []  # refused where columns are checked
    found = []
    for name in head.columns:
        present = head[name][~cells.absent(head[name])]
        cells_as = pd.to_numeric(present.astype(str).astype(object), errors="coerce")
        if name not in other and len(present) and not pd.isna(cells_as).any():
            found.append(str(name))
    return found


def list_numeric_columns(schema: Schema) -> list[str]:
    """The columns that the schema reads as numbers."""
    encoding = schema.treatment.encoding
    columns: tuple[Column, ...] = encoding.columns if encoding else ()
    found = [column.name for column in columns if column.kind == "number"]
    if not schema.task.classes:
        found.append(schema.target.name)
    return found
