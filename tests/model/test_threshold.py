"""Thresholds: each rule against a count by hand."""

import itertools

import numpy as np
import pytest
import torch

from cirm.model.threshold import (
    DecisionThreshold,
    HeldOutProbabilities,
    choose_decision_threshold,
    describe_threshold_in_words,
    parse_threshold_rule,
    predict_classes_by_threshold,
    summarise_held_out_probabilities,
)

# Positive rows at 0.05, 0.15, ..., 0.95 and others at 0.00, 0.05, ..., 0.95 minus 0.02.
POSITIVES = tuple(np.round(np.arange(10) / 10 + 0.05, 3))
OTHERS = tuple(np.round(np.maximum(np.arange(20) / 20 - 0.02, 0), 3))
SCORES = HeldOutProbabilities((10.0, 20.0), POSITIVES, OTHERS)


def count(value):
    """Positive rows found, and false alarms, at a threshold."""
    return sum(p >= value for p in POSITIVES), sum(p >= value for p in OTHERS)


def list_values():
    """Thresholds between the probabilities that occur."""
    values = sorted({0.0, 1.0, *POSITIVES, *OTHERS})
    return [(a + b) / 2 for a, b in itertools.pairwise(values)]


@pytest.mark.parametrize(
    ("rule", "is_allowed", "best"),
    [
        ("recall=0.7", lambda found, false: found >= 7, max),
        ("precision=0.4", lambda found, false: found / (found + false) >= 0.4, min),
        ("rate=0.2", lambda found, false: found + false <= 0.2 * 30, min),
    ],
)
def test_a_rule_chooses_the_best_threshold_that_it_allows(rule, is_allowed, best):
    found = choose_decision_threshold(rule, "ill", SCORES)
    allowed = [
        value
        for value in list_values()
        if sum(count(value)) and is_allowed(*count(value))
    ]
    assert found == DecisionThreshold(pytest.approx(best(allowed)), rule, "ill")


@pytest.mark.parametrize("miss", [1, 3, 20])
def test_the_threshold_of_a_cost_is_the_cheapest(miss):
    def cost(value):
        found, false = count(value)
        return miss * (10 - found) + false

    chosen = choose_decision_threshold(f"cost={miss}:1", "ill", SCORES)
    assert cost(chosen.value) == min(map(cost, list_values()))


def test_a_number_needs_no_rows_and_a_rule_needs_ten_of_each_class():
    assert choose_decision_threshold("0.2", "ill", None).value == 0.2
    few = HeldOutProbabilities((9.0, 20.0), POSITIVES[:9], OTHERS)
    many = HeldOutProbabilities((20.0, 9.0), POSITIVES, OTHERS[:9])
    for scores, message in (
        (None, "rows of the class 'ill', but there are only 0"),
        (few, "rows of the class 'ill', but there are only 9"),
        (many, "rows not of the class 'ill', but there are only 9"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_decision_threshold("recall=0.5", "ill", scores)


@pytest.mark.parametrize(
    "text", ["0", "1", "recall=1.5", "cost=1:0", "cost=2", "f1=0.5", "much", "nan"]
)
def test_what_is_no_threshold_is_refused(text):
    with pytest.raises(ValueError, match="--threshold"):
        parse_threshold_rule(text)


@pytest.mark.parametrize("positive", ["no", "yes"])
def test_the_positive_class_is_predicted_from_the_threshold_on(positive):
    mean = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]])
    decided = predict_classes_by_threshold(
        mean, ("no", "yes"), DecisionThreshold(0.3, "0.3", positive)
    )
    assert decided.tolist() == ([0, 0, 1] if positive == "no" else [0, 1, 1])


def test_many_or_weighted_scores_are_kept_as_quantiles():
    values = (torch.arange(2000) + 0.5) / 2000
    kept = summarise_held_out_probabilities(values, values >= 0.5)
    assert kept.rows == (1000, 1000)
    assert len(kept.positives) == len(kept.others) == 500
    assert np.median(kept.positives) == pytest.approx(0.75, abs=0.002)
    heavy = torch.where(values < 0.75, 3.0, 1.0)
    weighted = summarise_held_out_probabilities(values, values >= 0.5, heavy)
    assert weighted.rows[0] == pytest.approx(float(heavy[values >= 0.5].sum()))
    assert np.mean(np.array(weighted.positives) < 0.75) == pytest.approx(0.75, abs=0.01)


def test_a_threshold_is_described_with_its_rates_only_if_there_are_held_out_rows():
    threshold = DecisionThreshold(0.5, "0.5", "ill")
    plain = "Predicts 'ill' if its probability is 0.5 or more (threshold 0.5)."
    assert describe_threshold_in_words(threshold, None) == plain
    assert (
        describe_threshold_in_words(threshold, HeldOutProbabilities((0, 3), (), (0.1,)))
        == plain
    )
    found, false = count(0.5)
    told = describe_threshold_in_words(threshold, SCORES)
    assert "on 30 held-out rows, 10 of them 'ill'" in told
    assert f"recall {10 * found} % (" in told
    assert f"precision {100 * found / (found + false):.0f} % (" in told
