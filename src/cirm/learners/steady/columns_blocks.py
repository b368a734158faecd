"""What blocks of several features say about the target, as one number each.

A category with many levels, a column with its copies, or a cluster of related columns
may change its meaning a little in each of its features. The score of such a block is
the sum of its features, each times its effect in the first environment. How the effect
of this score differs between environments shows a change of the whole block with far
more power than its features do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    FEWEST_CASES,
    FEWEST_ROWS,
    compute_residuals,
    find_least_relation,
    measure_effects,
    regress_each_feature,
)
from cirm.learners.steady.meta_analysis import UNKNOWN

MOST_CLUSTERED = 200  # features that are grouped; pairs of more take too long


def find_blocks(block: Tensor, scale: Tensor) -> Tensor:
    """Return which features [d] lead a block of several features that vary."""
    sizes = torch.zeros_like(block).index_add(0, block, (scale > 0).long())
    return (sizes > 1) & (block == torch.arange(len(block)))


def group_units_into_clusters(
    features: Tensor, targets: Tensor, unit: Tensor
) -> Tensor:
    """Return the cluster of each feature, by its first feature, [d].

    The units of a cluster are related to each other given the targets. A unit that is
    related to no other is a cluster of its own.

    Args:
        features: Standardised features of the first environment, [n, d].
        targets: Targets, [n, k].
        unit: Unit of each feature, [d].
    """
    n, d = features.shape
    if d > MOST_CLUSTERED:
        return unit
    own, aim = features - features.mean(0), targets - targets.mean(0)
    own = own - aim @ torch.linalg.lstsq(aim, own).solution
    norms = own.square().sum(0).sqrt().clamp(min=1e-9)
    squares = (own.T @ own / norms / norms[:, None]).square()
    groups = [unit == leader for leader in unit.unique()]
    between = torch.stack(
        [
            torch.stack([squares[one][:, other].max() for other in groups])
            for one in groups
        ]
    ).fill_diagonal_(0.0)
    sizes = torch.ones(len(groups), dtype=between.dtype)
    limit, cluster = find_least_relation(n, d), unit.clone()
    while float(between.max()) > limit:
        # Average linkage: the means of squared correlations between clusters.
        one, other = sorted(divmod(int(between.argmax()), len(groups)))
        mean = sizes[one] * between[one] + sizes[other] * between[other]
        mean = mean / (sizes[one] + sizes[other])
        mean[[one, other]] = 0.0
        between[one], between[:, one] = mean, mean
        between[other], between[:, other] = 0.0, 0.0
        sizes[one] += sizes[other]
        groups[one] = groups[one] | groups[other]
        cluster[groups[one]] = cluster[groups[one]].min()
    return cluster


def measure_blocks(
    features: Tensor,
    target: Tensor,
    unit: Tensor,
    block: Tensor,
    past: Tensor,
    effects: Tensor,
    is_value: bool,
) -> tuple[Tensor, Tensor]:
    """Measure the effects of the scores of blocks in one environment.

    Args:
        features: Standardised features, [n, d].
        target: Zeros and ones of the second class, or values, [n].
        unit: Unit of each feature, [d].
        block: Block of each feature, a unit or several, [d].
        past: Covariance matrix of features within environments seen before, or empty.
        effects: Effects of the features in the first environment, [d]. If this is the
            first one they are empty, and each half of the rows is scored by the
            effects in the other one.
        is_value: Whether the target is the value of a regression.

    Returns:
        The effects and their variances, [d], at the first feature of each block; other
        variances are `UNKNOWN`.
    """
    is_block = find_blocks(block, features.amax(0) - features.amin(0))
    variance = torch.full_like(features[0], UNKNOWN)
    effect = torch.zeros_like(variance)
    cases = float(torch.minimum(target.sum(), (1 - target).sum()))
    if (
        not bool(is_block.any())
        or len(features) < FEWEST_ROWS
        or (not is_value and cases < 2 * FEWEST_CASES)
    ):
        return effect, variance
    if len(effects):
        return _score_blocks(features, target, block, past, effects, is_block)
    halves = slice(0, None, 2), slice(1, None, 2)
    found = []
    for own, other in (halves, halves[::-1]):
        learned = measure_effects(
            features[other], target[other, None], unit, past, is_value
        )
        known = torch.where(learned.variance < UNKNOWN, learned.slope, 0.0)
        found.append(
            _score_blocks(
                features[own],
                target[own],
                block,
                past,
                (known / learned.noise)[:, 0],
                is_block,
            )
        )
    (first, one), (second, two) = found
    known = (one < UNKNOWN) & (two < UNKNOWN)
    return (first + second) / 2, torch.where(known, (one + two) / 4, UNKNOWN)


def _score_blocks(
    features: Tensor,
    target: Tensor,
    block: Tensor,
    past: Tensor,
    effects: Tensor,
    is_block: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return effects and variances, [d], of scores with the given effects [d]."""
    left = compute_residuals(features, target, block, past)
    effect = torch.zeros_like(features[0])
    variance = torch.full_like(effect, UNKNOWN)
    for leader in is_block.nonzero()[:, 0].tolist():
        members = block == leader
        size = effects[members].norm()
        score = left.own[:, members] @ effects[members, None] / size.clamp(min=1e-9)
        if float(score.std()) < 1e-6:
            continue
        found = regress_each_feature(
            score, left.other[:, leader : leader + 1], left.freedom_factor
        )
        effect[leader] = own = found.slope[0] / found.noise[0]
        variance[leader] = found.variance[0] / found.noise[0].square()
        variance[leader] += own.square() * found.noise_variance[0]
    return effect, variance
