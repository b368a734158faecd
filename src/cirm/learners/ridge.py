"""Ridge regression: the usual linear regression, from second moments.

Hoerl and Kennard, "Ridge Regression: Biased Estimation for Nonorthogonal Problems",
1970, with a free intercept, as in scikit-learn's `Ridge`; regression only.

Sums of products of inputs and target are all that it needs. They are kept, so that on a
sequence the result of `sequence="pool"` is exactly that of all data at once, without an
example in memory. "last" forgets earlier stages; "average" averages the coefficients of
the stages' models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.icp import compute_second_moments_of_environments
from cirm.learners.linear_models import (
    average_coefficients_with_earlier_stages,
    centre_second_moments,
    check_network_is_linear,
    solve_normal_equations,
)
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class RidgeState(NamedTuple):
    """Coefficients [replica, p], number of stages [replica], and second moments.

    `moments` are sums of products of (1, inputs, target), [replica, d + 2, d + 2].
    """

    params: Tensor
    stages: Tensor
    moments: Tensor


@dataclass(frozen=True)
class Ridge(Learner[RidgeState]):
    """The linear function of least penalised squared error; its network is linear.

    The settings of training are not used.

    Args:
        l2: Weight of the squared coefficients, without the intercept, for squared
            errors that are summed over the examples: scikit-learn's `alpha`.
        sequence: What happens to earlier stages: "pool" adds their moments up, "last"
            forgets them, "average" averages the models of all stages.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Ridge(), is_regression=True).shape
        torch.Size([1, 20, 1])
    """

    l2: float = 1.0
    sequence: Literal["pool", "last", "average"] = "pool"

    presets = {"scikit-learn": {"l2": 1.0}, "least-squares": {"l2": 0.0}}
    defaults = {"network": "linear"}
    tasks = ("regression",)

    def __post_init__(self) -> None:
        self.check_setting("l2", self.l2 >= 0, "0 or more")
        valid = self.sequence in ("pool", "last", "average")
        self.check_setting("sequence", valid, "pool, last or average")
        check_network_is_linear("ridge", self.network)

    def init(self, randomness: Randomness) -> RidgeState:
        """Return coefficients and moments of zero."""
        replicas, side = len(randomness.seeds), self.network.size + 1
        return RidgeState(
            torch.zeros(replicas, self.network.size),
            torch.zeros(replicas, dtype=torch.int64),
            torch.zeros(replicas, side, side, dtype=torch.float64),
        )

    def observe(
        self,
        state: RidgeState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> RidgeState:
        """Fit the model to the moments of the stage, or of all stages."""
        replicas = len(randomness.seeds)
        own = [
            compute_second_moments_of_environments(*e.take_all(replicas)) for e in stage
        ]
        moments = torch.stack(own).sum(0)
        if self.sequence == "pool":
            moments = state.moments + moments
        scatter, means = centre_second_moments(moments)
        penalty = self.l2 * torch.eye(scatter.shape[-1] - 1, dtype=scatter.dtype)
        products = scatter[..., :-1, :-1] + penalty
        params = solve_normal_equations(products, scatter[..., :-1, -1], means)
        watch(1, 1, {})
        if self.sequence == "average":
            params = average_coefficients_with_earlier_stages(
                state.params, params, state.stages
            )
        kept = moments if self.sequence == "pool" else state.moments
        return RidgeState(params, state.stages + 1, kept)
