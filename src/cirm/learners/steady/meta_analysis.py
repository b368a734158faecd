"""Random-effects meta-analysis: the mean of effects over environments, their spread.

An effect differs from one environment to the next by more than its standard error. The
estimate of the spread is that of DerSimonian and Laird, "Meta-analysis in clinical
trials", 1986; the prediction interval for a new environment is that of Higgins,
Thompson and Spiegelhalter, "A re-evaluation of random-effects meta-analysis", 2009.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

UNKNOWN = 1e6  # variance from which on an effect counts as not measured


class EffectMetaAnalysis(NamedTuple):
    """A summary of the effects of k environments; tensors of the effects' shape.

    Attributes:
        mean: Mean effect over environments.
        spread: Standard deviation between environments, tau.
        error: Standard error of the mean.
        common: Mean effect weighted as if all environments were equal.
        heterogeneity: Cochran's Q.
        environments: Number of environments in which the effect was measured.
        trend: Square of the slope of the effects over the order of the environments,
            in units of its standard error.
    """

    mean: Tensor
    spread: Tensor
    error: Tensor
    common: Tensor
    heterogeneity: Tensor
    environments: Tensor
    trend: Tensor

    @property
    def prediction_error(self) -> Tensor:
        """Standard error of a prediction for a new environment."""
        return (self.spread.square() + self.error.square()).sqrt()

    @property
    def degrees_of_freedom(self) -> Tensor:
        """Degrees of freedom of the prediction for a new environment, at least one."""
        return (self.environments - 1).clamp(min=1)

    def p_value(self) -> Tensor:
        """Return the p-value of the hypothesis that all environments are equal."""
        degrees_of_freedom = (self.environments - 1).clamp(min=0)
        half = 0.5 * self.heterogeneity.clamp(min=0)
        p_value = torch.special.gammaincc(0.5 * degrees_of_freedom.clamp(min=1), half)
        return torch.where(degrees_of_freedom > 0, p_value, 1.0)

    def compute_p_value_against_spread_and_drift(self) -> Tensor:
        """Return the p-value of equal environments against a spread or a drift.

        Cochran's Q divides its power among all differences. A drift in the order of the
        environments is one of them, and gets half of the level. It and Q are unrelated
        to the mean effect. Between two environments both tests are the same.
        """
        drift = torch.special.erfc((0.5 * self.trend).sqrt())
        both = (2 * torch.minimum(self.p_value(), drift)).clamp(max=1.0)
        return torch.where(self.environments > 2, both, self.p_value())

    def compute_prediction_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the interval that holds the effect of a new environment."""
        quantile = stdtrit(self.degrees_of_freedom.numpy(), 0.5 + level / 2)
        half = torch.as_tensor(quantile, dtype=self.mean.dtype) * self.prediction_error
        return self.mean - half, self.mean + half


def combine_effects_of_environments(
    effects: Tensor, variances: Tensor
) -> EffectMetaAnalysis:
    """Combine the effects [k, ...] of k environments with their sampling variances.

    An effect whose variance is `UNKNOWN` or more is left out.

    Example:
        >>> import torch
        >>> effects = torch.tensor([1.0, 3.0])
        >>> summary = combine_effects_of_environments(effects, torch.ones(2))
        >>> float(summary.mean), float(summary.spread), float(summary.heterogeneity)
        (2.0, 1.0, 2.0)
    """
    known = variances < UNKNOWN
    count = known.sum(0)
    weights = torch.where(known, 1 / variances.clamp(min=1e-12), 0.0)
    total = weights.sum(0).clamp(min=1e-300)
    fixed = (weights * effects).sum(0) / total
    q = (weights * (effects - fixed).square()).sum(0)
    order = torch.arange(len(effects), dtype=effects.dtype)
    order = order.reshape(-1, *[1] * (effects.dim() - 1))
    steps = order - (weights * order).sum(0) / total
    information = (weights * steps.square()).sum(0)
    drift = (weights * steps * (effects - fixed)).sum(0)
    trend = drift.square() / information.clamp(min=1e-300)
    slack = (total - weights.square().sum(0) / total).clamp(min=1e-300)
    between = torch.where(count > 1, (q - (count - 1)) / slack, 0.0).clamp(min=0)
    weights = torch.where(known, 1 / (variances.clamp(min=1e-12) + between), 0.0)
    total = weights.sum(0).clamp(min=1e-300)
    mean = (weights * effects).sum(0) / total
    error = torch.where(count > 0, total.rsqrt(), UNKNOWN**0.5)
    return EffectMetaAnalysis(mean, between.sqrt(), error, fixed, q, count, trend)
