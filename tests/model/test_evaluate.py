"""Scores are those of the rows they are said to be of, and verdicts weigh chance."""

import dataclasses

import numpy as np
import pytest
import torch

from cirm import evaluate, fit, predict
from cirm.data.columns import ColumnEncoding, TableEncoding
from cirm.data.rows import split_held_out_rows
from cirm.memory import list_state_tensors
from cirm.model import explain
from cirm.model.evaluate import compute_reliability_bins
from cirm.model.explain import (
    compute_column_importance,
    find_columns_that_lost_importance,
)
from cirm.model.metrics import PredictionsWithDeviation
from cirm.randomness import Randomness

FEW = {"hidden": (4,), "epochs": 3, "rate": 0.05}


def split(rows, fraction=0.1, name="table"):
    source = Randomness((0,)).at("stage", 0).at(name)
    return split_held_out_rows(torch.arange(rows), fraction, source)


@pytest.mark.parametrize(
    ("rows", "fraction", "held"), [(200, 0.1, 20), (50, 0.1, 5), (49, 0.1, 0)]
)
def test_rows_are_for_training_or_held_out_unless_there_are_too_few(
    rows, fraction, held
):
    training, held_out = split(rows, fraction)
    if not held:
        assert torch.equal(training, held_out)
        return
    assert len(held_out) == held
    assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(rows))


def test_held_out_rows_are_scored_and_not_learned_from(clinic):
    frame = clinic(200, 0.9, 0)
    model = fit(frame, "outcome", learner="erm", settings=FEW)
    _, held_out = split(200)
    part = frame.iloc[held_out.numpy()]
    scores = evaluate(model, part)["overall"]
    (entry,) = model.history
    assert entry.metrics_after == pytest.approx(scores)
    # Other targets there change the scores and diagnostics, but not the model.
    other = frame.copy()
    other.loc[part.index, "outcome"] = part["outcome"].map(
        {"ill": "well", "well": "ill"}
    )
    second = fit(other, "outcome", learner="erm", settings=FEW)
    assert all(
        map(
            torch.equal,
            list_state_tensors(model.state),
            list_state_tensors(second.state),
        )
    )
    accuracy = second.history[0].metrics_after["accuracy"]
    assert accuracy == pytest.approx(100 - entry.metrics_after["accuracy"])
    assert second.history[0].importance == entry.importance
    assert second.history[0].diagnostics["worst group"] != pytest.approx(
        entry.diagnostics["worst group"]
    )
    expected = evaluate(model, part)["expected"]["held_out"]
    assert [entry["rows"] for entry in expected] == [20]


def test_the_most_frequent_values_of_a_group_are_scored(clinic):
    model = fit(clinic(100, 0.9, 0), "outcome", learner="erm", settings=FEW)
    frame = clinic(80, 0.9, 1)
    frame["ward"] = [f"w{n:02d}" if n < 30 else f"w{n % 15:02d}" for n in range(80)]
    frame.loc[frame.index == 29, "ward"] = None
    groups = evaluate(model, frame, groups=["ward"])["groups"]["ward"]
    assert len(groups) == 20
    assert {f"w{n:02d}" for n in range(15)} <= set(groups)
    assert groups["w03"]["rows"] == (frame["ward"] == "w03").sum()
    later = evaluate(model, frame[29:], groups=["ward"])["groups"]["ward"]
    assert later["missing"]["rows"] == 1


def test_the_worst_group_of_a_column_is_named_among_those_with_enough_rows(clinic):
    model = fit(clinic(200, 0.9, 0), "outcome", learner="erm", settings=FEW)
    frame = clinic(100, 0.9, 1)
    frame["ward"] = ["rare"] * 19 + ["east"] * 40 + ["west"] * 41
    wrong = frame["outcome"].map({"ill": "well", "well": "ill"})
    frame["outcome"] = frame["outcome"].where(frame["ward"] == "west", wrong)
    scores = evaluate(model, frame, groups=["ward"])
    wards = scores["groups"]["ward"]
    assert scores["worst_groups"] == {"ward": {"group": "east", **wards["east"]}}
    (note,) = [text for text in scores["notes"] if "worst group" in text]
    assert "the worst group of column 'ward' is 'east': accuracy " in note
    alone = evaluate(model, frame[20:50], groups=["ward"])  # nothing to compare
    assert not alone["worst_groups"]
    assert not any("worst group" in text for text in alone["notes"])


def test_importance_is_the_mean_change_of_the_probability(clinic, monkeypatch):
    model = fit(clinic(100, 0.9, 0), "outcome", learner="erm", settings=FEW)
    columns = (ColumnEncoding("flag", "boolean"), ColumnEncoding("unused", "boolean"))
    treatment = dataclasses.replace(
        model.schema.treatment, encoding=TableEncoding(columns), shape=(2,)
    )
    schema = dataclasses.replace(model.schema, treatment=treatment)
    model = dataclasses.replace(model, schema=schema)

    def predict_first(model, inputs):
        mean = torch.stack([1 - inputs[:, 0], inputs[:, 0]], 1)
        return PredictionsWithDeviation(mean, torch.zeros_like(mean))

    monkeypatch.setattr(explain, "predict_inputs_in_one_batch", predict_first)
    found = compute_column_importance(model, torch.zeros(1000, 2))
    assert found["flag"] == pytest.approx(0.5, abs=0.05)  # half of the draws are 1
    assert found["unused"] == 0
    assert list(found) == ["flag", "unused"]


def test_a_drop_of_importance_is_to_half_the_share_or_less():
    first = {"a": 6.0, "b": 3.0, "c": 0.6, "d": 0.4}
    last = {"a": 2.9, "b": 1.6, "c": 0.3, "d": 0.0, "e": 5.2}
    assert find_columns_that_lost_importance(first, last) == {
        "a": pytest.approx({"first": 60.0, "last": 29.0}),
        "c": pytest.approx({"first": 6.0, "last": 3.0}),
    }
    assert find_columns_that_lost_importance(first, first) == {}
    gone = find_columns_that_lost_importance({"a": 1.0, "b": 1.0}, {"b": 1.0})
    assert gone == {"a": {"first": 50.0, "last": 0.0}}


def test_the_coverage_is_that_of_the_predicted_intervals(values):
    model = fit(values(200, 0), "y", learner="virmv1", settings=FEW)
    later = values(100, 1)
    shown = predict(model, later)
    inside = later["y"].between(shown["low"], shown["high"]).mean()
    covered = evaluate(model, later)["coverage"]["overall"]["coverage"]
    assert covered == pytest.approx(100 * inside)
    assert 0 < inside < 1
    middle = (shown["low"] + shown["high"]) / 2
    assert np.allclose(middle, shown["prediction"])


def test_reliability_is_the_mean_confidence_and_accuracy_of_each_bin():
    second = torch.tensor([0.91, 0.93, 0.05, 0.6, 0.62, 0.36])
    targets = torch.tensor([1, 0, 0, 1, 1, 0])
    bins = compute_reliability_bins(torch.stack([1 - second, second], 1), targets)
    assert sum(one["rows"] for one in bins) == len(second)
    confidence = sum(one["rows"] * one["confidence"] for one in bins) / len(second)
    assert confidence == pytest.approx(
        100 * (0.91 + 0.93 + 0.95 + 0.6 + 0.62 + 0.64) / 6
    )
    accuracy = sum(one["rows"] * one["accuracy"] for one in bins) / len(second)
    assert accuracy == pytest.approx(100 * 5 / 6)
