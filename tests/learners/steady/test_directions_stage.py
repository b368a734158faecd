"""How the search for unstable directions spends its level."""

import pytest

from cirm.learners.steady.directions_stage import compute_significance_level


def test_levels_of_a_sequence_do_not_depend_on_how_it_is_divided():
    alone = [compute_significance_level(0.05, look, 1) for look in range(40)]
    assert alone == sorted(alone, reverse=True)  # the first look gets most
    assert alone[0] == pytest.approx(0.7 * 0.05)
    together = compute_significance_level(0.05, 2, 3)
    assert together == pytest.approx(sum(alone[2:5]))
