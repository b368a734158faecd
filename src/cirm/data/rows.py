"""The user's rows, encoded as a schema says, in memory or in a temporary file."""

from __future__ import annotations

import ctypes
import hashlib
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cirm.data.encoded_chunks import (
    check_file_names_its_place_alone,
    check_some_row_has_weight,
    convert_inputs_to_float32,
    encode_targets,
    find_missing_numeric_cells,
    iterate_encoded_rows_of_source,
    read_environment_names,
)
from cirm.data.schema import SCHEMA_ROWS, Schema, check_columns_have_one_role
from cirm.data.sources import (
    DataSource,
    Progress,
    ignore_progress_message,
    report_progress_of_reading_rows,
)
from cirm.data.values import Flags, Numbers
from cirm.environments import Environment
from cirm.randomness import Randomness

FEWEST_HELD_OUT = 5  # fewer rows would say nothing about the accuracy
MEMORY_BYTES = 2**28  # of inputs that are held in memory
MMAP_THRESHOLD = -3  # the name of this setting in glibc's malloc.h
CHECKED_ROWS = 1000  # compared at once; nearly always, the first ones differ already
LAZY_BYTES = 2**26  # of inputs that are not copied into environments


class InputRowStore:
    """Inputs [n, *shape] that arrive in chunks.

    Up to 256 MiB are held in memory, more in a temporary file without a name, which
    disappears with the process. Bytes stay bytes until they are taken.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.count = 0
        self._row_bytes = math.prod(shape) * self.dtype.itemsize
        # Reserved as a whole, since memory is used only once it is written to: parts
        # that are joined in the end, or copied to grow, would take twice as much.
        self._held: NDArray[Any] = np.empty(
            (MEMORY_BYTES // self._row_bytes, *shape), dtype
        )
        self._file: IO[bytes] | None = None
        self._rows: Any = None

    def add_inputs(self, inputs: NDArray[Any]) -> None:
        """Append inputs [m, *shape], before any are taken."""
        inputs = np.ascontiguousarray(inputs, self.dtype)
        start, self.count = self.count, self.count + len(inputs)
        if self._file is None and self.count > len(self._held):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives on
            self._write_inputs_to_temporary_file(self._held[:start])
            self._held = self._held[:0].copy()  # which releases the rest
        if self._file is not None:
            self._write_inputs_to_temporary_file(inputs)
            return
        self._held[start : self.count] = inputs

    def _write_inputs_to_temporary_file(self, inputs: NDArray[Any]) -> None:
        """Append inputs to the temporary file, and name its folder in an error."""
        assert self._file is not None
        try:
            self._file.write(inputs.data)
            self._file.flush()
        except OSError as error:
            with suppress(OSError):  # what is left cannot be written either
                self._file.close()
            raise OSError(
                f"A temporary file in {tempfile.gettempdir()!r} cannot be written: "
                f"{(error.strerror or str(error)).lower()}. Free some space, or name "
                "another folder in the environment variable TMPDIR."
            ) from error

    @property
    def is_lazy(self) -> bool:
        """Whether inputs are better taken a few at a time than copied."""
        is_large = self.count * math.prod(self.shape) * 4 > LAZY_BYTES
        return is_large or self._file is not None or self.dtype == np.uint8

    def get_all_inputs(self) -> NDArray[Any]:
        """Return all inputs as they are stored, [n, *shape]."""
        if self._rows is None:
            if self._file is None:
                self._rows = self._held[: self.count]
            else:
                shape = (self.count, *self.shape)
                self._rows = np.memmap(self._file, self.dtype, "r", shape=shape)
                self._file.close()  # the map keeps what it needs of it
        return self._rows

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [*m, *shape] of the rows [*m], as floats."""
        return torch.from_numpy(
            convert_inputs_to_float32(self.get_all_inputs()[rows.numpy()])
        )


@dataclass(frozen=True, eq=False)
class LazyStoredRows:
    """Inputs [replica, m, *shape] of chosen rows [m] of a store, alike for replicas."""

    store: InputRowStore
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

    store: InputRowStore
    targets: Tensor
    rows: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    missing: NDArray[np.uint8] | None = None
    sources: dict[str, list[DataSource]] = field(default_factory=dict)
    weights: Tensor | None = None

    def take_weights(self, rows: Tensor) -> Tensor | None:
        """Return the weights [m] of rows [m]; None if each counts once."""
        return None if self.weights is None else self.weights[rows]

    def find_missing_numbers(self, rows: Tensor, schema: Schema) -> Flags | None:
        """Return where numbers of rows [m] are missing, [m, columns of numbers]."""
        encoding = schema.treatment.encoding
        if self.missing is None or encoding is None:
            return None
        bits = self.missing[rows.numpy()]
        return np.unpackbits(bits, axis=1, count=len(encoding.numeric_columns)).astype(
            bool
        )

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

    def build_environment(
        self, name: str, rows: Tensor, schema: Schema, n_replicas: int = 1
    ) -> Environment:
        """Return an environment of some rows [m], the same ones for each replica."""
        targets, weights = self.targets[rows], self.take_weights(rows)
        if not self.store.is_lazy:
            inputs = self.store.take(rows)
            return Environment(name, inputs, targets, schema.task, weights=weights)
        if weights is not None:
            weights = weights.expand(n_replicas, -1)
        return Environment(
            name,
            LazyStoredRows(self.store, rows, n_replicas),
            targets.expand(n_replicas, -1),
            schema.task,
            replicated=True,
            weights=weights,
        )


def read_rows(
    sources: Sequence[DataSource],
    schema: Schema,
    progress: Progress = ignore_progress_message,
    fill_missing: bool = False,
    environment_column: str = "",
    has_targets: bool = True,
    weight_column: str = "",
    n_expected_rows: int = 0,
) -> EncodedRows:
    """Read all rows, encoded as the schema says, with targets and environments.

    If the rows have no targets, or these are not to be used, there are 0 of them.
    `weight_column` is the column of the weights, if it is another one than the
    schema's; a row of weight zero is left out. `n_expected_rows` is the number of rows,
    if it is known.
    """
    all_bytes = all(source.has_bytes for source in sources)
    store = InputRowStore(schema.treatment.shape, np.uint8 if all_bytes else np.float32)
    targets, names, missing, weights = [], [], [], []
    notes: list[str] = []
    origins: dict[str, list[DataSource]] = {}
    named: list[DataSource] = []
    report_encoding_progress(progress, sources, 0, n_expected_rows)
    for source in sources:
        wanted = [schema.target.name] if has_targets else []
        column = weight_column or schema.weight or source.weight if has_targets else ""
        needed = [*wanted, *filter(None, [weight_column])]
        if has_targets:
            check_columns_have_one_role(
                schema.target.name, environment_column, weight_column
            )
        for chunk in iterate_encoded_rows_of_source(
            source,
            schema,
            fill_missing,
            environment_column,
            needed,
            keep_bytes=all_bytes,
        ):
            if has_targets and not chunk.environment:
                check_file_names_its_place_alone(source, named)
            chunk, own_weights = chunk.select_rows_with_nonzero_weight(column)
            store.add_inputs(chunk.inputs)
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
            gaps = find_missing_numeric_cells(chunk.frame, schema)
            if gaps is not None:
                missing.append(np.packbits(gaps, axis=1))
            report_encoding_progress(progress, sources, store.count, n_expected_rows)
    check_some_row_has_weight(store.count, weight_column or schema.weight)
    return EncodedRows(
        store,
        torch.from_numpy(np.concatenate(targets)) if targets else torch.zeros(0),
        group_rows_by_environment(
            np.concatenate(names), in_order=any(source.periods for source in sources)
        ),
        tuple(dict.fromkeys(notes)),
        np.concatenate(missing) if missing else None,
        origins,
        concatenate_row_weights(weights, list(map(len, names))),
    )


def release_free_memory_to_system() -> None:
    """Return memory that is free to the system, where the C library can.

    After a large file was read in chunks, this is often 200 MB. From then on, arrays of
    16 MB or more are returned as soon as they are not used any more.
    """
    if pyarrow := sys.modules.get("pyarrow"):  # by which pandas holds text
        pyarrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, 2**24)
        library.malloc_trim(0)


def check_inputs_are_not_constant(rows: EncodedRows, where: str) -> None:
    """Refuse inputs that are the same in every row."""
    inputs = rows.store.get_all_inputs()
    for start in range(0, len(inputs), CHECKED_ROWS):
        if (inputs[start : start + CHECKED_ROWS] != inputs[0]).any():
            return
    raise ValueError(
        f"{where}: the inputs are the same in every row, so nothing can be predicted "
        "from them. Check how the file was created."
    )


def report_encoding_progress(
    progress: Progress, sources: Sequence[DataSource], n_done: int, n_rows: int
) -> None:
    """Report the fraction of the rows that is encoded, or else their number."""
    if not any(source.encoder for source in sources):
        if n_rows < max(n_done, 1):
            return report_progress_of_reading_rows(
                progress, "encoding", sources, n_done
            )
        return progress("encoding", n_done / n_rows)
    total = sum(source.count for source in sources)
    progress("computing features", n_done / total if total > n_done else 1)


def concatenate_row_weights(
    weights_of_chunks: Sequence[Numbers | None], sizes: Sequence[int]
) -> Tensor | None:
    """Join the weights of chunks; those that have none count once. None without any."""
    if all(part is None for part in weights_of_chunks):
        return None
    joined = [
        np.ones(size) if part is None else part
        for part, size in zip(weights_of_chunks, sizes, strict=True)
    ]
    return torch.from_numpy(np.concatenate(joined))


def hash_inputs_and_targets(chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> str:
    """Return a hash of inputs and targets, in chunks of `SCHEMA_ROWS` rows."""
    digest = hashlib.sha256()
    for inputs, targets in chunks:
        digest.update(np.ascontiguousarray(inputs).data)
        digest.update(np.ascontiguousarray(targets).data)
    return digest.hexdigest()[:16]


def group_rows_by_environment(
    names: NDArray[np.object_], in_order: bool = False
) -> dict[str, Tensor]:
    """Return the positions of each environment's rows, in order of appearance.

    If they are to be `in_order`, as periods are, environments are sorted by name.
    """
    codes, different = pd.factorize(names, sort=in_order)
    order = torch.from_numpy(np.argsort(codes, kind="stable"))
    sizes = np.bincount(codes).tolist()
    return dict(zip(map(str, different), order.split(sizes), strict=True))


def split_held_out_rows(
    rows: Tensor, fraction: float, randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """Split rows into training and held-out rows; both are all rows if too few."""
    count = int(fraction * len(rows))
    if count < FEWEST_HELD_OUT:
        return rows, rows
    shuffled = randomness.at("held out").permutation(len(rows))[0]
    return rows[shuffled[count:].sort().values], rows[shuffled[:count]]
