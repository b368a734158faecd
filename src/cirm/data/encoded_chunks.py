"""The rows of a source, their targets and weights, encoded as a schema says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.cell_errors import (
    check_table_has_columns,
    describe_file_and_row,
    quote_column_names,
    raise_error_for_first_bad_value,
)
from cirm.data.columns import (
    ColumnEncoding,
)
from cirm.data.schema import (
    Schema,
    check_source_matches_schema,
    list_numeric_columns,
)
from cirm.data.sources import DataSource, SourceRowChunk
from cirm.data.values import (
    Flags,
    Numbers,
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    find_missing_values,
)

Item = TypeVar("Item")
PREFETCHED_ITEMS = 2  # chunks that may be ready and unused
MOST_OF_BYTES = 1.5  # of numbers that may stand for bytes: 1, and some processing
LARGEST_INPUT = 1e9  # of images and arrays, which are used unscaled, in float32
SYNONYMS = {"0": "false", "1": "true", "false": "0", "true": "1"}  # of two classes


class EncodedRowChunk(NamedTuple):
    """Some encoded rows: columns, inputs [n, *shape], and notes for the user.

    `environment` is the column that names the environments, if there is one.
    """

    frame: pd.DataFrame
    inputs: NDArray[Any]
    environment: str
    notes: tuple[str, ...]

    def select_rows_with_nonzero_weight(
        self, weight_column: str
    ) -> tuple[EncodedRowChunk, Numbers | None]:
        """Return the rows whose weight is not zero, with their weights [m], if any."""
        weights = read_row_weights(self.frame, weight_column)
        if weights is None or bool((weights > 0).all()):
            return self, weights
        keep = weights > 0
        kept = self._replace(frame=self.frame[keep], inputs=self.inputs[keep])
        return kept, weights[keep]


def iterate_encoded_rows_of_source(
    source: DataSource,
    schema: Schema,
    fill_missing: bool = False,
    environment_column: str = "",
    needed_columns: Sequence[str] = (),
    keep_bytes: bool = False,
    columns_to_copy: Collection[str] = (),
) -> Iterator[EncodedRowChunk]:
    """Yield the rows of a source, encoded, chunk by chunk.

    With `fill_missing`, columns that a table lacks count as missing values; those in
    `needed_columns` must be there. `environment_column` is the column that names the
    environments, if it is another one than the schema's. Inputs are floats, unless
    bytes are to be kept. Cells of `columns_to_copy` come as a file has them: a code
    01067 as a number would be 1067.0.
    """
    check_source_matches_schema(source, schema.treatment.kind)
    column = environment_column or schema.environment or source.environment
    named = filter(None, [environment_column])
    needed_columns = [*needed_columns, *columns_to_copy, *named]
    numeric = set(list_numeric_columns(schema)).difference(columns_to_copy)
    chunks = source.iterate_chunks(numeric)
    for chunk in prefetch_chunks(source, chunks):
        frame = chunk.frame
        check_table_has_columns(frame, needed_columns, source.where)
        own_column = column if column in frame.columns else ""
        used = {own_column, source.weight, *needed_columns}
        inputs = _encode_chunk_of_rows(chunk, schema, source.where, fill_missing)
        yield EncodedRowChunk(
            frame,
            inputs if keep_bytes else convert_inputs_to_float32(inputs),
            own_column,
            tuple(describe_new_and_absent_columns(frame, schema, used, source.where)),
        )


def prefetch_chunks(source: DataSource, chunks: Iterable[Item]) -> Iterator[Item]:
    """Yield what is made of a source's chunks, ahead of its use if there are several.

    Starting a thread takes as long as predicting a thousand rows.
    """
    return iter(chunks) if source.is_one_chunk else prefetch_items_in_thread(chunks)


def prefetch_items_in_thread(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, made by another thread a little ahead of their use."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(
        PREFETCHED_ITEMS
    )
    stopped = threading.Event()

    def put_item_into_queue(item: tuple[Item] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def iterate_items_into_queue() -> None:
        try:
            for item in items:
                put_item_into_queue((item,))
                if stopped.is_set():
                    return
            put_item_into_queue(None)
        except BaseException as error:  # raised where items are used
            put_item_into_queue(error)

    maker = threading.Thread(target=iterate_items_into_queue, daemon=True)
    maker.start()
    try:
        while isinstance(item := ready.get(), tuple):
            yield item[0]
        if item is not None:
            raise item
    finally:
        stopped.set()
        maker.join()


def encode_inputs_of_chunk(
    chunk: SourceRowChunk, schema: Schema, where: str, fill_missing: bool = False
) -> NDArray[np.float32]:
    """Return inputs [n, *shape]; absent columns can count as missing."""
    return convert_inputs_to_float32(
        _encode_chunk_of_rows(chunk, schema, where, fill_missing)
    )


def _encode_chunk_of_rows(
    chunk: SourceRowChunk, schema: Schema, where: str, fill_missing: bool
) -> NDArray[Any]:
    encoding, frame, inputs = schema.treatment.encoding, chunk.frame, chunk.inputs
    if inputs is None and encoding is None:
        raise ValueError(
            f"{where}: the rows are those of a table, but the model was first fitted "
            f"to arrays, whose rows have the shape {list(schema.treatment.shape)}. "
            "Give inputs of that shape."
        )
    if inputs is None:
        assert encoding is not None
        wanted = [column.name for column in encoding.columns if column.features]
        if fill_missing:
            absent = [name for name in wanted if name not in frame.columns]
            frame = frame.assign(**dict.fromkeys(absent, np.nan))
        check_table_has_columns(
            frame,
            wanted,
            where,
            "rename one, or use --fill-missing (in Python fill_missing=True)",
        )
        return encoding.encode(frame)
    if inputs.shape[1:] != schema.treatment.shape:
        raise ValueError(
            f"{where}: each row has inputs of the shape {list(inputs.shape[1:])}, but "
            "in the data that the model was first fitted to, the shape was "
            f"{list(schema.treatment.shape)}. Give inputs of that shape."
        )
    if not np.isfinite(inputs).all():
        bad = int((~np.isfinite(inputs)).sum())
        raise ValueError(
            f"{where}: the inputs contain NaN or infinite values ({bad:,} in total). "
            "Replace these values, or remove their rows."
        )
    largest = float(np.abs(inputs).max(initial=0)) if inputs.dtype.kind == "f" else 0.0
    is_image = len(schema.treatment.shape) > 1
    if is_image and schema.treatment.has_bytes and largest > MOST_OF_BYTES:
        raise ValueError(
            f"{where}: the inputs contain the value {largest:.4g}, but the model was "
            "first fitted to bytes, which stand for numbers from 0 to 1. Convert them "
            "to bytes (uint8), or divide them by 255."
        )
    if largest > LARGEST_INPUT:
        raise ValueError(
            f"{where}: the inputs contain the value {largest:.2g}, which is too large "
            "to compute with. Scale the inputs, so that most are between -1 and 1."
        )
    return inputs


def find_missing_numeric_cells(frame: pd.DataFrame, schema: Schema) -> Flags | None:
    """Return where numbers of a table are missing, [n, columns of numbers]."""
    encoding = schema.treatment.encoding
    return None if encoding is None else encoding.find_missing_numbers(frame)


def convert_inputs_to_float32(inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Return inputs as float32; bytes are divided by 255."""
    if inputs.dtype != np.uint8:
        return inputs
    return inputs.astype(np.float32) / np.float32(255)


def describe_new_and_absent_columns(
    frame: pd.DataFrame, schema: Schema, used_columns: Collection[str], where: str
) -> Iterator[str]:
    """Yield notes on columns of a table that are new and not used, or absent."""
    encoding = schema.treatment.encoding
    if encoding is None:
        return
    wanted = [column.name for column in encoding.columns]
    known = {*wanted, schema.target.name, schema.environment, *used_columns}
    known |= {*schema.ids, *schema.ignored, schema.weight}
    if new := [name for name in frame.columns if name not in known]:
        yield (
            f"{where}: these columns are ignored, because the model was fitted "
            f"without them: {quote_column_names(new)}"
        )
    used_columns = [column.name for column in encoding.columns if column.features]
    if absent := [name for name in used_columns if name not in frame.columns]:
        names = quote_column_names(absent)
        yield (
            f"{where}: these columns are absent, so all their values are treated as "
            f"missing: {names}"
        )


def encode_targets(
    values: Values, schema: Schema
) -> NDArray[np.int64] | NDArray[np.float32]:
    """Return targets [n] as the schema says: class indices or standardised numbers."""
    check_no_target_is_missing(values)
    if schema.task.classes:
        return encode_classes_as_indices(values, schema.target)
    numbers = convert_values_to_numbers(
        values, "number", "remove the row", schema.target.format
    )
    raise_error_for_first_bad_value(
        values, ~np.isfinite(numbers), "which is not a finite number"
    )
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
    raise_error_for_first_bad_value(
        values,
        indices.isna().to_numpy(dtype=bool),
        f"which is not one of the known classes ({listed})",
        "Correct the value, or fit a new model and declare all classes with --classes.",
    )
    return indices.to_numpy(dtype=np.int64, copy=True)


def read_row_weights(frame: pd.DataFrame, weight_column: str) -> Numbers | None:
    """Return the weight of each row [n]; None if the table has no such column."""
    if not weight_column or weight_column not in frame.columns:
        return None
    values = frame[weight_column]
    numbers = convert_values_to_numbers(values, "number", "remove the row")
    if values.isna().any():
        row = describe_file_and_row(values, int(values.isna().argmax()))
        raise ValueError(
            f"{row}: the cell in column {weight_column!r}, the weight of the row, is "
            "empty. Fill in the cell, or remove the row."
        )
    is_bad = ~np.isfinite(numbers) | (numbers < 0)
    remedy = "Use weights of zero or more."
    raise_error_for_first_bad_value(
        values, is_bad, "which is not a valid weight", remedy
    )
    return numbers.astype(np.float64)


def check_some_row_has_weight(n_rows: int, weight_column: str) -> None:
    """Refuse data of which no row is left, since all have a weight of zero."""
    if not n_rows:
        raise ValueError(
            f"column {weight_column!r}: the weight of every row is zero. Give at least "
            "one row a positive weight."
        )


def drop_rows_of_zero_weight(frame: pd.DataFrame, weight_column: str) -> pd.DataFrame:
    """Return the rows whose weight is not zero."""
    weights = read_row_weights(frame, weight_column)
    return frame if weights is None else frame[weights > 0]


def read_environment_names(
    frame: pd.DataFrame, environment_column: str, default_name: str
) -> NDArray[np.object_]:
    """Return the environment of each row [n]: from a column, or all of one name."""
    if not environment_column:
        return np.full(len(frame), default_name, dtype=object)
    values = frame[environment_column]
    names = convert_values_to_text(values)
    gaps = (values.isna() | (names == "")).to_numpy(dtype=bool)
    raise_error_for_first_bad_value(
        values, gaps, "which is not the name of a place", "Fill the cell."
    )
    return names.to_numpy(dtype=object)


def check_file_names_its_place_alone(
    source: DataSource, others: list[DataSource]
) -> None:
    """Raise if another source, whose name is its place, too, has the same name.

    The source joins the others.
    """
    if source in others:
        return
    if any(other.name == source.name for other in others):
        if source.path is None:
            raise ValueError(
                "data: a list of tables does not say what their places are called. "
                'Pass a dictionary, such as {"north": first, "south": second}, or give '
                "the column that names the place of each row as environment."
            )
        raise ValueError(
            "data: each file is one place named after the file, but several files have "
            f"the name {source.name!r}. Rename a file, or give the column that names "
            "the place of each row with --environment."
        )
    others.append(source)


def check_no_target_is_missing(values: Values) -> None:
    """Raise an error if a target is missing."""
    gaps = find_missing_values(values)
    if count := int(gaps.sum()):
        more = f" (in {count} rows altogether)" if count > 1 else ""
        raise ValueError(
            f"{describe_file_and_row(values, int(gaps.argmax()))}: the target in "
            f"column {values.name!r} is missing{more}. Fill in the target, or remove "
            "the row."
        )
