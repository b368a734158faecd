"""Notes on what is odd about the first environment, before anything is learned."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cirm.data.cell_errors import quote_column_names
from cirm.data.columns import MOST_CATEGORIES, ColumnEncoding
from cirm.data.date_formats import do_dates_have_two_digit_years
from cirm.data.schema_inference import SchemaWithFirstRows
from cirm.data.values import convert_values_to_numbers, convert_values_to_text

HUGE = 1e6  # times as large as 95 % of the cells, and larger than this: never a measure
FEWEST_ROWS = 5  # with fewer rows, no value is odd
PEEK = 100  # cells that show whether whole numbers are dates
COMPACT_DATES = (1900_01_01, 2100_12_31)  # whole numbers that may be dates


def list_notes_on_training_data(draft: SchemaWithFirstRows) -> list[str]:
    """Return notes on the target, on huge values, and on columns of many categories."""
    if len(draft.frame) < FEWEST_ROWS:
        return []
    return [
        *_list_notes_on_rare_classes(draft),
        *_list_notes_on_huge_values(draft),
        *_list_notes_on_category_columns(draft),
    ]


def _list_notes_on_rare_classes(draft: SchemaWithFirstRows) -> list[str]:
    """Return a note if classes have hardly any rows."""
    classes, rows = draft.schema.task.classes, len(draft.targets)
    if not classes:
        return []
    name = draft.schema.target.name
    counts = np.bincount(draft.targets.numpy(), minlength=len(classes))
    single = [classes[place] for place in np.flatnonzero(counts == 1)]
    if 2 * len(single) > rows:
        return [
            f"the target {name!r} has {len(classes):,} classes in {rows:,} rows, so "
            "most of them cannot be learned. Check that this is the right target "
            "column; if it contains quantities, use --task regression."
        ]
    if not single:
        return []
    return [
        f"only one row of the first place has the class {quote_column_names(single)}, "
        "too few to learn this class or to score it. Add rows of this class, or "
        "leave out this row."
    ]


def _list_notes_on_huge_values(draft: SchemaWithFirstRows) -> list[str]:
    """Return a note for each column with a value far beyond all others."""
    encoding, target = draft.schema.treatment.encoding, draft.schema.target
    columns = [*(encoding.numeric_columns if encoding else ()), target]
    notes = []
    for column in columns:
        # One huge value of 100,000 makes the scale as large as a 300th of it.
        usual = max(1.0, *map(abs, column.quartiles or (0.0,)))
        if column.kind != "number" or column.scale < HUGE / 1000 * usual:
            continue
        values = draft.frame[column.name]
        written = column.format
        sizes = np.abs(convert_values_to_numbers(values, "number", text_format=written))
        sizes = sizes[~np.isnan(sizes)]
        usual, largest = np.quantile(sizes, (0.95, 1.0), method="lower")
        if largest > HUGE * max(1.0, usual):
            notes.append(
                f"column {column.name!r} has a value of {largest:.3g}, while 95 % of "
                f"its values are at most {usual:.3g} in absolute value. This value "
                "alone decides how the whole column is scaled. Check the value, or "
                "leave the cell empty."
            )
    return notes


def _list_notes_on_category_columns(draft: SchemaWithFirstRows) -> list[str]:
    """Return notes on columns of many categories, and on dates not read as dates."""
    encoding = draft.schema.treatment.encoding
    notes = []
    for column in encoding.columns if encoding else ():
        if column.kind == "category" and len(column.categories) == MOST_CATEGORIES:
            notes += _list_notes_on_many_categories(draft.frame[column.name], column)
        if column.kind in ("category", "identifier"):
            cells = draft.frame[column.name].dropna().astype(str)
            if do_dates_have_two_digit_years(cells.to_numpy(dtype=object)):
                notes.append(
                    f"column {column.name!r} looks like dates with two digits for the "
                    "year, which can be read in several ways. Write them as 2024-12-31."
                )
        elif column.kind == "number" and _are_numbers_compact_dates(
            draft.frame, column
        ):
            notes.append(
                f"column {column.name!r} looks like dates without separators, which "
                "are read as numbers. Write them as 2024-12-31."
            )
    return notes


def _list_notes_on_many_categories(
    values: pd.Series[str], column: ColumnEncoding
) -> list[str]:
    """Return a note on a column with more categories than have a feature."""
    counts = convert_values_to_text(values.dropna()).value_counts()
    if len(counts) <= MOST_CATEGORIES:
        return []
    share = counts.iloc[:MOST_CATEGORIES].sum() / counts.sum()
    return [
        f"column {column.name!r} has {len(counts):,} different values. The "
        f"{MOST_CATEGORIES} most frequent ones, {100 * share:.0f} % of the rows, have "
        "a feature each; all others count as one. Group the values into fewer "
        f"categories, or leave the column out with --ignore {column.name}."
    ]


def _are_numbers_compact_dates(frame: pd.DataFrame, column: ColumnEncoding) -> bool:
    """Whether the first numbers of a column are all dates such as 20241231."""
    first, last = COMPACT_DATES
    if not all(first <= value <= last for value in column.quartiles or (0.0,)):
        return False
    text = convert_values_to_text(frame[column.name].dropna().iloc[:PEEK])
    dates = pd.to_datetime(text, format="%Y%m%d", errors="coerce")
    return not np.isnat(dates.to_numpy()).any()
