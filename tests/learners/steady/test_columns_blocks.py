"""Blocks of related columns."""

import pytest
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cirm.learners.steady import columns_blocks
from cirm.learners.steady.columns_blocks import group_correlated_columns_into_clusters
from cirm.learners.steady.columns_effects import compute_least_squared_correlation


@pytest.mark.parametrize("seed", range(8))
def test_clusters_are_those_of_average_linkage(seed):
    generator = torch.Generator().manual_seed(seed)
    n, d = 400, 9
    mixture = torch.eye(d) + 0.4 * torch.rand(d, d, generator=generator).pow(3)
    features = torch.randn(n, d, generator=generator).double() @ mixture.double()
    targets = torch.randint(2, (n, 1), generator=generator).double()
    found = group_correlated_columns_into_clusters(features, targets, torch.arange(d))
    residuals = torch.stack([features[targets[:, 0] == y].mean(0) for y in (0, 1)])
    residuals = features - residuals[targets[:, 0].long()]
    distances = 1 - torch.corrcoef(residuals.T).square().fill_diagonal_(1.0)
    tree = hierarchy.linkage(squareform(distances.numpy(), checks=False), "average")
    limit = 1 - compute_least_squared_correlation(n, d)
    expected = hierarchy.fcluster(tree, limit, "distance")
    same = found[:, None] == found[None]
    assert same.tolist() == (expected[:, None] == expected[None]).tolist()
    assert len(found.unique()) < d  # some are related


def test_too_many_columns_are_not_grouped(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 1, generator=generator).double().repeat(1, 4)
    targets, unit = torch.arange(200)[:, None].double() % 2, torch.arange(4)
    assert (
        group_correlated_columns_into_clusters(features, targets, unit).tolist()
        == [0] * 4
    )
    monkeypatch.setattr(columns_blocks, "MOST_CLUSTERED", 3)
    assert group_correlated_columns_into_clusters(features, targets, unit).tolist() == [
        0,
        1,
        2,
        3,
    ]
