"""Numbers and dates as people write them are read, or it is said why not."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm import fit, predict, update
from cirm.data.columns import ColumnEncoding

QUICK = {"learner": "erm", "settings": {"epochs": 2, "hidden": (4,)}}


def read(cells):
    """The encoding of a column of cells, and the numbers that it reads."""
    column = ColumnEncoding.fit(pd.Series(cells, name="x"))
    encoded = column.encode(pd.Series(cells, name="x"))[:, 0]
    return column, column.centre + column.scale * encoded.astype(float)


@pytest.mark.parametrize(
    ("cells", "numbers", "words"),
    [
        (["1,5", "2", "-3,25"], [1.5, 2, -3.25], "number with a decimal comma"),
        (["1.234,5", "2"], [1234.5, 2], "number with a decimal comma"),
        (["1,234.5", "7"], [1234.5, 7], "number with separated thousands"),
        (["1,234,567", "2,000"], [1234567, 2000], "number with separated thousands"),
        (["1 234,5", "2\u202f000,0"], [1234.5, 2000], "number with a decimal comma"),
        (["1'234.5", "2\u2019000"], [1234.5, 2000], "with separated thousands"),
        (["$5", "$1,200.50", "-$3"], [5, 1200.5, -3], "number in $"),
        (["5,00 €", "6,5€"], [5, 6.5], "number with a decimal comma, in €"),
        (["EUR 5", "7 EUR"], [5, 7], "number in EUR"),
        (["12 %", "3.5%", "0 %"], [12, 3.5, 0], "number in %"),
        (["\u22125,5", "1,0"], [-5.5, 1], "number with a decimal comma"),
        (["(1.23)", "4"], [-1.23, 4], "number with parentheses for minus"),
        (["(1.234,5)", "2"], [-1234.5, 2], "decimal comma, with parentheses"),
        (["($1,200.5)", "$3"], [-1200.5, 3], "number in $, with parentheses for minus"),
        (["$(7)", "( $ 8 )", "9"], [-7, -8, 9], "number in $, with parentheses"),
        (["(3.5 %)", "12%", "(4)%"], [-3.5, 12, -4], "in %, with parentheses"),
        (["(5,00) €", "6,5€"], [-5, 6.5], "in €, with parentheses for minus"),
    ],
)
def test_numbers_in_common_formats_are_recognised(cells, numbers, words):
    column, values = read(cells)
    assert column.kind == "number"
    assert words in column.describe()
    assert values == pytest.approx(numbers, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("cells", "first", "words"),
    [
        (["31.12.2024", "1.2.2024"], "2024-12-31", "date, day first"),
        (["13/04/2024", "05/06/2024"], "2024-04-13", "date, day first"),
        (["04/13/2024", "05/06/2024"], "2024-04-13", "date, month first"),
        (["13-04-2024 14:30", "05-06-2024 9:05"], "2024-04-13 14:30", "day first"),
        (["2024/4/13 9:30 pm", "2024/12/31 1:00 am"], "2024-04-13 21:30", "year first"),
        (["2024/4/13", "2024/12/31"], "2024-04-13", "date (standard deviation"),
        (["Dec 31, 2024", "January 5 2023"], "2024-12-31", "with names of months"),
        (["31-Dec-2024", "5 May 2024"], "2024-12-31", "with names of months"),
        (["4/13/2024 3:05 PM", "5/6/2024 12:00 AM"], "2024-04-13 15:05", "month"),
        (["2024-04-13", "2024-05-01"], "2024-04-13", "date (standard deviation"),
    ],
)
def test_dates_in_common_formats_are_recognised(cells, first, words):
    column, days = read(cells)
    assert column.kind == "date"
    assert words in column.describe()
    wanted = pd.Timestamp(first) - pd.Timestamp("1970-01-01")
    assert days[0] == pytest.approx(wanted / pd.Timedelta(days=1), abs=0.01)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1,234", "2,345"], "'1,234', which may be 1.234 or 1234: no other cell"),
        (["1.234", "5.678", "9.012", "1,5"], "'1,5', which is not a number, unlike"),
        (["12 %", "3", "4 %"], "'3', which has no percent sign, unlike other cells"),
        (["$5", "€6", "$7"], "'€6', while other cells of the column are in $"),
        (["(-5)", "4", "7"], "'(-5)', which is not a number, unlike most"),
        (["98.50-", "4", "7"], "'98.50-', which is not a number, unlike most"),
        (["1,5", "2,5", "many"], "'many', which is not a number, unlike most"),
        (["03/04/2024", "05/06/2024"], "'03/04/2024', in which the day or the month"),
        (["13/04/2024", "05/16/2024", "14/04/2024"], "a different order than '13/04"),
        (["13/04/2024", "31/02/2024", "1/1/2024"], "'31/02/2024', which is not a date"),
        (["13/04/2024", "soon", "1/1/2024"], "'soon', which is not a date like most"),
    ],
)
def test_what_can_be_read_in_two_ways_is_explained(cells, message):
    with pytest.raises(ValueError, match="column 'x' has the value") as refusal:
        read(cells)
    assert message in str(refusal.value)
    assert "use --category x to treat the column as a category" in str(refusal.value)


@pytest.mark.parametrize(
    "cells",
    [
        ["+49 170", "030 123", "089 456"],
        ["1,2,3", "1,3", "2"],
        ["10.0.0.1", "192.168.0.12", "8.8.8.8"],
        ["a", "b", "1,5"],
        ["12:30", "13:45", "9:00"],
        ["1.2.10", "1.3.0", "2.0.1"],
        ["(030) 12", "(089) 45", "(040) 67"],
        ["(a)", "(b)", "(1)"],
    ],
)
def test_other_text_is_a_category(cells):
    assert ColumnEncoding.fit(pd.Series(cells, name="x")).kind == "category"


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=20, unique=True))
def test_any_numbers_with_a_decimal_comma_are_read_as_they_are(numbers):
    cells = [f"{number:.2f}".replace(".", ",") for number in numbers]
    rounded = [round(number, 2) for number in numbers]
    column = ColumnEncoding.fit(pd.Series(cells, name="x"))
    if len(set(rounded)) > 1:
        assert column.kind == "number"
        assert column.centre == pytest.approx(np.mean(rounded), rel=1e-6, abs=0.01)


def table(rows, seed, write=str):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    amounts = rng.normal(1000, 400, rows).round(2) + 500 * y
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(
        rng.integers(0, 300, rows), "D"
    )
    return pd.DataFrame(
        {"amount": [write(a) for a in amounts], "day": days, "y": np.where(y, "b", "a")}
    )


def write_european(number):
    return f"{number:,.2f} €".translate(str.maketrans(",.", ".,"))


def test_a_later_file_may_have_plain_numbers_and_dates_but_no_other_format():
    first = table(60, 0, write_european)
    first["day"] = first["day"].dt.strftime("%d.%m.%Y")
    model = fit(first, "y", **QUICK)
    plain = table(60, 0, float)
    assert predict(model, first).equals(predict(model, plain))
    model = update(model, table(60, 1, float))
    other = table(60, 2, "${:,.2f}".format)
    with pytest.raises(ValueError, match="not a number with a decimal comma, in €"):
        update(model, other)
    other = table(60, 2, float)
    other["day"] = other["day"].dt.strftime("%m/%d/%Y")
    with pytest.raises(ValueError, match="which is not a date, day first"):
        update(model, other)


def test_an_amount_can_be_the_target():
    frame = table(60, 0, write_european)
    model = fit(frame, "amount", **QUICK)
    assert model.task.kind == "regression"
    assert 900 < model.schema.target.centre < 1600
    assert 500 < predict(model, frame)["prediction"].mean() < 2500
    again = update(model, table(60, 1, write_european))
    assert len(again.history) == 2


def test_classes_keep_the_signs_that_they_are_written_with():
    frame = table(60, 0, float).assign(rate=["5 %", "10 %", "20 %"] * 20)
    model = fit(frame, "rate", **QUICK)
    assert model.task.classes == ("10 %", "20 %", "5 %")
    assert set(predict(model, frame)["prediction"]) <= set(model.task.classes)
