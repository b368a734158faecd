import pytest
from scipy.special import rel_entr

from cirm.paper.projections import (
    ALLOWED,
    MEETING,
    STATISTICS,
    compute_belief_densities,
    project_onto_allowed_outcomes,
    project_onto_mean_families,
)
from cirm.report.paper_plots import (
    plot_belief_densities,
    plot_simplex_projections,
    plot_support_projections,
)


def test_each_projection_lies_in_its_set_and_the_last_near_where_all_meet():
    found = project_onto_mean_families()
    for turn, point in enumerate(found.path[1:]):
        statistic = list(STATISTICS.values())[turn % 3]
        mean = sum(s * p for s, p in zip(statistic, point, strict=True))
        wanted = sum(s * p for s, p in zip(statistic, MEETING, strict=True))
        assert mean == pytest.approx(wanted, abs=1e-8)
    gaps = [float(rel_entr(MEETING, point).sum()) for point in found.path]
    assert gaps == sorted(gaps, reverse=True)  # Csiszar: nearer with each projection
    assert gaps[-1] < gaps[0] / 20


def test_the_ends_of_a_set_lie_on_the_edges_and_belong_to_it():
    for statistic, ends in zip(
        STATISTICS.values(), project_onto_mean_families().ends, strict=True
    ):
        wanted = sum(s * p for s, p in zip(statistic, MEETING, strict=True))
        assert ends[0] != ends[1]
        for end in ends:
            assert sum(end) == pytest.approx(1)
            assert min(end) == pytest.approx(0)
            mean = sum(s * p for s, p in zip(statistic, end, strict=True))
            assert mean == pytest.approx(wanted)


def test_what_is_left_is_what_all_sets_so_far_allow():
    found = project_onto_allowed_outcomes()
    allowed = set(range(len(found.path[0])))
    for (low, high), belief in zip(ALLOWED.values(), found.path[1:], strict=True):
        allowed &= set(range(low, high + 1))
        assert {n for n, mass in enumerate(belief) if mass > 0} == allowed


def test_what_is_believed_next_lives_where_the_past_and_the_best_do():
    first, second = compute_belief_densities()
    assert second.before == first.after
    for before, best, after in (first, second):
        for one, other, both in zip(before, best, after, strict=True):
            assert (both > 0) == (one > 0 and other > 0)


def test_the_figures_show_all_of_it():
    simplex = plot_simplex_projections(*project_onto_mean_families())
    assert "9 projections in turn onto the sets P1, P2, P3" in simplex
    assert simplex.count("translate(") == 10
    assert "p₉" in simplex
    bars = plot_support_projections(*project_onto_allowed_outcomes())
    allowed = sum(high - low + 1 for low, high in ALLOWED.values())
    assert bars.count('class="band"') == allowed
    assert plot_belief_densities(compute_belief_densities()).count("q⁺") == 2
