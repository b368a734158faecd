"""Errors that name the file, row and column of a bad value."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

STANDARD_INPUT = "standard input"  # what messages call it
Values = Any  # a pandas Series of any type

MAX_LISTED_COLUMNS = 20  # names of columns in a message, which should stay readable
MOST_COMPARED = 2_000  # names that are compared with a wrong one, in a few ms


class InvalidCellError(ValueError):
    """A value that cannot be used, with the place where it stands.

    Attributes:
        row: Its row, from 1 for files; None if the whole column is meant.
        column: Its column.
    """

    def __init__(
        self, message: str, row: int | str | None = None, column: str = ""
    ) -> None:
        super().__init__(message)
        self.row, self.column = row, column


def raise_error_for_first_bad_value(
    values: Values,
    is_bad: NDArray[np.bool_],
    problem: str,
    remedy: str = "Correct the value.",
) -> None:
    """Raise an error that names the first bad value, if there is one."""
    if is_bad.any():
        first = int(is_bad.argmax())
        raise InvalidCellError(
            f"{describe_file_and_row(values, first)}: column {values.name!r} has the "
            f"value {str(values.iloc[first])!r}, {problem}. {remedy}",
            get_row_number_in_file(values, first),
            str(values.name),
        )


def describe_file_and_row(values: Values, position: int) -> str:
    """Return the file and row of a value, or else its label."""
    row = f"row {get_row_number_in_file(values, position)}"
    if not _has_file_and_row_labels(values):
        return row
    name = values.index[position][0]
    return f"{name if name == STANDARD_INPUT else f'file {name!r}'}, {row}"


def get_row_number_in_file(values: Values, position: int) -> Any:  # noqa: ANN401
    """Return the number of a row in its file, or else its label."""
    label = values.index[position]
    return label[1] if _has_file_and_row_labels(values) else label


def _has_file_and_row_labels(values: Values) -> bool:
    return list(values.index.names) == ["file", "row"]


def quote_column_names(names: Collection[str]) -> str:
    """Return the names of columns for a message, of which it shows 20."""
    listed = ", ".join(repr(name) for name in list(names)[:MAX_LISTED_COLUMNS])
    more = len(names) - MAX_LISTED_COLUMNS
    return f"{listed} and {more:,} more" if more > 0 else listed


def check_table_has_columns(
    frame: pd.DataFrame,
    needed_columns: Collection[str],
    where: str = "table",
    remedy: str = "check the spelling",
) -> None:
    """Refuse a table in which a column is absent or occurs twice."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()]
        raise ValueError(
            f"{where}: two columns are called {twice[0]!r}. Rename one of them."
        )
    absent = [name for name in needed_columns if name not in frame.columns]
    if absent:
        raise InvalidCellError(
            f"{where}: there is no column {quote_column_names(absent)}. "
            f"{_suggest_similar_column(absent[0], frame)}The columns are "
            f"{quote_column_names(frame.columns) or 'none'}; {remedy}.",
            column=absent[0],
        )


def _suggest_similar_column(name: str, frame: pd.DataFrame) -> str:
    """Ask whether a column of nearly the same name was meant, if there is one."""
    known = {str(column).lower(): column for column in frame.columns[:MOST_COMPARED]}
    similar = get_close_matches(name.lower(), known, n=1, cutoff=0.75)
    return f"Did you mean {known[similar[0]]!r}? " if similar else ""
