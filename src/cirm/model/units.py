"""Numbers that arrive in another unit than in the first environment.

Places differ, and their columns with them. So a column is not judged by its size but
by comparing two explanations: that it differs as the other columns of the same table
do, or that it was converted and then differs like them. Both are judged by how far the
median has moved, in interquartile ranges, and by the ratio of the interquartile ranges.
Outliers such as price spikes change neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cirm.data.columns import ColumnEncoding
from cirm.data.values import Numbers

FACTORS = {
    **{10.0**power: f"10^{power}" for power in range(1, 10)},  # prefixes, per cent
    60.0: "minutes and seconds",
    3600.0: "hours and seconds",
    24.0: "days and hours",
    7.0: "weeks and days",
    365.25: "years and days",
    86400.0: "days and seconds",
    2.20462: "kilograms and pounds",
    28.3495: "ounces and grams",
    2.54: "inches and centimetres",
    3.28084: "metres and feet",
    1.609344: "miles and kilometres",
    4.184: "calories and joules",
    7.50062: "kilopascals and millimetres of mercury",
    9.008: "lactate in mmol/l and mg/dl",
    17.104: "bilirubin in mg/dl and µmol/l",
    18.016: "glucose in mmol/l and mg/dl",
    38.67: "cholesterol in mmol/l and mg/dl",
    88.42: "creatinine in mg/dl and µmol/l",
}
"""Factors between units in common use: of the metric system, of time, those that are
not metric, and those of laboratories, where both kinds are in daily use."""

OFFSETS = {
    (1.8, 32.0): "degrees Celsius and Fahrenheit",
    (1.0, 273.15): "degrees Celsius and kelvin",
}
"""Factors and offsets of temperatures, the only common units with another zero."""

# How much columns differ between places: the median by so many interquartile ranges,
# and the interquartile range by a factor. The usual values (least) hold in four tables
# of hospitals, sensors and turbines; other columns of the table at hand may show that
# it varies more, but not beyond what says nothing any more (most).
LEAST_SHIFT, MOST_SHIFT = 0.5, 2.0
LEAST_LOG_RATIO, MOST_LOG_RATIO = 0.35, 1.0

# Logarithms of how many times likelier a conversion must be. In those four tables
# the largest value among 60,000 pairs of a column's places was 11.3; beyond 12 a table
# is refused. Beyond 5 it is a doubt, which 1 in 100 columns raised without a reason.
CERTAIN, DOUBTFUL = 12.0, 5.0

# The median of a column around zero says nothing. Its range must do: no range was more
# than 178 times as large at one place as at another.
MOST_RATIO = 300.0

NORMAL_QUARTILE = 0.6745  # of a standard normal distribution


class LinearUnitConversion(NamedTuple):
    """A conversion: a number is multiplied by the factor and then moved."""

    factor: float
    offset: float
    units: str


class ColumnUnitChange(NamedTuple):
    """A column that seems to be converted, and whether that is certain."""

    column: str
    text: str
    is_certain: bool


def list_unit_conversions() -> list[LinearUnitConversion]:
    """Return all known conversions, in both directions."""
    known = [LinearUnitConversion(a, 0.0, units) for a, units in FACTORS.items()]
    known += [LinearUnitConversion(a, b, units) for (a, b), units in OFFSETS.items()]
    return known + [LinearUnitConversion(1 / a, -b / a, units) for a, b, units in known]


def detect_columns_in_other_units(
    columns: list[ColumnEncoding], quartiles: Numbers
) -> list[ColumnUnitChange]:
    """Return the columns that seem to be in another unit.

    Args:
        columns: Columns of numbers as the first environment defines them.
        quartiles: Their lower quartile, median and upper quartile now, [columns, 3].
    """
    first = np.array(
        [_get_quartiles_of_first_environment(column) for column in columns]
    ).reshape(-1, 3)
    varies = (first[:, 2] > first[:, 0]) & (quartiles[:, 2] > quartiles[:, 0])
    columns = [
        column for column, is_judged in zip(columns, varies, strict=True) if is_judged
    ]
    first, now = first[varies], quartiles[varies]
    with np.errstate(over="ignore", invalid="ignore"):
        shift, ratio = _measure_change_of_quartiles(first, now)
    widths = (
        _measure_quartile_change_of_other_columns(shift, LEAST_SHIFT, MOST_SHIFT),
        _measure_quartile_change_of_other_columns(
            ratio, LEAST_LOG_RATIO, MOST_LOG_RATIO
        ),
    )
    conversions = list_unit_conversions()
    with np.errstate(over="ignore", invalid="ignore"):  # NaN is no reason for a doubt
        scores = [
            _compute_quartile_change_likelihood(first, (now - offset) / factor, widths)
            for factor, offset, _ in conversions
        ]
        gains = np.array(scores) - _compute_quartile_change_likelihood(
            first, now, widths
        )
    changes = []
    for position, column in enumerate(columns):
        best = int(gains[:, position].argmax())
        gain = gains[best, position]
        if gain > DOUBTFUL:
            text = _describe_unit_change(
                column, first[position], now[position], conversions[best]
            )
            is_extreme = abs(ratio[position]) > np.log(MOST_RATIO)
            is_certain = bool(gain > CERTAIN or is_extreme)
            changes.append(ColumnUnitChange(column.name, text, is_certain))
    return changes


def _get_quartiles_of_first_environment(
    column: ColumnEncoding,
) -> tuple[float, float, float]:
    """Return quartiles of the first environment; old files have only the scale."""
    if column.quartiles:
        return column.quartiles[0], column.fill, column.quartiles[1]
    half = NORMAL_QUARTILE * column.scale
    return column.fill - half, column.fill, column.fill + half


def _measure_change_of_quartiles(
    first: Numbers, now: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the shift of the median, in ranges, and the ranges' log ratio, [c]."""
    before, after = first[:, 2] - first[:, 0], now[:, 2] - now[:, 0]
    # The smaller range, so that a conversion and its inverse count the same.
    shift = (now[:, 1] - first[:, 1]) / np.minimum(before, after)
    return shift, np.log(after / before)


def _measure_quartile_change_of_other_columns(
    change: Numbers, lowest: float, highest: float
) -> Numbers:
    """Return the median change of the other columns, within limits, [c]."""
    sizes = np.abs(change)
    if len(sizes) < 2:
        return np.full(len(sizes), lowest)
    ordered, ranks = np.sort(sizes), np.argsort(np.argsort(sizes))
    middle = {(len(sizes) - 2) // 2, (len(sizes) - 1) // 2}  # of all columns but one
    medians = [np.where(ranks > m, ordered[m], ordered[m + 1]) for m in middle]
    return np.clip(np.mean(medians, axis=0), lowest, highest)


def _compute_quartile_change_likelihood(
    first: Numbers, now: Numbers, widths: tuple[Numbers, Numbers]
) -> Numbers:
    """Return the log likelihood of a change, [c], under Cauchy distributions.

    Their heavy tails leave room for the few columns that change far more than others.
    """
    changes = _measure_change_of_quartiles(first, now)
    scaled = np.stack(changes) / np.stack(widths)
    score: Numbers = -np.log1p(scaled**2).sum(0)
    return score


def _describe_unit_change(
    column: ColumnEncoding,
    first: Numbers,
    now: Numbers,
    conversion: LinearUnitConversion,
) -> str:
    was, is_now = _format_quartiles(first), _format_quartiles(now)
    factor = f"multiplied by {conversion.factor:.4g}"
    offset = f" and moved by {conversion.offset:.4g}" if conversion.offset else ""
    return (
        f"column {column.name!r} seems to be in a different unit than at the first "
        f"place: its quartiles are {is_now}, but they were {was}. This looks like a "
        f"conversion: {factor}{offset} ({conversion.units})"
    )


def _format_quartiles(quartiles: Numbers) -> str:
    """Return quartiles in words; scaling leaves 5e-08 where a quartile is 0."""
    least = 1e-6 * np.abs(quartiles).max()
    return ", ".join(f"{q if abs(q) > least else 0:.4g}" for q in quartiles)
