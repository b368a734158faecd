"""Second moments of environments, and the columns that change their meaning.

If the target depends on the columns in the same way everywhere, its regressions on them
agree up to noise. If they do not agree, leaving out the columns that changed their
meaning makes them agree. Only the matrix of second moments is kept of an environment.

If the dependence is not linear, regressions also differ because the inputs are
distributed differently. Therefore examples are first weighted to match the distribution
of the others, both taken as normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ENOUGH = 50  # fewest examples for a comparison, in addition to two per column
WIDEST = 128  # most columns; a search among more would take too long
HEAVIEST = 10.0  # largest weight of an example, where the mean is one
RIDGE = 1e-6  # relative to each column's variance, for dependent columns


class Moments(NamedTuple):
    """Moments of columns and target, about the means of each environment.

    `second` is [replica, d + 1, d + 1] with the target last, `mean` [replica, d + 1],
    and `number` [replica] the number of examples. `heavy` [replica] is the factor by
    which the variance of regression coefficients exceeds that of constant noise.
    """

    second: Tensor
    mean: Tensor
    number: Tensor
    heavy: Tensor


def make_empty_moments(replicas: int) -> Moments:
    """Return the moments of no examples and no columns."""
    empty = torch.zeros(replicas)
    return Moments(torch.zeros(replicas, 0, 0), torch.zeros(replicas, 0), empty, empty)


def compute_moments(
    inputs: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Moments:
    """Return the moments of inputs [replica, n, d] and targets [replica, n].

    Weights [replica, n] sum to one; they are equal by default.
    """
    both = torch.cat([inputs, targets.unsqueeze(-1)], 2).double()
    if weights is None:
        weights = both.new_ones(both.shape[:2]) / both.shape[1]
    mean = (weights.unsqueeze(-1) * both).sum(1)
    both = both - mean.unsqueeze(1)
    second = both.mT @ (weights.unsqueeze(-1) * both)
    x, square = both[..., :-1], _regularise(second[:, :-1, :-1])
    slope = torch.linalg.solve(square, second[:, :-1, -1:])
    off = (both[..., -1:] - x @ slope).square().squeeze(-1)
    reach = _squared_distances(x, square)
    even = (weights * off).sum(1) * (weights * reach).sum(1)
    heavy = ((weights * off * reach).sum(1) / even.clamp(min=1e-30)).clamp(min=1)
    number = 1 / weights.square().sum(1)
    return Moments(*(part.float() for part in (second, mean, number, heavy)))


def compute_similarity_weights(inputs: Tensor, own: Moments, like: Moments) -> Tensor:
    """Return weights [replica, n] that make inputs distributed like others."""
    distances, sizes = [], []
    inputs = inputs.double()
    for part in (own, like):
        square = _regularise(part.second[:, :-1, :-1].double())
        distances.append(
            _squared_distances(inputs - part.mean[:, None, :-1].double(), square)
        )
        sizes.append(torch.linalg.slogdet(square)[1].unsqueeze(1))
    nearer = (distances[0] - distances[1] + sizes[0] - sizes[1]) / 2
    ratio = nearer.clamp(max=math.log(HEAVIEST)).exp()
    return ratio / ratio.sum(1, keepdim=True).clamp(min=1e-30)


def _squared_distances(x: Tensor, square: Tensor) -> Tensor:
    """Return the squared Mahalanobis distances [replica, n] of x [replica, n, d]."""
    return (x * torch.linalg.solve(square, x.mT).mT).sum(-1)


def pool_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of both, each about its own means."""
    if not one.second.shape[1]:
        return other
    count = one.number + other.number
    share = one.number / count
    wide = share.view(-1, 1, 1)
    return Moments(
        wide * one.second + (1 - wide) * other.second,
        wide[..., 0] * one.mean + (1 - wide[..., 0]) * other.mean,
        count,
        share * one.heavy + (1 - share) * other.heavy,
    )


def has_enough(parts: Sequence[Moments]) -> Tensor:
    """Return whether there are enough examples for a comparison, [replica]."""
    least = torch.stack([part.number for part in parts]).amin(0)
    return least >= ENOUGH + 2 * (parts[0].second.shape[1] - 1)


def find_changed_columns(
    parts: Sequence[Moments], hidden: Tensor, unlikely: float, rank: int
) -> tuple[Tensor, Tensor]:
    """Return the fewest columns [replica, d] without which the regressions agree.

    Columns are left out one by one, always the one that gives the largest p-value,
    until it is at least `unlikely` or `rank` columns are left out. The second result
    [replica] is the p-value, 1 if there are too few examples. The directions `hidden`
    [replica, k, d], of length one or zero, are always left out.
    """
    found, chances, known = [], [], has_enough(parts)
    for replica, axes in enumerate(hidden):
        own = [Moments(*(part[replica].double() for part in p)) for p in parts]
        width = axes.shape[1]
        out = torch.zeros(width, dtype=torch.bool)
        chance = torch.tensor(1.0, dtype=torch.float64)
        if known[replica]:
            own = [_remove_directions(part, axes.double()) for part in own]
            lost = int(axes.any(1).sum())
            chance = _regression_p_values(own, out[None], lost)[0]
            while chance < unlikely and int(out.sum()) < min(rank, width - 1):
                left = (~out).nonzero().squeeze(1)
                tried = out | torch.eye(width, dtype=torch.bool)[left]
                each = _regression_p_values(own, tried, lost)
                chance, out = each.max(), tried[each.argmax()]
        found.append(out)
        chances.append(chance.float())
    return torch.stack(found), torch.stack(chances)


def _regression_p_values(parts: Sequence[Moments], out: Tensor, lost: int) -> Tensor:
    """Return p-values [k] of equal regressions without the columns `out` [k, d].

    The parts are of one replica; `lost` directions were removed from all of them.
    """
    kept = (~out).double()
    weights, slopes = [], []
    for part in parts:
        square = part.second[:-1, :-1] * kept.unsqueeze(-1) * kept.unsqueeze(-2)
        product = (part.second[:-1, -1] * kept).unsqueeze(-1)
        slope = torch.linalg.solve(_regularise(square), product)
        left = part.second[-1, -1] - (slope * product).sum((1, 2))
        noise = part.heavy * left.clamp(min=1e-12) / part.number
        weights.append(square / noise.view(-1, 1, 1))
        slopes.append(slope)
    pairs = list(zip(weights, slopes, strict=True))
    middle = torch.linalg.solve(_regularise(sum(weights)), sum(w @ s for w, s in pairs))
    apart = sum(((s - middle).mT @ w @ (s - middle)).flatten() for w, s in pairs)
    freedom = (len(parts) - 1) * (kept.sum(1) - lost).clamp(min=1)
    return torch.special.gammaincc(freedom / 2, apart / 2)


def _remove_directions(part: Moments, axes: Tensor) -> Moments:
    """Remove directions [k, d] of length one from the moments of one replica."""
    keep = torch.eye(len(part.second), dtype=axes.dtype)
    keep[:-1, :-1] -= axes.mT @ axes
    return part._replace(second=keep @ part.second @ keep)


def _regularise(square: Tensor) -> Tensor:
    """Return a matrix [..., d, d] that is invertible even if columns depend."""
    own = square.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12)
    return square + RIDGE * torch.diag_embed(own)
