"""Comparisons of scores with those of other environments."""

import math

import pytest

from cirm.model.comparison import (
    ScoreComparisonWithPast,
    _compare_accuracies_with_past,
    _compare_root_mean_squared_errors,
)
from cirm.model.estimates import ScoreEstimate, predict_score_of_new_environment


def measure(**correct):
    """What is kept of an environment: correct rows of each class, of 100 each."""
    return {
        "correct": correct,
        "rows": {name: 100 * bool(n) for name, n in correct.items()},
    }


def test_accuracies_are_compared_at_equal_class_frequencies():
    (found,) = _compare_accuracies_with_past(
        measure(no=90, yes=70), [measure(no=90, yes=70)]
    )
    assert found.value == pytest.approx(found.expected)
    assert found.difference == pytest.approx(0)
    assert not found.is_worse


def test_places_without_a_common_class_are_not_compared():
    assert (
        _compare_accuracies_with_past(measure(no=90, yes=0), [measure(no=0, yes=70)])
        == []
    )
    assert _compare_accuracies_with_past(measure(no=90, yes=70), []) == []


def test_errors_are_compared_in_percent_and_vary_as_those_of_the_places_seen():
    def compare(*past):
        old = predict_score_of_new_environment(
            [ScoreEstimate(math.log(error), 1e-4) for error in past]
        )
        return _compare_root_mean_squared_errors(
            ScoreEstimate(math.log(3.0), 1e-4), old
        )

    alone, alike, apart = compare(2.0), compare(2.0, 2.0, 2.0), compare(1.6, 2.0, 2.5)
    assert (alone.value, alone.expected) == pytest.approx((3.0, 2.0))
    assert alone.difference == pytest.approx(50)
    # In percent of the error: none known, a sampling error of 1 %, and a quarter.
    assert alone.spread == 0
    assert 0 < alike.spread < 5
    assert 20 < apart.spread < 100
    assert alike.p_value < 0.01 < apart.p_value


@pytest.mark.parametrize(
    ("score", "ends", "words"),
    [
        ("accuracy", (5, 2, 8), "5.0 points below the 80.0 %"),
        ("accuracy", (-5, -8, -2), "5.0 points above the 80.0 %"),
        ("rmse", (5, 2, 8), "5.0 % above the 80"),
        ("rmse", (-5, -8, -2), "5.0 % below the 80"),
    ],
)
def test_a_line_gives_the_interval_in_the_direction_of_the_difference(
    score, ends, words
):
    line = ScoreComparisonWithPast(
        score, "", 75.0, 80.0, *ends, 0.5
    ).describe_score_difference("at a")
    assert words in line
    assert "(90 % interval of the difference 2.0 to 8.0)" in line
