"""Linear models from examples or from second moments, which several learners use."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from scipy.optimize import minimize
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.learners.icp import compute_second_moments_of_environments
from cirm.likelihoods import Likelihood
from cirm.networks import Network
from cirm.objectives import apply_linear_heads
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps

MOST_ITERATIONS = 500  # of the optimiser, which usually needs a tenth
TOLERANCE = 1e-7  # of the largest entry of the gradient of the mean loss


class MomentRegressionState(NamedTuple):
    """Coefficients [replica, d + 1] of a regression, and second moments by environment.

    `moments` are sums of products of (1, inputs, target), [replica, e, d + 2, d + 2].
    """

    params: Tensor
    moments: Tensor


def init_moment_regression_state(
    learner: Learner[Any], randomness: Randomness
) -> MomentRegressionState:
    """Return coefficients of zero and no moments. Serves as a learner's `init`."""
    replicas, side = len(randomness.seeds), learner.network.size + 1
    moments = torch.zeros(replicas, 0, side, side, dtype=torch.float64)
    return MomentRegressionState(torch.zeros(replicas, learner.network.size), moments)


class MomentRegression(Protocol):
    """A learner whose regression is fitted to the moments of all environments."""

    def fit_regression(self, moments: Tensor) -> tuple[Tensor, Terms]:
        """Return coefficients [replica, d + 1], and numbers to watch."""


def add_moments_and_refit_regression(
    learner: MomentRegression,
    state: MomentRegressionState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
) -> MomentRegressionState:
    """Add the moments of the stage and fit the regression to all of them.

    Serves as a learner's `observe`.
    """
    moments = append_moments_of_stage(state.moments, stage)
    params, numbers = learner.fit_regression(moments)
    watch(1, 1, numbers)
    return MomentRegressionState(params, moments)


def append_moments_of_stage(moments: Tensor, stage: Stage) -> Tensor:
    """Return the moments of earlier environments and of those of a stage.

    They are sums of products of (1, inputs, target), [replica, e, d + 2, d + 2].
    """
    own = [
        compute_second_moments_of_environments(*e.take_all(len(moments))) for e in stage
    ]
    return torch.cat([moments, torch.stack(own, 1)], 1)


def centre_second_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of products around the means, and the means.

    The moments are sums of products of (1, inputs, target), [..., d + 2, d + 2]. The
    results are [..., d + 1, d + 1] and [..., d + 1].
    """
    count, sums = moments[..., :1, 0], moments[..., 1:, 0]
    means = sums / count
    outer = sums.unsqueeze(-1) * means.unsqueeze(-2)
    return moments[..., 1:, 1:] - outer, means


def solve_normal_equations(products: Tensor, target: Tensor, means: Tensor) -> Tensor:
    """Return slopes and intercept [replica, d + 1] of a regression.

    Args:
        products: Products of the inputs, [replica, d, d].
        target: Products of inputs and target, [replica, d].
        means: Means of inputs and target, where the residual is 0, [replica, d + 1].
    """
    scale = products.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()
    scaled = products / scale.unsqueeze(-1) / scale.unsqueeze(-2)
    # The pseudo-inverse leaves what the data do not determine at zero.
    inverse = torch.linalg.pinv(scaled, hermitian=True)
    slopes = (inverse @ (target / scale).unsqueeze(-1)).squeeze(-1) / scale
    intercept = means[..., -1] - (slopes * means[..., :-1]).sum(-1)
    return torch.cat([slopes, intercept.unsqueeze(-1)], -1).float()


def average_coefficients_with_earlier_stages(
    earlier_mean: Tensor, new_coefficients: Tensor, n_earlier: Tensor
) -> Tensor:
    """Return the mean of `n_earlier` [replica] models and a new one, [replica, p]."""
    return earlier_mean + (new_coefficients - earlier_mean) / (
        n_earlier.unsqueeze(-1) + 1
    )


def fit_linear_head_of_each_replica(
    likelihood: Likelihood,
    examples: Examples,
    weights: Tensor,
    l2: float,
    initial_heads: Tensor,
    towards_start: bool = True,
) -> Tensor:
    """Minimise the weighted loss of linear heads; return heads [replica, h].

    The loss is the sum of weights [replica, n] times losses plus `l2` / 2 times the
    squared weights of the head, or their squared distance from those of
    `initial_heads`. The intercepts are free. Inputs are features [replica, n, width].
    """
    centre = initial_heads if towards_start else torch.zeros_like(initial_heads)
    heads = [
        _fit_linear_head_of_replica(likelihood, l2, *(part.cpu() for part in parts))
        for parts in zip(*examples, weights, initial_heads, centre, strict=True)
    ]
    return torch.stack(heads).to(initial_heads)


def _fit_linear_head_of_replica(
    likelihood: Likelihood,
    l2: float,
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    initial_heads: Tensor,
    penalty_centre: Tensor,
) -> Tensor:
    """Return the head [h] of one replica."""
    x, weights, penalty_centre = (
        x.double()[None],
        weights.double(),
        penalty_centre.detach().double(),
    )
    # The rest of the head are the intercepts, one for each output.
    sizes = x.shape[-1] * len(initial_heads) // (x.shape[-1] + 1)

    def compute_penalised_loss_and_gradient(flat: Any) -> tuple[float, Any]:  # noqa: ANN401  NumPy arrays
        head = torch.from_numpy(flat)[None].requires_grad_()
        with torch.enable_grad():
            losses = likelihood.compute_losses(apply_linear_heads(head, x), y[None])
            distance = (head[0, :sizes] - penalty_centre[:sizes]).square().sum()
            total = (weights * losses).sum() + l2 / 2 * distance
        (slope,) = torch.autograd.grad(total, head)
        return total.item(), slope[0].numpy()

    options = {
        "maxiter": MOST_ITERATIONS,
        "gtol": TOLERANCE * max(float(weights.sum()), 1e-12),
        "ftol": 0.0,
    }
    found = minimize(
        compute_penalised_loss_and_gradient,
        initial_heads.detach().double().numpy(),
        jac=True,
        method="L-BFGS-B",
        options=options,
    )
    return torch.from_numpy(found.x)


def check_network_is_linear(where: str, network: Network | None) -> None:
    """Raise an error if a network has hidden layers."""
    if network is not None and network.head.start:
        raise ValueError(
            f"{where}: the network must be linear, because this learner fits a linear "
            "function of the inputs. Leave out the setting network, or set "
            "network=linear."
        )
