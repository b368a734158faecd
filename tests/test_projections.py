import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from cirm.projections import Family, divergence, meeting, projection, sequence

RANDOM = np.random.default_rng(0)


def distribution(size, support=None):
    weights = RANDOM.random(size) + 0.05
    if support is not None:
        weights = weights * support
    return weights / weights.sum()


def nearest(objective, size):
    """The minimum over all distributions, by a general optimiser."""
    bounds = [(1e-12, 1.0)] * size
    simplex = {"type": "eq", "fun": lambda p: p.sum() - 1}
    found = minimize(
        objective, np.full(size, 1 / size), bounds=bounds, constraints=[simplex],
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    return found.x


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 63))
def test_the_projection_has_support_in_the_intersection(support, bits):
    other = np.array([bits >> i & 1 for i in range(6)], bool)
    support = np.array(support)
    if not (support & other).any():
        return
    p = projection(Family.on(support), distribution(6, other))
    assert (p[~(support & other)] == 0).all()
    assert p.sum() == pytest.approx(1)


def test_the_projection_onto_a_support_is_nearer_than_any_other_member():
    q = distribution(5)
    support = np.array([1, 1, 0, 1, 0], bool)
    best = projection(Family.on(support), q)
    np.testing.assert_allclose(best, np.where(support, q, 0) / q[support].sum())
    for _ in range(200):
        assert divergence(distribution(5, support), q) >= divergence(best, q)


def test_the_projection_onto_given_expectations_is_an_exponential_tilt():
    q, statistic = distribution(6), np.arange(6.0)
    family = Family.on(np.ones(6), [statistic], [4.0])
    p = projection(family, q)
    assert statistic @ p == pytest.approx(4.0)
    slopes = np.diff(np.log(p / q))
    np.testing.assert_allclose(slopes, slopes[0])


def test_projections_obey_pythagoras():
    q = distribution(6)
    statistics, expectations = RANDOM.random((2, 6)), None
    member = distribution(6)
    expectations = statistics @ member
    best = projection(Family.on(np.ones(6), statistics, expectations), q)
    total = divergence(member, best) + divergence(best, q)
    assert divergence(member, q) == pytest.approx(total, abs=1e-8)


def test_a_sequence_ends_in_the_intersection_of_all_supports():
    supports = [[1, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]]
    steps = sequence(distribution(6), [Family.on(s) for s in supports])
    common = np.ones(6, bool)
    for step, support in zip(steps[1:], supports, strict=True):
        common &= np.array(support, bool)
        assert (step > 0).tolist() == common.tolist()


def test_what_is_nearest_to_two_is_their_normalised_geometric_mean():
    before, best = distribution(5), distribution(5)
    found = meeting(before, best)

    def total(p):
        return divergence(p, before) + divergence(p, best)

    np.testing.assert_allclose(found, nearest(total, 5), atol=1e-5)
    np.testing.assert_allclose(
        np.diff(np.log(found**2 / (before * best))), 0, atol=1e-9
    )


def test_the_meeting_has_the_common_support():
    before, best = distribution(4, [1, 1, 1, 0]), distribution(4, [0, 1, 1, 1])
    assert (meeting(before, best) > 0).tolist() == [False, True, True, False]


def test_divergence_is_infinite_where_the_second_cannot_be():
    assert divergence([0.5, 0.5], [1.0, 0.0]) == np.inf
    assert divergence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(np.log(2))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: projection(Family.on([1, 0]), [0.0, 1.0]), "supports must overlap"),
        (lambda: meeting([1.0, 0.0], [0.0, 1.0]), "supports must overlap"),
        (lambda: Family.on([0, 0]), "support must not be empty"),
        (
            lambda: projection(Family.on([1, 1], [[0, 1]], [3.0]), [0.5, 0.5]),
            "a member of the family must exist",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(act, message):
    with pytest.raises(ValueError, match=message):
        act()
