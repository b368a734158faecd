"""Anchor regression: guard least squares against shifts of means.

Rothenhaeusler, Meinshausen, Buehlmann and Peters, "Anchor Regression: Heterogeneous
Data Meet Causality", 2021, equation 1.3, with the environment as the anchor. Residuals
are split into their means by environment and the rest; the squared means count `gamma`
times. With 0 only the variation within environments counts, with 1 it is least squares,
and for large values the means of the residuals become equal in all environments.

It needs second moments of each environment, which are kept: on a sequence the result is
exactly the joint one, without any past example in memory. Regression only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirm.learners.base import Learner
from cirm.learners.linear_models import (
    MomentRegressionState,
    add_moments_and_refit_regression,
    centre_second_moments,
    check_network_is_linear,
    init_moment_regression_state,
    solve_normal_equations,
)
from cirm.training import Terms


@dataclass(frozen=True)
class Anchor(Learner[MomentRegressionState]):
    """Least squares in which the environments' mean residuals count `gamma` times.

    Its network is linear, and the settings of training are not used.

    Args:
        gamma: How much more than in least squares the mean residuals count.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Anchor(), is_regression=True).shape
        torch.Size([1, 20, 1])
    """

    gamma: float = 5.0

    presets = {"least-squares": {"gamma": 1.0}, "within": {"gamma": 0.0}}
    defaults = {"network": "linear"}
    tasks = ("regression",)

    init, observe = init_moment_regression_state, add_moments_and_refit_regression

    def __post_init__(self) -> None:
        self.check_setting("gamma", self.gamma >= 0, "0 or more")
        check_network_is_linear("anchor", self.network)

    def fit_regression(self, moments: Tensor) -> tuple[Tensor, Terms]:
        """Return coefficients [replica, d + 1], and nothing to watch."""
        within = centre_second_moments(moments)[0].sum(1)
        total, means = centre_second_moments(moments.sum(1))
        products = within + self.gamma * (total - within)
        params = solve_normal_equations(
            products[..., :-1, :-1], products[..., :-1, -1], means
        )
        return params, {}
