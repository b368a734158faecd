"""DRIG: guard least squares against interventions stronger than those seen.

Shen, Buehlmann and Taeb, "Causality-oriented Robustness: Exploiting General Noise
Interventions", 2023, equation 6. The first environment is the reference. The objective
is its risk plus `gamma` times what the risk of the others, weighted by their size,
exceeds it by: 0 uses the reference alone, 1 all examples, and larger values guard
against shifts that are stronger in the directions in which the environments differ.
Unlike in `anchor`, changes of variances and covariances count as well as of means.

It needs second moments of each environment, which are kept: on a sequence the result is
exactly the joint one, without any past example in memory. Regression only. Departure:
where an environment varies less than the reference, a large `gamma` would leave no
minimum; it is then halved until there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.learners.base import Learner
from cirm.learners.linear_models import (
    MomentRegressionState,
    add_moments_and_refit_regression,
    check_network_is_linear,
    init_moment_regression_state,
    solve_normal_equations,
)
from cirm.training import Terms

LEAST_EIGENVALUE = 1e-6  # of the largest; below, there is no clear minimum
MOST_HALVINGS = 60


@dataclass(frozen=True)
class DRIG(Learner[MomentRegressionState]):
    """Least squares of the first environment, guarded against stronger shifts.

    Its network is linear, and the settings of training are not used.

    Args:
        gamma: How much the excess of the other environments' risk counts.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(DRIG(), is_regression=True).shape
        torch.Size([1, 20, 1])
    """

    gamma: float = 5.0

    presets = {"reference": {"gamma": 0.0}, "pooled": {"gamma": 1.0}}
    defaults = {"network": "linear"}
    tasks = ("regression",)

    init, observe = init_moment_regression_state, add_moments_and_refit_regression

    def __post_init__(self) -> None:
        self.check_setting("gamma", self.gamma >= 0, "0 or more")
        check_network_is_linear("drig", self.network)

    def fit_regression(self, moments: Tensor) -> tuple[Tensor, Terms]:
        """Return coefficients [replica, d + 1], and the gamma used, [replica]."""
        centred, means = centre_moments_on_first_environment(moments)
        counts = moments[..., 0, 0]
        shares = counts / counts.sum(-1, keepdim=True)
        reference = centred[:, 0]
        pooled = (shares[..., None, None] * centred).sum(1)
        gamma = torch.full((len(moments),), float(self.gamma), dtype=torch.float64)
        for _ in range(MOST_HALVINGS):
            products = reference + gamma[:, None, None] * (pooled - reference)
            values = torch.linalg.eigvalsh(products[..., :-1, :-1])
            bad = values[:, 0] < LEAST_EIGENVALUE * values[:, -1]
            if not bad.any():
                break
            gamma = torch.where(bad, gamma / 2, gamma)
        params = solve_normal_equations(
            products[..., :-1, :-1], products[..., :-1, -1], means
        )
        return params, {"gamma": gamma.float()}


def centre_moments_on_first_environment(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean products of differences from the means of the first environment.

    From moments [replica, e, d + 2, d + 2] these are [replica, e, d + 1, d + 1], and
    those means [replica, d + 1].
    """
    counts = moments[..., :1, :1]
    average = moments / counts
    reference = average[:, 0, 1:, 0]
    cross = average[..., 1:, 0].unsqueeze(-1) * reference[:, None, None]
    outer = reference.unsqueeze(-1) * reference.unsqueeze(-2)
    products = average[..., 1:, 1:] - cross - cross.mT + outer.unsqueeze(1)
    return products, reference
