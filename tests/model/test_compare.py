"""A comparison of two tables says what moved, and nothing where nothing did."""

import json

import numpy as np
import pandas as pd
import pytest

from cirm import compare, fit, save
from cirm.model.compare import SHARES
from cirm.model.compare_columns import compare_numeric_values

TARGET = "outcome"


def draw_table(seed, rows=600, rate=0.35, habit=0.9, shift=0.0, kind="classes"):
    """Patients: lactate tells the outcome everywhere, the scanner by a habit."""
    draws = np.random.default_rng(seed)
    ill = draws.random(rows) < rate
    follows = draws.random(rows) < habit
    table = pd.DataFrame(
        {
            "age": (draws.normal(60, 12, rows) + 12 * shift).round(),
            "lactate": (draws.normal(1.8, 0.5, rows) + 0.5 * ill).round(2),
            "sex": draws.choice(["female", "male"], rows),
            "scanner": np.where(np.where(follows, ill, ~ill), "portable", "fixed"),
        }
    )
    if kind == "values":
        slope = 2 if habit > 0.5 else -2
        score = table["lactate"] + draws.normal(size=rows)
        dose = slope * score + draws.normal(size=rows)
        return table.assign(dose=dose, outcome=score).drop(columns="scanner")
    return table.assign(outcome=np.where(ill, "ill", "well"))


def test_dates_are_shown_as_dates(cirm, tmp_path):
    days = pd.date_range("2024-01-01", periods=600)
    for name, shift in (("a", 0), ("b", 400)):
        table = draw_table(0).assign(day=days + pd.Timedelta(days=shift))
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    paths = [str(tmp_path / f"{name}.csv") for name in "ab"]
    line = next(
        line
        for line in cirm("compare", *paths)[1].splitlines()
        if line.startswith("day ")
    )
    assert "2024-10-26   2025-11-30" in line


def list_significant(report):
    return {
        (one["column"], one["kind"]) for one in report["inputs"] if one["significant"]
    }


def test_tables_of_the_same_kind_do_not_differ():
    report = compare(draw_table(2), draw_table(3), target=TARGET)
    assert report["answer"].startswith("No difference was found between")
    assert list_significant(report) == set()
    assert report["meaning"]["columns"] == []
    assert not report["base_rate"]["significant"]
    assert not report["joint"]["significant"]
    json.dumps(report, allow_nan=False)


def test_the_answer_names_base_rate_meaning_and_inputs_in_this_order():
    second = draw_table(1, rate=0.2, habit=0.2, shift=0.5)
    answer = compare(draw_table(0), second, target=TARGET)["answer"]
    parts = (
        "The base rate of `ill` fell from ",
        "the relation of `scanner` to the target differs",
        "`age` moved up by 0.",
    )
    assert [part in answer for part in parts] == [True] * 3
    places = [answer.index(part) for part in parts]
    assert places == sorted(places)


def test_only_the_base_rate_moves():
    report = compare(draw_table(2), draw_table(3, rate=0.2), target=TARGET)
    rate = report["base_rate"]
    assert rate["label"] == "ill"
    assert rate["significant"]
    assert rate["first"] == pytest.approx(0.35, abs=0.05)
    assert rate["second"] == pytest.approx(0.2, abs=0.05)
    assert report["meaning"]["columns"] == []


def test_only_the_meaning_of_a_column_changes():
    report = compare(draw_table(0), draw_table(1, habit=0.3), target=TARGET)
    (found,) = report["meaning"]["columns"]
    assert found["column"] == "scanner"
    assert found["effects"][0] < 1 / 3 < 1 < found["effects"][1]
    assert "multiplied the odds of class `well` by 1/" in found["sentence"]
    assert not report["base_rate"]["significant"]
    assert "relation of `scanner` to the target differs" in report["answer"]
    # There is no setting `trust` to choose in a comparison of tables.
    assert not any("trust=" in text for text in report["meaning"]["evidence"])


def test_the_meaning_of_a_column_for_values_is_compared_too():
    first, second = (
        draw_table(n, habit=h, kind="values") for n, h in enumerate((1, 0))
    )
    report = compare(first, second, target=TARGET)
    assert [one["column"] for one in report["meaning"]["columns"]] == ["dose"]
    assert report["base_rate"]["kind"] == "values"


def test_the_size_of_a_shift_is_that_of_its_draws():
    report = compare(draw_table(0, 5000), draw_table(1, 5000, shift=-0.4))
    (age,) = (one for one in report["inputs"] if one["column"] == "age")
    assert age["effect"] == pytest.approx(-0.4, abs=0.05)
    assert age["sentence"].startswith("`age` moved down by 0.")
    # An outlier moves neither the size nor the test.
    spiked = draw_table(1, 5000)
    spiked.loc[:20, "age"] = 1e6
    assert ("age", "values") not in list_significant(
        compare(draw_table(0, 5000), spiked)
    )


def test_values_that_are_all_above_or_below_the_others_have_a_finite_size():
    up, down = (
        compare_numeric_values("age", np.arange(20.0), np.arange(20.0) + shift).effect
        for shift in (100, -100)
    )
    assert up == pytest.approx(-down)
    assert 3 < up < 10


def test_missing_values_new_categories_and_units_are_named():
    second = draw_table(1)
    second["lactate"] *= 1000
    second.loc[:119, "age"] = np.nan
    second.loc[second.index[-60:], "sex"] = "unknown"
    report = compare(draw_table(0), second)
    assert ("age", "missing") in list_significant(report)
    assert [one["column"] for one in report["units"]] == ["lactate"]
    assert "`lactate` seems to be in another unit" in report["answer"]
    assert "`unknown` is new in `sex` (10 % of the rows)" in report["answer"]
    assert "missing values of `age` rose from 0 % to 20 %" in report["answer"]


def test_another_dependence_with_equal_columns_is_seen_by_all_inputs_together():
    draws = np.random.default_rng(0)
    first = pd.DataFrame(draws.normal(size=(800, 2)), columns=["a", "b"])
    second = pd.DataFrame({"a": draws.normal(size=800)})
    second["b"] = 0.9 * second["a"] + 0.436 * draws.normal(size=800)
    report = compare(first, second)
    assert list_significant(report) == set()
    assert report["joint"]["significant"]
    assert "relations between the inputs differ" in report["answer"]


def test_equal_files_hold_the_same_rows_in_whatever_order():
    table = draw_table(0)
    shuffled = table.sample(frac=1, random_state=0)
    report = compare(table, shuffled, target=TARGET)
    assert report["same_rows"]
    assert (
        report["answer"]
        == "The first table and the second table contain the same rows, so "
        "there is nothing to compare. Give two tables with different rows."
    )
    half = pd.concat([table[:300], draw_table(1)[:300]])
    notes = compare(table, half)["notes"]
    assert any(
        "rows of the second table are also in the first" in note for note in notes
    )


@pytest.mark.parametrize("rows", [1, 4, 5, 12])
def test_tiny_tables_are_compared_as_far_as_they_allow(rows):
    report = compare(draw_table(0, 60), draw_table(1, rows), target=TARGET)
    if rows < 5:
        assert "There are too few rows" in report["answer"]
    else:
        assert report["answer"].startswith("No difference was found")
    assert any("only large changes" in note for note in report["notes"])


def test_without_targets_only_inputs_are_compared():
    second = draw_table(1, shift=1.0).drop(columns=TARGET)
    report = compare(draw_table(0), second, target=TARGET)
    assert report["base_rate"] is None
    assert report["meaning"] is None
    assert "`age` moved up" in report["answer"]
    assert any("neither the base rate" in note for note in report["notes"])
    assert any("name it with --target" in n for n in compare(second, second)["notes"])


@pytest.mark.integration
def test_without_targets_the_questions_about_inputs_share_the_whole_level():
    tables = draw_table(0), draw_table(4, shift=0.3)
    both = compare(*tables, target=TARGET)
    inputs = compare(*(table.drop(columns=TARGET) for table in tables))
    # A p-value is divided by the share of its question, so that shares can be read off.
    age = [report["inputs"][0]["p_value"] for report in (both, inputs)]
    joint = [report["joint"]["p_value"] for report in (both, inputs)]
    shares = SHARES["inputs"] * age[0] / age[1], SHARES["joint"] * joint[0] / joint[1]
    assert sum(shares) == pytest.approx(1)
    assert sum(SHARES.values()) == pytest.approx(1)


def test_the_meaning_of_too_many_columns_is_not_tested():
    wide = [
        pd.DataFrame(np.random.default_rng(n).normal(size=(40, 513)))
        .add_prefix("x")
        .assign(outcome=["ill", "well"] * 20)
        for n in (0, 1)
    ]
    answer = compare(*wide, target=TARGET)["answer"]
    assert (
        "whether columns relate differently to the target could not be tested" in answer
    )


def test_what_cannot_be_tested_is_not_called_unchanged():
    healthy = draw_table(1).assign(outcome="well")
    report = compare(draw_table(0), healthy, target=TARGET)
    assert "The base rate of `ill` fell from " in report["answer"]
    assert (
        "whether columns relate differently to the target could not be tested"
        in report["answer"]
    )
    assert not report["meaning"]["tested"]
    report = compare(healthy, healthy[:300], target=TARGET)
    assert report["base_rate"] is None
    assert any("is the same in all rows" in note for note in report["notes"])


def test_a_model_decides_how_columns_are_read_and_says_how_predictions_shift():
    model = fit(draw_table(0).assign(code=range(600)), TARGET, ignore=["sex"])
    second = draw_table(1, rate=0.1).assign(code=range(5, 605))
    report = compare(draw_table(2).assign(code=range(600)), second, model=model)
    assert "sex" not in {one["column"] for one in report["inputs"]}
    ill = report["predictions"]["classes"]["ill"]
    assert ill[0] > 2 * ill[1]
    assert report["target"] == TARGET
    report = compare(draw_table(2), second.drop(columns="lactate"), model=model)
    assert set(report["predictions"]["classes"]) == {"ill", "well"}
    assert "only the first table has 'lactate'." in report["notes"]


def test_columns_of_only_one_table_are_noted():
    second = draw_table(1).assign(extra=1).drop(columns="sex")
    notes = compare(draw_table(0), second, target=TARGET)["notes"]
    assert "only the first table has 'sex'." in notes
    assert "only the second table has 'extra'." in notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "result"}, "there is no column 'result'"),
        ({"level": 0.0}, "--level: 0 is not between 0 and 1"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compare(draw_table(0), draw_table(1), **options)


def test_tables_without_a_common_column_are_refused():
    second = draw_table(1).add_prefix("x_")
    with pytest.raises(ValueError, match="the tables share no column that varies"):
        compare(draw_table(0), second)


def test_the_command_prints_the_answer_first_and_writes_it_as_a_page(cirm, tmp_path):
    for name, table in (("a", draw_table(0)), ("b", draw_table(1, rate=0.2, shift=1))):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    save(fit(draw_table(0), TARGET), tmp_path / "m.cirm")
    files = (tmp_path / "a.csv", tmp_path / "b.csv")
    status, printed, _ = cirm("compare", *files, "--target", TARGET)
    assert status == 0
    assert printed.startswith("The base rate of `ill` fell from ")
    page = tmp_path / "page.html"
    status, printed, _ = cirm(
        "compare", *files, "--model", tmp_path / "m.cirm", "--json", "--report", page
    )
    report = json.loads(printed)
    assert status == 0
    assert report["predictions"]["classes"]["ill"][0] > 0.2
    text = page.read_text()
    lead = text[text.index('class="lead"') :]
    assert lead.index("moved up by") < lead.index("<section")
    assert text.index("What moved") < text.index("In words") < text.index("<table")
    draw_table(2, habit=0.1).to_csv(tmp_path / "c.csv", index=False)
    words = ("compare", files[0], tmp_path / "c.csv", "--target", TARGET)
    assert cirm(*words, "--report", tmp_path / "c.html")[0] == 0
    text = (tmp_path / "c.html").read_text()
    assert "Columns whose relation to the target differs" in text
    assert "column whose relation to the target differs" in text
    status, _, said = cirm("compare", *files, "--report", page)
    assert status == 2
    assert "already exists. Use --overwrite" in said
    status, _, said = cirm("compare", tmp_path / "a.csv", tmp_path / "none.csv")
    assert status == 2
    assert "there is no file or folder" in said
