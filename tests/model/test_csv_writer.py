"""Predictions are written as pandas would write them, so that any reader agrees."""

import io
import unicodedata

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirm.model.csv_writer import (
    FORMULA,
    NUMBER,
    escape_spreadsheet_cell_text,
    escape_spreadsheet_table_cells,
    format_table_as_csv,
)

TEXTS = st.sampled_from(["", "ill", "a,b", "a\tb", 'say "x"', "two\nlines", "é"])
PARTS = st.integers(0, 10**6).map(lambda units: units / 10**6)
KEPT = st.one_of(TEXTS, st.none(), st.floats(allow_infinity=False), st.booleans())


def predictions(labels, chances):
    return pd.DataFrame(
        {
            "prediction": np.array(labels, dtype=object),
            "probability": np.array(chances, dtype=float),
            "uncertainty": np.nan,
        }
    )


def read(text, separator=","):
    return pd.read_csv(io.StringIO(text), sep=separator, dtype=str, na_filter=False)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(KEPT, TEXTS, PARTS), min_size=1, max_size=30),
    st.integers(0, 2),
    st.sampled_from([",", "\t"]),
)
def test_any_reader_finds_what_pandas_would_have_written(rows, kept, separator):
    own, labels, chances = zip(*rows, strict=True)
    columns = {f"kept{n}": np.array(own, dtype=object) for n in range(kept)}
    frame = pd.concat([pd.DataFrame(columns), predictions(labels, chances)], axis=1)
    found = read(format_table_as_csv(frame, separator), separator)
    wanted = read(frame.to_csv(index=False, sep=separator), separator)
    assert (found["probability"].astype(float) == frame["probability"]).all()
    same = [name for name in frame.columns if name != "probability"]
    pd.testing.assert_frame_equal(found[same], wanted[same])


def test_probabilities_are_plain_decimals():
    chances = [0.0, 1.0, 0.5, 0.123456, 0.000001, 0.1, 0.99999]
    lines = format_table_as_csv(predictions(["x"] * 7, chances)).splitlines()
    assert lines[0] == "prediction,probability,uncertainty"
    cells = "0.0", "1.0", "0.5", "0.123456", "0.000001", "0.1", "0.99999"
    assert lines[1:] == [f"x,{cell}," for cell in cells]


def test_without_a_header_there_are_rows_only():
    assert (
        format_table_as_csv(predictions(["x"], [0.25]), with_header=False)
        == "x,0.25,\n"
    )


@pytest.mark.parametrize(
    "column",
    [
        ["x" * 1000, "y", "z"],
        [1.5, -2.25e300, 7.0],
        pd.to_datetime(["2024-01-31", "2024-02-01", "2024-02-02"]),
        ["a\0b", "c", "d\0"],
        [None, "", "c"],
    ],
    ids=["long", "numbers", "dates", "zeros", "gaps"],
)
def test_whatever_is_kept_beside_is_as_pandas_writes_it(column):
    frame = predictions(["x", "y", "x"], [0.25, 0.5, 0.75])
    frame.insert(0, "kept", column)
    assert format_table_as_csv(frame) == frame.to_csv(index=False)


def test_a_label_of_several_lines_is_quoted():
    assert (
        format_table_as_csv(predictions(["a\r\nb"], [0.25]), with_header=False)
        == '"a\r\nb",0.25,\n'
    )


def test_values_are_written_to_their_last_digit():
    values = np.random.default_rng(0).normal(size=(20, 3)) * 1e5
    frame = pd.DataFrame(values, columns=["prediction", "low", "high"])
    found = pd.read_csv(io.StringIO(format_table_as_csv(frame)))
    assert found.equals(frame)


FORMULAS = [
    "=1+1",
    "+49 170 1234",
    "-",
    "@SUM(A1)",
    "\tx",
    "\rx",
    "-1+1|'cmd'",
    "\uff1d1",
]
NUMBERS = ["-3.5", "+4", "-1e-5", "-.5", "-inf", "", "a-b", "x=1", "'=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_runs_in_a_spreadsheet_gets_an_apostrophe(text):
    assert escape_spreadsheet_cell_text(text) == f"'{text}"


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_and_plain_text_stay(text):
    assert escape_spreadsheet_cell_text(text) == text


@pytest.mark.parametrize(
    "dtype", [object, "str", "category"], ids=["object", "str", "category"]
)
def test_cells_and_names_of_columns_are_escaped_and_others_stay(dtype):
    kept = pd.Series(["=1", None, "-2", "plain"], dtype=dtype)
    frame = pd.DataFrame({"=name": kept, "number": [-1.5, 2, 3, 4], "flag": True})
    escaped = escape_spreadsheet_table_cells(frame)
    assert list(escaped.columns) == ["'=name", "number", "flag"]
    cells = escaped["'=name"].astype(object).where(kept.notna(), "").tolist()
    assert cells == ["'=1", "", "-2", "plain"]
    assert escaped[["number", "flag"]].equals(frame[["number", "flag"]])
    assert frame.columns[0] == "=name"  # the table itself does not change


@given(st.text())
def test_no_text_begins_a_formula_or_steers_a_terminal(text):
    escaped = escape_spreadsheet_cell_text(text)
    assert not FORMULA.match(escaped) or NUMBER.fullmatch(escaped)
    assert not any(
        unicodedata.category(c) == "Cc" for c in escaped if c not in "\t\r\n"
    )
