"""Posteriors of effects in a new environment, from unlabelled rows.

The stable model gives every row probabilities of the classes. How an unstable feature
varies with them shows its effect: the likelihood of the rows is a mixture over the
classes. For regression the same is a closed form: the feature is regressed on the
stable prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.learners.steady.columns_state import SAMPLES
from cirm.learners.steady.meta_analysis import EffectMetaAnalysis
from cirm.randomness import compute_normal_quantiles

WIDEST = 6.0  # largest effect considered, in log odds per standard deviation
GRID = 61  # values of an effect; a second grid is finer
SURPRISE = 0.2  # prior probability that a new environment is like none before
PSEUDO_ROWS = 2.0  # rows of each class by which a category starts as meaningless
EM_STEPS = 200  # of the table of a category, at most


class StudentEffectPrior(NamedTuple):
    """A Student distribution of an effect, with some probability of anything else."""

    mean: float
    scale: float
    degrees_of_freedom: float

    def compute_log_density(self, grid: Tensor) -> Tensor:
        """Return the log density, up to a constant, at evenly spaced values."""
        distance = ((grid - self.mean) / self.scale).square()
        power = -0.5 * (self.degrees_of_freedom + 1)
        student = power * (1 + distance / self.degrees_of_freedom).log()
        half = 0.5 * torch.tensor(self.degrees_of_freedom, dtype=grid.dtype)
        constant = torch.lgamma(half + 0.5) - torch.lgamma(half)
        constant = constant - 0.5 * (torch.pi * 2 * half).log()
        student = student + constant - torch.log(torch.tensor(self.scale))
        span = float(grid[-1] - grid[0])
        return torch.logaddexp(
            student + torch.log(torch.tensor(1 - SURPRISE)),
            torch.log(torch.tensor(SURPRISE / span)),
        )


def build_effect_prior(
    summary: EffectMetaAnalysis, feature: int, output: int, trust: str
) -> StudentEffectPrior:
    """Return the prior of an effect in a new environment.

    If unstable features are not trusted, either sign is as likely: without rows that
    show more, the prediction is then that of the stable model. Otherwise the prior is
    the prediction of the meta-analysis. After a single environment the spread is not
    known, and half of the effect is taken for it.
    """
    at = feature, output
    mean, spread = float(summary.mean[at]), float(summary.spread[at])
    if int(summary.environments[at]) < 2:
        spread = abs(mean) / 2
    square = spread**2 + float(summary.error[at]) ** 2
    if trust == "invariant":
        mean, square = 0.0, square + mean**2
    return StudentEffectPrior(
        mean, max(square**0.5, 1e-3), float(summary.degrees_of_freedom[at])
    )


class EffectPosteriorSummary(NamedTuple):
    """What rows show of an effect.

    Attributes:
        samples: Samples of the effect, [s].
        median: Its median.
        low: Its 2.5 % point.
        high: Its 97.5 % point.
        support: By how much the log likelihood of the rows is better with an effect
            than without, at its best.
    """

    samples: Tensor
    median: float
    low: float
    high: float
    support: float = 0.0


def summarise_posterior_density_on_grid(
    grid: Tensor, log_density: Tensor
) -> EffectPosteriorSummary:
    """Summarise a density on an evenly spaced grid, [m]."""
    weights = (log_density - log_density.max()).exp()
    weights = weights / weights.sum()
    step = grid[1] - grid[0]
    edges = torch.cat([grid[:1] - step / 2, grid + step / 2])
    cumulative = torch.cat([weights.new_zeros(1), weights.cumsum(0)])

    def compute_density_quantiles(levels: Tensor) -> Tensor:
        right = torch.searchsorted(cumulative, levels).clamp(1, len(grid))
        below, above = cumulative[right - 1], cumulative[right]
        part = (levels - below) / (above - below).clamp(min=1e-300)
        return edges[right - 1] + part.clamp(0, 1) * step

    levels = (torch.arange(SAMPLES, dtype=grid.dtype) + 0.5) / SAMPLES
    points = compute_density_quantiles(
        torch.tensor([0.5, 0.025, 0.975], dtype=grid.dtype)
    )
    return EffectPosteriorSummary(compute_density_quantiles(levels), *points.tolist())


def fit_logit_shifts_to_probability(logits: Tensor, frequency: float) -> Tensor:
    """Return shifts [m] after which logits [n, m] have a mean probability."""
    shift = torch.zeros(logits.shape[1], dtype=logits.dtype)
    for _ in range(25):
        probability = (logits + shift).sigmoid()
        slope = (probability * (1 - probability)).mean(0) + 1e-4
        step = ((probability.mean(0) - frequency) / slope).clamp(-2, 2)
        shift = shift - step
        if float(step.abs().max()) < 1e-6:
            break
    return shift


def estimate_effect_on_log_odds(
    stable_outputs: Tensor, values: Tensor, prior: StudentEffectPrior
) -> EffectPosteriorSummary:
    """Return the posterior of the effect of a feature on the log odds of a class.

    The feature is a tilt: its density given the class is that of all rows times
    exp(effect * value), normalised. The likelihood of a row is the mixture over the
    class, whose probability the stable model gives.

    Args:
        stable_outputs: Probability of the class by the stable model, [n].
        values: The feature, [n].
        prior: Distribution of the effect over environments.
    """
    spread = float(values.std(correction=0)) + 1e-9
    frequency = float(stable_outputs.mean())
    low, high = -WIDEST / spread, WIDEST / spread
    support = 0.0
    for _ in range(2):
        grid = torch.linspace(low, high, GRID, dtype=values.dtype)
        logits = values[:, None] * grid
        given = (logits + fit_logit_shifts_to_probability(logits, frequency)).sigmoid()
        yes = stable_outputs[:, None] * given / frequency
        no = (1 - stable_outputs[:, None]) * (1 - given) / (1 - frequency)
        likelihood = (yes + no).clamp(min=1e-12).log().sum(0)
        support = max(support, float(likelihood.max()))  # without an effect it is 0
        posterior = summarise_posterior_density_on_grid(
            grid, prior.compute_log_density(grid) + likelihood
        )
        margin = 0.5 * (posterior.high - posterior.low) + (high - low) / GRID
        low = max(low, posterior.low - margin)
        high = min(high, posterior.high + margin)
    return posterior._replace(support=support)


def estimate_slope_on_numerical_target(
    prediction: Tensor, values: Tensor, variance: float, prior: StudentEffectPrior
) -> tuple[EffectPosteriorSummary, Tensor, float]:
    """Return the posterior of the slope of a feature on a numerical target.

    Since E[feature | inputs] = slope * E[target | inputs] + constant, the regression of
    the feature on the stable prediction estimates the slope without bias.

    Args:
        prediction: The stable prediction, [n].
        values: The feature, [n].
        variance: Variance of the target given the stable inputs.
        prior: Distribution of the effect, slope / noise, over environments.

    Returns:
        The posterior of the effect, samples of the slope [s], and the variance of the
        feature given the stable inputs.
    """
    centred, own = prediction - prediction.mean(), values - values.mean()
    weight = centred.square().sum() + 1e-9
    slope = centred @ own / weight
    rest = own - slope * centred
    total = float(rest.square().mean()) + 1e-9
    error = (rest.square() * centred.square()).sum() / weight.square() + 1e-12
    limit = 0.98 * (total / variance) ** 0.5
    slopes = torch.linspace(-limit, limit, 20 * GRID, dtype=values.dtype)
    effects = slopes / (total - slopes.square() * variance)
    stretch = torch.gradient(effects)[0].log()
    # The prior is one of effects; the grid is even in slopes.
    density = prior.compute_log_density(effects) + stretch
    density = density - 0.5 * (slopes - slope).square() / error
    posterior = summarise_posterior_density_on_grid(slopes, density)

    def convert_slope_to_effect(value: float) -> float:
        return value / (total - value**2 * variance)

    summary = EffectPosteriorSummary(
        posterior.samples / (total - posterior.samples.square() * variance),
        convert_slope_to_effect(posterior.median),
        convert_slope_to_effect(posterior.low),
        convert_slope_to_effect(posterior.high),
        float(0.5 * slope.square() / error),
    )
    return summary, posterior.samples, total


def convert_effects_to_logits(
    effects: Tensor, values: Tensor, frequency: float, n_outputs: int
) -> tuple[Tensor, Tensor]:
    """Return slope and constant, [s] each, by which a feature changes a class's logit.

    For two classes this is exact. For one of many the log likelihood of the class,
    log P(class | value) - log P(class), is followed at two typical values.
    """
    shift = fit_logit_shifts_to_probability(values[:, None] * effects, frequency)
    odds = torch.tensor(frequency, dtype=values.dtype).logit()
    if n_outputs == 1:
        return effects, shift - odds
    low, high = values.mean() - values.std(), values.mean() + values.std()
    below = F.logsigmoid(shift + effects * low)
    above = F.logsigmoid(shift + effects * high)
    slope = (above - below) / (high - low)
    return slope, below - slope * low - torch.log(torch.tensor(frequency))


class CategoryFrequenciesByClass(NamedTuple):
    """How often each of m categories occurs in each of c classes.

    Attributes:
        logs: Logarithms of the probabilities of a category given the class, [m, c].
        errors: Their standard errors, [m, c].
        overall: Probability of each category, [m].
    """

    logs: Tensor
    errors: Tensor
    overall: Tensor

    def draw_log_likelihood_ratios(self) -> Tensor:
        """Draw evidence [s, m, c]: log probabilities less those of the category."""
        m, c = self.logs.shape
        quantiles = compute_normal_quantiles(SAMPLES)
        places = torch.arange(m * c)
        order = torch.arange(SAMPLES)[:, None] * (2 * places + 1) + places
        normals = quantiles[order % SAMPLES].view(SAMPLES, m, c)
        logs = self.logs + self.errors * normals
        return logs - logs.logsumexp(1, keepdim=True) - self.overall.log()[:, None]


def estimate_category_frequencies_by_class(
    stable_outputs: Tensor, members: Tensor
) -> CategoryFrequenciesByClass:
    """Estimate the table of a categorical feature by EM.

    The class frequencies are those of the stable model. A few rows of each class in
    which the category means nothing are added.

    Args:
        stable_outputs: Probabilities of the classes by the stable model, [n, c].
        members: Zeros and ones of each category, [n, m]; rows of no category do not
            count.
    """
    known = members.sum(1) > 0
    stable_outputs, members = stable_outputs[known], members[known]
    overall = (members.sum(0) + 0.5) / (members.sum() + 0.5 * members.shape[1])
    added = PSEUDO_ROWS * overall[:, None]
    # The start: E[members | inputs] is linear in the probabilities of the classes.
    gram = stable_outputs.T @ stable_outputs + torch.eye(
        stable_outputs.shape[1], dtype=stable_outputs.dtype
    )
    pull = stable_outputs.T @ members + overall
    start = torch.linalg.solve(gram, pull).T.clamp(min=1e-3)
    table = start / start.sum(0)
    counts = table
    shares = stable_outputs
    for _ in range(EM_STEPS):
        shares = stable_outputs * (members @ table)
        shares = shares / shares.sum(1, keepdim=True)
        counts = members.T @ shares + added
        new = counts / counts.sum(0)
        change = float((new - table).abs().max())
        table = new
        if change < 1e-5:
            break
    # Rows whose class stays uncertain inform less.
    doubt = (shares * (1 - shares)).mean(0)
    whole = (shares.mean(0) * (1 - shares.mean(0))).clamp(min=1e-6)
    informed = (1 - doubt / whole).clamp(0.02, 1.0)
    errors = ((1 - table) / (counts * informed)).sqrt()
    return CategoryFrequenciesByClass(table.log(), errors, overall)
