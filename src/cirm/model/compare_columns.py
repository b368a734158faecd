"""Compare each column of two tables: values, categories, missing values.

Tests are robust: they depend on ranks and counts, so that outliers do not decide. The
size of a change is given beside its p-value, since in large tables every change is
significant.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cirm.data.columns import ColumnEncoding
from cirm.data.values import (
    Numbers,
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    find_missing_values,
)
from cirm.model.comparison import adjust_p_values_by_holm

LEAST_SHIFT = 0.1  # standard deviations that are worth a word, even if significant
LEAST_RATIO = 1.2  # of the spreads
LEAST_SHARE = 0.03  # of the rows, for categories and missing values
FEWEST_EXPECTED = 5  # rows in a cell of a table of counts; rarer categories are joined
MOST_NEW_NAMES = 3  # new categories that a sentence lists


@dataclass(frozen=True)
class ColumnDistributionChange:
    """How a column differs between two tables.

    Attributes:
        column: Name of the column.
        kind: "values", "categories" or "missing".
        p_value: Of the hypothesis that nothing changed, adjusted for all columns.
        effect: The size of the change: standard deviations by which values moved, or
            the difference of shares.
        distance: The largest difference between the distributions, a fraction: of
            cumulative ones for values, else the total variation distance. It can be
            compared between columns.
        ratio: For values, the spread in the second table over that in the first.
        first: Median, most changed share, or share of missing values in the first.
        second: The same in the second table.
        label: The category whose share changed most.
        sentence: The change in words.
        is_date: Whether the values are dates, counted in days since 1970.
    """

    column: str
    kind: str
    p_value: float
    effect: float
    distance: float
    ratio: float = 1.0
    first: float = 0.0
    second: float = 0.0
    label: str = ""
    sentence: str = ""
    is_date: bool = False

    @property
    def is_large(self) -> bool:
        """Whether the change is large enough to be worth a word."""
        if self.kind == "values":
            is_wider = abs(np.log(self.ratio)) >= np.log(LEAST_RATIO)
            return bool(abs(self.effect) >= LEAST_SHIFT or is_wider)
        return self.distance >= LEAST_SHARE

    def as_dict(self, level: float, share: float) -> dict[str, Any]:
        """Return plain values for JSON, with whether the change is significant.

        The p-value is adjusted for the share of the level that its question has.
        """
        values = {
            name: value for name, value in vars(self).items() if name != "sentence"
        }
        values["p_value"] = min(1.0, self.p_value / share)
        significant = values["p_value"] <= level
        text = {"sentence": self.sentence}
        return {**values, "significant": significant, "large": self.is_large, **text}


def compare_column_distributions(
    columns: Sequence[ColumnEncoding], first: pd.DataFrame, second: pd.DataFrame
) -> list[ColumnDistributionChange]:
    """Compare the columns that both tables have; p-values are adjusted by Holm."""
    found = []
    for column in columns:
        if column.kind in ("identifier", "text"):
            continue
        one, other = first[column.name], second[column.name]
        gaps = [find_missing_values(values) for values in (one, other)]
        if gaps[0].any() or gaps[1].any():
            found.append(_compare_fractions_of_missing_values(column.name, *gaps))
        present = [one[~gaps[0]], other[~gaps[1]]]
        if min(map(len, present)):
            found.append(_compare_values_that_are_present(column, *present))
    adjusted = adjust_p_values_by_holm([change.p_value for change in found])
    pairs = zip(found, adjusted, strict=True)
    return [replace(change, p_value=p_value) for change, p_value in pairs]


def _compare_values_that_are_present(
    column: ColumnEncoding, one: Values, other: Values
) -> ColumnDistributionChange:
    if column.kind in ("number", "date"):
        first, second = (
            convert_values_to_numbers(values, column.kind, text_format=column.format)
            for values in (one, other)
        )
        is_date = column.kind == "date"
        if is_date or len(np.unique(np.concatenate([first, second]))) > 2:
            return compare_numeric_values(column.name, first, second, is_date)
    return compare_category_frequencies(
        column.name, convert_values_to_text(one), convert_values_to_text(other)
    )


def compare_numeric_values(
    name: str, first: Numbers, second: Numbers, is_date: bool = False
) -> ColumnDistributionChange:
    """Compare numbers by ranks (Mann-Whitney) and distributions (Kolmogorov-Smirnov).

    The effect is the shift, in standard deviations, of two normal distributions whose
    values exceed each other as often as these do.
    """
    ranks = stats.mannwhitneyu(second, first)
    with warnings.catch_warnings():  # where no exact p-value can be computed, and
        warnings.simplefilter("ignore", RuntimeWarning)  # that of many rows is used
        shape = stats.ks_2samp(first, second, method="auto")
    p_value = min(1.0, 2 * min(ranks.pvalue, shape.pvalue))
    if np.isnan(p_value):
        p_value = 1.0
    share = ranks.statistic / (len(first) * len(second))
    least = 0.5 / (len(first) * len(second))
    effect = np.sqrt(2) * stats.norm.ppf(np.clip(share, least, 1 - least))
    spreads = [_measure_spread_of_values(values) for values in (first, second)]
    ratio = spreads[1] / spreads[0] if min(spreads) > 0 else 1.0
    change = ColumnDistributionChange(
        name,
        "values",
        float(p_value),
        float(effect),
        float(shape.statistic),
        float(ratio),
        float(np.median(first)),
        float(np.median(second)),
        is_date=is_date,
    )
    return replace(change, sentence=_describe_numeric_change(change))


def _measure_spread_of_values(values: Numbers) -> float:
    """Return the interquartile range, or the standard deviation where that is zero."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high - low) or float(values.std())


def _describe_numeric_change(change: ColumnDistributionChange) -> str:
    size = abs(change.effect)
    up, down = ("later", "earlier") if change.is_date else ("up", "down")
    direction = up if change.effect > 0 else down
    unit = "standard deviation" if f"{size:.2f}" == "1.00" else "standard deviations"
    moved = f"moved {direction} by {size:.2f} {unit}"
    factor = max(change.ratio, 1 / change.ratio)
    if factor < LEAST_RATIO:
        return f"`{change.column}` {moved}"
    wider = "wide" if change.ratio > 1 else "narrow"
    varies = f"is spread {factor:.1f} times as {wider}"
    if size < LEAST_SHIFT:
        return f"`{change.column}` {varies}"
    return f"`{change.column}` {moved} and {varies}"


def compare_category_frequencies(
    name: str, first: Values, second: Values
) -> ColumnDistributionChange:
    """Compare the frequencies of categories, of which rare ones are joined.

    The category whose share changed most is named, of two the rarer one.
    """
    counts = pd.concat(
        [values.value_counts() for values in (first, second)], axis=1
    ).fillna(0)
    table = counts.to_numpy(dtype=float)
    shares = table / table.sum(0)
    changes = shares[:, 1] - shares[:, 0]
    largest = int(
        np.abs(changes).argmax() if len(table) > 2 else shares.sum(1).argmin()
    )
    change = ColumnDistributionChange(
        name,
        "categories",
        compute_p_value_of_equal_frequencies(table),
        float(changes[largest]),
        float(np.abs(changes).sum() / 2),
        first=float(shares[largest, 0]),
        second=float(shares[largest, 1]),
        label=str(counts.index[largest]),
    )
    verb = "rose" if change.second > change.first else "fell"
    shares_text = format_two_shares_in_percent(change.first, change.second)
    text = f"the share of `{change.label}` in `{name}` {verb} from {shares_text}"
    new = [str(n) for n, row in zip(counts.index, table, strict=True) if not row[0]]
    share = float(shares[table[:, 0] == 0, 1].sum())
    if share >= LEAST_SHARE:
        listed = ", ".join(f"`{n}`" for n in new[:MOST_NEW_NAMES])
        more = f" and {len(new) - MOST_NEW_NAMES} more" * (len(new) > MOST_NEW_NAMES)
        verb = "is" if len(new) == 1 else "are"
        found = (
            f"{listed}{more} {verb} new in `{name}` ({100 * share:.0f} % of the rows)"
        )
        text = found if new == [change.label] else f"{text}; {found}"
    return replace(change, sentence=text)


def compute_p_value_of_equal_frequencies(table: Numbers) -> float:
    """Return the p-value of equal frequencies in both columns of counts [k, 2].

    Rare categories are joined. Two by two tables with small counts are tested exactly.
    """
    rows = table.sum(1)
    expected = np.outer(rows, table.sum(0)) / table.sum()
    is_rare = expected.min(1) < FEWEST_EXPECTED
    if is_rare.sum() > 1:
        table = np.vstack([table[~is_rare], table[is_rare].sum(0)])
    if len(table) < 2:
        return 1.0
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    if len(table) == 2 and expected.min() < FEWEST_EXPECTED:
        return float(stats.fisher_exact(table).pvalue)
    return float(stats.chi2_contingency(table, correction=False).pvalue)


def _compare_fractions_of_missing_values(
    name: str, first: np.ndarray, second: np.ndarray
) -> ColumnDistributionChange:
    shares = [float(gaps.mean()) for gaps in (first, second)]
    counts = [[gaps.sum(), (~gaps).sum()] for gaps in (first, second)]
    verb = "rose" if shares[1] > shares[0] else "fell"
    return ColumnDistributionChange(
        name,
        "missing",
        compute_p_value_of_equal_frequencies(np.array(counts, dtype=float).T),
        shares[1] - shares[0],
        abs(shares[1] - shares[0]),
        first=shares[0],
        second=shares[1],
        sentence=f"the share of missing values of `{name}` {verb} from "
        f"{format_two_shares_in_percent(*shares)}",
    )


def format_two_shares_in_percent(first: float, second: float) -> str:
    """Return two fractions in percent, with enough digits to distinguish them.

    Example:
        >>> format_two_shares_in_percent(0.35, 0.22)
        '35 % to 22 %'
        >>> format_two_shares_in_percent(0.351, 0.354)
        '35.1 % to 35.4 %'
        >>> format_two_shares_in_percent(0.054, 0.22)  # one digit if a share is small
        '5.4 % to 22.0 %'
    """
    digits = 0
    while digits < 3 and f"{100 * first:.{digits}f}" == f"{100 * second:.{digits}f}":
        digits += 1
    if digits == 0 and 0 < min(first, second) < 0.1:
        digits = 1
    return f"{100 * first:.{digits}f} % to {100 * second:.{digits}f} %"
