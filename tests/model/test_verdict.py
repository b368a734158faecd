"""Verdicts compare with arrivals at new places, and are seldom wrong."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.verdict_rates import measure_alarm_rate
from cirm import evaluate, fit, update
from cirm.data.sources import DataFrameSource
from cirm.environments import Task
from cirm.model.comparison import compare_scores_with_past_environments
from cirm.model.estimates import (
    ScoreEstimate,
    collect_score_statistics,
    compute_difference_interval,
    compute_hanley_mcneil_variance,
    compute_p_value_of_difference,
    predict_score_of_new_environment,
)
from cirm.model.metrics import compute_delong_variance

pytestmark = pytest.mark.integration  # whole commands or many simulations

MODEL = SimpleNamespace(task=Task(("no", "yes")), threshold=None)
FEW = {"hidden": (4,), "epochs": 3, "rate": 0.05}


def draw_place(rng, rows, shift, believed=2.0, positives=0.4, prior=0.4):
    """Probabilities of a model for rows whose classes lie `shift` apart."""
    y = (rng.random(rows) < positives).astype(int)
    x = rng.normal(size=rows) + (y - 0.5) * shift
    p = 1 / (1 + np.exp(-believed * x - math.log(prior / (1 - prior))))
    return torch.tensor(np.stack([1 - p, p], 1)), torch.tensor(y)


def count_alarms(repeats, shift, arrivals):
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(repeats):
        past = [
            collect_score_statistics(MODEL, *draw_place(rng, 2000, 2.0))
            for _ in range(arrivals)
        ]
        here = draw_place(rng, 1000, shift)
        alarms += any(
            c.is_worse
            for c in compare_scores_with_past_environments(MODEL, *here, past)
        )
    return alarms / repeats


@pytest.mark.parametrize("arrivals", [1, 3])
def test_a_place_like_the_others_seldom_raises_an_alarm(arrivals):
    # At 5 %, 11 or more of 100 alarms have a probability of 1 %.
    assert count_alarms(100, 2.0, arrivals) <= 0.10


@pytest.mark.parametrize("arrivals", [1, 3])
def test_a_fall_of_five_points_at_a_thousand_rows_is_seldom_missed(arrivals):
    # Classes 1.62 apart instead of 2: an accuracy of 80.0 instead of 85.0 %.
    assert count_alarms(100, 1.62, arrivals) >= 0.90


@pytest.mark.parametrize("arrivals", [1, 2])
def test_a_fall_of_five_points_from_75_percent_is_seldom_missed(arrivals):
    # Of 100, 18 or more misses have a probability of 1 % if one of ten is missed.
    alarms = [
        measure_alarm_rate(0.75, arrivals, 0.0, fall, 100, seed=3)
        for fall in (0.0, 0.05)
    ]
    assert alarms[0] <= 10 and alarms[1] > 82


def test_a_fallen_class_is_found_although_the_other_one_is_better():
    rng = np.random.default_rng(0)
    past = [collect_score_statistics(MODEL, *draw_place(rng, 1000, 2.0))]
    # The same ranking with a higher threshold: the accuracy hardly changes.
    probabilities, targets = draw_place(rng, 1000, 2.0, prior=0.2)
    found = compare_scores_with_past_environments(MODEL, probabilities, targets, past)
    (fallen,) = [c for c in found if c.label == "yes"]
    (risen,) = [c for c in found if c.label == "no"]
    assert (
        fallen.is_worse
        and "significantly worse" in fallen.describe_score_difference("there")
    )
    assert risen.difference < 0 and not risen.is_worse


def test_a_line_says_why_an_interval_above_zero_is_not_significant():
    rng = np.random.default_rng(0)
    past = [collect_score_statistics(MODEL, *draw_place(rng, 1000, 2.0))]
    here = draw_place(rng, 1000, 2.0)
    line = compare_scores_with_past_environments(MODEL, *here, past)[0]
    words = "not significantly worse, considering how many scores are compared"
    beyond = replace(line, low=0.5, p_value=0.2).describe_score_difference("there")
    assert beyond.endswith(words)
    assert words not in line.describe_score_difference("there")


def test_scores_on_arrival_of_older_files_lack_the_mean_probability():
    rng = np.random.default_rng(0)
    past = collect_score_statistics(MODEL, *draw_place(rng, 1000, 2.0))
    older = {name: one for name, one in past.items() if "probability" not in name}
    here = draw_place(rng, 1000, 1.2)
    lines = [
        c.score for c in compare_scores_with_past_environments(MODEL, *here, [past])
    ]
    assert lines == [
        "accuracy",
        "probability",
        "calibration_error",
        "roc_auc",
        *["recall"] * 2,
    ]
    found = compare_scores_with_past_environments(MODEL, *here, [older])
    assert "probability" not in [c.score for c in found] and found[0].is_worse


def test_another_base_rate_alone_is_no_fall_of_accuracy_or_ranking():
    rng = np.random.default_rng(0)
    worse = {"accuracy": 0, "probability": 0, "roc_auc": 0, "recall": 0}
    for _ in range(40):
        rare, frequent = ({"positives": p, "prior": 0.1} for p in (0.1, 0.6))
        past = [collect_score_statistics(MODEL, *draw_place(rng, 2000, 2.0, **rare))]
        here = draw_place(rng, 1000, 2.0, **frequent)
        found = compare_scores_with_past_environments(MODEL, *here, past)
        for one in found:
            if one.score in worse:
                worse[one.score] += one.is_worse
    # The plain accuracy falls by more than ten points.
    assert found[0].expected - found[0].value > 10
    assert "at the class frequencies of the" in found[0].describe_score_difference(
        "there"
    )
    assert max(worse.values()) <= 4


def table(rows, rng, slope=2.0, flip=1.0):
    x = rng.normal(size=(rows, 2))
    y = x[:, 0] * slope * flip + rng.logistic(size=rows) > 0
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.where(y, "ill", "well")})


def test_the_worst_earlier_score_does_not_excuse_a_fall():
    rng = np.random.default_rng(0)
    settings = {"hidden": (4,), "epochs": 30, "rate": 0.05}
    model = fit(table(1000, rng), "y", learner="erm", settings=settings)
    model = update(model, table(1000, rng))
    # The held-out score of the first environment was poor by chance.
    first = replace(model.history[0], metrics_after={"accuracy": 60.0})
    model = replace(model, history=(first, *model.history[1:]))
    assert (
        "No significant drop compared with"
        in evaluate(model, table(1000, rng))["verdict"]
    )
    told = evaluate(model, table(1000, rng, slope=1.0))
    assert told["verdict"].startswith("Significantly worse than expected: accuracy")
    line = told["comparisons"][0]
    assert line["difference"] == pytest.approx(line["expected"] - line["value"], abs=1)
    assert 0 < line["low"] < line["difference"] < line["high"]
    assert "points below the" in line["line"]
    assert "(90 % interval of the difference" in line["line"]
    assert "From a single place it is unknown" in told["verdict"]


def test_a_fall_on_arrival_is_noted_where_the_place_differs_and_only_there():
    rng = np.random.default_rng(0)
    settings = {"hidden": (4,), "epochs": 40, "rate": 0.05}
    first = fit(table(1500, rng), "y", learner="erm", settings=settings)
    alike = update(first, DataFrameSource(table(1500, rng), "alike"))
    other = update(first, DataFrameSource(table(1500, rng, flip=-1.0), "other"))
    assert not any("before the model learned" in n for n in alike.history[-1].notes)
    (note,) = [n for n in other.history[-1].notes if "before the model learned" in n]
    assert note.startswith("before the model learned from 'other': accuracy")
    assert "points below the" in note and "on held-out rows of table" in note
    assert "cirm evaluate" in note


def test_several_arrivals_tell_how_much_places_may_differ():
    rng = np.random.default_rng(0)
    settings = {"hidden": (4,), "epochs": 20, "rate": 0.05}
    places = [DataFrameSource(table(300, rng), name) for name in "abc"]
    model = fit(places, "y", order="sequential", learner="erm", settings=settings)
    verdict = evaluate(model, table(300, rng))["verdict"]
    assert (
        "accuracy varies between places with a standard deviation of up to" in verdict
    )


def test_without_an_arrival_held_out_rows_are_compared_and_it_is_said():
    rng = np.random.default_rng(0)
    model = fit(table(400, rng), "y", learner="erm", settings=FEW)
    told = evaluate(model, table(300, rng))["verdict"]
    assert "on held-out rows of table" in told
    assert "The model was never scored at a place before it was trained on it" in told


def test_few_rows_are_not_compared():
    rng = np.random.default_rng(0)
    model = fit(table(400, rng), "y", learner="erm", settings=FEW)
    told = evaluate(model, table(19, rng))
    assert "There are too few rows to compare" in told["verdict"]
    assert told["comparisons"] == []


def test_a_larger_error_of_a_regression_is_found(values):
    model = fit(values(300, 0), "y", learner="erm", settings={**FEW, "epochs": 40})
    model = update(model, values(300, 1))
    assert "No significant drop" in evaluate(model, values(300, 2))["verdict"]
    other = values(300, 3)
    other["y"] = np.random.default_rng(0).permutation(other["y"])
    told = evaluate(model, other)
    (line,) = told["comparisons"]
    assert line["score"] == "rmse"
    assert line["significant"]
    assert "% above the" in line["line"]


def test_delong_and_hanley_mcneil_agree_with_the_spread_of_the_area():
    rng = np.random.default_rng(0)
    from cirm.model.metrics import compute_roc_auc

    drawn = [draw_place(rng, 300, 1.5) for _ in range(400)]
    areas = [compute_roc_auc(mean[:, 1], y) for mean, y in drawn]
    told = np.mean([compute_delong_variance(mean[:, 1], y) for mean, y in drawn])
    assert told == pytest.approx(np.var(areas), rel=0.15)
    usual = compute_hanley_mcneil_variance(float(np.mean(areas)), 120, 300)
    assert usual == pytest.approx(np.var(areas), rel=0.2)


def test_places_that_differ_widen_what_is_expected():
    alike = predict_score_of_new_environment(
        [ScoreEstimate(0.8, 1e-4), ScoreEstimate(0.8, 1e-4)]
    )
    apart = predict_score_of_new_environment(
        [ScoreEstimate(0.75, 1e-4), ScoreEstimate(0.85, 1e-4)]
    )
    assert 5e-5 < alike.variance < 1.5e-4 < apart.variance
    assert (
        alike.compute_upper_limit_of_spread()
        < 0.05
        < apart.compute_upper_limit_of_spread()
    )
    here = ScoreEstimate(0.75, 1e-4)
    assert (
        compute_p_value_of_difference(alike, here)
        < 0.01
        < 0.05
        < compute_p_value_of_difference(apart, here)
    )


def test_an_interval_holds_what_its_probability_says():
    combined = predict_score_of_new_environment(
        [ScoreEstimate(v, 1e-4) for v in (0.78, 0.8, 0.83)]
    )
    low, high = compute_difference_interval(combined, ScoreEstimate(0.0, 1e-4))
    rng = np.random.default_rng(0)
    parts = rng.choice(
        len(combined.parts), 100_000, p=[p.weight for p in combined.parts]
    )
    means, variances = np.array([p[1:3] for p in combined.parts])[parts].T
    draws = means + np.sqrt(variances + 1e-4) * rng.normal(size=len(parts))
    assert ((draws > low) & (draws < high)).mean() == pytest.approx(0.90, abs=0.005)


def test_the_calibration_estimate_is_unbiased_for_calibrated_predictions():
    rng = np.random.default_rng(0)
    for rows in (50, 1000):
        found = [
            collect_score_statistics(MODEL, *draw_place(rng, rows, 2.0))["calibration"]
            for _ in range(300)
        ]
        values = np.array([one["value"] for one in found])
        spread = values.std() / math.sqrt(len(values))
        # A bin's noise has a lower bound, so the estimate may be slightly too low.
        assert -8 * spread < values.mean() < 3 * spread
        told = np.mean([one["variance"] for one in found])
        assert told == pytest.approx(values.var(), rel=0.4)
