"""Dates as people write them: 31.12.2024, 12/31/2024, 31 Dec 2024, 2024/12/31 9:30.

Whether the day or the month comes first is inferred from the whole column: one cell
with a number above 12 decides. Between full stops, the day comes first.
"""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from cirm.data.number_formats import ColumnFormatGuess, Texts

TIME = r"(?:(?:T|,?\s+)(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?\s*([ap]m)?)?"
PATTERNS = {
    "dmy": re.compile(rf"(\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}}){TIME}", re.I),
    "ymd": re.compile(rf"(\d{{4}})([./-])(\d{{1,2}})\2(\d{{1,2}}){TIME}", re.I),
    "name": re.compile(
        rf"(?:(\d{{1,2}})[ .-]+([a-z]{{3,9}})|([a-z]{{3,9}})\.? (\d{{1,2}})),?"
        rf"[ .-]+(\d{{4}}){TIME}",
        re.I,
    ),
}
DATE_FORMATS = {
    "dmy": "day first",
    "mdy": "month first",
    "ymd": "year first",
    "name": "with names of months",
}
"""Formats, and how they are described."""

MONTHS = """january february march april may june july august september october november
december""".split()  # noqa: SIM905  easier to read
EPOCH = datetime(1970, 1, 1)
SHORT_YEAR = re.compile(rf"\d{{1,2}}([./-])\d{{1,2}}\1\d{{2}}{TIME}", re.I)
Days = NDArray[np.float64]


def detect_date_format(cells: Texts) -> ColumnFormatGuess:
    """Infer how the dates of a column are written, from cells [n] of text."""
    different = list(dict.fromkeys(cells))
    for name, pattern in PATTERNS.items():
        matches = {c: m for c in different if (m := pattern.fullmatch(c.strip()))}
        if len(matches) * 2 <= len(different):
            continue
        order = (
            _choose_day_and_month_order(cells, matches)
            if name == "dmy"
            else ColumnFormatGuess(name)
        )
        if order.problem:
            return order
        bad = np.isnan(parse_dates(cells, order.format))
        if not bad.any():
            return order
        example = next((cell for cell in cells[~bad]), "31/12/2024")
        how = f"({DATE_FORMATS[order.format]}, such as {example!r})"
        problem = f"which is not a date like most of the column {how}"
        return ColumnFormatGuess("", problem, bad)
    return ColumnFormatGuess()


def parse_dates(cells: Texts, date_format: str) -> Days:
    """Return days since 1970 of cells [n] in a format; NaN for anything else."""
    known = {
        c: _parse_date_in_cell(c.strip(), date_format) for c in dict.fromkeys(cells)
    }
    return np.array([known[cell] for cell in cells], dtype=float)


def do_dates_have_two_digit_years(cells: Texts) -> bool:
    """Return whether all cells look like dates with a year of two digits."""
    return bool(len(cells)) and all(
        SHORT_YEAR.fullmatch(cell.strip()) for cell in dict.fromkeys(cells)
    )


def _choose_day_and_month_order(
    cells: Texts, matches: dict[str, re.Match[str]]
) -> ColumnFormatGuess:
    """Return whether the day or the month is first, as the cells show together."""
    day_first = [c for c, match in matches.items() if int(match[1]) > 12]
    month_first = [c for c, match in matches.items() if int(match[3]) > 12]
    if day_first and month_first:
        rarer, other = sorted((day_first, month_first), key=len)
        problem = (
            f"which has the day and the month in a different order than {other[0]!r}"
        )
        return ColumnFormatGuess(
            "", problem, np.isin(cells, np.array(rarer, dtype=object))
        )
    if month_first:
        return ColumnFormatGuess("mdy")
    is_dotted = all(match[2] == "." for match in matches.values())
    if day_first or is_dotted or len(matches) == 1:
        return ColumnFormatGuess("dmy")
    problem = (
        "in which the day or the month may come first: no cell of the column has a "
        "number above 12"
    )
    unclear = [c for c, match in matches.items() if match[1] != match[3]]
    bad = np.isin(cells, np.array(unclear or list(matches), dtype=object))
    return ColumnFormatGuess("", problem, bad)


def _parse_date_in_cell(cell: str, date_format: str) -> float:
    """Return the days since 1970 of one cell; NaN if it is no such date."""
    match = PATTERNS["dmy" if date_format == "mdy" else date_format].fullmatch(cell)
    if match is None:
        return np.nan
    *date, hour, minute, second, half = match.groups()
    if date_format == "name":
        day, month, year = date[0] or date[3], date[1] or date[2], date[4]
        month = _get_month_number(month)
    elif date_format == "ymd":
        year, _, month, day = date
    else:
        day, _, month, year = date
        day, month = (month, day) if date_format == "mdy" else (day, month)
    hours = int(hour or 0)
    if half:
        hours = hours % 12 + 12 * (half.lower() == "pm")
    try:
        time = datetime(int(year), int(month), int(day), hours, int(minute or 0))
    except ValueError:  # there is no such day or time
        return np.nan
    return ((time - EPOCH).total_seconds() + int(second or 0)) / 86400


def _get_month_number(name: str) -> str:
    """Return the number of a month by its name, "0" if there is none."""
    own = [n for n, month in enumerate(MONTHS, 1) if month.startswith(name.lower())]
    return str(own[0]) if len(own) == 1 else "0"
