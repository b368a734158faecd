"""Rows in the body of a request, as JSON, CSV or TSV, become a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cirm.data.base import shorten_error_message
from cirm.data.schema import Schema
from cirm.data.table_files import detect_separator
from cirm.model.facts import count_features_of_each_column

SEPARATORS = {"text/csv": ",", "text/tab-separated-values": "\t"}
CONTENT_TYPES = ("application/json", *SEPARATORS)
MOST_DIGITS = 300  # of a whole number; a float has room for no more

Cells = Mapping[str, Sequence[Any]]
"""The cells of each column."""


class InvalidRequestError(ValueError):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        row: The row that is wrong, from 1; None if it is none in particular.
        column: The column that is wrong; empty if it is none in particular.
    """

    def __init__(
        self, status: int, message: str, row: int | str | None = None, column: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.row, self.column = status, row, column


def parse_request_rows(
    body: bytes,
    content_type: str,
    schema: Schema,
    max_rows: int,
    fill_missing: bool = False,
) -> pd.DataFrame:
    """Return the rows of a request as a table whose labels are 1, 2 and so on."""
    wanted = [] if fill_missing else list(count_features_of_each_column(schema))
    if content_type in SEPARATORS:
        cells = _parse_csv_rows(body, SEPARATORS[content_type], max_rows, wanted)
    else:
        cells = _parse_json_rows(body, max_rows, wanted)
    count = len(next(iter(cells.values()), ()))
    if not count:
        raise InvalidRequestError(
            422, "the request contains no rows. Send at least one row."
        )
    encoding, features = (
        schema.treatment.encoding,
        count_features_of_each_column(schema),
    )
    # Whatever their format in files, so that a JSON number need not be text.
    numbers = {column.name for column in encoding.numeric_columns} if encoding else ()
    columns = {
        name: _convert_cells_to_typed_column(own, name in numbers, name in features)
        for name, own in cells.items()
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(1, count + 1))


def _parse_json_rows(
    body: bytes, max_rows: int, column_names: Collection[str]
) -> Cells:
    try:
        rows = json.loads(body, parse_constant=_raise_error_for_json_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            400,
            (
                "the body of the request is not valid JSON: "
                f"{shorten_error_message(error)}. Correct the JSON text."
            ),
        ) from None
    if not isinstance(rows, list):
        raise InvalidRequestError(
            422,
            f"the body of the request is {_describe_json_type(rows)}, not a list of "
            'rows. Send a list, for example [{"age": 50}].',
        )
    if len(rows) > max_rows:
        raise _make_too_many_rows_error(max_rows)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InvalidRequestError(
                422,
                f"row {number}: the row is {_describe_json_type(row)}, not an object. "
                'Send each row as an object, such as {"age": 50}.',
                number,
            )
        for name in column_names:
            if name not in row:
                raise _make_missing_value_error(name, number)
        for name, cell in row.items():
            _check_cell_is_scalar(cell, number, name)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _raise_error_for_json_constant(name: str) -> float:
    raise ValueError(f"{name} is not a valid number in JSON")


def _describe_json_type(value: object) -> str:
    """Return what a value is called in JSON, with an article."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _check_cell_is_scalar(cell: object, row: int, column: str) -> None:
    if isinstance(cell, list | dict):
        kind = _describe_json_type(cell)
        raise InvalidRequestError(
            422,
            f"row {row}: column {column!r} has {kind}. Send a number, text, true, "
            "false or null.",
            row,
            column,
        )


def _parse_csv_rows(
    body: bytes, separator: str, max_rows: int, column_names: Collection[str]
) -> Cells:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequestError(
            400,
            "the body of the request is not text in the encoding UTF-8. Send UTF-8.",
        ) from None
    separator = detect_separator(text.lstrip().partition("\n")[0], separator)
    names, *rows = list(_split_csv_lines(text, separator, max_rows)) or [[]]
    names = [name.strip() for name in names]
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            problem = (
                "has no name"
                if not name
                else (f"has the same name as another column, {name!r}")
            )
            raise InvalidRequestError(
                422, f"column {place + 1} {problem}. Rename the column.", None, name
            )
    for name in column_names:
        if name not in names:
            raise _make_missing_value_error(name)
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise InvalidRequestError(
                422,
                f"row {number}: the row has {len(row)} cells, but there are "
                f"{len(names)} columns. Give each column one cell.",
                number,
            )
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=bool(rows)))


def _split_csv_lines(text: str, separator: str, max_rows: int) -> Iterator[list[str]]:
    """Yield the cells of the header and of each row; empty lines are left out."""
    file = io.StringIO(text, newline="")
    count = 0
    try:
        for cells in csv.reader(
            file, delimiter=separator, strict=True, skipinitialspace=True
        ):
            if cells:
                yield cells
                count += 1
            if count > max_rows + 1:
                raise _make_too_many_rows_error(max_rows)
    except csv.Error as error:
        row = max(count, 1)
        raise InvalidRequestError(
            400, f"row {row}: the CSV cannot be read: {error}. Correct the row.", row
        ) from None


def _make_too_many_rows_error(max_rows: int) -> InvalidRequestError:
    return InvalidRequestError(
        413,
        f"there are more than {max_rows:,} rows. Send them in several requests, or "
        "start the server with a larger --max-rows.",
    )


def _make_missing_value_error(
    column: str, row: int | None = None
) -> InvalidRequestError:
    place = "" if row is None else f"row {row}: "
    return InvalidRequestError(
        422,
        f"{place}the column {column!r} is missing. Include it in every row, with an "
        "empty cell or null where the value is unknown.",
        row,
        column,
    )


def _convert_cells_to_typed_column(
    cells: Sequence[Any], is_number: bool, is_feature: bool
) -> Any:  # noqa: ANN401
    """Return a column as floats if possible, else as text; unchanged if not used."""
    if is_number and all(_is_number_or_missing(cell) for cell in cells):
        numbers = (np.nan if cell in (None, "") else cell for cell in cells)
        return np.fromiter(numbers, float, len(cells))
    if not (is_number or is_feature):
        return pd.Series(cells, range(1, len(cells) + 1), dtype=object)
    return np.array([_format_cell_for_message(cell) for cell in cells], dtype=object)


def _is_number_or_missing(cell: object) -> bool:
    is_small = not isinstance(cell, int) or abs(cell) < 10**MOST_DIGITS
    return cell in (None, "") or (type(cell) in (int, float) and is_small)


def _format_cell_for_message(cell: object) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return "" if cell is None else str(cell)
