"""Maximum mean discrepancy: match the distributions of features of environments.

Li, Pan, Wang and Kot, "Domain Generalization with Adversarial Feature Learning", 2018,
equation 4, without the autoencoder and the adversary, between all pairs of
environments as in Gulrajani and Lopez-Paz, "In Search of Lost Domain Generalization",
2021. The kernel is a sum of Gaussian kernels. Features are the inputs of the last
layer.

On a sequence some examples of each past environment are kept, and take part as one
more environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.learners.base import Learner
from cirm.learners.rehearsal import (
    ParametersAndMemoryState,
    build_batch_with_past_environments,
    init_parameters_and_memory_state,
    train_and_update_memory,
)
from cirm.objectives import (
    Batch,
    compute_features_and_risk,
    list_environment_pairs,
)
from cirm.training import Terms

KERNELS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Factors of the squared distance in "In Search of Lost Domain Generalization"."""


@dataclass(frozen=True)
class MMD(Learner[ParametersAndMemoryState]):
    """Mean risk plus the maximum mean discrepancy of the features of environments.

    Args:
        penalty: Weight of the mean squared discrepancy over pairs of environments.
        kernels: Factors of the squared distance in the Gaussian kernels that are added.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(MMD(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 1.0
    kernels: tuple[float, ...] = KERNELS
    memory: int = 100

    presets = {  # the defaults of "In Search of Lost Domain Generalization"
        "domainbed": {"penalty": 1.0, "batch": 32, "rate": 5e-5},
        "domainbed-small": {"penalty": 1.0, "batch": 64, "rate": 1e-3},
    }

    init = init_parameters_and_memory_state
    observe = train_and_update_memory

    def __post_init__(self) -> None:
        self.check_setting("penalty", self.penalty >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 0, "0 or more")
        valid = bool(self.kernels) and min(self.kernels, default=0) > 0
        self.check_setting("kernels", valid, "one or more positive numbers")

    def compute_loss(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Terms:
        """Return the penalised risk of each replica."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        features, _, risk = compute_features_and_risk(
            self.network, self.likelihood, params, batch
        )
        pairs = list_environment_pairs(len(batch.sizes))
        if not pairs[0] or not self.penalty:
            return {"risk": risk}
        gaps = compute_squared_mmd(features, batch.share, pairs, self.kernels)
        return {"risk": risk, "penalty": self.penalty * gaps.mean(-1)}


def compute_squared_mmd(
    features: Tensor,
    share: Tensor,
    pairs: tuple[list[int], list[int]],
    kernel_factors: Sequence[float],
) -> Tensor:
    """Return the squared discrepancy of pairs of environments, [replica, pair].

    Features are [replica, n, width] and averaging weights [replica, e, n]. With the
    weights of two environments subtracted from each other, it is a quadratic form of
    the kernel matrix.
    """
    squares = features.square().sum(-1)
    products = features @ features.mT
    distances = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * products
    distances = distances.clamp(min=0)
    kernel = torch.stack(
        [(-factor * distances).exp() for factor in kernel_factors]
    ).sum(0)
    contrast = share[:, pairs[0]] - share[:, pairs[1]]
    return ((contrast @ kernel) * contrast).sum(-1)
