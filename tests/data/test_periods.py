"""Periods of time as environments: of tables, models, data sets and estimators."""

import numpy as np
import pandas as pd
import pytest

import cirm
from cirm.data.user_data import Table
from cirm.model.file import load, save

LENGTHS = {
    "day": ["2024-12-30", "2023-01-01", "2024-03-31"],
    "week": ["2025-W01", "2022-W52", "2024-W13"],
    "month": ["2024-12", "2023-01", "2024-03"],
    "quarter": ["2024-Q4", "2023-Q1", "2024-Q1"],
    "year": ["2024", "2023", "2024"],
}


def make_visits(months=(3, 1, 2), rows=30, day=10, year=2024):
    """Rows whose months come in the given order; ill above an age of the month."""
    rng = np.random.default_rng(0)
    parts = []
    for month in months:
        age = rng.normal(50 + month, 10, rows)
        date = [f"{year}-{month:02d}-{day + i % 15:02d}" for i in range(rows)]
        ill = np.where(age > 50 + month, "yes", "no")
        parts.append(pd.DataFrame({"date": date, "age": age, "ill": ill}))
    return pd.concat(parts, ignore_index=True)


def fit_visits(table, **options):
    settings = {"epochs": 2, "hidden": (4,)}
    return cirm.fit(table, "ill", learner="erm", settings=settings, **options)


@pytest.mark.parametrize("every", LENGTHS)
@pytest.mark.parametrize(
    "dates",
    [
        ["2024-12-30", "2023-01-01", "2024-03-31"],
        ["30.12.2024", "1.1.2023", "31.3.2024"],
        ["12/30/2024", "1/1/2023", "3/31/2024"],
        ["30 Dec 2024", "1 Jan 2023", "31 Mar 2024"],
        ["2024-12-30T23:59:59", "2023-01-01T00:00:00", "2024-03-31T12:00:00"],
        pd.to_datetime(["2024-12-30", "2023-01-01", "2024-03-31"]),
        np.array([20241230, 20230101, 20240331]),
    ],
    ids=["iso", "dotted", "american", "names", "times", "datetime", "numbers"],
)
def test_a_date_in_any_form_has_a_period_whose_name_sorts_like_it(every, dates):
    names = cirm.name_periods(dates, every)
    assert list(names) == LENGTHS[every] and names.ordered
    assert list(names.categories) == sorted(set(LENGTHS[every]))


def test_plain_years_are_dates():
    assert list(cirm.name_periods([2011, 2012], "year")) == ["2011", "2012"]


@pytest.mark.parametrize(
    ("dates", "every", "message"),
    [
        (["2024-01-01"], "decade", "Use one of day, week, month, quarter, year"),
        (["2024-01-01", ""], "month", "row 1: column 'dates' has the value '', which"),
        (["2024-01-01", "soon"], "month", "'soon', which is not an ISO 8601 date"),
        (["1/2/2024", "3/4/2024"], "month", "the day or the month may come first"),
    ],
)
def test_what_is_not_a_date_or_length_is_refused(dates, every, message):
    with pytest.raises(ValueError, match=message):
        cirm.name_periods(dates, every)


def test_each_period_is_an_environment_and_the_earliest_sets_the_scale(tmp_path):
    path = tmp_path / "visits.csv"
    make_visits().to_csv(path, index=False)
    table = Table(str(path), target="ill", time="date")
    problem = table.draw_problem((0,))
    assert [e.name for e in problem.train] == ["2024-01", "2024-02"]
    assert [e.name for e in problem.test] == ["2024-03"]
    assert problem.train[0].features == (1,)  # the dates are no input
    assert abs(problem.train[0].inputs.mean()) < 1e-5
    assert abs(problem.train[1].inputs.mean()) > 1e-4
    held = Table(str(path), target="ill", time="date", every="quarter", test="none")
    assert [e.name for e in held.draw_problem((0,)).train] == ["2024-Q1"]
    first = Table(str(path), target="ill", time="date", test="2024-01").draw_problem(
        (0,)
    )
    assert [e.name for e in first.train] == ["2024-02", "2024-03"]


def test_periods_of_several_files_are_joined_and_sorted(tmp_path):
    for name, months in (("b", (2, 4)), ("a", (3, 2))):
        make_visits(months).to_csv(tmp_path / f"{name}.csv", index=False)
    path = f"{tmp_path / 'b.csv'},{tmp_path / 'a.csv'}"
    problem = Table(path, target="ill", time="date", test="none").draw_problem((0,))
    assert [(e.name, len(e)) for e in problem.train] == [
        ("2024-02", 60),
        ("2024-03", 30),
        ("2024-04", 30),
    ]


def test_a_model_learns_periods_in_order_and_later_data_have_periods_too(tmp_path):
    model = fit_visits(make_visits(), time="date", every="month", order="sequential")
    assert [entry.name for entry in model.history] == ["2024-01", "2024-02", "2024-03"]
    assert model.schema.environment == "date" and model.schema.every == "month"
    save(model, tmp_path / "visits.cirm")
    model = load(tmp_path / "visits.cirm")
    later = cirm.update(model, make_visits((5, 4)))
    assert [e.name for e in later.history[3:]] == ["2024-04", "2024-05"]
    yearly = cirm.update(model, make_visits((6,)), every="year")
    assert yearly.history[-1].name == "2024"
    scores = cirm.evaluate(later, make_visits((8, 7)))
    assert set(scores["environments"]) == {"2024-07", "2024-08"}
    assert len(cirm.predict(later, make_visits((9,)).drop(columns="date"))) == 30


def test_later_data_without_dates_are_one_environment():
    model = fit_visits(make_visits(), time="date")
    later = cirm.update(model, make_visits((4,)).drop(columns="date"))
    assert [entry.name for entry in later.history[3:]] == ["table"]


def test_an_update_may_name_its_own_column_of_dates_or_of_environments():
    model = fit_visits(make_visits((1,)).drop(columns="date"))
    visits = make_visits((5, 4)).rename(columns={"date": "day"}).assign(site="x")
    by_time = cirm.update(model, visits, time="day", every="quarter")
    assert [entry.name for entry in by_time.history[1:]] == ["2024-Q2"]
    by_site = cirm.update(
        fit_visits(make_visits(), time="date"), visits, environment="site"
    )
    assert by_site.history[-1].name == "x"


def test_impossible_wishes_are_refused(tmp_path):
    visits = make_visits().assign(site="a")
    for options, message in (
        ({"every": "month"}, "no column of dates is given"),
        ({"time": "date", "environment": "site"}, "places are given twice"),
        ({"time": "when"}, "there is no column 'when'"),
        ({"time": "date", "every": "hour"}, "Use one of day, week, month"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_visits(visits, **options)
    visits.loc[4, "date"] = ""
    path = tmp_path / "visits.csv"
    visits.to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"visits.csv', row 5: column 'date' has the"):
        fit_visits(path, time="date")
    np.savez(tmp_path / "a.npz", X=np.zeros((4, 2, 2)), y=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="--time needs a table with a column of dates"):
        cirm.fit(tmp_path / "a.npz", time="date")


def test_an_estimator_learns_periods_in_order_of_time():
    visits = make_visits((2, 3, 1))
    settings = {"epochs": 2, "hidden": (4,)}
    shared = {"learner": "erm", "settings": settings, "order": "sequential"}
    estimator = cirm.InvariantClassifier(**shared)
    names = cirm.name_periods(visits["date"])
    weights = np.ones(len(visits))
    estimator.fit(visits[["age"]], visits["ill"], names, sample_weight=weights)
    history = [entry.name for entry in estimator.model_.history]
    assert history == ["2024-01", "2024-02", "2024-03"]
    order = np.argsort(names.codes, kind="stable")
    same = cirm.InvariantClassifier(**shared).fit(
        visits[["age"]].iloc[order], visits["ill"].iloc[order], np.array(names)[order]
    )
    np.testing.assert_allclose(
        estimator.predict_proba(visits[["age"]]), same.predict_proba(visits[["age"]])
    )


def test_the_commands_take_a_column_of_dates(tmp_path, monkeypatch, cirm):
    monkeypatch.chdir(tmp_path)
    make_visits().to_csv("visits.csv", index=False)
    make_visits((4,)).to_csv("later.csv", index=False)
    words = ["--target", "ill", "--learner", "erm", "--set", "epochs=2", "--model", "m"]
    status, out, error = cirm("fit", "visits.csv", *words, "--time", "date")
    assert status == 0, error
    assert "2024-01" in out and "2024-03" in out
    status, out, error = cirm("update", "later.csv", "--model", "m", "--every", "week")
    assert status == 0 and "2024-W15" in out, error
    status, _, error = cirm(
        *("fit", "visits.csv", "--target", "ill", "--model", "n", "--every", "month")
    )
    assert status == 2 and "no column of dates is given" in error


@pytest.mark.integration
def test_run_takes_a_column_of_dates(tmp_path, monkeypatch, cirm):
    monkeypatch.chdir(tmp_path)
    make_visits().to_csv("visits.csv", index=False)
    status, out, error = cirm(
        *("run", "--dataset", "table", "--path", "visits.csv", "--target", "ill"),
        *("--time", "date", "--every", "month", "--learner", "erm", "--seeds", 1),
        *("--set", "epochs=2", "--workers", 1, "--out", "results"),
    )
    assert status == 0, error
    assert "train: 2024-01 (30 examples), 2024-02 (30 examples)" in out
