"""Information projections of discrete distributions.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", theorem 3, the lemma
of sequential projections, and equation irm_ip; Csiszar, "I-divergence geometry of
probability distributions and minimization problems", 1975. Distributions are [n] and
add up to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

STEPS = 200  # Newton's method ends long before, unless there is nothing to be found
ROUNDING = 1e-13  # a gain below this cannot be seen, and the step is taken
CLOSE = 1e-10  # how far the means of a projection may be off, in standard units


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q); infinite where p has mass and q has none."""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def onto_support(q: Tensor, support: Tensor) -> Tensor:
    """The nearest to q, argmin KL(p || q), among those within a support [n]."""
    return _normalised(q * support, "support")


def onto_means(q: Tensor, statistics: Tensor, means: Tensor) -> Tensor:
    """The nearest to q among those under which statistics [k, n] have means [k].

    It is q tilted, q exp(slope . statistics) normalised, with the slope that has
    these means: the minimum of a convex function, found by damped Newton steps.
    """
    held = q > 0
    centred = statistics[:, held] - means.unsqueeze(-1)
    scale = centred.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
    centred, start = centred / scale, q[held].log()
    slope, ridge = torch.zeros_like(means), 1e-12 * torch.eye(len(means)).to(q)
    for _ in range(STEPS):
        level = (start + slope @ centred).logsumexp(0)
        p = (start + slope @ centred - level).exp()
        off = centred @ p
        if off.abs().max() < CLOSE:
            return torch.zeros_like(q).masked_scatter(held, p)
        spread = (centred * p) @ centred.T - torch.outer(off, off)
        step, size = torch.linalg.solve(spread + ridge, off), 1.0
        while size > 1e-9 and (
            (start + (slope - size * step) @ centred).logsumexp(0)
            > level - 0.25 * size * (off @ step) + ROUNDING
        ):
            size /= 2
        slope = slope - size * step
    raise ValueError(
        "projections: means must lie within what the statistics take on the support; "
        f"got {means.tolist()}"
    )


def between(first: Tensor, second: Tensor) -> Tensor:
    """q+, the argmin of KL(p || first) + KL(p || second): their geometric mean."""
    return _normalised((first * second).sqrt(), "supports of both")


def in_turn(q: Tensor, onto: Iterable[Callable[[Tensor], Tensor]]) -> list[Tensor]:
    """q and its projections, each one that of the last."""
    found = [q]
    for project in onto:
        found.append(project(found[-1]))
    return found


def _normalised(masses: Tensor, where: str) -> Tensor:
    if not masses.sum() > 0:
        raise ValueError(f"projections: the {where} must meet; got no common point")
    return masses / masses.sum()
