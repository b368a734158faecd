"""Warnings about data appear where they should, and nowhere else."""

import numpy as np
import pandas as pd
import pytest
import torch

from cirm.data.columns import TableEncoding
from cirm.data.encoded_chunks import find_missing_numeric_cells
from cirm.data.schema import InputEncoding, Schema
from cirm.data.schema_inference import SchemaWithFirstRows
from cirm.environments import Task
from cirm.model.units import list_unit_conversions
from cirm.model.warnings import (
    find_columns_in_other_units,
    list_input_warnings,
    list_unusual_value_warnings,
    warn_of_leaking_columns,
)


def make_schema(frame, classes=("no", "yes")):
    encoding = TableEncoding.fit(frame)
    treatment = InputEncoding("table", (len(encoding.features),), encoding)
    return Schema(treatment, Task(classes), encoding.columns[0])


@pytest.fixture
def first():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(50, 10, 100), "b": rng.normal(size=100)})


def encode(schema, frame):
    return schema.treatment.encoding.encode(frame)


def find_changes(first, later):
    """Columns in another unit, and whether that is certain."""
    schema = make_schema(first)
    missing = find_missing_numeric_cells(later, schema)
    changes = find_columns_in_other_units(schema, encode(schema, later), missing)
    return {change.column: change.is_certain for change in changes}


# Encoded numbers have seven digits, of which less than a millionth would leave none.
CONVERSIONS = [c for c in list_unit_conversions() if c.factor > 2e-6]


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=str)
def test_every_known_conversion_raises_a_doubt(conversion):
    rng = np.random.default_rng(0)
    first, later = (
        pd.DataFrame({"a": rng.normal(40, 2, 400), "b": rng.normal(size=400)})
        for _ in range(2)
    )
    factor, offset, units = conversion
    later["a"] = factor * later["a"] + offset
    changes = find_columns_in_other_units(
        make_schema(first), encode(make_schema(first), later)
    )
    assert [change.column for change in changes] == ["a"]
    assert f"({units})" in changes[0].text
    quartiles = ", ".join(
        f"{q:.4g}" for q in np.quantile(later["a"], (0.25, 0.5, 0.75))
    )
    assert factor < 0.01 or f"its quartiles are {quartiles}, but" in changes[0].text


@pytest.mark.parametrize("factor", [1e3, 1e-3, 1e2, 1e-2, 86400.0])
def test_a_factor_of_a_hundred_or_more_is_certain(first, factor):
    assert find_changes(first, first.assign(a=factor * first["a"])) == {"a": True}


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_the_range_alone_tells_the_unit_of_a_column_around_zero(first, factor):
    assert find_changes(first, first.assign(b=factor * first["b"])) == {"b": True}


@pytest.mark.parametrize("factor", [1e3, 10.0, 1e-3])
def test_a_table_in_other_units_throughout_is_noticed(factor):
    rng = np.random.default_rng(0)
    first = pd.DataFrame(rng.normal(40, 2, (100, 4)), columns=list("abcd"))
    assert find_changes(first, factor * first).keys() == set("abcd")


def test_spikes_and_a_constant_column_are_in_no_other_unit(first):
    spikes = first["a"].where(first.index % 10 > 0, 1e6)
    assert find_changes(first, first.assign(a=spikes, b=0.0)) == {}


def test_a_ratio_that_no_conversion_explains_is_no_other_unit(first):
    assert find_changes(first, first.assign(a=1.3 * first["a"])) == {}


def test_zeros_are_not_missing_although_the_median_is_zero():
    rng = np.random.default_rng(0)
    first = pd.DataFrame(
        {"a": np.where(rng.random(200) < 0.7, 0, rng.normal(50, 10, 200))}
    )
    later = first.copy()
    later.loc[later["a"] != 0, "a"] *= 1.1
    schema = make_schema(first)
    zeros = first.assign(a=0.0)
    for table in (later, zeros):
        missing = find_missing_numeric_cells(table, schema)
        assert not missing.any()
        assert list_input_warnings(schema, encode(schema, table), missing) == []


def test_only_what_is_missing_counts_as_missing(first):
    schema = make_schema(first)
    later = first.assign(a=np.nan)
    missing = find_missing_numeric_cells(later, schema)
    assert missing.tolist() == [[True, False]] * 100
    warnings = list_unusual_value_warnings(schema, encode(schema, later), missing)
    assert warnings == [
        "column 'a': all values are missing. Check that the column was exported."
    ]


def test_missing_values_do_not_count_as_another_unit(first):
    later = first.copy()
    later.loc[later.index >= 25, "a"] = np.nan  # the median fills three quarters
    assert find_changes(first, later) == {}
    later["a"] *= 1000
    assert find_changes(first, later) == {"a": True}


@pytest.mark.parametrize(("shift", "expected"), [(9, 0), (11, 1), (-9, 0), (-11, 1)])
def test_a_shift_of_ten_standard_deviations_either_way_is_far(first, shift, expected):
    schema = make_schema(first)
    scale = schema.treatment.encoding.columns[0].scale
    later = first.assign(a=first["a"] + shift * scale)
    warnings = list_unusual_value_warnings(schema, encode(schema, later))
    assert len(warnings) == expected
    assert all("column 'a' is far from the data" in text for text in warnings)


def test_too_few_rows_say_nothing(first):
    schema = make_schema(first)
    later = first.assign(a=1e6)
    assert list_input_warnings(schema, encode(schema, later[:19])) == []
    assert len(list_input_warnings(schema, encode(schema, later[:20]))) == 1


@pytest.mark.parametrize(("count", "expected"), [(4, 0), (5, 1)])
def test_five_percent_of_new_categories_are_worth_a_warning(count, expected):
    frame = pd.DataFrame({"kind": ["p", "q"] * 50})
    schema = make_schema(frame)
    frame.loc[: count - 1, "kind"] = "new"
    warnings = list_unusual_value_warnings(schema, encode(schema, frame))
    assert len(warnings) == expected
    assert all(f"'kind': {count} % of the rows" in text for text in warnings)


def find_columns_that_leak(frame, targets, classes=("no", "yes")):
    schema = make_schema(frame, classes)
    draft = SchemaWithFirstRows(schema, frame, torch.as_tensor(targets))
    return [text.split("'")[1] for text in warn_of_leaking_columns(draft)]


def test_categories_leak_only_if_several_rows_share_each():
    targets = np.arange(100) % 2
    frame = pd.DataFrame(
        {
            "leak": np.where(targets, "p", "q"),
            "codes": [f"c{n % 50}" for n in range(100)],  # two rows each, by chance
            "fives": [f"{n % 2} {n // 10}" for n in range(100)],  # five rows each
            "fours": [f"{n % 2} {n // 8}" for n in range(100)],
            "mixed": np.where(np.arange(100) < 99, np.where(targets, "p", "q"), "q"),
        }
    )
    assert set(find_columns_that_leak(frame, targets)) == {"leak", "fives"}


def test_numbers_leak_if_classes_form_blocks_without_a_common_value():
    rows = np.arange(300)
    frame = pd.DataFrame(
        {
            "apart": rows / 7,
            "touching": np.where(rows == 150, 149, rows) / 7,
            "crossing": np.where(rows == 160, 0.5, rows / 7),
        }
    )
    targets = (rows >= 150).astype(int)
    assert find_columns_that_leak(frame, targets) == ["apart"]
    # Few rows may be in order by chance, unless the column has few values.
    few = slice(110, 190)
    assert find_columns_that_leak(frame[few], targets[few]) == []
    copies = pd.DataFrame({"copy": 2.0 * targets[few]})
    assert find_columns_that_leak(copies, targets[few]) == ["copy"]


def test_a_regression_target_leaks_through_a_linear_copy():
    values = np.random.default_rng(0).normal(size=100)
    noise = np.random.default_rng(1).normal(size=100)
    frame = pd.DataFrame({"copy": 3 - 2 * values, "close": values + 0.05 * noise})
    assert find_columns_that_leak(frame, values, ()) == ["copy"]
