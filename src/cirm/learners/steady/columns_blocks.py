"""Blocks of related columns, which may change their meaning together."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import compute_least_squared_correlation

MOST_CLUSTERED = 200  # features that are grouped; pairs of more take too long


def group_correlated_columns_into_clusters(
    features: Tensor, targets: Tensor, unit_of_feature: Tensor
) -> Tensor:
    """Return the cluster of each feature, by its first feature, [d].

    The units of a cluster are related to each other given the targets. A unit that is
    related to no other is a cluster of its own.

    Args:
        features: Standardised features of the first environment, [n, d].
        targets: Targets, [n, k].
        unit_of_feature: Unit of each feature, [d].
    """
    n, d = features.shape
    if d > MOST_CLUSTERED:
        return unit_of_feature
    own, aim = features - features.mean(0), targets - targets.mean(0)
    own = own - aim @ torch.linalg.lstsq(aim, own).solution
    norms = own.square().sum(0).sqrt().clamp(min=1e-9)
    squares = (own.T @ own / norms / norms[:, None]).square()
    groups = [unit_of_feature == leader for leader in unit_of_feature.unique()]
    between = torch.stack(
        [
            torch.stack([squares[one][:, other].max() for other in groups])
            for one in groups
        ]
    ).fill_diagonal_(0.0)
    sizes = torch.ones(len(groups), dtype=between.dtype)
    limit, cluster = compute_least_squared_correlation(n, d), unit_of_feature.clone()
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
