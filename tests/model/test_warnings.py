"""Warnings about data appear where they should, and nowhere else."""

import numpy as np
import pandas as pd
import pytest
import torch

from cirm.data.columns import Encoding
from cirm.data.schema import Schema, SchemaDraft, Treatment
from cirm.environments import Task
from cirm.model.warnings import (
    find_input_warnings,
    find_leaks,
    find_unit_changes,
    find_unusual_values,
)


def make_schema(frame, classes=("no", "yes")):
    encoding = Encoding.fit(frame)
    treatment = Treatment("table", (len(encoding.features),), encoding)
    return Schema(treatment, Task(classes), encoding.columns[0])


@pytest.fixture
def first():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(50, 10, 100), "b": rng.normal(size=100)})


def encode(schema, frame):
    return schema.treatment.encoding.encode(frame)


@pytest.mark.parametrize(
    ("factor", "expected"), [(9.5, 0), (10.5, 1), (1 / 9.5, 0), (1 / 10.5, 1), (0, 0)]
)
def test_a_unit_differs_by_ten_or_more_and_a_constant_column_has_none(
    first, factor, expected
):
    schema = make_schema(first)
    column = schema.treatment.encoding.columns[0]
    later = first.assign(a=column.centre + factor * (first["a"] - column.centre))
    changes = find_unit_changes(schema, encode(schema, later))
    assert len(changes) == expected
    if changes:
        mean, std = column.centre, factor * column.scale
        assert (
            f"its mean is {mean:.4g} and its standard deviation {std:.4g};"
            in (changes[0])
        )
        assert changes[0].endswith(f"they were {mean:.4g} and {column.scale:.4g}")


def test_missing_values_do_not_count_as_another_unit(first):
    schema = make_schema(first)
    later = first.copy()
    later.loc[later.index >= 25, "a"] = np.nan  # the median fills three quarters
    scale = schema.treatment.encoding.columns[0].scale
    later["a"] = 50 + 0.15 * (later["a"] - 50)
    std = float(later["a"].std(ddof=0)) / scale
    assert 0.1 < std < 0.2  # no other unit, but with the filled rows below a tenth
    assert find_unit_changes(schema, encode(schema, later)) == []


@pytest.mark.parametrize(("shift", "expected"), [(9, 0), (11, 1), (-9, 0), (-11, 1)])
def test_a_shift_of_ten_standard_deviations_either_way_is_far(first, shift, expected):
    schema = make_schema(first)
    scale = schema.treatment.encoding.columns[0].scale
    later = first.assign(a=first["a"] + shift * scale)
    warnings = find_unusual_values(schema, encode(schema, later))
    assert len(warnings) == expected
    assert all("column 'a' is far from the data" in text for text in warnings)


def test_too_few_rows_say_nothing(first):
    schema = make_schema(first)
    later = first.assign(a=1e6)
    assert find_input_warnings(schema, encode(schema, later[:19])) == []
    assert len(find_input_warnings(schema, encode(schema, later[:20]))) == 1


@pytest.mark.parametrize(("count", "expected"), [(4, 0), (5, 1)])
def test_five_percent_of_new_categories_are_worth_a_warning(count, expected):
    frame = pd.DataFrame({"kind": ["p", "q"] * 50})
    schema = make_schema(frame)
    frame.loc[: count - 1, "kind"] = "new"
    warnings = find_unusual_values(schema, encode(schema, frame))
    assert len(warnings) == expected
    assert all(f"'kind': {count} % of the rows" in text for text in warnings)


def find_columns_that_leak(frame, targets, classes=("no", "yes")):
    schema = make_schema(frame, classes)
    draft = SchemaDraft(schema, frame, torch.as_tensor(targets))
    return [text.split("'")[1] for text in find_leaks(draft)]


def test_categories_leak_only_if_several_rows_share_each():
    targets = np.arange(100) % 2
    frame = pd.DataFrame(
        {
            "leak": np.where(targets, "p", "q"),
            "codes": [f"c{n % 50}" for n in range(100)],  # two rows each, by chance
            "mixed": np.where(np.arange(100) < 99, np.where(targets, "p", "q"), "q"),
        }
    )
    assert find_columns_that_leak(frame, targets) == ["leak"]


def test_numbers_leak_if_classes_form_blocks_without_a_common_value():
    targets = (np.arange(100) >= 50).astype(int)
    frame = pd.DataFrame(
        {
            "apart": np.arange(100) / 7,
            "touching": np.where(np.arange(100) == 50, 49, np.arange(100)) / 7,
            "crossing": np.where(np.arange(100) == 60, 0.5, np.arange(100) / 7),
        }
    )
    assert find_columns_that_leak(frame, targets) == ["apart"]


def test_a_regression_target_leaks_through_a_linear_copy():
    values = np.random.default_rng(0).normal(size=100)
    noise = np.random.default_rng(1).normal(size=100)
    frame = pd.DataFrame({"copy": 3 - 2 * values, "close": values + 0.05 * noise})
    assert find_columns_that_leak(frame, values, ()) == ["copy"]
