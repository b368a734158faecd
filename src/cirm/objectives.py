"""Risks and invariance penalties: pure functions of outputs and a batch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples
from cirm.likelihoods import Likelihood
from cirm.networks import Network
from cirm.randomness import RandomDraws
from cirm.variational import DiagonalGaussian


class Batch(NamedTuple):
    """Examples of a stage, grouped by environment.

    Attributes:
        x: Inputs, [replica, n, ...].
        y: Targets, [replica, n].
        share: Weights with which each environment averages the examples,
            [replica, e, n]; each row adds up to one.
        sizes: Number of examples of each environment.
        progress: Fraction of the stage's training that is done.
        noise: Draws that this step may use.
        mean_weights: Mean weight of the examples of each environment; empty if they
            have no weights.
    """

    x: Tensor
    y: Tensor
    share: Tensor
    sizes: tuple[int, ...]
    progress: float
    noise: RandomDraws
    mean_weights: tuple[float, ...] = ()

    def average_losses_of_environment(
        self, losses: Tensor, environment_index: int
    ) -> Tensor:
        """Average losses [replica, n] of the examples of one environment, [replica]."""
        if not self.mean_weights:
            return losses.mean(-1)
        share = self.share.split(self.sizes, -1)[environment_index][
            :, environment_index
        ]
        return (losses * share).sum(-1)

    def split_by_environment(self) -> list[Examples]:
        """Return the examples of each environment."""
        pairs = zip(
            self.x.split(self.sizes, 1), self.y.split(self.sizes, 1), strict=True
        )
        return [Examples(x, y) for x, y in pairs]

    @property
    def environment_fractions(self) -> Tensor:
        """Fraction of the examples in each environment, [e]; weighted, if they are."""
        means = self.mean_weights or (1.0,) * len(self.sizes)
        return compute_environment_fractions(self.sizes, means, self.x.device)


@lru_cache(maxsize=64)
def compute_environment_fractions(
    sizes: tuple[int, ...], means: tuple[float, ...], device: torch.device
) -> Tensor:
    """Return the fraction of the examples in each environment, [e]."""
    counts = torch.tensor(sizes, dtype=torch.float32, device=device)
    counts = counts * torch.tensor(means, dtype=torch.float32, device=device)
    return counts / counts.sum()


def average_values_by_environment(values: Tensor, share: Tensor) -> Tensor:
    """Average values [replica, sample, n] by environment, [replica, sample, e]."""
    if values.ndim == share.ndim:
        return values @ share.mT
    return (values.unsqueeze(1) @ share.mT).squeeze(1)


def split_averaging_weights_by_class(
    share: Tensor, targets: Tensor, n_classes: int
) -> Tensor:
    """Return averaging weights [replica, e * classes, n] of the classes within each.

    The weights of a class without examples are all zero.
    """
    one_hot = torch.nn.functional.one_hot(targets, n_classes).to(share.dtype)
    weights = share.unsqueeze(2) * one_hot.mT.unsqueeze(1)
    totals = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    return (weights / totals).flatten(1, 2)


def compute_environment_risks(
    network: Network, likelihood: Likelihood, params: Tensor, batch: Batch
) -> Tensor:
    """Compute the risk of each environment, [replica, e]."""
    outputs = network(params, batch.x, batch.noise)
    return average_values_by_environment(
        likelihood.compute_losses(outputs, batch.y), batch.share
    )


def compute_expected_risks(
    network: Network,
    likelihood: Likelihood,
    q: DiagonalGaussian,
    batch: Batch,
    n_samples: int,
) -> Tensor:
    """Mean risk of each environment, [replica, e], over networks drawn from `q`."""
    outputs = network.sample_outputs(q, batch.x, batch.noise, n_samples)
    return average_values_by_environment(
        likelihood.compute_losses(outputs, batch.y).mean(1), batch.share
    )


def average_risks_over_examples(risks: Tensor, batch: Batch) -> Tensor:
    """Return the mean risk of all examples, [replica], from risks [replica, e]."""
    return risks @ batch.environment_fractions


def compute_irm_penalties(
    likelihood: Likelihood, outputs: Tensor, batch: Batch, use_halves: bool = False
) -> Tensor:
    """Return IRM's penalty of each environment, [replica, e].

    It is the squared derivative of the risk in a scale of the outputs. With
    `use_halves` it is the product of the derivatives on two halves of the environment:
    that may be negative, but its expectation does not depend on the size of the batch.
    """
    slopes = likelihood.compute_output_scale_gradients(outputs, batch.y)
    if not use_halves:
        return average_values_by_environment(slopes, batch.share).square()
    turn = torch.arange(slopes.shape[-1], device=slopes.device) % 2
    means = []
    for half in (turn == 0, turn == 1):
        share = batch.share * half
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-12)
        means.append(average_values_by_environment(slopes, share))
    return means[0] * means[1]


def compute_quadratic_penalty(
    params: Tensor, anchor: Tensor, curvature: Tensor
) -> Tensor:
    """Return half the squared distance from an anchor, weighted by a curvature.

    All arguments are [replica, p], the result is [replica].
    """
    return (curvature * (params - anchor).square()).sum(-1) / 2


def apply_linear_heads(heads: Tensor, features: Tensor) -> Tensor:
    """Return outputs [replica, n, k] of linear heads on features [replica, n, width].

    A head holds its weights row by row, then its biases.
    """
    width = features.shape[-1]
    weight, bias = heads.unflatten(-1, (width + 1, -1)).split([width, 1], 1)
    return torch.baddbmm(bias, features, weight)


def compute_head_gradients(
    likelihood: Likelihood,
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    share: Tensor,
) -> Tensor:
    """Compute the gradient of each environment's risk in a head, [replica, e, head].

    Features are [replica, n, width] and outputs [replica, n, k]. The head holds its
    weights row by row, then its biases.
    """
    residuals = likelihood.compute_output_gradients(outputs, targets)
    weighted = share.unsqueeze(-1) * residuals.unsqueeze(1)  # [replica, e, n, k]
    weights = features.mT.unsqueeze(1) @ weighted
    return torch.cat([weights.flatten(-2), weighted.sum(-2)], -1)


def compute_head_gradient_variances(
    likelihood: Likelihood,
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    share: Tensor,
) -> Tensor:
    """Return variances over examples of their gradients in a head, [replica, e, head].

    An example's gradient is the product of its features and its residuals, so that
    means and mean squares need no gradient of a single example. Arguments and order
    are those of `compute_head_gradients`.
    """
    residuals = likelihood.compute_output_gradients(outputs, targets).unsqueeze(1)
    weighted = share.unsqueeze(-1) * residuals.square()  # [replica, e, n, k]
    squares = features.square().mT.unsqueeze(1) @ weighted
    mean_squares = torch.cat([squares.flatten(-2), weighted.sum(-2)], -1)
    means = compute_head_gradients(likelihood, features, outputs, targets, share)
    return mean_squares - means.square()


class FeatureMoments(NamedTuple):
    """Means [replica, e, width] and covariances [replica, e, width, width]."""

    means: Tensor
    covariances: Tensor


def compute_feature_moments(features: Tensor, share: Tensor) -> FeatureMoments:
    """Compute the moments of features [replica, n, width] in each environment."""
    means = share @ features
    weighted = share.unsqueeze(-1) * features.unsqueeze(1)  # [replica, e, n, width]
    products = weighted.mT @ features.unsqueeze(1)
    outer = means.unsqueeze(-1) * means.unsqueeze(-2)
    return FeatureMoments(means, products - outer)


def concatenate_feature_moments(
    first: FeatureMoments, second: FeatureMoments
) -> FeatureMoments:
    """Return the moments of the environments of both."""
    pairs = zip(first, second, strict=True)
    return FeatureMoments(*(torch.cat(pair, 1) for pair in pairs))


def select_feature_moments_of_environments(
    moments: FeatureMoments, environment_indices: list[int]
) -> FeatureMoments:
    """Return the moments of some environments."""
    return FeatureMoments(*(part[:, environment_indices] for part in moments))


def compute_moment_distances(
    first: FeatureMoments, second: FeatureMoments, use_means: bool = True
) -> Tensor:
    """Return the distance between two sets of moments, [replica, environment].

    The distance is Deep CORAL's: the squared difference of the covariances, divided by
    4 width^2, and with `use_means` that of the means, divided by the width.
    """
    width = first.means.shape[-1]
    gaps = (first.covariances - second.covariances).square().sum((-2, -1))
    distances = gaps / (4 * width**2)
    if use_means:
        distances = distances + (first.means - second.means).square().mean(-1)
    return distances


def list_environment_pairs(n_environments: int) -> tuple[list[int], list[int]]:
    """Return the first and the second environment of all pairs of `n_environments`."""
    pairs = [
        (a, b) for a in range(n_environments) for b in range(a + 1, n_environments)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


class FeaturesOutputsAndRisk(NamedTuple):
    """Features [replica, n, width], outputs [replica, n, k] and a risk [replica]."""

    features: Tensor
    outputs: Tensor
    risk: Tensor


def compute_features_and_risk(
    network: Network, likelihood: Likelihood, params: Tensor, batch: Batch
) -> FeaturesOutputsAndRisk:
    """Compute features, outputs, and the mean of the environments' risks."""
    features = network.compute_features(params, batch.x, batch.noise)
    outputs = apply_linear_heads(params[:, network.head], features)
    losses = likelihood.compute_losses(outputs, batch.y)
    risk = average_values_by_environment(losses, batch.share).mean(-1)
    return FeaturesOutputsAndRisk(features, outputs, risk)


def compute_mean_risk(
    network: Network, likelihood: Likelihood, params: Tensor, batch: Batch
) -> Tensor:
    """Return the mean risk over all examples of a batch, [replica]."""
    risks = compute_environment_risks(network, likelihood, params, batch)
    return average_risks_over_examples(risks, batch)


def build_terms_of_penalised_loss(
    risk: Tensor, penalty: Tensor, weight: float, params: Tensor, l2: float = 0.0
) -> dict[str, Tensor]:
    """Return the terms of a loss, all divided by a penalty weight above one."""
    scale = 1 / max(1.0, weight)
    terms = {"risk": scale * risk, "penalty": scale * weight * penalty}
    if l2:
        terms["l2"] = scale * l2 * params.square().sum(-1)
    return terms


def get_annealed_penalty_weight(
    penalty: float, anneal: float, progress: float
) -> float:
    """Return a penalty's weight, which is at most 1 before the anneal point."""
    return penalty if progress >= anneal else min(1.0, penalty)


def compute_risk_variance(risks: Tensor) -> Tensor:
    """Return the variance over environments, [replica], of risks [replica, e]."""
    return risks.var(-1, correction=0)


def average_outputs_with_past_models(
    outputs: list[Tensor], past_outputs: list[Tensor]
) -> Tensor:
    """Average outputs; the mean of past outputs, if there are any, counts as one."""
    if past_outputs:
        outputs = [*outputs, torch.stack(past_outputs).mean(0)]
    return torch.stack(outputs).mean(0)


def check_penalty_settings(
    where: str, penalty: float, anneal: float, l2: float
) -> None:
    """Raise an error if the settings of an annealed penalty are invalid."""
    for name, value in (("penalty", penalty), ("l2", l2)):
        if value < 0:
            raise ValueError(
                f"{where}: the setting {name} must not be negative, but is {value}. "
                f"Change it with --set {name}=VALUE."
            )
    if not 0 <= anneal <= 1:
        raise ValueError(
            f"{where}: the setting anneal must be from 0 to 1, but is {anneal}. Change "
            "it with --set anneal=VALUE."
        )
