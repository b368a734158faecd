"""Numbers as people write them: decimal commas, thousands, currencies and per cent.

A format is a decimal mark, "." or ",", and the sign that cells carry, such as "%" or
"€"; "()" follows if negative numbers are in parentheses, as accountants write them. It
is inferred from all cells of a column together, and only if they agree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Texts = NDArray[np.object_]
CURRENCIES = (
    r"[$€£¥₹₩₽₺₪฿]|USD|EUR|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL"
    r"|kr\.?|Fr\.?"
)
CELL = re.compile(
    rf"([+-]?) *({CURRENCIES})? *([+-]?)"
    rf"(\d[\d.,' ]*|[.,]\d+)(e[+-]?\d+)? *({CURRENCIES}|%)?",
    re.IGNORECASE | re.ASCII,
)
# Other spaces, the minus sign, and the apostrophe of typesetters.
PLAIN = str.maketrans("\u00a0\u2009\u202f\u2212\u2019", "   -'")
BODIES = {
    ".": re.compile(r"(\d{1,3}(?:([,' ])\d{3})(?:\2\d{3})*|\d*)(\.\d+)?\.?", re.ASCII),
    ",": re.compile(r"(\d{1,3}(?:([.' ])\d{3})(?:\2\d{3})*|\d*)(,\d+)?", re.ASCII),
}
IN_PARENTHESES = re.compile(
    rf"({CURRENCIES})? *\(([^()+-]+)\) *({CURRENCIES}|%)?", re.I
)
NEGATIVE = "()"
LIST = re.compile(r"[\d.,;:/ -]*\d[\d.,;:/ -]*", re.ASCII)  # or a version, or a date
PEEK = 50  # different cells that show whether it pays to look at all of them


class ColumnFormatGuess(NamedTuple):
    """The format of a column, or why it cannot be told.

    Attributes:
        format: The format; empty if there is none or it cannot be used.
        problem: What is wrong with some cells, as a clause that starts with "which".
        bad: Whether each cell has this problem, [n].
    """

    format: str = ""
    problem: str = ""
    bad: NDArray[np.bool_] = np.zeros(0, bool)


class WrittenNumberParts(NamedTuple):
    """A number as a cell has it: its digits, its value by decimal mark, its sign."""

    text: str
    values: dict[str, float]
    sign: str


def detect_number_format(cells: Texts) -> ColumnFormatGuess:
    """Infer how the numbers of a column are written, from cells [n] of text."""
    different = list(dict.fromkeys(cells))
    first = [_parse_number_in_cell(cell) for cell in different[:PEEK]]
    if sum(number is not None for number in first) * 2 <= len(first):
        return ColumnFormatGuess()
    read = {cell: _parse_number_in_cell(cell) for cell in different}
    numbers = {cell: number for cell, number in read.items() if number is not None}
    marks = [m for m in BODIES if all(m in n.values for n in numbers.values())]
    if not marks or _are_digits_grouped_by_spaces_only(numbers.values()):
        return ColumnFormatGuess()
    problem, bad = "", [cell for cell, number in read.items() if number is None]
    if any(LIST.fullmatch(cell) for cell in bad):
        return ColumnFormatGuess()
    if bad:
        example = next(iter(numbers))
        problem = f"which is not a number, unlike most of the column ({example!r})"
    elif len(marks) > 1:
        problem, bad = _find_cells_of_ambiguous_format(numbers)
    elif marks == [","]:
        problem, bad = _find_commas_among_decimal_points(different)
    if not bad:
        problem, bad = _find_numbers_with_other_units(numbers)
    if bad:
        return ColumnFormatGuess(
            "", problem, np.isin(cells, np.array(bad, dtype=object))
        )
    signs = {number.sign for number in numbers.values()} - {""}
    has_parentheses = any("(" in number.text for number in numbers.values())
    negative = NEGATIVE if has_parentheses else ""
    return ColumnFormatGuess(marks[0] + "".join(signs) + negative)


def parse_numbers(cells: Texts, number_format: str) -> NDArray[np.float64]:
    """Return the numbers of cells [n] in a format; NaN for anything else."""
    mark, sign = number_format[0], number_format[1:].removesuffix(NEGATIVE)
    known: dict[str, float] = {}
    for cell in dict.fromkeys(cells):
        number = _parse_number_in_cell(cell)
        fits = number is not None and number.sign in ("", sign)
        known[cell] = number.values.get(mark, np.nan) if fits and number else np.nan
    return np.array([known[cell] for cell in cells], dtype=float)


def is_number_format(text: str) -> bool:
    """Return whether a text is a format that `detect_number_format` may return."""
    sign = text[1:].removesuffix(NEGATIVE)
    is_sign = re.fullmatch(f"(?:{CURRENCIES}|%)?", sign, re.IGNORECASE)
    return text[:1] in BODIES and bool(is_sign)


def describe_number_format(number_format: str) -> str:
    """Return how numbers are written, in a few words."""
    mark, sign = number_format[0], number_format[1:].removesuffix(NEGATIVE)
    parts = ["with a decimal comma"] if mark == "," else []
    parts += [f"in {sign}"] if sign else []
    parts += ["with parentheses for minus"] if number_format.endswith(NEGATIVE) else []
    return ", ".join(parts) or "with separated thousands"


def _parse_number_in_cell(cell: str) -> WrittenNumberParts | None:
    """Return the number in a cell; None if there is none."""
    text = cell.translate(PLAIN).strip()
    is_negative = IN_PARENTHESES.fullmatch(text)
    plain = "-" + "".join(is_negative.groups(default="")) if is_negative else text
    match = CELL.fullmatch(plain)
    if match is None:
        return None
    minus, before, other, digits, power, after = match.groups(default="")
    if (before and after) or (minus and other):
        return None
    factor = -1.0 if "-" in (minus, other) else 1.0
    values = {}
    for mark, body in BODIES.items():
        if parts := body.fullmatch(digits.strip()):
            whole = re.sub(r"\D", "", parts[1])
            decimals = (parts[3] or "").replace(",", ".")
            values[mark] = factor * float(f"{whole or 0}{decimals}{power}")
    sign = (before or after).upper().rstrip(".")
    return WrittenNumberParts(text, values, sign) if values else None


def _are_digits_grouped_by_spaces_only(numbers: Collection[WrittenNumberParts]) -> bool:
    """Whether spaces alone make these numbers, as in telephone numbers."""
    return any(" " in n.text for n in numbers) and not any(
        n.sign or set(n.text) & set(".,'") for n in numbers
    )


def _find_cells_of_ambiguous_format(
    numbers: Mapping[str, WrittenNumberParts],
) -> tuple[str, list[str]]:
    """Return cells that are two different numbers, and what is wrong with them."""
    unclear = [c for c, n in numbers.items() if len(set(n.values.values())) > 1]
    if not unclear:
        return "", []
    low, high = sorted(numbers[unclear[0]].values.values())
    problem = (
        f"which may be {low:g} or {high:g}: no other cell of the column shows "
        "which is meant"
    )
    return problem, unclear


def _find_commas_among_decimal_points(cells: list[str]) -> tuple[str, list[str]]:
    """Return cells with a comma, if most others have a point in its place."""
    commas = [cell for cell in cells if "," in cell]
    points = [cell for cell in cells if "." in cell and "," not in cell]
    if 2 * len(commas) > len(points):
        return "", []
    return (
        f"which is written differently from most of the column ({points[0]!r})",
        commas,
    )


def _find_numbers_with_other_units(
    numbers: Mapping[str, WrittenNumberParts],
) -> tuple[str, list[str]]:
    """Return cells with another currency than the first, or without a percent sign."""
    cells: dict[str, list[str]] = {}
    for cell, number in numbers.items():
        cells.setdefault(number.sign, []).append(cell)
    bare = cells.pop("", [])
    if len(cells) > 1:
        first, second, *_ = cells
        return f"while other cells of the column are in {first}", cells[second]
    if bare and "%" in cells:
        return "which has no percent sign, unlike other cells of the column", bare
    return "", []
