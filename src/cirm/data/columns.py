"""How the columns of a table become features, as a value that JSON can hold.

The encoding is fitted to one table, that of the first environment, and never changes
afterwards: what a learner knows stays expressed in the units it was learned in, and
no later place's scale, categories or gaps alter it.

- Numbers, and dates (ISO 8601, counted in days), are centred by the mean and divided
  by the standard deviation. Booleans are 0 or 1.
- Text becomes one feature per category, the 50 most frequent ones at most, and one
  feature for every other category.
- A missing value is replaced by the median (of booleans: the more frequent value) and
  marked by a feature; among categories it is one of its own. If the first environment
  has no gaps there is no such feature: gaps that begin later are filled by the median,
  or count as another category.
- A column that is constant in the first environment is left out, since nothing there
  gives it a scale; so are names and numbers of rows: text that differs in most rows,
  and whole numbers that all differ, if they are a range or the column is called an id.

Features follow the alphabetical order of the columns, so the order in a file does not
matter.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from cirm.data import cells
from cirm.data.cells import WANTED, Kind, Values

MOST_CATEGORIES = 50
MANY = 1_000  # cells of text, from which on it pays to look for equal ones
IDENTIFIER = re.compile(r"(^|[^A-Za-z])([Ii][Dd]s?|[Uu][Uu][Ii][Dd])$|[a-z]I[dD]$")


@dataclass(frozen=True)
class Column:
    """One column's treatment; `missing` says that gaps have a feature of their own."""

    name: str
    kind: Kind
    centre: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] = ()
    missing: bool = False

    @classmethod
    def fit(cls, values: Values, category: bool = False) -> Column:
        """The treatment that the values suggest, or that of a category."""
        name, gaps = str(values.name), cells.absent(values)
        present, missing = values[~gaps], bool(gaps.any() and not gaps.all())
        kind = "category" if category else cells.detected(present)
        if kind == "category":
            return _of_categories(name, cells.as_text(present), missing)
        numbers = cells.converted(present, kind)
        cells.refuse(present, ~np.isfinite(numbers), "a finite number")
        if not len(numbers) or numbers.min() == numbers.max():
            return cls(name, "constant", missing=missing)
        if kind == "number" and _names_rows(name, numbers):
            return cls(name, "identifier")
        if kind == "boolean":
            often = float(numbers.mean() >= 0.5)
            return cls(name, kind, fill=often, missing=missing)
        size = np.abs(numbers).max()  # so that squares neither overflow nor vanish
        shares = numbers / size
        centre, scale, fill = (
            float(size * f(shares)) for f in (np.mean, np.std, np.median)
        )
        if scale == 0:
            return cls(name, "constant", missing=missing)
        return cls(name, kind, centre, scale, fill, missing=missing)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it becomes."""
        names: list[str] = []
        if self.kind == "category":
            names = [f"{self.name}={category}" for category in self.categories]
            names.append(f"{self.name}: other")
        elif self.kind in WANTED:
            names = [self.name]
        return (*names, *([f"{self.name}: missing"] if self.missing else []))

    def encode(self, values: Values) -> NDArray[np.float32]:
        """The features of the values, [n, features]."""
        if not types.is_numeric_dtype(values) and len(values) > MANY:
            codes, different = pd.factorize(values, use_na_sentinel=False)
            first = np.empty(len(different), np.int64)
            first[codes[::-1]] = np.arange(len(codes))[::-1]  # the first one stays
            if len(first) < len(values) / 2:  # each different text is looked at once
                return self._encoded(values.iloc[first])[codes]
        return self._encoded(values)

    def _encoded(self, values: Values) -> NDArray[np.float32]:
        encoded = np.zeros((len(values), len(self.features)), np.float32)
        if self.kind in WANTED:
            numbers = cells.converted(values, self.kind)
            gaps = np.isnan(numbers)
            with np.errstate(over="ignore"):
                filled = np.where(gaps, self.fill, numbers)
                encoded[:, 0] = (filled - self.centre) / self.scale
            cells.refuse(values, ~np.isfinite(encoded[:, 0]), "of ordinary size")
        else:
            gaps = cells.absent(values)
        if self.kind == "category":
            positions = pd.Index(self.categories).get_indexer(cells.as_text(values))
            positions[gaps | (positions < 0)] = len(self.categories)
            positions[gaps] += self.missing
            encoded[np.arange(len(values)), positions] = 1
        if self.missing:
            encoded[gaps, -1] = 1
        return encoded

    def describe(self) -> str:
        """Its treatment in words."""
        words = {
            "number": f"number, mean {self.centre:.4g}, deviation {self.scale:.4g}",
            "boolean": "true or false",
            "date": f"date, deviation {self.scale:.4g} days",
            "category": f"{len(self.categories)} categories and other",
            "constant": "left out, constant in the first environment",
            "identifier": "left out, it just names or numbers the rows",
        }[self.kind]
        return f"{self.name}: {words}{', missing marked' if self.missing else ''}"


@dataclass(frozen=True)
class Encoding:
    """The treatment of every column."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame, categories: Collection[str] = ()) -> Encoding:
        """The treatment that a table suggests; `categories` are columns of codes."""
        check_columns(frame, categories)
        return cls(
            tuple(
                Column.fit(frame[name], name in categories)
                for name in sorted(frame.columns)
            )
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features."""
        return tuple(name for column in self.columns for name in column.features)

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """The features of a table, [n, features]; other columns are ignored."""
        check_columns(frame, [c.name for c in self.columns if c.features])
        encoded = np.empty((len(frame), len(self.features)), np.float32)
        start = 0
        for column in self.columns:
            end = start + len(column.features)
            if end > start:
                encoded[:, start:end] = column.encode(frame[column.name])
            start = end
        return torch.from_numpy(encoded)

    def describe(self) -> str:
        """One line for each column."""
        return "\n".join(column.describe() for column in self.columns)

    def as_dict(self) -> dict[str, Any]:
        """A form that JSON can hold."""
        return {"columns": [dataclasses.asdict(column) for column in self.columns]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Encoding:
        """The encoding that `as_dict` gave, also after it was JSON."""
        items = data.get("columns") if isinstance(data, Mapping) else None
        if not isinstance(items, list):
            raise ValueError(f"encoding: it must be a list of columns; got {items!r}")
        return cls(tuple(_column(item) for item in items))


def check_columns(
    frame: pd.DataFrame, needed: Collection[str], where: str = "table"
) -> None:
    """Refuse a table in which a column is lacking or there twice."""
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(
            f"{where}: columns must have different names; got {twice[0]!r} twice"
        )
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        raise ValueError(
            f"{where}: it must have the column {', '.join(map(repr, lacking))}; "
            f"got {', '.join(map(repr, frame.columns)) or 'none'}"
        )


def _names_rows(name: str, numbers: NDArray[np.float64]) -> bool:
    """Whether many different whole numbers are a range, or those of a column of ids."""
    if len(numbers) <= MOST_CATEGORIES or (np.mod(numbers, 1) != 0).any():
        return False
    if len(np.unique(numbers)) < len(numbers):
        return False
    counted = numbers.max() - numbers.min() == len(numbers) - 1
    return bool(counted or IDENTIFIER.search(name))


def _of_categories(name: str, text: Values, missing: bool) -> Column:
    counts = text.value_counts()
    if len(counts) < 2:
        return Column(name, "constant", missing=missing)
    if len(counts) > MOST_CATEGORIES and (counts == 1).sum() * 2 > len(text):
        return Column(name, "identifier")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = sorted(category for category, _ in ranked[:MOST_CATEGORIES])
    return Column(name, "category", categories=tuple(kept), missing=missing)


def _column(item: object) -> Column:
    """A column read from JSON, every part of which is checked."""
    kinds = {field.name: field.type for field in dataclasses.fields(Column)}
    if not isinstance(item, dict) or set(item) != set(kinds):
        raise ValueError(f"encoding: a column must have {', '.join(kinds)}; got {item}")
    numbers = [item[part] for part in ("centre", "scale", "fill")]
    categories = item["categories"]
    good = (
        isinstance(item["name"], str)
        and item["kind"] in get_args(Kind)
        and isinstance(item["missing"], bool)
        and all(isinstance(n, float) and math.isfinite(n) for n in numbers)
        and item["scale"] > 0
        and isinstance(categories, list | tuple)
        and all(isinstance(category, str) for category in categories)
        and len(set(categories)) == len(categories)
    )
    if not good:
        raise ValueError(f"encoding: a column's parts must have sense; got {item}")
    return Column(**{**item, "categories": tuple(categories)})
