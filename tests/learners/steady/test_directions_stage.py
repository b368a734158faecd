"""How the search for unstable directions spends its level."""

import pytest

from cirm.learners.steady.directions_stage import compute_significance_level


def test_levels_of_a_sequence_add_up_to_the_whole_however_it_is_divided():
    alone = [compute_significance_level(0.05, look, 1) for look in range(5000)]
    assert sum(alone) == pytest.approx(0.05, rel=1e-3)
    assert sum(alone) < 0.05
    assert max(alone[1:]) == alone[1] < alone[0]  # the first look gets most
    together = compute_significance_level(0.05, 2, 3)
    assert together == pytest.approx(sum(alone[2:5]))
