"""What is odd about a table is said first, with what to do about it."""

import json

import numpy as np
import pandas as pd
import pytest

QUICK = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")
FIT = ("fit", "t.csv", "--target", "y", "--model", "m.cirm", *QUICK)


@pytest.fixture
def fit_table(cirm, tmp_path, monkeypatch):
    """Fits a table of 40 rows with columns replaced; returns notes and columns."""
    monkeypatch.chdir(tmp_path)

    def run(*words, **columns):
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"age": rng.normal(50, 9, 40).round(1)})
        frame["y"] = rng.choice(["no", "yes"], 40)
        frame.assign(**columns).to_csv("t.csv", index=False)
        status, out, error = cirm(*FIT, *words, "--overwrite")
        assert status == 0, error
        lines = [line[2:] for line in out.splitlines() if line.startswith("  ")]
        treatments = dict(line.split(": ", 1) for line in lines if ": " in line)
        notes = [line for line in error.splitlines() if line.startswith("note: ")]
        return notes, treatments

    return run


def test_an_ordinary_table_needs_no_note(fit_table):
    notes, _ = fit_table()
    assert not any("first place" in n or "column" in n for n in notes)


def test_a_target_with_nearly_as_many_classes_as_rows_is_doubted(fit_table):
    notes, _ = fit_table(y=[f"patient {max(n, 1)}" for n in range(40)])
    assert "the target 'y' has 39 classes in 40 rows, so most of them" in notes[0]
    assert "Check that this is the right target column" in notes[0]


def test_a_class_of_one_row_is_named(fit_table):
    notes, _ = fit_table(y=["no", "yes"] * 19 + ["no", "maybe"])
    assert "only one row of the first place has the class 'maybe'" in notes[0]


def test_a_cell_of_1e308_is_named(fit_table):
    notes, _ = fit_table(age=[*range(20, 59), 1e308])
    assert "column 'age' has a value of 1e+308, while 95 % of its values" in notes[0]
    assert "Check the value, or leave the cell empty." in notes[0]


def test_a_huge_target_is_named(fit_table):
    notes, _ = fit_table(y=[*np.linspace(20, 59, 39), 1e30])
    assert "column 'y' has a value of 1e+30" in notes[0]


def test_many_zeros_are_not_odd(fit_table):
    notes, _ = fit_table(rain=[0.0] * 39 + [5.0])
    assert not any("'rain'" in note for note in notes)


def test_a_column_of_many_categories_is_explained(cirm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 9, 400).round(1)})
    frame["zip"] = [f"z{n}" for n in rng.integers(0, 120, 400)]
    frame["y"] = rng.choice(["no", "yes"], 400)
    frame.to_csv("t.csv", index=False)
    status, _, error = cirm(*FIT)
    assert status == 0
    count = frame["zip"].nunique()
    assert f"note: column 'zip' has {count} different values. The 50 most" in error
    assert "--ignore zip" in error


def test_a_column_that_names_rows_says_how_to_keep_it(cirm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"age": range(60, 120), "who": [f"p{n}" for n in range(60)]})
    frame = frame.assign(age=frame["age"] % 17, y=["no", "yes"] * 30)
    frame.to_csv("t.csv", index=False)
    _, out, _ = cirm(*FIT)
    kept = "who: ignored: looks like an identifier (`cirm fit --category who` keeps it)"
    assert kept in out


def test_formats_are_said_and_dates_that_are_not_read_are_explained(fit_table):
    days = pd.date_range("2024-01-01", periods=40)
    notes, columns = fit_table(
        price=[f"{n},50 €" for n in range(40)],
        share=[f"{n} %" for n in range(40)],
        day=days.strftime("%d.%m.%Y"),
        short=days.strftime("%d.%m.%y"),
        compact=days.strftime("%Y%m%d"),
    )
    assert columns["price"].startswith("number with a decimal comma, in € (mean")
    assert columns["share"].startswith("number in % (mean")
    assert columns["day"].startswith("date, day first (standard deviation")
    assert any("'short' looks like dates with two digits" in note for note in notes)
    assert any("'compact' looks like dates without sep" in note for note in notes)


def test_predictions_of_a_formatted_table_need_no_conversion(fit_table, cirm):
    fit_table(price=[f"{n},50 €" for n in range(40)])
    status, out, error = cirm("predict", "t.csv", "--model", "m.cirm")
    assert (status, out.count("\n")) == (0, 41), error
    status, out, _ = cirm("evaluate", "t.csv", "--model", "m.cirm", "--json")
    assert (status, json.loads(out)["rows"]) == (0, 40)
