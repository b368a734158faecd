"""What a column, or a block of columns, says about the target as one number.

The effect of a column need not be straight, and a category with many levels, a column
with its copies, or a cluster of related columns may change its meaning a little in each
of its parts. The score of a block is the sum of its basis functions, features and
hinges, weighted as the first environment suggests. How the effect of this one number
differs between environments shows a change of the whole block with far more power than
its parts do, whatever its shape; and no outlier decides alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import ROWS_AT_ONCE, HingeFeatureBasis
from cirm.learners.steady.columns_effects import compute_residuals_given_other_columns

ROUNDS = 15  # of choosing a ridge; each block has a few weights
WEIGHT_ROWS = 4_000  # rows that weights are learned from


def learn_weights_of_block_scores(
    basis: HingeFeatureBasis, inputs: Tensor, target: Tensor, block_of_feature: Tensor
) -> Tensor:
    """Learn the weights [q] of basis functions in the scores of their blocks.

    The target is regressed on the basis functions of each block, both given the
    features of all other blocks. The ridge of features and that of hinges are chosen by
    empirical Bayes, so that an effect stays straight unless the rows bend it. Scores
    have unit variance.

    Args:
        basis: The basis functions.
        inputs: Inputs, [n, d].
        target: Zeros and ones of the second class, or values, [n].
        block_of_feature: Block of each feature, by its first feature, [d].

    Returns:
        Weights of the features, then of their hinges.
    """
    stride = -(-len(inputs) // WEIGHT_ROWS)
    d, q = len(block_of_feature), len(block_of_feature) * (1 + len(basis.knots))
    rows = basis.expand(inputs[::stride], torch.arange(q))
    left = compute_residuals_given_other_columns(
        rows[:, :d], target[::stride], block_of_feature, rows[:0]
    )
    features, bends = left.joint[:, :d], rows[:, d:] - rows[:, d:].mean(0)
    gram = left.gram[:d, :d] + torch.diag(0.5 + 0.01 * left.gram.diagonal()[:d])
    slopes = torch.linalg.solve(gram, features.T @ bends)
    owner = block_of_feature.repeat(q // d)
    # What is left given other blocks: given all features, and the part of one's own.
    own = (
        bends
        - features @ slopes
        + left.own @ (slopes * (block_of_feature[:, None] == owner[d:]))
    )
    own = torch.cat([left.own, own], 1)
    is_hinge = torch.arange(q) >= d
    weights, active = rows.new_zeros(q), basis.active[:q]
    sizes = torch.zeros_like(block_of_feature).index_add(0, owner, active.long())
    for size in sizes.unique().tolist():
        leaders = (sizes == size).nonzero()[:, 0]
        if size < 2:
            weights[torch.isin(owner, leaders) & active] = 1.0
            continue
        members = torch.stack(
            [((owner == leader) & active).nonzero()[:, 0] for leader in leaders]
        )
        others = left.other[:, leaders].T
        found = _fit_ridge_regressions(own.T[members], others, is_hinge[members])
        spread = (found[:, None] @ rows.T[members])[:, 0].std(1, correction=0)
        weights[members] = found / spread.clamp(min=1e-9)[:, None]
    return weights


def _fit_ridge_regressions(
    predictors: Tensor, targets: Tensor, is_hinge: Tensor
) -> Tensor:
    """Return coefficients [b, m] of b regressions, with a ridge for each group.

    MacKay's fixed point: the precision of a group is its number of well-determined
    coefficients over their sum of squares. Without any signal they all vanish, and
    their ratios are those of the plain contrasts.

    Args:
        predictors: Regressors, [b, m, n].
        targets: Targets, [b, n].
        is_hinge: Which regressors are of the second group, [b, m].
    """
    rows = predictors.shape[2]
    scale = predictors.std(2, correction=0).clamp(min=1e-9)
    predictors = predictors / scale[..., None]
    targets = targets / targets.std(1, correction=0, keepdim=True).clamp(min=1e-9)
    gram, cross = predictors @ predictors.mT, (predictors @ targets[..., None])[..., 0]
    groups = torch.stack([~is_hinge, is_hinge], 1).to(predictors)  # [b, 2, m]
    ridge, noise, mean = (
        torch.ones_like(cross),
        predictors.new_ones(len(predictors), 1),
        cross,
    )
    for _ in range(ROUNDS):
        precision = gram / noise[..., None] + torch.diag_embed(ridge)
        variance = torch.linalg.inv(precision)
        mean = (variance @ cross[..., None])[..., 0] / noise
        determined = (1 - ridge * variance.diagonal(dim1=1, dim2=2)).clamp(min=0)
        fitted = (gram @ mean[..., None])[..., 0]
        rest = rows + (mean * (fitted - 2 * cross)).sum(1, keepdim=True)
        freedom = (rows - determined.sum(1, keepdim=True)).clamp(min=1)
        noise = (rest / freedom).clamp(min=1e-9)
        counts, squares = (
            (groups @ part[..., None]).clamp(min=least)
            for part, least in ((determined, 1e-9), (mean.square(), 1e-12))
        )
        ridge = ((counts / squares).mT @ groups)[:, 0].clamp(1e-3, 1e6)
    return mean / scale


def compute_block_scores(
    basis: HingeFeatureBasis, inputs: Tensor, weights: Tensor, block_of_feature: Tensor
) -> Tensor:
    """Return the scores [n, d] of blocks, at their first features; others are zero."""
    matrix, columns = (
        build_matrix_of_score_weights(weights, block_of_feature),
        torch.arange(len(weights)),
    )
    parts = inputs.split(ROWS_AT_ONCE)
    scores = torch.cat([basis.expand(part, columns) @ matrix for part in parts])
    return scores.round(decimals=9)  # equal rows have equal scores


def build_matrix_of_score_weights(weights: Tensor, block_of_feature: Tensor) -> Tensor:
    """Return the matrix [q, d] that turns basis functions into scores."""
    owner = block_of_feature.repeat(len(weights) // len(block_of_feature))
    columns = owner[:, None] == torch.arange(len(block_of_feature))
    return torch.where(columns, weights[:, None], 0.0)


def cross_fit_block_scores(
    basis: HingeFeatureBasis,
    inputs: Tensor,
    target: Tensor,
    weights: Tensor,
    block_of_feature: Tensor,
) -> Tensor:
    """Return scores [n, d] of which each half of the rows is weighted by the other.

    If a block says little, half of the rows may take its sign for the opposite. So the
    signs are those of the weights [q] of all rows.
    """
    part = inputs[:: -(-len(inputs) // WEIGHT_ROWS)]
    rows = basis.expand(part, torch.arange(len(weights)))
    centre, whole = (
        rows.mean(0),
        rows @ build_matrix_of_score_weights(weights, block_of_feature),
    )
    scores = inputs.new_zeros(len(inputs), len(block_of_feature))
    for start in (0, 1):
        own, other = slice(start, None, 2), slice(1 - start, None, 2)
        half = learn_weights_of_block_scores(
            basis, inputs[other], target[other], block_of_feature
        )
        matrix = build_matrix_of_score_weights(half, block_of_feature)
        covariance = ((rows - centre) @ matrix * whole).sum(0)
        sign = torch.where(covariance < 0, -1.0, 1.0)
        # Scores of both halves have one centre.
        found = (
            compute_block_scores(basis, inputs[own], half, block_of_feature)
            - centre @ matrix
        )
        scores[own] = sign * found
    # Two values stay two: any weights give them, up to a scale, and the log odds ratio
    # of such a score must not be compared with the slope of one with more values.
    plain = compute_block_scores(basis, inputs, weights, block_of_feature)
    low, high = plain.amin(0), plain.amax(0)
    return torch.where(((plain == low) | (plain == high)).all(0), plain, scores)
