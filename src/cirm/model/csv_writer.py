"""Tables of predictions as text, several times faster than cell by cell.

Cells are rows of bytes, padded with zeros that are left out at the end. That serves
labels, which are few, and probabilities, which have six places; all else is left to
pandas.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.cells import Values

PLACES = 6  # of probabilities
WIDEST = 256  # bytes of a cell; more would pad all rows for the sake of one

Cells = NDArray[np.uint8]
"""Text of each row, [n, bytes], with zeros between and after it."""


def format_csv(frame: pd.DataFrame, separator: str = ",", header: bool = True) -> str:
    """What pandas writes, but for numbers below 0.0001: 0.00001 and not 1e-05."""
    quick = _quick(frame, separator)
    slow = _slow(frame.iloc[:, : frame.shape[1] - len(quick)], separator)
    if slow is None or not quick:
        return _by_pandas(frame, separator, header)
    columns = [*slow, *quick]
    ends = [separator] * (len(columns) - 1) + ["\n"]
    pieces = [
        piece
        for cells, end in zip(columns, ends, strict=True)
        for piece in (cells, np.full((len(frame), 1), ord(end), np.uint8))
    ]
    whole = np.concatenate(pieces, axis=1)
    names = _by_pandas(frame.iloc[:0], separator, True) if header else ""
    return names + whole[whole != 0].tobytes().decode()


def _by_pandas(frame: pd.DataFrame, separator: str, header: bool) -> str:
    return frame.to_csv(index=False, header=header, sep=separator, lineterminator="\n")


def _quick(frame: pd.DataFrame, separator: str) -> list[Cells]:
    """As many of the last columns as can be written so."""
    found: list[Cells] = []
    for place in reversed(range(frame.shape[1])):
        values = frame.iloc[:, place]
        cells = _parts(values) if values.dtype == float else _labels(values, separator)
        if cells is None:
            break
        found.insert(0, cells)
    return found


def _slow(frame: pd.DataFrame, separator: str) -> list[Cells] | None:
    """The columns that pandas must write, as one; None if rows cannot be told apart."""
    if frame.empty:
        return []
    text = _by_pandas(frame, separator, False)
    rows = text.encode().split(b"\n")[:-1]
    if len(rows) != len(frame) or "\0" in text or max(map(len, rows)) > WIDEST:
        return None
    # A gap is quoted only where it is all of a row.
    return [_padded([b"" if row == b'""' else row for row in rows])]


def _parts(values: Values) -> Cells | None:
    """Numbers of six places from 0 to 1, without zeros at the end; None of others."""
    numbers, scale = values.to_numpy(), 10**PLACES
    if np.isnan(numbers).all():
        return np.zeros((len(numbers), 1), np.uint8)
    units = np.rint(numbers * scale)
    if not ((units >= 0) & (units <= scale) & (units / scale == numbers)).all():
        return None
    rest, ended = units.astype(np.int32), np.ones(len(numbers), bool)
    cells = np.full((len(numbers), PLACES + 2), ord("."), np.uint8)
    for place in range(PLACES + 1, 1, -1):
        rest, digit = np.divmod(rest, 10)
        ended &= (digit == 0) & (place > 2)
        cells[:, place] = np.where(ended, 0, digit + ord("0"))
    cells[:, 0] = rest + ord("0")
    return cells


def _labels(values: Values, separator: str) -> Cells | None:
    """A few different texts, quoted where they must be; None if it is otherwise."""
    codes, different = pd.factorize(values)
    few = len(different) <= len(values) / 10 + 1 and not (codes < 0).any()
    if not few or not all(isinstance(text, str) for text in different):
        return None
    written = [_quoted(text, separator).encode() for text in different]
    if any(b"\0" in text or len(text) > WIDEST for text in written):
        return None
    return _padded(written)[codes]


def _quoted(text: str, separator: str) -> str:
    if any(sign in text for sign in (separator, '"', "\r", "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _padded(rows: list[bytes]) -> Cells:
    return np.array(rows).view(np.uint8).reshape(len(rows), -1)
