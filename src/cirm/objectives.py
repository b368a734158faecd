"""Risks and invariance penalties: pure functions of outputs and a batch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples
from cirm.likelihoods import Likelihood
from cirm.networks import Network
from cirm.randomness import Draws
from cirm.variational import Gaussian


class Batch(NamedTuple):
    """Examples of a stage, those of one environment after those of another.

    x [replica, n, ...] and y [replica, n]; `share` [replica, e, n] holds the weights
    by which each environment averages the examples: its rows add up to one. `sizes`
    are the numbers of examples of the environments. `progress` is the part of the
    stage's training that is done, and `noise` the draws that this step may use.
    """

    x: Tensor
    y: Tensor
    share: Tensor
    sizes: tuple[int, ...]
    progress: float
    noise: Draws

    def split(self) -> list[Examples]:
        """The examples of each environment."""
        both = zip(
            self.x.split(self.sizes, 1), self.y.split(self.sizes, 1), strict=True
        )
        return [Examples(x, y) for x, y in both]

    @property
    def fractions(self) -> Tensor:
        """Each environment's part of all examples, [e]."""
        return environment_fractions(self.sizes, self.x.device)


@lru_cache(maxsize=64)
def environment_fractions(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Each environment's part of all examples, [e], by their numbers."""
    counts = torch.tensor(sizes, dtype=torch.float32, device=device)
    return counts / counts.sum()


def environment_means(values: Tensor, share: Tensor) -> Tensor:
    """Means by environment, [replica, sample, e], of values [replica, sample, n]."""
    if values.ndim == share.ndim:
        return values @ share.mT
    return (values.unsqueeze(1) @ share.mT).squeeze(1)


def environment_risks(
    network: Network, likelihood: Likelihood, params: Tensor, batch: Batch
) -> Tensor:
    """Risk of each environment, [replica, e]."""
    outputs = network(params, batch.x, batch.noise)
    return environment_means(likelihood.losses(outputs, batch.y), batch.share)


def expected_risks(
    network: Network, likelihood: Likelihood, q: Gaussian, batch: Batch, samples: int
) -> Tensor:
    """Mean risk of each environment, [replica, e], over networks drawn from `q`."""
    outputs = network.sample_outputs(q, batch.x, batch.noise, samples)
    return environment_means(likelihood.losses(outputs, batch.y).mean(1), batch.share)


def pool_risks(risks: Tensor, batch: Batch) -> Tensor:
    """Mean over all examples, [replica], of risks [replica, e]."""
    return risks @ batch.fractions


def gradient_penalties(
    likelihood: Likelihood, outputs: Tensor, batch: Batch, halves: bool = False
) -> Tensor:
    """Squared slope of each environment's risk in a factor on the outputs.

    With `halves`, the product of the slopes of two halves of each environment: its
    expectation is the squared slope of the whole environment, whatever the size of
    the batch; it may be negative.
    """
    slopes = likelihood.scale_gradients(outputs, batch.y)
    if not halves:
        return environment_means(slopes, batch.share).square()
    turn = torch.arange(slopes.shape[-1], device=slopes.device) % 2
    means = []
    for half in (turn == 0, turn == 1):
        share = batch.share * half
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-12)
        means.append(environment_means(slopes, share))
    return means[0] * means[1]


def quadratic_penalty(params: Tensor, anchor: Tensor, curvature: Tensor) -> Tensor:
    """Half the squared distance from an anchor by a diagonal curvature, [replica].

    All are [replica, p]; anchor and curvature are fixed.
    """
    value: Tensor = _Pull.apply(params, anchor, curvature)
    return value


class _Pull(torch.autograd.Function):
    """A pull with its gradient in closed form: half the passes over the parameters."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        params: Tensor,
        anchor: Tensor,
        curvature: Tensor,
    ) -> Tensor:
        shift = params - anchor
        force = curvature * shift
        ctx.save_for_backward(force, curvature, params, anchor)
        return shift.mul_(force).sum(-1) / 2

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor, None, None]:
        force, curvature, params, anchor = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again, so made anew
            force = curvature * (params - anchor)
        return slope.unsqueeze(-1) * force, None, None


def apply_heads(heads: Tensor, features: Tensor) -> Tensor:
    """Outputs [replica, n, k] of heads on features [replica, n, width].

    A head's weights come row by row, then its biases.
    """
    width = features.shape[-1]
    weight, bias = heads.unflatten(-1, (width + 1, -1)).split([width, 1], 1)
    return torch.baddbmm(bias, features, weight)


def head_gradients(
    likelihood: Likelihood,
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    share: Tensor,
) -> Tensor:
    """Gradient of each environment's risk in a linear head, [replica, e, head].

    Features [replica, n, width] and outputs [replica, n, k]; the head's weights come
    row by row, then its biases.
    """
    residuals = likelihood.residuals(outputs, targets)
    weighted = share.unsqueeze(-1) * residuals.unsqueeze(1)  # [replica, e, n, k]
    weights = features.mT.unsqueeze(1) @ weighted
    return torch.cat([weights.flatten(-2), weighted.sum(-2)], -1)


def anneal_penalty(penalty: float, anneal: float, progress: float) -> float:
    """A penalty's weight: in full from the anneal point on, before it at most one."""
    return penalty if progress >= anneal else min(1.0, penalty)


def risk_variance(risks: Tensor) -> Tensor:
    """Variance between the environments, [replica], of their risks [replica, e]."""
    return risks.var(-1, correction=0)


def average_outputs(answers: list[Tensor], past: list[Tensor]) -> Tensor:
    """Mean of the answers and, as one more, of the mean of the past's, if any."""
    if past:
        answers = [*answers, torch.stack(past).mean(0)]
    return torch.stack(answers).mean(0)


def check_penalty(where: str, penalty: float, anneal: float, l2: float) -> None:
    """Refuse an annealed penalty that makes no sense."""
    if penalty < 0 or not 0 <= anneal <= 1 or l2 < 0:
        raise ValueError(
            f"{where}: penalty and l2 must not be negative and anneal must be in "
            f"[0, 1]; got {penalty}, {l2} and {anneal}"
        )
