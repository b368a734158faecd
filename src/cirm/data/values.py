"""What the values of a column are: numbers, booleans, dates or categories.

Values become numbers here, and a value that is not what the others are is refused with
its place.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from cirm.data.cell_errors import raise_error_for_first_bad_value
from cirm.data.date_formats import DATE_FORMATS, detect_date_format, parse_dates
from cirm.data.number_formats import (
    ColumnFormatGuess,
    describe_number_format,
    detect_number_format,
    is_number_format,
    parse_numbers,
)

Kind = Literal[
    "number", "boolean", "date", "category", "text", "constant", "identifier"
]
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Values = Any  # a pandas Series of any type

MISSING = frozenset(("", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null", "?"))
BOOLEANS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
WHOLE_NUMBER = re.compile(r"^(-?\d+)\.0+$")
NUMERIC = {"number": "a number", "boolean": "true or false", "date": "an ISO 8601 date"}
DAY, EPOCH = pd.Timedelta(days=1), pd.Timestamp("1970-01-01", tz="UTC")


class ColumnValueKind(NamedTuple):
    """What the values of a column are, and how numbers or dates are written."""

    kind: Kind
    format: str = ""


def find_missing_values(values: Values) -> Flags:
    """Return where values are missing, [n]: empty, or words such as NA."""
    array = values.to_numpy()
    flags: Flags = np.asarray(pd.isna(array), bool)
    if not _has_numeric_dtype(values) and not types.is_datetime64_any_dtype(values):
        flags |= _find_words_for_missing_values(list(map(str, array)))
    return flags


def _find_words_for_missing_values(cells: list[str]) -> Flags:
    """Return which cells are empty, or such a word; equal ones are checked once."""
    words = set(filter(is_word_for_missing_value, set(cells)))
    if not words:
        return np.zeros(len(cells), bool)
    return np.fromiter((cell in words for cell in cells), bool, len(cells))


def is_word_for_missing_value(cell: object) -> bool:
    """Whether a cell is empty, or a word such as NA."""
    return str(cell).strip().lower() in MISSING


def convert_values_to_text(values: Values) -> Values:
    """Return values as text: no spaces around it, whole numbers without a point."""
    text = values.astype(str).str.strip()
    return text.str.replace(WHOLE_NUMBER.pattern, r"\1", regex=True)


def detect_kind_of_column_values(
    values_present: Values, remedy: str = ""
) -> ColumnValueKind:
    """Return what values are, none of them missing, and how they are written.

    A column that is mostly numbers or dates and has other text in it is refused, and so
    are numbers and dates that can be read in two ways; `remedy` then says what the user
    can do.
    """
    if isinstance(values_present.dtype, pd.CategoricalDtype):
        return ColumnValueKind("category")
    if types.is_bool_dtype(values_present):
        return ColumnValueKind("boolean")
    if values_present.dtype == object:
        raise_error_for_first_bad_value(
            values_present,
            np.array([not types.is_scalar(value) for value in values_present], bool),
            "which is neither a number nor text, a date or a boolean",
            "Convert the column to one of these types.",
        )
    category = f"use --category {values_present.name} to treat the column as a category"
    advice = f"Correct the value, or {remedy or category}."
    kinds: tuple[Kind, ...] = ("number", "boolean", "date")
    for kind in kinds:
        bad = np.isnan(_parse_values_as_numbers(values_present, kind))
        if not bad.any():
            return ColumnValueKind(kind)
        guess = detect_number_or_date_format(values_present, kind)
        if guess.format:
            return ColumnValueKind(kind, guess.format)
        if kind != "boolean" and bad.mean() < 0.5:
            problem = f"which is not {NUMERIC[kind]}, unlike most of the column"
            raise_error_for_first_bad_value(values_present, bad, problem, advice)
        if guess.problem:
            raise_error_for_first_bad_value(
                values_present, guess.bad, guess.problem, advice
            )
    return ColumnValueKind("category")


def detect_number_or_date_format(
    values_present: Values, kind: Kind
) -> ColumnFormatGuess:
    """Return how numbers or dates are written, if they are text."""
    detect = {"number": detect_number_format, "date": detect_date_format}.get(kind)
    if detect is None or _has_numeric_dtype(values_present):
        return ColumnFormatGuess()
    if types.is_datetime64_any_dtype(values_present):
        return ColumnFormatGuess()
    return detect(values_present.astype(str).to_numpy(dtype=object))


def is_valid_format_of_value_kind(kind: Kind, text_format: str) -> bool:
    """Return whether values of a kind may be written in a format."""
    if not text_format:
        return True
    if kind == "date":
        return text_format in DATE_FORMATS
    return kind == "number" and is_number_format(text_format)


def describe_kind_of_column_values(kind: Kind, text_format: str = "") -> str:
    """Return what values are, with how they are written."""
    if not text_format:
        return NUMERIC[kind]
    if kind == "date":
        return f"a date, {DATE_FORMATS[text_format]}"
    return f"a number {describe_number_format(text_format)}"


def convert_values_to_numbers(
    values: Values,
    kind: Kind,
    remedy: str = "leave the cell empty",
    text_format: str = "",
) -> Numbers:
    """Return numbers, 0 and 1, or days since 1970, [n]; NaN for missing values."""
    numbers = _parse_values_as_numbers(values, kind, text_format)
    gaps = np.isnan(numbers)
    if gaps.any():  # few: to look at every value would take long
        unclear = values[gaps]
        is_bad = ~find_missing_values(unclear)
        expected = describe_kind_of_column_values(kind, text_format)
        problem, advice = f"which is not {expected}", f"Correct the value, or {remedy}."
        n_bad, n_present = int(is_bad.sum()), len(values) - int((~is_bad).sum())
        if n_bad > max(1, n_present / 2):
            problem = f"which is not {expected}, like most values of the column"
            advice = "Convert the whole column."
        raise_error_for_first_bad_value(unclear, is_bad, problem, advice)
    return numbers


def _has_numeric_dtype(values: Values) -> bool:
    return types.is_any_real_numeric_dtype(values) or types.is_bool_dtype(values)


def _parse_values_as_numbers(
    values: Values, kind: Kind, text_format: str = ""
) -> Numbers:
    """Like `convert_values_to_numbers`, with NaN also for what is not of this kind."""
    dates, numeric = types.is_datetime64_any_dtype(values), _has_numeric_dtype(values)
    if dates != (kind == "date") and (dates or numeric):
        return np.full(len(values), np.nan)
    if kind == "date":
        return _convert_dates_to_days(values, text_format)
    if numeric:
        numbers: Numbers = values.to_numpy(dtype=float, na_value=np.nan)
    elif kind == "number":
        text = values.astype(str).astype(object)
        if text_format:
            return parse_numbers(text.to_numpy(dtype=object), text_format)
        numbers = np.asarray(pd.to_numeric(text, errors="coerce"), dtype=float)
    else:
        numbers = (
            convert_values_to_text(values)
            .str.lower()
            .map(BOOLEANS)
            .to_numpy(dtype=float)
        )
    if kind == "boolean":
        numbers = np.where(np.isin(numbers, (0, 1)), numbers, np.nan)
    return numbers


def _convert_dates_to_days(values: Values, text_format: str = "") -> Numbers:
    """Return days since 1970; ISO 8601 is read whatever else the column is written."""
    text = None
    if not types.is_datetime64_any_dtype(values):
        text = convert_values_to_text(values)
        values = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    elif values.dt.tz is None:
        values = values.dt.tz_localize("UTC")
    days: Numbers = ((values - EPOCH) / DAY).to_numpy(dtype=float)
    if text_format and text is not None:
        own = parse_dates(text.to_numpy(dtype=object), text_format)
        days = np.where(np.isnan(own), days, own)
    return days
