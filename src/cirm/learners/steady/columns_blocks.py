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
) -> Tensor:
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
        Effects and their variances, then what the scores add to the target and its
        variances, [d, 4], at the first feature of each block; other variances are
        `UNKNOWN`.
    """
    is_block = find_blocks(block, features.amax(0) - features.amin(0))
    cases = float(torch.minimum(target.sum(), (1 - target).sum()))
    if (
        not bool(is_block.any())
        or len(features) < FEWEST_ROWS
        or (not is_value and cases < 2 * FEWEST_CASES)
    ):
        return _create_unknown_effects(features)
    if len(effects):
        return _score_blocks(features, target, block, past, effects, is_block)
    halves = slice(0, None, 2), slice(1, None, 2)
    found = []
    for own, other in (halves, halves[::-1]):
        learned = measure_effects(
            features[other], target[other, None], unit, past, is_value
        )
        known = torch.where(learned.variance < UNKNOWN, learned.slope, 0.0)
        rows = features[own], target[own]
        learned_effects = (known / learned.noise)[:, 0]
        found.append(_score_blocks(*rows, block, past, learned_effects, is_block))
    mean = (found[0] + found[1]) / 2
    known = (torch.stack(found)[..., 1] < UNKNOWN).all(0)
    mean[:, 1::2] = torch.where(known[:, None], mean[:, 1::2] / 2, UNKNOWN)
    return mean


def _create_unknown_effects(features: Tensor) -> Tensor:
    """Return effects and coefficients [d, 4] that were not measured."""
    unknown = torch.tensor([0.0, UNKNOWN, 0.0, UNKNOWN], dtype=features.dtype)
    return unknown.repeat(features.shape[1], 1)


def _score_blocks(
    features: Tensor,
    target: Tensor,
    block: Tensor,
    past: Tensor,
    effects: Tensor,
    is_block: Tensor,
) -> Tensor:
    """Return what `measure_blocks` does for scores with the given effects [d]."""
    left = compute_residuals(features, target, block, past)
    measured = _create_unknown_effects(features)
    for leader in is_block.nonzero()[:, 0].tolist():
        members = block == leader
        size = effects[members].norm()
        score = left.own[:, members] @ effects[members, None] / size.clamp(min=1e-9)
        if float(score.std()) < 1e-6:
            continue
        other = left.other[:, leader : leader + 1]
        found = regress_each_feature(score, other, left.freedom_factor)
        own = found.slope[0] / found.noise[0]
        variance = found.variance[0] / found.noise[0].square()
        variance = variance + own.square() * found.noise_variance[0]
        back = regress_each_feature(other, score, left.freedom_factor)
        values = own, variance, back.slope[0], back.variance[0]
        measured[leader] = torch.stack(values)
    return measured
