"""Columns in another unit, by their quartiles."""

import numpy as np
import pytest
from scipy import stats

from cirm.data.columns import ColumnEncoding
from cirm.model.units import detect_columns_in_other_units

FIRST = {"age": (60.0, 15.0), "weight": (75.0, 12.0), "height": (170.0, 9.0)}


def make_columns(has_quartiles):
    """Columns as the first environment defines them; old files have no quartiles."""
    width = stats.norm.ppf(0.75)
    return [
        ColumnEncoding(
            name,
            "number",
            centre,
            scale,
            fill=centre,
            quartiles=(centre - width * scale, centre + width * scale)
            if has_quartiles
            else (),
        )
        for name, (centre, scale) in FIRST.items()
    ]


def draw_quartiles(factor):
    """Quartiles later, of which those of the height are in another unit."""
    rows = [stats.norm(*pair).ppf([0.25, 0.5, 0.75]) for pair in FIRST.values()]
    rows[2] = rows[2] * factor
    return np.array(rows)


@pytest.mark.parametrize("has_quartiles", [True, False])
@pytest.mark.parametrize("factor", [1.0, 10.0, 0.01, 1 / 2.54])
def test_a_converted_column_is_found_and_no_other(has_quartiles, factor):
    columns = make_columns(has_quartiles)
    changes = detect_columns_in_other_units(columns, draw_quartiles(factor))
    assert [change.column for change in changes] == ([] if factor == 1 else ["height"])


def test_the_nearest_conversion_is_named():
    (change,) = detect_columns_in_other_units(make_columns(True), draw_quartiles(9.008))
    assert "multiplied by 9.008 (lactate in mmol/l and mg/dl)" in change.text


def test_files_without_quartiles_have_those_of_a_normal_distribution():
    told = [
        [
            change.text
            for change in detect_columns_in_other_units(columns, draw_quartiles(10.0))
        ]
        for columns in (make_columns(True), make_columns(False))
    ]
    assert told[0] == told[1]


def test_a_quartile_of_zero_is_written_as_zero():
    column = ColumnEncoding("rain", "number", 2.8, 6.0, fill=0.0, quartiles=(0.0, 2.9))
    now = np.array([[4.6e-8, 4.6e-8, 2900.0]])
    (change,) = detect_columns_in_other_units([column], now)
    assert "its quartiles are 0, 0, 2900, but they were 0, 0, 2.9." in change.text
