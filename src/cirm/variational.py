"""Diagonal Gaussians over flat parameter vectors."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

KLScale = Literal["sum", "per-example"]
"""The KL as it is, or divided by a stage's examples, as the mean risk is."""


class Gaussian(NamedTuple):
    """Independent normals; `mean` and `log_std` have one shape, [replica, p]."""

    mean: Tensor
    log_std: Tensor


def make_gaussian(mean: Tensor, std: float, centred: bool = False) -> Gaussian:
    """Normals of one spread, around `mean` or, if centred, around zero."""
    log_std = torch.full_like(mean, math.log(std))
    return Gaussian(torch.zeros_like(mean) if centred else mean, log_std)


def init_posterior(means: Tensor, posterior: Gaussian, std: float) -> Gaussian:
    """Where a stage starts: around means [replica, p], or without, at the posterior."""
    return make_gaussian(means, std) if means.shape[1] else posterior


def sample_gaussian(q: Gaussian, noise: Tensor) -> Tensor:
    """Reparameterised samples [replica, sample, p] by standard normal noise."""
    return q.mean.unsqueeze(-2) + q.log_std.exp().unsqueeze(-2) * noise


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) summed over the parameters, [replica]."""
    value: Tensor = _Divergence.apply(*torch.broadcast_tensors(*q, *p))[0]
    return value


def flatten_gaussian(q: Gaussian) -> Tensor:
    """Means, then logarithms of the spreads, in one vector, [replica, 2p]."""
    return torch.cat(q, -1)


def unflatten_gaussian(flat: Tensor) -> Gaussian:
    """The Gaussian that `joined` made into one vector."""
    return Gaussian(*flat.chunk(2, -1))


def kl_factor(scale: KLScale, examples: int) -> float:
    """What multiplies the KL beside a mean risk over so many examples.

    "per-example" makes their sum the variational bound divided by the number of
    examples, as Bayes' rule has it; "sum" gives the prior as many times that weight.
    """
    return 1.0 if scale == "sum" else 1 / examples


def check_variational_settings(where: str, learner: Any) -> None:  # noqa: ANN401
    """Refuse what no variational learner can work with.

    A learner has `beta`, `kl_scale`, `samples`, `evaluations`, `prior_std` and
    `initial_std`.
    """
    if learner.kl_scale not in get_args(KLScale):
        known = ", ".join(get_args(KLScale))
        raise ValueError(
            f"{where}: kl_scale must be one of {known}; got {learner.kl_scale!r}"
        )
    counts = learner.samples, learner.evaluations
    spreads = learner.prior_std, learner.initial_std
    if learner.beta < 0 or min(counts) < 1 or min(spreads) <= 0:
        raise ValueError(
            f"{where}: beta must not be negative, samples and evaluations must be one "
            f"or more, prior_std and initial_std positive; got {learner.beta}, "
            f"{counts[0]}, {counts[1]}, {spreads[0]} and {spreads[1]}"
        )


class _Divergence(torch.autograd.Function):
    """KL with its gradient in closed form: half the passes over the parameters."""

    @staticmethod
    def forward(
        mean: Tensor, log_std: Tensor, prior_mean: Tensor, prior_log_std: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shift = mean - prior_mean
        pull = (-2 * prior_log_std).exp_().mul_(shift)
        ratio = (log_std - prior_log_std).mul_(2)
        growth = ratio.exp().sub_(1)
        value = shift.mul_(pull).sum(-1) + growth.sum(-1) - ratio.sum(-1)
        return 0.5 * value, pull, growth

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        output: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor | None, ...]:
        mean, log_std, prior_mean, prior_log_std, pull, growth = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again, so made anew
            pull = (mean - prior_mean) * (-2 * prior_log_std).exp()
            growth = (2 * (log_std - prior_log_std)).exp() - 1
        slope = slope.unsqueeze(-1)
        back = [slope * pull, slope * growth, None, None]
        if ctx.needs_input_grad[2]:
            back[2] = -slope * pull
        if ctx.needs_input_grad[3]:
            back[3] = -slope * (growth + (mean - prior_mean) * pull)
        return tuple(back)
