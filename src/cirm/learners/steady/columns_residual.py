"""What is left of a feature given others and the target, within environments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cirm.learners.steady.columns_state import SteadyTableState, center_moments


def compute_residual_of_feature_on_others(
    state: SteadyTableState, feature: int, is_given: Tensor
) -> tuple[Tensor, float]:
    """Return what is left of a feature given others and the target, as a direction.

    Args:
        state: The state of one replica.
        feature: Index of the feature.
        is_given: Which features it is regressed on, within environments, [d].

    Returns:
        Coefficients [p] of the basis, and the fraction of the variance of the feature,
        given the target, that the other features explain.
    """
    p = len(state.ridge)
    direction = torch.zeros(p, dtype=torch.float64)
    direction[feature] = 1.0
    columns = is_given.nonzero()[:, 0]
    moments = _add_pseudo_rows_to_moments(state, len(columns))
    total = moments[feature, feature]
    targets = torch.arange(p, len(moments))
    after_target, _ = _regress_feature_on_others(moments, feature, targets)
    if not len(columns) or float(after_target) <= 1e-9 * float(total):
        return direction, 0.0
    left, slopes = _regress_feature_on_others(
        moments, feature, torch.cat([columns, targets])
    )
    explained = 1 - float(left / after_target)
    rows = float(state.places.rows.sum())
    # Shrunk, so that chance correlations with many columns are not taken for true.
    chance = len(columns) * (1 - explained) / max(rows * explained, 1e-9)
    kept = max(0.0, 1 - chance)
    direction[columns] -= kept * slopes[: len(columns)]
    return direction, kept * explained


def _add_pseudo_rows_to_moments(state: SteadyTableState, n_pseudo_rows: int) -> Tensor:
    """Return centred moments with rows in which no feature says anything of others.

    One for each feature is enough to regress on more features than there are rows.
    """
    moments, p = center_moments(state), len(state.ridge)
    usual = moments.diagonal()[:p] / state.places.rows.sum()
    added = torch.zeros_like(moments.diagonal())
    added[:p] = n_pseudo_rows * usual
    return moments + torch.diag(added)


def _regress_feature_on_others(
    moments: Tensor, feature: int, other_columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sum of squares of a feature given others, and its slopes."""
    gram = moments[other_columns[:, None], other_columns]
    ridge = 1e-6 * gram.diagonal().mean().clamp(min=1e-9)
    gram = gram + ridge * torch.eye(len(other_columns), dtype=gram.dtype)
    cross = moments[other_columns, feature]
    slopes = torch.linalg.solve(gram, cross)
    return (moments[feature, feature] - cross @ slopes).clamp(min=0), slopes


def compute_explained_fractions(
    state: SteadyTableState, block_of_feature: Tensor
) -> Tensor:
    """Return which part of each feature others explain given the target, [d].

    Others are the features of other blocks [d]. Chance correlations are not counted.
    """
    d, p = len(state.unit), len(state.ridge)
    moments = _add_pseudo_rows_to_moments(state, d)
    targets = torch.arange(p, len(moments))
    used = torch.cat([torch.arange(d), targets])
    gram = moments[used[:, None], used]
    ridge = 1e-6 * gram.diagonal().mean().clamp(min=1e-9)
    gram = gram + ridge * torch.eye(len(used), dtype=gram.dtype)
    cross = torch.linalg.solve(gram[d:, d:], gram[d:, :d])
    given_target = (gram[:d, :d] - gram[:d, d:] @ cross).diagonal()
    inverse = torch.linalg.inv(gram)
    explained = torch.zeros(d, dtype=gram.dtype)
    for leader in block_of_feature.unique():
        own = (block_of_feature == leader).nonzero()[:, 0]
        left = torch.linalg.inv(inverse[own[:, None], own]).diagonal()
        explained[own] = 1 - left / given_target[own].clamp(min=1e-12)
    rows = float(state.places.rows.sum())
    chance = d * (1 - explained) / (rows * explained).clamp(min=1e-9)
    return explained * (1 - chance).clamp(min=0)


def has_most_information(
    state: SteadyTableState, part: Tensor, features: Tensor
) -> bool:
    """Return whether a part of features has half of their information on the target.

    Args:
        state: The state of one replica.
        part: The part, [d].
        features: All features that count, [d].
    """
    whole = _compute_information_on_target(state, features)
    return _compute_information_on_target(state, part) >= whole / 2


def _compute_information_on_target(state: SteadyTableState, features: Tensor) -> float:
    """Return -log(1 - R2) / 2 of a linear regression within environments.

    If all is normal, this is the mutual information of features and target, in nats.
    R2 is adjusted for the number of features. Of classes it is that of the indicators
    of all classes together.
    """
    columns = features.nonzero()[:, 0]
    moments = _add_pseudo_rows_to_moments(state, len(columns))
    rows = float(state.places.rows.sum())
    targets = range(len(state.ridge), len(moments))
    left = [_regress_feature_on_others(moments, j, columns)[0] for j in targets]
    total = moments.diagonal()[len(state.ridge) :].sum()
    unexplained = float(torch.stack(left).sum() / total.clamp(min=1e-12))
    unexplained *= rows / max(rows - len(columns), 1.0)
    return -math.log(min(max(unexplained, 1e-12), 1.0)) / 2
