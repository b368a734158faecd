"""The cells of a table: which are missing, and what kind of values the others are."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

Kind = Literal["number", "boolean", "date", "category", "constant", "identifier"]
Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Values = Any  # a pandas Series of any type

MISSING = ("", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null", "?")
BOOLEANS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
WANTED = {"number": "a number", "boolean": "true or false", "date": "an ISO date"}
DAY, EPOCH = pd.Timedelta(days=1), pd.Timestamp("1970-01-01", tz="UTC")


def absent(values: Values) -> Flags:
    """Where values are missing, [n]: not there, or words such as NA."""
    gaps = values.isna()
    if not _is_number(values) and not types.is_datetime64_any_dtype(values):
        gaps |= values.astype(str).str.strip().str.lower().isin(MISSING)
    flags: Flags = gaps.to_numpy(dtype=bool)
    return flags


def as_text(values: Values) -> Values:
    """Values as text: no spaces around it, whole numbers without a point."""
    text = values.astype(str).str.strip()
    return text.str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)


def detected(
    present: Values, otherwise: str = "the column be declared a category"
) -> Kind:
    """What values, none of them missing, are; text among mostly numbers is refused."""
    if isinstance(present.dtype, pd.CategoricalDtype):
        return "category"
    if types.is_bool_dtype(present):
        return "boolean"
    if present.dtype == object:
        odd = [not types.is_scalar(value) for value in present]
        refuse(present, np.array(odd, bool), "a number, text, a date, true or false")
    kinds: tuple[Kind, ...] = ("number", "boolean", "date")
    for kind in kinds:
        bad = np.isnan(_parsed(present, kind))
        if not bad.any():
            return kind
        if kind != "boolean" and bad.mean() < 0.5:
            wanted = f"{WANTED[kind]}, like most of the column, or {otherwise}"
            refuse(present, bad, wanted)
    return "category"


def converted(values: Values, kind: Kind) -> Numbers:
    """Numbers, 0 and 1, or days since 1970, [n]; NaN where a value is missing."""
    numbers = _parsed(values, kind)
    gaps = np.isnan(numbers)
    if gaps.any():  # few: to look at every value would take long
        unclear = values[gaps]
        refuse(unclear, ~absent(unclear), WANTED[kind])
    return numbers


def refuse(values: Values, bad: Flags, wanted: str) -> None:
    """Name the first bad value, with its file and row, if there is one."""
    if not bad.any():
        return
    first = int(bad.argmax())
    raise ValueError(
        f"{place(values, first)}, column {values.name!r}: it must be {wanted}; "
        f"got {str(values.iloc[first])!r}"
    )


def place(values: Values, position: int) -> str:
    """Where a value is; an index of files and rows says so, another has labels."""
    label = values.index[position]
    if list(values.index.names) == ["file", "row"]:
        return f"file {label[0]!r}, row {label[1]}"
    return f"row {label}"


def _is_number(values: Values) -> bool:
    return types.is_any_real_numeric_dtype(values) or types.is_bool_dtype(values)


def _parsed(values: Values, kind: Kind) -> Numbers:
    """Like `converted`, with NaN also for what is not of this kind."""
    dates = types.is_datetime64_any_dtype(values)
    if dates != (kind == "date") and (dates or _is_number(values)):
        return np.full(len(values), np.nan)
    if kind == "date":
        return _days(values)
    if _is_number(values):
        numbers: Numbers = values.to_numpy(dtype=float, na_value=np.nan)
    elif kind == "number":
        cells = values.astype(str).astype(object)
        numbers = np.asarray(pd.to_numeric(cells, errors="coerce"), dtype=float)
    else:
        numbers = as_text(values).str.lower().map(BOOLEANS).to_numpy(dtype=float)
    if kind == "boolean":
        numbers = np.where(np.isin(numbers, (0, 1)), numbers, np.nan)
    return numbers


def _days(values: Values) -> Numbers:
    if not types.is_datetime64_any_dtype(values):
        text = as_text(values)
        values = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    elif values.dt.tz is None:
        values = values.dt.tz_localize("UTC")
    days: Numbers = ((values - EPOCH) / DAY).to_numpy(dtype=float)
    return days
