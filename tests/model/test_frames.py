"""Tables of polars and pyarrow are read like those of pandas."""

import warnings

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cirm import InvariantClassifier, adapt, evaluate, fit, predict, update

KINDS = {
    "polars": pl.from_pandas,
    "lazy polars": lambda frame: pl.from_pandas(frame).lazy(),
    "pyarrow": pa.Table.from_pandas,
}


def with_gaps(frame):
    """The same clinic with missing numbers, categories and booleans, and times."""
    frame = frame.assign(
        age=frame["age"].where(frame.index % 9 > 0),
        scanner=frame["scanner"].where(frame.index % 7 > 0, None),
        smoker=frame["smoker"].astype("boolean").where(frame.index % 11 > 0),
        stay=pd.to_datetime("2024-01-01") + pd.to_timedelta(frame.index, "h"),
        ward=pd.Categorical(frame["scanner"]),
    )
    return frame


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_another_package_gives_the_model_and_scores_of_pandas(clinic, kind):
    first, second, third = (
        with_gaps(clinic(120, agreement, seed))
        for seed, agreement in enumerate((0.95, 0.8, 0.1))
    )

    def work(convert):
        model = update(fit([convert(first)], "outcome"), convert(second))
        here = adapt(model, convert(third.drop(columns="outcome")))
        return (
            predict(model, convert(third), keep=["age"]),
            predict(here, convert(third)),
            evaluate(model, convert(third)),
        )

    (plain, adapted, scores), (other, other_adapted, other_scores) = (
        work(lambda frame: frame),
        work(KINDS[kind]),
    )
    pd.testing.assert_frame_equal(plain, other, check_dtype=False)
    pd.testing.assert_frame_equal(adapted, other_adapted, check_dtype=False)
    assert scores == other_scores


def test_a_column_alone_is_no_table(clinic):
    column = pl.from_pandas(clinic(20, 0.9, 0))["age"]
    with pytest.raises(
        ValueError, match=r"an object of type Series is not a table\. Pass"
    ):
        fit(column, "outcome")


def test_what_is_missing_to_read_polars_is_named(clinic, monkeypatch):
    table = pl.from_pandas(clinic(20, 0.9, 0))

    def fail(self):
        raise ModuleNotFoundError("pyarrow is required")

    monkeypatch.setattr(pl.DataFrame, "to_pandas", fail)
    with pytest.raises(
        ValueError, match=r"needs the package pyarrow\. .*cirm\[parquet\]"
    ):
        fit(table, "outcome")


@pytest.mark.parametrize("kind", KINDS)
def test_estimators_read_tables_of_other_packages_like_those_of_pandas(clinic, kind):
    first, second, third = (
        with_gaps(clinic(60, agreement, seed))
        for seed, agreement in enumerate((0.95, 0.8, 0.1))
    )

    def work(convert):
        tables = [part.drop(columns="outcome") for part in (first, second, third)]
        one, two, three = map(convert, tables)
        estimator = InvariantClassifier("erm", settings={"epochs": 5})
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            estimator.fit(one, pl.Series(first["outcome"].tolist()))
            estimator.partial_fit(two, second["outcome"])
        return estimator.predict_proba(three), list(estimator.feature_names_in_)

    (plain, names), (other, other_names) = work(lambda frame: frame), work(KINDS[kind])
    assert (plain == other).all() and names == other_names


def test_batches_may_be_tables_of_polars(clinic):
    frame = clinic(60, 0.9, 0)[["age", "smoker", "outcome"]]
    inputs, targets = frame.drop(columns="outcome"), frame["outcome"]
    probabilities = []
    for convert in (lambda part: part, pl.from_pandas):
        batches = [(convert(inputs[i : i + 20]), targets[i : i + 20]) for i in (0, 20)]
        estimator = InvariantClassifier("erm", settings={"epochs": 5}).fit(batches)
        probabilities.append(estimator.predict_proba(convert(inputs)))
    assert (probabilities[0] == probabilities[1]).all()
