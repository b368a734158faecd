"""Periods of time as environments: the dates of a column become names of periods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types

from cirm.data.cell_errors import (
    check_table_has_columns,
    raise_error_for_first_bad_value,
)
from cirm.data.schema import Schema
from cirm.data.sources import DataSource, SourceRowChunk
from cirm.data.values import (
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    detect_number_or_date_format,
    find_missing_values,
)

EVERY = ("day", "week", "month", "quarter", "year")
REMEDY = "remove the row"


class TimePeriodSource(DataSource):
    """A table in which a column of dates is replaced by the period of each date.

    Periods are environments, in order of time, whatever the order of the rows. Whether
    the day or the month of a date comes first is inferred from all rows.
    """

    def __init__(self, source: DataSource, column: str, period_length: str) -> None:
        self.source, self.column, self.every = source, column, period_length
        self.name, self.where, self.path = source.name, source.where, source.path
        self.target, self.weight = source.target, source.weight
        self.count = source.count
        self.environment = column
        dates = self._parse_distinct_dates()
        self._format = detect_date_format_of_column(dates)
        self.periods = tuple(
            sorted(set(name_period_of_each_date(dates, period_length, self._format)))
        )

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield all rows in order, with periods in place of dates."""
        numeric_columns = [name for name in numeric_columns if name != self.column]
        for chunk in self.source.iterate_chunks(numeric_columns):
            names = name_period_of_each_date(
                chunk.frame[self.column], self.every, self._format
            )
            yield chunk._replace(frame=chunk.frame.assign(**{self.column: names}))

    def hash_files(self) -> dict[str, str]:
        """Return the SHA-256 of the file by its name."""
        return self.source.hash_files()

    def _parse_distinct_dates(self) -> Values:
        """Return each different date with the row in which it comes first."""
        parts = []
        for frame in self.source.iterate_frames():
            check_table_has_columns(frame, [self.column], self.where)
            parts.append(frame[self.column][~frame[self.column].duplicated()])
        dates = pd.concat(parts)
        return dates[~dates.duplicated()]


def divide_sources_into_time_periods(
    sources: Sequence[DataSource],
    environment_column: str,
    time_column: str,
    period_length: str,
) -> list[DataSource]:
    """Return sources whose environments are periods, if a column of dates is given."""
    if not time_column:
        if period_length:
            raise ValueError(
                f"--every is {period_length!r}, but no column of dates is given. Name "
                "the column of dates with --time (in Python time=), or remove --every."
            )
        return list(sources)
    if environment_column:
        raise ValueError(
            "The places are given twice: by --environment, the column "
            f"{environment_column!r}, and by --time, the dates in column "
            f"{time_column!r}. Use only one of these options."
        )
    check_period_length(period_length or "month")
    for source in sources:
        if source.kind != "table":
            raise ValueError(
                f"{source.where}: --time needs a table with a column of dates, but "
                "these data are not a table. Remove --time."
            )
    return [
        TimePeriodSource(source, time_column, period_length or "month")
        for source in sources
    ]


def divide_new_sources_into_time_periods(
    sources: Sequence[DataSource],
    schema: Schema,
    environment_column: str = "",
    time_column: str = "",
    period_length: str = "",
) -> list[DataSource]:
    """Return the sources of later data, divided as the first ones unless told else.

    Data without the column of dates are one environment per file.
    """
    is_same = bool(schema.every) and not environment_column and not time_column
    if not is_same:
        return divide_sources_into_time_periods(
            sources, environment_column, time_column, period_length
        )
    column, period_length = schema.environment, period_length or schema.every
    return [
        divide_sources_into_time_periods([source], "", column, period_length)[0]
        if column in source.read_first_cells(1, 1_000_000).names
        else source
        for source in sources
    ]


def add_time_periods_to_schema(schema: Schema, sources: Sequence[DataSource]) -> Schema:
    """Return the schema with the length of periods, if environments are periods."""
    (every,) = {s.every if isinstance(s, TimePeriodSource) else "" for s in sources}
    return replace(schema, every=every)


def list_time_periods_of_sources(sources: Sequence[DataSource]) -> list[str]:
    """Return the periods of all sources in order of time; none without dates."""
    return sorted({period for source in sources for period in source.periods})


def name_periods(dates: Any, every: str = "month") -> pd.Categorical:  # noqa: ANN401
    """Return the period of each date, to be used as environments of an estimator.

    The estimators train on the periods in order of time, whatever the order of rows.

    Args:
        dates: Dates [n]: an array or column of dates, or of text such as 2024-01-31
            or 31.01.2024.
        every: How long a period is: "day", "week", "month", "quarter" or "year".

    Returns:
        Names of periods [n], such as 2024-01-31, 2024-W05, 2024-01, 2024-Q1 or 2024,
        as an ordered categorical of pandas.

    Raises:
        ValueError: If there is no such length, or a value is not a date.

    Example:
        >>> from cirm import name_periods
        >>> list(name_periods(["2024-02-01", "2024-01-31", "2024-02-29"], "month"))
        ['2024-02', '2024-01', '2024-02']
    """
    check_period_length(every)
    values = pd.Series(dates).reset_index(drop=True).rename("dates")
    names = name_period_of_each_date(
        values, every, detect_date_format_of_column(values)
    )
    return pd.Categorical(names, sorted(set(names)), ordered=True)


def check_period_length(period_length: str) -> None:
    """Refuse a length that no period has."""
    if period_length not in EVERY:
        raise ValueError(
            f"--every is {period_length!r}, which is not the length of a period. Use "
            f"one of {', '.join(EVERY)}."
        )


def detect_date_format_of_column(values: Values) -> str:
    """Return how dates are written; empty for ISO 8601 and columns of dates."""
    if types.is_numeric_dtype(values) or types.is_datetime64_any_dtype(values):
        return ""
    present = values[~find_missing_values(values)]
    guess = detect_number_or_date_format(present, "date")
    if guess.problem:
        advice = "Correct the date, or write all dates like 2024-12-31."
        raise_error_for_first_bad_value(present, guess.bad, guess.problem, advice)
    return guess.format


def name_period_of_each_date(
    values: Values, period_length: str, date_format: str
) -> NDArray[np.object_]:
    """Return the name of the period of each date, [n]; names sort like the dates."""
    if types.is_numeric_dtype(values):  # years, or days such as 20241231
        values = convert_values_to_text(values)
    days = convert_values_to_numbers(values, "date", REMEDY, date_format)
    raise_error_for_first_bad_value(
        values, np.isnan(days), "which is not a date", f"Fill the cell, or {REMEDY}."
    )
    dates = pd.Series(pd.to_datetime(np.floor(days), unit="D"))
    if period_length == "week":
        calendar = dates.dt.isocalendar()
        year, week = calendar["year"].astype(str), calendar["week"].astype(str)
        names = year + "-W" + week.str.zfill(2)
    elif period_length == "quarter":
        names = dates.dt.year.astype(str) + "-Q" + dates.dt.quarter.astype(str)
    else:
        layout = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}[period_length]
        names = dates.dt.strftime(layout)
    return names.to_numpy(dtype=object)
