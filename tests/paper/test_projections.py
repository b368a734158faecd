from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import rel_entr

from cirm.paper.projections import (
    apply_projections_in_sequence,
    compute_geometric_mean_distribution,
    project_onto_given_means,
    project_onto_support,
)

N = 6
MASSES = st.lists(st.floats(0.05, 1.0), min_size=N, max_size=N)
SUPPORTS = st.lists(st.booleans(), min_size=N, max_size=N)


def distribution(masses, support=None):
    p = torch.tensor(masses, dtype=torch.float64)
    if support is not None:
        p = p * torch.tensor(support)
    return p / p.sum()


def nearest(objective, constraints=(), start=None):
    """The distribution that minimises an objective, by a general optimiser."""
    start = np.full(N, 1 / N) if start is None else start
    one = {"type": "eq", "fun": lambda p: p.sum() - 1}
    found = minimize(
        objective, start, bounds=[(1e-12, 1.0)] * N, constraints=[one, *constraints],
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    return torch.from_numpy(found.x)


def divergence(p, q):
    """The Kullback-Leibler divergence of p from q."""
    return torch.from_numpy(rel_entr(p.numpy(), q.numpy())).sum(-1)


def relative_entropy(q):
    q = q.numpy()
    return lambda p: float((p * np.log(p / q)).sum())


def test_a_mean_that_is_nearly_met_is_met():
    """Close to the minimum the gain of a step is below rounding."""
    masses = torch.tensor([0.43965421222018963, 0.359375, 0, 0, 0.0546875, 0])
    q = masses.double() / masses.double().sum()
    statistics = torch.tensor([[0, 1, 0, 0, 0, 0]], dtype=torch.float64)
    half = torch.tensor([0.5], dtype=torch.float64)
    torch.testing.assert_close(
        statistics @ project_onto_given_means(q, statistics, half), half
    )


@given(MASSES, SUPPORTS, SUPPORTS, st.lists(st.floats(-1, 1), min_size=N, max_size=N))
def test_a_projection_has_its_support_in_both(masses, own, family, values):
    """Theorem 3, for families of a support and for families of a mean."""
    if not any(a and b for a, b in zip(own, family, strict=True)):
        return
    q = distribution(masses, own)
    support = torch.tensor(family)
    p = project_onto_support(q, support)
    assert not p[~support | (q == 0)].any()
    held = torch.tensor(values, dtype=torch.float64)[q > 0]
    if held.max() - held.min() < 0.1:
        return
    statistics = torch.tensor([values], dtype=torch.float64)
    middle = (held.max() + held.min()).view(1) / 2
    tilted = project_onto_given_means(q, statistics, middle)
    assert not tilted[q == 0].any()
    torch.testing.assert_close(statistics @ tilted, middle)
    torch.testing.assert_close(tilted.sum(), torch.tensor(1.0, dtype=torch.float64))


@given(MASSES, MASSES, SUPPORTS)
def test_nothing_within_the_support_is_nearer(masses, other, family):
    if not any(family):
        return
    q, p = distribution(masses), distribution(other, family)
    found = project_onto_support(q, torch.tensor(family))
    # Pythagoras: with equality for a family defined by its support.
    expected = divergence(p, found) + divergence(found, q)
    torch.testing.assert_close(divergence(p, q), expected)


@pytest.mark.parametrize("count", [1, 2])
def test_the_projection_onto_means_is_what_an_optimiser_finds(count):
    generator = torch.Generator().manual_seed(count)
    q = distribution([1, 4, 2, 6, 3, 2])
    statistics = torch.randn(count, N, generator=generator, dtype=torch.float64)
    reached = distribution([5, 1, 1, 2, 4, 3])
    means = statistics @ reached
    found = project_onto_given_means(q, statistics, means)
    wanted = {"type": "eq", "fun": lambda p: statistics.numpy() @ p - means.numpy()}
    expected = nearest(relative_entropy(q), [wanted])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # Pythagoras, which holds with equality for a family of means.
    torch.testing.assert_close(
        divergence(reached, q),
        divergence(reached, found) + divergence(found, q),
    )


@given(MASSES, st.lists(SUPPORTS, min_size=1, max_size=4))
def test_projections_in_turn_end_in_the_intersection(masses, families):
    """The lemma of sequential projections, and that its order does not matter."""
    common = torch.tensor(families).all(0)
    if not common.any():
        return
    q = distribution(masses)
    steps = [partial(project_onto_support, support=torch.tensor(f)) for f in families]
    found = apply_projections_in_sequence(q, steps)
    assert len(found) == len(families) + 1
    for index, p in enumerate(found[1:], 1):
        assert not p[~torch.tensor(families[:index]).all(0)].any()
    torch.testing.assert_close(found[-1], project_onto_support(q, common))
    torch.testing.assert_close(
        found[-1], apply_projections_in_sequence(q, steps[::-1])[-1]
    )


def test_a_projection_onto_means_keeps_what_an_earlier_one_has_ruled_out():
    q = distribution([1, 1, 2, 2, 3, 3])
    support = torch.tensor([True, False, True, True, False, True])
    statistics = torch.arange(N, dtype=torch.float64)[None]
    means = torch.tensor([2.5], dtype=torch.float64)
    found = apply_projections_in_sequence(
        q,
        [
            lambda p: project_onto_support(p, support),
            lambda p: project_onto_given_means(p, statistics, means),
        ],
    )
    assert not found[-1][~support].any()
    torch.testing.assert_close(statistics @ found[-1], means)


@given(MASSES, MASSES)
def test_q_plus_is_the_normalised_geometric_mean(before, best):
    minus, star = distribution(before), distribution(best)
    plus = compute_geometric_mean_distribution(minus, star)
    total = divergence(plus, minus) + divergence(plus, star)
    # The sum is twice the divergence from q+ plus what no distribution can avoid.
    floor = -2 * (minus * star).sqrt().sum().log()
    torch.testing.assert_close(total, floor)
    other = distribution(best[::-1])
    torch.testing.assert_close(
        divergence(other, minus) + divergence(other, star),
        2 * divergence(other, plus) + floor,
    )


def test_q_plus_is_what_an_optimiser_finds():
    minus, star = distribution([5, 1, 3, 2, 2, 1]), distribution([1, 1, 4, 1, 6, 2])
    first, second = relative_entropy(minus), relative_entropy(star)
    expected = nearest(lambda p: first(p) + second(p))
    torch.testing.assert_close(
        compute_geometric_mean_distribution(minus, star), expected, rtol=0, atol=1e-5
    )


def test_q_plus_has_its_support_in_both():
    minus = distribution([1] * N, [True, True, True, False, False, False])
    star = distribution([1] * N, [False, True, True, True, False, False])
    plus = compute_geometric_mean_distribution(minus, star)
    assert plus.tolist() == pytest.approx([0, 0.5, 0.5, 0, 0, 0])


def test_what_has_no_common_point_is_refused():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="No outcome has a positive probability under"):
        compute_geometric_mean_distribution(first, second)
    with pytest.raises(ValueError, match="probability 0 for all outcomes in the supp"):
        project_onto_support(first, second)


def test_means_that_cannot_be_reached_are_refused():
    q = distribution([1, 1, 1, 1, 1, 1])
    statistics = torch.arange(N, dtype=torch.float64)[None]
    with pytest.raises(ValueError, match=r"cannot have the means \[7.0\]"):
        project_onto_given_means(
            q, statistics, torch.tensor([7.0], dtype=torch.float64)
        )
