"""Batches of arrays, tensors or tables, too many for memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from cirm.data.encoded_chunks import convert_inputs_to_float32
from cirm.data.open_sources import convert_table_to_pandas, is_dataframe_like
from cirm.data.rows import InputRowStore
from cirm.data.sources import (
    DataSource,
    SourceRowChunk,
    make_names_for_array_columns,
    move_image_channels_first,
)

TARGET, ENVIRONMENT, WEIGHT = "target", "environment", "sample_weight"
STORED_CHUNK_ROWS = 8192  # rows of stored batches in a chunk


@dataclass(eq=False)
class BatchIteratorSource(DataSource):
    """Batches (inputs, targets) or (inputs, targets, environment or environments).

    An iterable that can be iterated again, such as a list or a data loader, is read
    again when it is needed. A generator cannot: its batches are stored as they come,
    on disk beyond 256 MiB, and must therefore be numbers; they are then held in
    single precision.
    """

    batches: Iterable[Any]
    name: str = "batches"
    where: str = "batches"
    target: str = TARGET
    _stored: tuple[InputRowStore, pd.DataFrame] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if iter(self.batches) is self.batches:
            self._stored = self._store_batches_in_memory(iter(self.batches))
            store, columns = self._stored
            shape = store.shape
        else:
            columns, inputs = self._build_row_chunk_of_batch(
                *self._split_batch_into_inputs_and_targets(
                    next(iter(self.batches), None)
                )
            )
            shape = () if inputs is None else inputs.shape[1:]
        self.kind = "array" if len(shape) > 1 else "table"
        self.shape = shape if len(shape) > 1 else ()
        self.environment = ENVIRONMENT if ENVIRONMENT in columns.columns else ""

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield all rows in order."""
        if self._stored is None:
            yield from (
                self._build_row_chunk_of_batch(
                    *self._split_batch_into_inputs_and_targets(batch)
                )
                for batch in self.batches
            )
            return
        store, columns = self._stored
        for start in range(0, store.count, STORED_CHUNK_ROWS):
            rows = slice(start, start + STORED_CHUNK_ROWS)
            inputs = np.array(store.get_all_inputs()[rows])
            yield self._build_row_chunk_of_batch(
                inputs, columns.iloc[rows].reset_index(drop=True)
            )

    def _store_batches_in_memory(
        self, batches: Iterator[Any]
    ) -> tuple[InputRowStore, pd.DataFrame]:
        store: InputRowStore | None = None
        columns = []
        for batch in batches:
            inputs, frame = self._split_batch_into_inputs_and_targets(batch)
            if isinstance(inputs, pd.DataFrame):
                raise ValueError(
                    f"{self.where}: the tables come from a generator, which can be "
                    "read only once, but cirm has to read them several times. Pass "
                    "the tables as a list."
                )
            store = store or InputRowStore(inputs.shape[1:])
            if inputs.shape[1:] != store.shape:
                raise ValueError(
                    f"{self.where}: each row of a batch has the shape "
                    f"{list(inputs.shape[1:])}, but in the first batch each row has "
                    f"the shape {list(store.shape)}. Pass inputs of the same shape in "
                    "all batches."
                )
            store.add_inputs(np.asarray(inputs, np.float32))
            columns.append(frame)
        if store is None:
            raise ValueError(
                f"{self.where}: the list or generator of batches is empty. Pass at "
                "least one batch."
            )
        return store, pd.concat(columns, ignore_index=True)

    def _build_row_chunk_of_batch(
        self,
        inputs: Any,  # noqa: ANN401
        columns: pd.DataFrame,
    ) -> SourceRowChunk:
        """Return a chunk of inputs and the targets and environments beside them."""
        if isinstance(inputs, pd.DataFrame):
            frame = inputs.set_axis([str(n) for n in inputs.columns], axis=1)
            both = [frame.reset_index(drop=True), columns]
            return SourceRowChunk(pd.concat(both, axis=1))
        if inputs.ndim > 2:
            return SourceRowChunk(columns, inputs.astype(np.float32))
        frame = pd.DataFrame(
            inputs, columns=make_names_for_array_columns(inputs.shape[1])
        )
        return SourceRowChunk(pd.concat([frame, columns], axis=1))

    def _split_batch_into_inputs_and_targets(
        self,
        batch: Any,  # noqa: ANN401
    ) -> tuple[Any, pd.DataFrame]:
        """Return a batch's inputs, and its targets and environments as columns."""
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise ValueError(
                f"{self.where}: a batch is of type {type(batch).__name__}. Pass each "
                "batch as a tuple (inputs, targets) or (inputs, targets, "
                "environments)."
            )
        inputs, targets = (
            convert_to_array_or_table(batch[0]),
            np.asarray(convert_to_array_or_table(batch[1])).reshape(-1),
        )
        if len(inputs) != len(targets) or not len(targets):
            raise ValueError(
                f"{self.where}: a batch has {len(inputs)} rows of inputs but "
                f"{len(targets)} targets. Pass one target for each row, and at least "
                "one row."
            )
        if getattr(inputs, "ndim", 2) > 2:  # as in arrays that are passed whole
            inputs = convert_inputs_to_float32(move_image_channels_first(inputs))
        columns = pd.DataFrame({TARGET: targets})
        if len(batch) == 3:
            names = batch[2]
            if not isinstance(names, str):
                names = (
                    np.asarray(convert_to_array_or_table(names))
                    .astype(str)
                    .astype(object)
                )
            columns[ENVIRONMENT] = names
        return inputs, columns


def convert_to_array_or_table(values: Any) -> Any:  # noqa: ANN401  an array or a table
    """Return a tensor or array-like as an array, and a table as one of pandas."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if is_dataframe_like(values) and hasattr(values, "columns"):  # not a single column
        return convert_table_to_pandas(values)
    if isinstance(values, list) and values and isinstance(values[0], Tensor):
        values = [convert_to_array_or_table(value) for value in values]
    return np.asarray(values)


def is_list_of_images(values: Any) -> bool:  # noqa: ANN401  anything
    """Return whether inputs are a list of arrays or tensors, or what `tolist` gives."""
    if isinstance(values, list) and values and getattr(values[0], "ndim", 0) > 1:
        return True
    for _ in range(2):
        if not isinstance(values, list) or not values:
            return False
        values = values[0]
    return isinstance(values, list)
