"""Diagonal Gaussians over flat parameter vectors."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

KLScale = Literal["sum", "per-example"]
"""Whether the KL is a sum, or divided by the number of examples as the risk is."""


class DiagonalGaussian(NamedTuple):
    """Independent normal distributions, [replica, p] each.

    Attributes:
        mean: Their means.
        log_std: Logarithms of their standard deviations.
    """

    mean: Tensor
    log_std: Tensor


def create_diagonal_gaussian(
    mean: Tensor, std: float, is_centred_at_zero: bool = False
) -> DiagonalGaussian:
    """Return normals of one standard deviation around `mean`, or around zero."""
    log_std = torch.full_like(mean, math.log(std))
    return DiagonalGaussian(
        torch.zeros_like(mean) if is_centred_at_zero else mean, log_std
    )


def create_initial_posterior_of_stage(
    means: Tensor, posterior: DiagonalGaussian, std: float
) -> DiagonalGaussian:
    """Return a stage's start: normals around means [replica, p], else the posterior."""
    return create_diagonal_gaussian(means, std) if means.shape[1] else posterior


def draw_samples_of_gaussian(q: DiagonalGaussian, noise: Tensor) -> Tensor:
    """Return samples [replica, sample, p] from standard normal noise of that shape."""
    return q.mean.unsqueeze(-2) + q.log_std.exp().unsqueeze(-2) * noise


def compute_gaussian_kl(q: DiagonalGaussian, p: DiagonalGaussian) -> Tensor:
    """KL(q || p) summed over the parameters, [replica]."""
    shift, ratio = q.mean - p.mean, 2 * (q.log_std - p.log_std)
    distance = shift * (shift * (-2 * p.log_std).exp())
    return 0.5 * (distance.sum(-1) + (ratio.exp() - 1).sum(-1) - ratio.sum(-1))


def flatten_gaussian_to_vector(q: DiagonalGaussian) -> Tensor:
    """Return means and log standard deviations in one vector, [replica, 2p]."""
    return torch.cat(q, -1)


def restore_gaussian_from_vector(flat: Tensor) -> DiagonalGaussian:
    """Return the Gaussian of a vector that `flatten_gaussian_to_vector` returned."""
    return DiagonalGaussian(*flat.chunk(2, -1))


def compute_kl_weight(scale: KLScale, n_examples: float) -> float:
    """Return the factor of the KL that is added to a mean risk over the examples.

    With "per-example" their sum is the variational bound divided by the number of
    examples. With "sum" the prior has that many times more weight.
    """
    return 1.0 if scale == "sum" else 1 / n_examples


def check_variational_settings(where: str, learner: Any) -> None:  # noqa: ANN401
    """Raise an error if settings that all variational learners share are invalid.

    They are `beta`, `kl_scale`, `samples`, `evaluations`, `prior_std`, `initial_std`.
    """
    if learner.kl_scale not in get_args(KLScale):
        known = ", ".join(get_args(KLScale))
        raise ValueError(
            f"{where}: the setting kl_scale must be one of {known}, but is "
            f"{learner.kl_scale!r}. Change it with --set kl_scale=VALUE."
        )
    if learner.beta < 0:
        raise ValueError(
            f"{where}: the setting beta must not be negative, but is {learner.beta}. "
            "Change it with --set beta=VALUE."
        )
    for name in ("samples", "evaluations"):
        if (value := getattr(learner, name)) < 1:
            raise ValueError(
                f"{where}: the setting {name} must be 1 or more, but is {value}. "
                f"Change it with --set {name}=VALUE."
            )
    for name in ("prior_std", "initial_std"):
        if (value := getattr(learner, name)) <= 0:
            raise ValueError(
                f"{where}: the setting {name} must be positive, but is {value}. "
                f"Change it with --set {name}=VALUE."
            )
