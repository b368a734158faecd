"""The figures of sequential projection, computed on distributions of few outcomes.

Figure "invariant distribution": each environment allows a set of distributions, and
the one believed so far is projected onto the next set, p' = argmin KL(p' || p). Figure
"IRM invariant distribution": q+ = argmin KL(p || q-) + KL(p || q*), between what was
believed and what is best for the environment at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

Values = list[float]

START = (0.06, 0.14, 0.80)
MEETING = (0.45, 0.35, 0.20)  # the one distribution that all three sets hold
STATISTICS = {"P1": (1.0, 0.0, 0.25), "P2": (0.0, 1.0, 0.1), "P3": (0.6, -0.6, 1.0)}
ROUNDS = 3

OUTCOMES = 10
ALLOWED = {"P1": (0, 7), "P2": (2, 9), "P3": (1, 5)}  # the first and last outcome

GRID = 161
CENTRES = (0.30, 0.52, 0.70)  # of the best distribution of each environment
WIDTHS = (0.11, 0.09, 0.12)
SPANS = ((0.0, 0.62), (0.25, 0.85), (0.35, 1.0))  # outside of it no model is allowed


class Families(NamedTuple):
    """Sets of distributions of three outcomes, each by its two ends, and a path."""

    names: tuple[str, ...]
    ends: list[tuple[Values, Values]]
    path: list[Values]


class Supports(NamedTuple):
    """What each set allows, and the distribution after each projection."""

    names: tuple[str, ...]
    allowed: list[list[bool]]
    path: list[Values]


class Step(NamedTuple):
    """Densities on a grid: believed before, best here, and between both."""

    before: Values
    best: Values
    after: Values


def families() -> Families:
    """Three sets given by the mean of a statistic, projected onto in turn."""
    import torch

    from cirm.paper.projections import in_turn, onto_means

    statistics = torch.tensor(list(STATISTICS.values()), dtype=torch.float64)
    meeting = torch.tensor(MEETING, dtype=torch.float64)
    turns = [
        partial(onto_means, statistics=row[None], means=(row @ meeting)[None])
        for row in statistics
    ]
    path = in_turn(torch.tensor(START, dtype=torch.float64), turns * ROUNDS)
    ends = [_ends(row.tolist(), float(row @ meeting)) for row in statistics]
    return Families(tuple(STATISTICS), ends, [p.tolist() for p in path])


def supports() -> Supports:
    """Three sets given by the outcomes they allow, projected onto in turn."""
    import torch

    from cirm.paper.projections import in_turn, onto_support

    places = torch.arange(OUTCOMES, dtype=torch.float64)
    start = (-0.5 * ((places - 5.5) / 2.6) ** 2).softmax(0)
    masks = [(places >= low) & (places <= high) for low, high in ALLOWED.values()]
    path = in_turn(start, [partial(onto_support, support=mask) for mask in masks])
    allowed = [mask.tolist() for mask in masks]
    return Supports(tuple(ALLOWED), allowed, [p.tolist() for p in path])


def steps() -> list[Step]:
    """What is believed after each environment but the first."""
    import torch

    from cirm.paper.projections import between

    grid = torch.linspace(0, 1, GRID, dtype=torch.float64)
    best = []
    for centre, width, span in zip(CENTRES, WIDTHS, SPANS, strict=True):
        density = (-0.5 * ((grid - centre) / width) ** 2).exp()
        density = density * ((grid >= span[0]) & (grid <= span[1]))
        best.append(density / density.sum())
    found, believed = [], best[0]
    for optimum in best[1:]:
        after = between(believed, optimum)
        found.append(Step(*(d.tolist() for d in (believed, optimum, after))))
        believed = after
    return found


def _ends(statistic: Sequence[float], mean: float) -> tuple[Values, Values]:
    """The two points on the triangle's edges where a statistic has this mean."""
    found = []
    for first, second in ((0, 1), (1, 2), (0, 2)):
        one, other = statistic[first], statistic[second]
        if one != other and 0 <= (share := (mean - other) / (one - other)) <= 1:
            point = [0.0, 0.0, 0.0]
            point[first], point[second] = share, 1 - share
            found.append(point)
    return found[0], found[-1]
