"""The user's rows, encoded as a schema says, in memory or in a temporary file."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cirm.data.columns import check_columns_present, list_column_names
from cirm.data.schema import (
    SCHEMA_ROWS,
    Schema,
    check_source_kind,
    encode_targets,
    list_numeric_columns,
    read_environment_names,
    read_row_weights,
)
from cirm.data.sources import (
    Progress,
    RowChunk,
    Source,
    ignore_progress,
    prefetch_items,
)
from cirm.data.values import Flags
from cirm.environments import Environment

MEMORY_BYTES = 2**28  # of inputs that are held in memory


class RowStore:
    """Inputs [n, *shape] that arrive in chunks.

    Up to 256 MiB are held in memory, more in a temporary file without a name, which
    disappears with the process. Bytes stay bytes until they are taken.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.count = 0
        self._chunks: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._rows: Any = None

    def add(self, inputs: NDArray[Any]) -> None:
        """Append inputs [m, *shape]."""
        inputs = np.ascontiguousarray(inputs, self.dtype)
        self.count += len(inputs)
        if self._file is not None:
            self._file.write(inputs.data)
            return
        self._chunks.append(inputs)
        if self.count * math.prod(self.shape) * self.dtype.itemsize > MEMORY_BYTES:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives on
            for chunk in self._chunks:
                self._file.write(chunk.data)
            self._chunks = []

    @property
    def is_lazy(self) -> bool:
        """Whether inputs are better taken a few at a time."""
        return self._file is not None or self.dtype == np.uint8

    def get_all(self) -> NDArray[Any]:
        """Return all inputs as they are stored, [n, *shape]."""
        if self._rows is None:
            shape = (self.count, *self.shape)
            if self._file is None:
                self._rows = self._concatenate_chunks(np.empty(shape, self.dtype))
            else:
                self._file.flush()
                self._rows = np.memmap(self._file, self.dtype, "r", shape=shape)
                self._file.close()  # the map keeps what it needs of it
        return self._rows

    def _concatenate_chunks(self, whole: NDArray[Any]) -> NDArray[Any]:
        """Copy all chunks into one array and release each as soon as it is copied."""
        end = self.count
        while self._chunks:
            chunk = self._chunks.pop()
            whole[end - len(chunk) : end] = chunk
            end -= len(chunk)
        return whole

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [*m, *shape] of the rows [*m], as floats."""
        return torch.from_numpy(convert_inputs_to_floats(self.get_all()[rows.numpy()]))


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Inputs [replica, m, *shape] of chosen rows [m] of a store, alike for replicas."""

    store: RowStore
    rows: Tensor
    replicas: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, m, *shape]."""
        return (self.replicas, len(self.rows), *self.store.shape)

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [replica, k, *shape] of the rows [replica, k]."""
        return self.store.take(self.rows[rows])


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Inputs, targets [n], the rows of each environment, and notes for the user.

    `missing` [n, bytes] says, in packed bits, which numbers of a table are missing.
    `sources` are those of each environment.
    `weights` [n] say how much each row counts; without them, each counts once.
    """

    store: RowStore
    targets: Tensor
    rows: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    missing: NDArray[np.uint8] | None = None
    sources: dict[str, list[Source]] = field(default_factory=dict)
    weights: Tensor | None = None

    def take_weights(self, rows: Tensor) -> Tensor | None:
        """Return the weights [m] of rows [m]; None if each counts once."""
        return None if self.weights is None else self.weights[rows]

    def find_missing(self, rows: Tensor, schema: Schema) -> Flags | None:
        """Return where numbers of rows [m] are missing, [m, columns of numbers]."""
        encoding = schema.treatment.encoding
        if self.missing is None or encoding is None:
            return None
        bits = self.missing[rows.numpy()]
        return np.unpackbits(bits, axis=1, count=len(encoding.numbers)).astype(bool)

    def fingerprint(self, name: str) -> str:
        """Return a hash of an environment's rows, by which they are recognised."""
        return hash_inputs_and_targets(
            (self.store.take(rows).numpy(), self.targets[rows].numpy())
            for rows in self.rows[name].split(SCHEMA_ROWS)
        )

    def hash_files(self) -> dict[str, dict[str, str]]:
        """Return the SHA-256 of the files of each environment, by their names."""
        known = {
            source: source.hash_files()
            for sources in self.sources.values()
            for source in sources
        }
        return {
            name: {file: digest for s in own for file, digest in known[s].items()}
            for name, own in self.sources.items()
        }

    def environment(
        self, name: str, rows: Tensor, schema: Schema, replicas: int = 1
    ) -> Environment:
        """Return an environment of some rows [m], the same ones for each replica."""
        targets, weights = self.targets[rows], self.take_weights(rows)
        if not self.store.is_lazy:
            inputs = self.store.take(rows)
            return Environment(name, inputs, targets, schema.task, weights=weights)
        if weights is not None:
            weights = weights.expand(replicas, -1)
        return Environment(
            name,
            LazyRows(self.store, rows, replicas),
            targets.expand(replicas, -1),
            schema.task,
            replicated=True,
            weights=weights,
        )


class EncodedChunk(NamedTuple):
    """Some encoded rows: columns, inputs [n, *shape], and notes for the user.

    `environment` is the column that names the environments, if there is one.
    """

    frame: pd.DataFrame
    inputs: NDArray[Any]
    environment: str
    notes: tuple[str, ...]

    def keep_weighted_rows(self, column: str) -> tuple[EncodedChunk, Tensor | None]:
        """Return the rows whose weight is not zero, with their weights [m], if any."""
        weights = read_row_weights(self.frame, column)
        if weights is None or bool((weights > 0).all()):
            return self, weights
        keep = (weights > 0).numpy()
        kept = self._replace(frame=self.frame[keep], inputs=self.inputs[keep])
        return kept, weights[weights > 0]


def read_rows(
    sources: Sequence[Source],
    schema: Schema,
    progress: Progress = ignore_progress,
    fill: bool = False,
    environment: str = "",
    has_targets: bool = True,
    weight: str = "",
) -> EncodedRows:
    """Read all rows, encoded as the schema says, with targets and environments.

    If the rows have no targets, or these are not to be used, there are 0 of them.
    `weight` is the column of the weights, if it is another one than the schema's; a row
    of weight zero is left out.
    """
    all_bytes = all(source.has_bytes for source in sources)
    store = RowStore(schema.treatment.shape, np.uint8 if all_bytes else np.float32)
    targets, names, missing, weights = [], [], [], []
    notes: list[str] = []
    origins: dict[str, list[Source]] = {}
    for source in sources:
        wanted = [schema.target.name] if has_targets else []
        column = weight or schema.weight or source.weight if has_targets else ""
        needed = [*wanted, *filter(None, [weight])]
        for chunk in encode_source_chunks(
            source, schema, fill, environment, needed, keep_bytes=all_bytes
        ):
            chunk, own_weights = chunk.keep_weighted_rows(column)
            store.add(chunk.inputs)
            weights.append(own_weights)
            for name in wanted:
                targets.append(encode_targets(chunk.frame[name], schema))
            names.append(
                read_environment_names(chunk.frame, chunk.environment, source.name)
            )
            for name in pd.unique(names[-1]):
                if source not in origins.setdefault(name, []):
                    origins[name].append(source)
            notes.extend(chunk.notes)
            gaps = find_missing_numbers(chunk.frame, schema)
            if gaps is not None:
                missing.append(np.packbits(gaps, axis=1))
            report_encoded_rows(progress, sources, store.count)
    return EncodedRows(
        store,
        torch.cat(targets) if targets else torch.zeros(0),
        group_rows_by_environment(np.concatenate(names)),
        tuple(dict.fromkeys(notes)),
        np.concatenate(missing) if missing else None,
        origins,
        join_weights(weights, list(map(len, names))),
    )


def report_encoded_rows(
    progress: Progress, sources: Sequence[Source], done: int
) -> None:
    """Report the fraction of the rows that is encoded, or their number."""
    if not any(source.encoder for source in sources):
        return progress("encoding", done)
    total = sum(source.count for source in sources)
    progress("computing features", done / total if total > done else 1)


def join_weights(parts: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Join the weights of chunks; those that have none count once. None without any."""
    if all(part is None for part in parts):
        return None
    return torch.cat(
        [
            torch.ones(size, dtype=torch.float64) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def encode_source_chunks(
    source: Source,
    schema: Schema,
    fill: bool = False,
    environment: str = "",
    needed: Sequence[str] = (),
    keep_bytes: bool = False,
) -> Iterator[EncodedChunk]:
    """Yield the rows of a source, encoded, chunk by chunk.

    With `fill`, columns that a table lacks count as missing values; those in `needed`
    must be there. `environment` is the column that names the environments, if it is
    another one than the schema's. Inputs are floats, unless bytes are to be kept.
    """
    check_source_kind(source, schema.treatment.kind)
    column = environment or schema.environment or source.environment
    needed = [*needed, *filter(None, [environment])]
    for chunk in prefetch_items(source.chunks(list_numeric_columns(schema))):
        frame = chunk.frame
        check_columns_present(frame, needed, source.where)
        own_column = column if column in frame.columns else ""
        used = {own_column, source.weight, *needed}
        inputs = _encode_chunk(chunk, schema, source.where, fill)
        yield EncodedChunk(
            frame,
            inputs if keep_bytes else convert_inputs_to_floats(inputs),
            own_column,
            tuple(describe_column_changes(frame, schema, used, source.where)),
        )


def encode_inputs_of_chunk(
    chunk: RowChunk, schema: Schema, where: str, fill: bool = False
) -> NDArray[np.float32]:
    """Return inputs [n, *shape]; with `fill`, absent columns count as missing."""
    return convert_inputs_to_floats(_encode_chunk(chunk, schema, where, fill))


def _encode_chunk(
    chunk: RowChunk, schema: Schema, where: str, fill: bool
) -> NDArray[Any]:
    encoding, frame, inputs = schema.treatment.encoding, chunk.frame, chunk.inputs
    if inputs is None:
        assert encoding is not None
        wanted = [column.name for column in encoding.columns if column.features]
        if fill:
            absent = [name for name in wanted if name not in frame.columns]
            frame = frame.assign(**dict.fromkeys(absent, np.nan))
        check_columns_present(frame, wanted, where, "rename one, or use --fill-missing")
        return encoding.encode(frame).numpy()
    if inputs.shape[1:] != schema.treatment.shape:
        raise ValueError(
            f"{where}: its inputs have the shape {list(inputs.shape[1:])}, but the "
            f"first ones had {list(schema.treatment.shape)}. All inputs must have the "
            "same shape."
        )
    if not np.isfinite(inputs).all():
        bad = int((~np.isfinite(inputs)).sum())
        raise ValueError(
            f"{where}: its inputs contain {bad} NaN or infinite values. Replace them, "
            "or remove these rows."
        )
    return inputs


def find_missing_numbers(frame: pd.DataFrame, schema: Schema) -> Flags | None:
    """Return where numbers of a table are missing, [n, columns of numbers]."""
    encoding = schema.treatment.encoding
    return None if encoding is None else encoding.find_missing(frame)


def convert_inputs_to_floats(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Return inputs as float32; bytes are divided by 255."""
    if inputs.dtype != np.uint8:
        return inputs
    return inputs.astype(np.float32) / np.float32(255)


def describe_column_changes(
    frame: pd.DataFrame, schema: Schema, used: Collection[str], where: str
) -> Iterator[str]:
    """Yield notes on columns of a table that are new and not used, or absent."""
    encoding = schema.treatment.encoding
    if encoding is None:
        return
    wanted = [column.name for column in encoding.columns]
    known = {*wanted, schema.target.name, schema.environment, *used}
    known |= {*schema.ids, *schema.ignored, schema.weight}
    if new := [name for name in frame.columns if name not in known]:
        yield (
            f"{where}: these columns are ignored because the model does not know "
            f"them: {list_column_names(new)}"
        )
    used = [column.name for column in encoding.columns if column.features]
    if absent := [name for name in used if name not in frame.columns]:
        names = list_column_names(absent)
        yield (
            f"{where}: these columns are absent, so all their values are treated as "
            f"missing: {names}"
        )


def hash_inputs_and_targets(chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> str:
    """Return a hash of inputs and targets, in chunks of `SCHEMA_ROWS` rows."""
    digest = hashlib.sha256()
    for inputs, targets in chunks:
        digest.update(np.ascontiguousarray(inputs).data)
        digest.update(np.ascontiguousarray(targets).data)
    return digest.hexdigest()[:16]


def group_rows_by_environment(names: NDArray[np.object_]) -> dict[str, Tensor]:
    """Return the positions of each environment's rows, in order of appearance."""
    codes, different = pd.factorize(names)
    order = torch.from_numpy(np.argsort(codes, kind="stable"))
    sizes = np.bincount(codes).tolist()
    return dict(zip(map(str, different), order.split(sizes), strict=True))
