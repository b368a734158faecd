"""Write tables of predictions as CSV, several times faster than pandas.

Cells are rows of bytes, padded with zeros that are removed at the end. This works for
labels, of which there are few, and for probabilities, which have six decimal places;
everything else is left to pandas.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.values import Values

DECIMALS = 6  # of probabilities
WIDEST_CELL = 256  # bytes; a wider cell would pad all rows to its width

FORMULA = re.compile(r"[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")  # also full-width signs
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.I)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

Cells = NDArray[np.uint8]
"""Text of each row, [n, bytes], with zeros between and after it."""


def escape_spreadsheet_table_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose text neither runs in a spreadsheet nor steers a terminal.

    Text that a spreadsheet would run as a formula gets an apostrophe in front, and
    control characters are removed. Numbers such as -3.5 stay, also those in text.
    """
    frame = frame.set_axis(
        [escape_spreadsheet_cell_text(str(name)) for name in frame.columns], axis=1
    )
    for position, dtype in enumerate(frame.dtypes):
        if dtype.kind in "biufcM":  # numbers and dates
            continue
        values = frame.iloc[:, position]
        texts = [text for text in values.unique() if isinstance(text, str)]
        changed = {
            text: new
            for text in texts
            if (new := escape_spreadsheet_cell_text(text)) != text
        }
        if changed:
            cells = [changed.get(cell, cell) for cell in values.astype(object)]
            frame.isetitem(position, np.array(cells, dtype=object))
    return frame


def escape_spreadsheet_cell_text(text: str) -> str:
    """Return text without control characters, and not taken for a formula."""
    text = CONTROL.sub("", text)
    is_formula = FORMULA.match(text) and not NUMBER.fullmatch(text)
    return f"'{text}" if is_formula else text


def format_table_as_csv(
    frame: pd.DataFrame, separator: str = ",", with_header: bool = True
) -> str:
    """Return what pandas writes, except that small numbers are 0.00001, not 1e-05."""
    last = _format_trailing_columns_quickly(frame, separator)
    first = _format_leading_columns_with_pandas(
        frame.iloc[:, : frame.shape[1] - len(last)], separator
    )
    if first is None or not last:
        return _format_table_with_pandas(frame, separator, with_header)
    columns = [*first, *last]
    ends = [separator] * (len(columns) - 1) + ["\n"]
    pieces = [
        piece
        for cells, end in zip(columns, ends, strict=True)
        for piece in (cells, np.full((len(frame), 1), ord(end), np.uint8))
    ]
    lines = np.concatenate(pieces, axis=1)
    names = (
        _format_table_with_pandas(frame.iloc[:0], separator, True)
        if with_header
        else ""
    )
    return names + lines[lines != 0].tobytes().decode()


def _format_table_with_pandas(
    frame: pd.DataFrame, separator: str, with_header: bool
) -> str:
    return frame.to_csv(
        index=False, header=with_header, sep=separator, lineterminator="\n"
    )


def _format_trailing_columns_quickly(
    frame: pd.DataFrame, separator: str
) -> list[Cells]:
    """Format as many columns as possible, beginning with the last."""
    columns: list[Cells] = []
    for position in reversed(range(frame.shape[1])):
        values = frame.iloc[:, position]
        if values.dtype == float:
            cells = _format_fractions_with_six_decimals(values)
        else:
            cells = _format_repeated_labels(values, separator)
        if cells is None:
            break
        columns.insert(0, cells)
    return columns


def _format_leading_columns_with_pandas(
    frame: pd.DataFrame, separator: str
) -> list[Cells] | None:
    """Format the other columns with pandas, as one; None if a row has several lines."""
    if frame.empty:
        return []
    text = _format_table_with_pandas(frame, separator, False)
    rows = text.encode().split(b"\n")[:-1]
    if len(rows) != len(frame) or "\0" in text or max(map(len, rows)) > WIDEST_CELL:
        return None
    # Pandas quotes a missing value only where it is the whole row.
    return [
        _pad_encoded_rows_to_equal_length(
            [b"" if row == b'""' else row for row in rows]
        )
    ]


def _format_fractions_with_six_decimals(values: Values) -> Cells | None:
    """Format numbers from 0 to 1 with six decimals; None if there are others."""
    numbers, scale = values.to_numpy(), 10**DECIMALS
    if np.isnan(numbers).all():
        return np.zeros((len(numbers), 1), np.uint8)
    units = np.rint(numbers * scale)
    if not ((units >= 0) & (units <= scale) & (units / scale == numbers)).all():
        return None
    rest, trailing = units.astype(np.int32), np.ones(len(numbers), bool)
    cells = np.full((len(numbers), DECIMALS + 2), ord("."), np.uint8)
    for position in range(DECIMALS + 1, 1, -1):
        rest, digit = np.divmod(rest, 10)
        trailing &= (digit == 0) & (position > 2)
        cells[:, position] = np.where(trailing, 0, digit + ord("0"))
    cells[:, 0] = rest + ord("0")
    return cells


def _format_repeated_labels(values: Values, separator: str) -> Cells | None:
    """Format a few different texts, quoted where needed; None for anything else."""
    codes, labels = pd.factorize(values)
    few = len(labels) <= len(values) / 10 + 1 and not (codes < 0).any()
    if not few or not all(isinstance(label, str) for label in labels):
        return None
    cells = [_quote_csv_cell(label, separator).encode() for label in labels]
    if any(b"\0" in cell or len(cell) > WIDEST_CELL for cell in cells):
        return None
    return _pad_encoded_rows_to_equal_length(cells)[codes]


def _quote_csv_cell(text: str, separator: str) -> str:
    if any(character in text for character in (separator, '"', "\r", "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _pad_encoded_rows_to_equal_length(rows: list[bytes]) -> Cells:
    return np.array(rows).view(np.uint8).reshape(len(rows), -1)
