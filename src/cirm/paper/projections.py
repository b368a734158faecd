"""Information projections of discrete distributions, and the examples of the figures.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", theorem 3, the lemma
of sequential projections, its Taylor form, and equation irm_ip; Csiszar, "I-divergence
geometry of probability distributions and minimization problems", 1975. Distributions
are [n] and add up to one.

In the figure "invariant distribution" each environment allows a set of distributions,
and the current belief is projected onto the next set, p' = argmin KL(p' || p). In the
figure "IRM invariant distribution" q+ = argmin KL(p || q-) + KL(p || q*) lies between
the belief so far and the best distribution of the next environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 200  # Newton's method ends long before, unless there is no solution
ROUNDING = 1e-13  # a smaller gain is lost in rounding, and the step is taken
TOLERANCE = 1e-10  # of the means of a projection, in standard units

Values = list[float]

START = (0.06, 0.14, 0.80)
MEETING = (0.45, 0.35, 0.20)  # the one distribution in all three sets
STATISTICS = {"P1": (1.0, 0.0, 0.25), "P2": (0.0, 1.0, 0.1), "P3": (0.6, -0.6, 1.0)}
ROUNDS = 3

OUTCOMES = 10
ALLOWED = {"P1": (0, 7), "P2": (2, 9), "P3": (1, 5)}  # the first and last outcome

GRID = 161
CENTRES = (0.30, 0.52, 0.70)  # of the best distribution of each environment
WIDTHS = (0.11, 0.09, 0.12)
SPANS = ((0.0, 0.62), (0.25, 0.85), (0.35, 1.0))  # no model is allowed outside


def project_onto_support(distribution: Tensor, support: Tensor) -> Tensor:
    """Return argmin KL(p || q) among the distributions p within a support [n]."""
    return _normalise_probabilities(
        distribution * support,
        "The distribution q has probability 0 for all outcomes in the support. Change "
        "q or the support, so that q has a positive probability for at least one "
        "outcome in the support.",
    )


def project_onto_given_means(
    distribution: Tensor, statistics: Tensor, means: Tensor
) -> Tensor:
    """Return the p nearest to q under which statistics [k, n] have means [k].

    It is q exp(slope . statistics), normalised, with the slope that gives these means:
    the minimum of a convex function, found by damped Newton steps.
    """
    support = distribution > 0
    centred = statistics[:, support] - means.unsqueeze(-1)
    scale = centred.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
    centred, start = centred / scale, distribution[support].log()
    slope, ridge = (
        torch.zeros_like(means),
        1e-12 * torch.eye(len(means)).to(distribution),
    )
    for _ in range(STEPS):
        level = (start + slope @ centred).logsumexp(0)
        p = (start + slope @ centred - level).exp()
        off = centred @ p
        if off.abs().max() < TOLERANCE:
            return torch.zeros_like(distribution).masked_scatter(support, p)
        spread = (centred * p) @ centred.T - torch.outer(off, off)
        step, size = torch.linalg.solve(spread + ridge, off), 1.0
        while size > 1e-9 and (
            (start + (slope - size * step) @ centred).logsumexp(0)
            > level - 0.25 * size * (off @ step) + ROUNDING
        ):
            size /= 2
        slope = slope - size * step
    raise ValueError(
        f"The statistics cannot have the means {means.tolist()} under any "
        "distribution over the outcomes that q allows. Choose means between the "
        "smallest and the largest value of each statistic."
    )


def compute_geometric_mean_distribution(first: Tensor, second: Tensor) -> Tensor:
    """Return argmin KL(p || first) + KL(p || second): their geometric mean."""
    return _normalise_probabilities(
        (first * second).sqrt(),
        "No outcome has a positive probability under both distributions, first and "
        "second. Change one of them, so that at least one outcome is possible under "
        "both.",
    )


def project_onto_linear_risk(
    distribution: Tensor, best: Tensor, gradient: Tensor, tolerance: float
) -> Tensor:
    """Return argmin KL(p || q) where the risk is, to first order, nearly the least.

    The Taylor form of the sequential projection: with the distribution `best` that
    minimises the risk of the current environment and the `gradient` [n] of the risk
    there, the constraint is (p - best) . gradient <= tolerance. The paper writes p as
    best plus a change.
    """
    most = gradient @ best + tolerance
    if gradient @ distribution <= most:
        return distribution
    return project_onto_given_means(distribution, gradient[None], most[None])


def apply_projections_in_sequence(
    distribution: Tensor, projections: Iterable[Callable[[Tensor], Tensor]]
) -> list[Tensor]:
    """Return q and the results of the projections, each applied to the last."""
    path = [distribution]
    for project in projections:
        path.append(project(path[-1]))
    return path


class ProjectionsOntoMeanFamilies(NamedTuple):
    """Sets of distributions of three outcomes, each by its two ends, and a path."""

    names: tuple[str, ...]
    ends: list[tuple[Values, Values]]
    path: list[Values]


class ProjectionsOntoSupports(NamedTuple):
    """The outcomes that each set allows, and the distribution after each projection."""

    names: tuple[str, ...]
    allowed: list[list[bool]]
    path: list[Values]


class SequentialBeliefDensities(NamedTuple):
    """Densities on a grid: belief before, best of the environment, belief after."""

    before: Values
    best: Values
    after: Values


def project_onto_mean_families() -> ProjectionsOntoMeanFamilies:
    """Project in turn onto three sets given by the mean of a statistic."""
    statistics = torch.tensor(list(STATISTICS.values()), dtype=torch.float64)
    meeting = torch.tensor(MEETING, dtype=torch.float64)
    turns = [
        partial(
            project_onto_given_means, statistics=row[None], means=(row @ meeting)[None]
        )
        for row in statistics
    ]
    path = apply_projections_in_sequence(
        torch.tensor(START, dtype=torch.float64), turns * ROUNDS
    )
    ends = [
        _find_simplex_edge_points_with_mean(row.tolist(), float(row @ meeting))
        for row in statistics
    ]
    return ProjectionsOntoMeanFamilies(
        tuple(STATISTICS), ends, [p.tolist() for p in path]
    )


def project_onto_allowed_outcomes() -> ProjectionsOntoSupports:
    """Project in turn onto three sets given by the outcomes they allow."""
    places = torch.arange(OUTCOMES, dtype=torch.float64)
    start = (-0.5 * ((places - 5.5) / 2.6) ** 2).softmax(0)
    masks = [(places >= low) & (places <= high) for low, high in ALLOWED.values()]
    path = apply_projections_in_sequence(
        start, [partial(project_onto_support, support=mask) for mask in masks]
    )
    allowed = [mask.tolist() for mask in masks]
    return ProjectionsOntoSupports(tuple(ALLOWED), allowed, [p.tolist() for p in path])


def compute_belief_densities() -> list[SequentialBeliefDensities]:
    """Return the belief after each environment but the first."""
    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    best = []
    for centre, width, span in zip(CENTRES, WIDTHS, SPANS, strict=True):
        density = (-0.5 * ((grid - centre) / width) ** 2).exp()
        density = density * ((grid >= span[0]) & (grid <= span[1]))
        best.append(density / density.sum())
    updates, belief = [], best[0]
    for optimum in best[1:]:
        after = compute_geometric_mean_distribution(belief, optimum)
        updates.append(
            SequentialBeliefDensities(*(d.tolist() for d in (belief, optimum, after)))
        )
        belief = after
    return updates


def _find_simplex_edge_points_with_mean(
    statistic: Sequence[float], mean: float
) -> tuple[Values, Values]:
    """Return the two points on the triangle's edges where a statistic has this mean."""
    ends = []
    for first, second in ((0, 1), (1, 2), (0, 2)):
        one, other = statistic[first], statistic[second]
        if one != other and 0 <= (share := (mean - other) / (one - other)) <= 1:
            point = [0.0, 0.0, 0.0]
            point[first], point[second] = share, 1 - share
            ends.append(point)
    return ends[0], ends[-1]


def _normalise_probabilities(weights: Tensor, problem: str) -> Tensor:
    """Return masses divided by their sum; raise the problem if all are zero."""
    if not weights.sum() > 0:
        raise ValueError(problem)
    return weights / weights.sum()
