"""Comparisons of scores with those of other environments."""

import pytest

from cirm.model.comparison import _compare_accuracies


def measure(**correct):
    """What is kept of an environment: correct rows of each class, of 100 each."""
    return {
        "correct": correct,
        "rows": {name: 100 * bool(n) for name, n in correct.items()},
    }


def test_accuracies_are_compared_at_equal_class_frequencies():
    (found,) = _compare_accuracies(measure(no=90, yes=70), [measure(no=90, yes=70)])
    assert found.value == pytest.approx(found.expected)
    assert found.difference == pytest.approx(0)
    assert not found.is_worse


def test_places_without_a_common_class_are_not_compared():
    assert _compare_accuracies(measure(no=90, yes=0), [measure(no=0, yes=70)]) == []
    assert _compare_accuracies(measure(no=90, yes=70), []) == []
