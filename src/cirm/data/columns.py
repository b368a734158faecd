"""How the columns of a table become features, as a value that JSON can hold.

The encoding is fitted to the table of the first environment and never changes
afterwards. What a learner knows stays expressed in the same units, whatever scale,
categories or gaps a later environment has.

- Numbers and dates (counted in days) are standardised: the mean is subtracted and the
  result divided by the standard deviation. Booleans are 0 or 1. Numbers may have a
  decimal comma, separated thousands, a currency or a percent sign, and dates may be
  written in several ways, if all cells of the first environment agree on one.
- Text is one-hot encoded: one feature for each of the 50 most frequent categories and
  one for all others. Names that are rare or look like free text are known by a digest.
- Free text, five words or more in half of the rows that mostly differ, becomes hashed
  words and pairs of words, or what an encoder makes of it (`cirm.data.text_columns`).
- A missing value is replaced by the median (booleans: the more frequent value) and
  marked by a feature of its own; in a category it is one more category, and in text all
  features are 0. If the first
  environment has no missing values there is no such feature: later ones are replaced
  by the median, or count as another category.
- A column that is constant in the first environment is ignored, since it has no scale.
  So are identifiers, unless they are declared categories: text that differs in most
  rows, and whole numbers that all differ and are a range or stand in a column of ids.

Features follow the alphabetical order of the columns, so the order in a file does not
matter.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from cirm.data.category_names import (
    hash_category_name,
    may_category_name_identify_person,
    may_column_name_persons,
)
from cirm.data.cell_errors import (
    check_table_has_columns,
    raise_error_for_first_bad_value,
)
from cirm.data.encoders import EncoderIdentity
from cirm.data.text_columns import (
    HASHED_FEATURES,
    do_texts_look_like_sentences,
    encode_texts_by_hashing_words,
)
from cirm.data.values import (
    NUMERIC,
    ColumnValueKind,
    Flags,
    Kind,
    Numbers,
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    describe_kind_of_column_values,
    detect_kind_of_column_values,
    find_missing_values,
)
from cirm.wording import format_count

MOST_CATEGORIES = 50  # one-hot features of a column; rarer categories share one
ROWS_AT_ONCE = 2048  # rows of numbers encoded at once, to stay in the cache
MIN_CELLS_TO_DEDUPLICATE = (
    1_000  # cells of text, from which on it pays to parse equal ones only once
)
IDENTIFIER_NAME = re.compile(r"(^|[^A-Za-z])([Ii][Dd]s?|[Uu][Uu][Ii][Dd])$|[a-z]I[dD]$")


@dataclass(frozen=True)
class ColumnEncoding:
    """How one column is encoded.

    Attributes:
        name: The column's name.
        kind: What its values are; constants and identifiers are ignored.
        centre: The mean that is subtracted.
        scale: The standard deviation that values are divided by.
        fill: What replaces a missing value.
        categories: The categories that have a feature of their own.
        missing: Whether missing values are marked by a feature.
        quartiles: The lower and the upper quartile of numbers. Files of earlier
            versions have none.
        hashed: Positions of the categories that stand here as a digest of their name.
        format: How numbers or dates are written, if not as usual; see
            `cirm.data.number_formats` and `cirm.data.date_formats`.
        encoder: What makes features of text; hashed words if there is none.
    """

    name: str
    kind: Kind
    centre: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] = ()
    missing: bool = False
    quartiles: tuple[float, ...] = ()
    hashed: tuple[int, ...] = ()
    format: str = ""
    encoder: EncoderIdentity | None = None

    @classmethod
    def fit(
        cls,
        values: Values,
        is_category: bool = False,
        names: bool = True,
        known_kind: ColumnValueKind | None = None,
        encoder: EncoderIdentity | None = None,
    ) -> ColumnEncoding:
        """Infer the encoding of a column; without `names`, categories are hashed.

        What the values are is inferred as well, unless it is known. Text is encoded by
        `encoder`, if there is one.
        """
        name, gaps = str(values.name), find_missing_values(values)
        present = values[~gaps] if gaps.any() else values
        missing = bool(gaps.any() and not gaps.all())
        kind, written = known_kind or (
            ColumnValueKind("category")
            if is_category
            else detect_kind_of_column_values(present)
        )
        if kind == "text":
            return cls(name, kind, missing=missing, encoder=encoder)
        if kind == "category":
            column = _infer_categorical_encoding(
                name, convert_values_to_text(present), missing, is_category, names
            )
            return replace(column, encoder=encoder) if column.kind == "text" else column
        numbers = convert_values_to_numbers(present, kind, text_format=written)
        infinite = ~np.isfinite(numbers)
        empty = "Correct the value, or leave the cell empty."
        raise_error_for_first_bad_value(
            present, infinite, "which is not a finite number", empty
        )
        if kind == "boolean" and len(numbers) and numbers.min() < numbers.max():
            mode = float(numbers.mean() >= 0.5)
            return cls(name, kind, fill=mode, missing=missing)
        (statistics,) = compute_column_statistics(numbers[None])
        if not statistics[1]:
            return cls(name, "constant", missing=missing)
        if kind == "number" and _do_values_look_like_identifiers(name, numbers):
            return cls(name, "identifier")
        centre, scale, fill, low, high = statistics.tolist()
        return cls(
            name, kind, centre, scale, fill, (), missing, (low, high), format=written
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that the column becomes."""
        names: list[str] = []
        if self.kind == "category":
            names = [f"{self.name}={category}" for category in self.categories]
            names.append(f"{self.name}: other")
        elif self.kind == "text":
            width = self.encoder.features if self.encoder else HASHED_FEATURES
            names = [f"{self.name}: text {place}" for place in range(width)]
        elif self.kind in NUMERIC:
            names = [self.name]
        return (*names, *([f"{self.name}: missing"] if self.missing else []))

    def encode(self, values: Values) -> NDArray[np.float32]:
        """Return the features of the values, [n, features]."""
        if (
            not types.is_numeric_dtype(values)
            and len(values) > MIN_CELLS_TO_DEDUPLICATE
        ):
            codes, different = pd.factorize(values, use_na_sentinel=False)
            first = np.empty(len(different), np.int64)
            first[codes[::-1]] = np.arange(len(codes))[::-1]  # the first one stays
            if len(first) < len(values) / 2:
                return self._encode_values(values.iloc[first])[codes]
        return self._encode_values(values)

    def _encode_values(self, values: Values) -> NDArray[np.float32]:
        encoded = np.zeros((len(values), len(self.features)), np.float32)
        if self.kind in NUMERIC:
            numbers = convert_values_to_numbers(
                values, self.kind, text_format=self.format
            )
            gaps = np.isnan(numbers)
            filled = np.where(gaps, self.fill, numbers)
            encoded[:, 0] = self.standardise(filled, values)
        else:
            gaps = find_missing_values(values)
        if self.kind == "category":
            positions = self._find_category_indices(convert_values_to_text(values))
            positions[gaps | (positions < 0)] = len(self.categories)
            positions[gaps] += self.missing
            encoded[np.arange(len(values)), positions] = 1
        elif self.kind == "text":
            texts = convert_values_to_text(values).where(~gaps, "").to_list()
            features = encode_texts_by_hashing_words(texts, self.encoder)
            encoded[:, : features.shape[1]] = features
        if self.missing:
            encoded[gaps, -1] = 1
        return encoded

    def _find_category_indices(self, text: Values) -> NDArray[np.int64]:
        """Return the position of each value's category, [n]; -1 if it has none."""
        plain = {name: place for place, name in enumerate(self.categories)}
        digests = {
            self.categories[n]: plain.pop(self.categories[n]) for n in self.hashed
        }
        text = text.fillna("")
        places = {name: plain.get(name, -1) for name in text.unique()}
        if digests:
            for name in [name for name, place in places.items() if place < 0]:
                places[name] = digests.get(hash_category_name(name, self.name), -1)
        return np.array([places[name] for name in text], dtype=np.int64)

    def standardise(self, numbers: Numbers, cells: Values) -> NDArray[np.float32]:
        """Return standardised numbers [n]; an error names the original value."""
        with np.errstate(over="ignore"):
            scaled = ((numbers - self.centre) / self.scale).astype(np.float32)
        raise_error_for_first_bad_value(
            cells,
            ~np.isfinite(scaled),
            f"which is too large (mean {self.centre:.4g}, standard deviation "
            f"{self.scale:.4g} at the first place)",
            "Check the unit of the value, or leave the cell empty.",
        )
        return scaled

    def describe(self) -> str:
        """Return one line on how the column is encoded."""
        verb = "name is" if len(self.hashed) == 1 else "names are"
        hashed = f"; {len(self.hashed)} {verb} hashed" if self.hashed else ""
        written = ""
        if self.format:
            written = describe_kind_of_column_values(
                self.kind, self.format
            ).removeprefix("a ")
        text = {
            "number": f"{written or 'number'} (mean {self.centre:.4g}, standard "
            f"deviation {self.scale:.4g})",
            "boolean": "true or false",
            "date": f"{written or 'date'} (standard deviation {self.scale:.4g} days)",
            "category": (
                f"category ({format_count(len(self.categories), 'value')}, "
                f"and one for all others{hashed})"
            ),
            "text": f"text ({self.encoder or 'hashed words and pairs of words'}, "
            f"{len(self.features) - self.missing} features)",
            "constant": "ignored: constant at the first place",
            "identifier": "ignored: looks like an identifier (`cirm fit --category "
            f"{self.name}` keeps it)",
        }[self.kind]
        marked = "; with an indicator of missing values" if self.missing else ""
        return f"{self.name}: {text}{marked}"


@dataclass(frozen=True)
class TableEncoding:
    """How every column of a table is encoded.

    Example:
        >>> first = pd.DataFrame({"age": [30, 50], "sex": ["f", "m"]})
        >>> encoding = TableEncoding.fit(first)
        >>> encoding.features
        ('age', 'sex=f', 'sex=m', 'sex: other')
        >>> encoding.encode(pd.DataFrame({"age": [40], "sex": ["x"]})).tolist()
        [[0.0, 0.0, 0.0, 1.0]]
    """

    columns: tuple[ColumnEncoding, ...]

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        categories: Collection[str] = (),
        names: bool = True,
        texts: Collection[str] = (),
        encoder: EncoderIdentity | None = None,
    ) -> TableEncoding:
        """Infer the encoding from a table; `categories` are columns of codes.

        Without `names`, the names of all categories are hashed. Columns of `texts`, and
        those that look like sentences, are encoded by `encoder`, if there is one.
        """
        check_table_has_columns(frame, [*categories, *texts])
        done = _fit_encodings_of_float_columns(frame, categories)
        is_text = dict.fromkeys(texts, ColumnValueKind("text"))
        return cls(
            tuple(
                done.get(name)
                or ColumnEncoding.fit(
                    frame[name], name in categories, names, is_text.get(name), encoder
                )
                for name in sorted(frame.columns)
            )
        )

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def widths(self) -> dict[str, int]:
        """Number of features of each column that has any, in order."""
        return {c.name: len(c.features) for c in self.columns if c.features}

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return the features of a table, [n, features]; other columns are ignored."""
        check_table_has_columns(frame, [c.name for c in self.columns if c.features])
        encoded = np.empty((len(frame), len(self.features)), np.float32)
        dtypes = dict(zip(frame.columns, frame.dtypes, strict=True))
        plain: dict[
            int, ColumnEncoding
        ] = {}  # columns that are numbers already, by feature
        start = 0
        for column in self.columns:
            end = start + len(column.features)
            if column.kind == "number" and dtypes[column.name] == np.float64:
                plain[start] = column
            elif end > start:
                encoded[:, start:end] = column.encode(frame[column.name])
            start = end
        if plain:  # all at once, since thousands of columns would take long one by one
            self._encode_float_columns_as_features(frame, plain, encoded)
        return encoded

    def _encode_float_columns_as_features(
        self,
        frame: pd.DataFrame,
        float_encodings: dict[int, ColumnEncoding],
        features: NDArray[Any],
    ) -> None:
        """Set the features of columns of floats, each at its place in `features`."""
        columns = list(float_encodings.values())
        places = np.array(list(float_encodings))
        numbers, order = _get_float_columns(frame, [column.name for column in columns])
        centre, scale, fill = (
            np.array([getattr(column, name) for column in columns])
            for name in ("centre", "scale", "fill")
        )
        marked = np.flatnonzero([column.missing for column in columns])
        width = int(places[-1] - places[0]) + 1
        is_run = width == len(places)  # a slice is set several times faster
        target = slice(places[0], places[-1] + 1) if is_run else places
        suspects = np.zeros(len(columns), bool)
        for start in range(0, len(frame), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            scaled = np.array(numbers[order, rows].T, order="C")
            with np.errstate(over="ignore", invalid="ignore"):
                scaled -= centre
                scaled /= scale
                features[rows, places[marked] + 1] = 0
                features[rows, target] = scaled
                # A sum is finite if all its terms are, and is far faster to check.
                if np.isfinite(features[rows].sum()):
                    continue
                gaps = np.isnan(scaled)
                scaled = np.where(gaps, (fill - centre) / scale, scaled)
                features[rows, places[marked] + 1] = gaps[:, marked]
                features[rows, target] = scaled
                suspects |= ~np.isfinite(features[rows, target]).all(0)
        for suspect in np.flatnonzero(suspects):
            column = columns[suspect]  # which explains what is wrong with it
            column.encode(frame[column.name])

    @property
    def numeric_columns(self) -> tuple[ColumnEncoding, ...]:
        """The columns of numbers."""
        return tuple(column for column in self.columns if column.kind == "number")

    def find_missing_numbers(self, frame: pd.DataFrame) -> Flags:
        """Return where numbers are missing, [n, columns of numbers]."""
        missing = np.ones((len(frame), len(self.numeric_columns)), bool)
        dtypes = dict(zip(frame.columns, frame.dtypes, strict=True))
        names = {
            column.name: place for place, column in enumerate(self.numeric_columns)
        }
        plain = [name for name in names if dtypes.get(name) == np.float64]
        missing[:, [names[name] for name in plain]] = np.isnan(frame[plain].to_numpy())
        for name in dtypes.keys() & names.keys() - set(plain):
            missing[:, names[name]] = find_missing_values(frame[name])
        return missing

    def describe(self) -> str:
        """Return one line for each column."""
        return "\n".join(column.describe() for column in self.columns)


def _get_float_columns(
    frame: pd.DataFrame, names: list[str]
) -> tuple[Numbers, NDArray[np.int64] | slice]:
    """Return columns of floats [c, n], and which of them have the given names.

    Choosing columns copies them, which takes as long as encoding them. All columns of
    floats are a view where pandas keeps them together.
    """
    is_float = np.array([dtype == np.float64 for dtype in frame.dtypes])
    if is_float.sum() > 2 * len(names):  # a copy of all could be large
        frame = frame[names]
    elif not is_float.all():
        frame = frame.loc[:, is_float]
    order = frame.columns.get_indexer(pd.Index(names))
    is_sorted = np.array_equal(order, np.arange(frame.shape[1]))
    return frame.to_numpy().T, slice(None) if is_sorted else order


def _fit_encodings_of_float_columns(
    frame: pd.DataFrame, categories: Collection[str]
) -> dict[str, ColumnEncoding]:
    """Return the encodings of columns of finite floats, which are numbers.

    They are computed all at once: thousands of columns would take long one by one.
    """
    dtypes = zip(frame.columns, frame.dtypes, strict=True)
    names = [n for n, dtype in dtypes if dtype == np.float64 and n not in categories]
    numbers = np.ascontiguousarray(frame[names].to_numpy(dtype=np.float64).T)
    complete = np.isfinite(numbers).all(1)
    statistics = compute_column_statistics(numbers[complete])
    columns = {}
    for place, own in zip(np.flatnonzero(complete), statistics, strict=True):
        name, (centre, scale, fill, *quartiles) = names[place], own.tolist()
        if not scale:
            columns[name] = ColumnEncoding(name, "constant")
        elif _do_values_look_like_identifiers(name, numbers[place]):
            columns[name] = ColumnEncoding(name, "identifier")
        else:
            columns[name] = ColumnEncoding(
                name, "number", centre, scale, fill, quartiles=tuple(quartiles)
            )
    return columns


def compute_column_statistics(numbers: Numbers) -> Numbers:
    """Return mean, standard deviation, median and quartiles of rows [c, n], [c, 5].

    The standard deviation of equal numbers is exactly 0.
    """
    if not numbers.size:
        return np.zeros((len(numbers), 5))
    # Relative to the largest, squares neither overflow nor vanish.
    size = np.abs(numbers).max(1, keepdims=True)
    relative = numbers / np.where(size > 0, size, 1.0)
    varies = numbers.max(1) > numbers.min(1)
    parts = [relative.mean(1), np.where(varies, relative.std(1), 0.0)]
    parts += [np.median(relative, 1), *np.quantile(relative, (0.25, 0.75), axis=1)]
    statistics: Numbers = np.column_stack(parts) * size
    return statistics


def _do_values_look_like_identifiers(name: str, numbers: Numbers) -> bool:
    """Whether many different whole numbers are a range or stand in a column of ids."""
    if len(numbers) <= MOST_CATEGORIES or (np.mod(numbers, 1) != 0).any():
        return False
    if len(np.unique(numbers)) < len(numbers):
        return False
    is_range = numbers.max() - numbers.min() == len(numbers) - 1
    return bool(is_range or IDENTIFIER_NAME.search(name))


def _infer_categorical_encoding(
    name: str, text: Values, has_missing: bool, is_declared: bool, names: bool
) -> ColumnEncoding:
    counts = text.value_counts()
    if len(counts) < 2:
        return ColumnEncoding(name, "constant", missing=has_missing)
    unique = (counts == 1).sum() * 2 > len(text)
    if len(counts) > MOST_CATEGORIES and unique and not is_declared:
        if do_texts_look_like_sentences(text.to_list()):
            return ColumnEncoding(name, "text", missing=has_missing)
        return ColumnEncoding(name, "identifier")
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    frequent = sorted(ranked[:MOST_CATEGORIES], key=lambda item: item[0])
    is_private_column = (
        not names
        or len(counts) > MOST_CATEGORIES
        or may_column_name_persons(name, [category for category, _ in frequent])
    )
    kept: dict[str, bool] = {}  # what is stored of each category, and whether hashed
    for category, count in frequent:
        is_private = is_private_column or may_category_name_identify_person(
            category, count
        )
        kept[hash_category_name(category, name) if is_private else category] = (
            is_private
        )
    hashed = tuple(
        place for place, is_private in enumerate(kept.values()) if is_private
    )
    return ColumnEncoding(
        name, "category", categories=tuple(kept), missing=has_missing, hashed=hashed
    )
