"""Estimate what an unstable number means among unlabelled rows of a regression.

If u = a y + b + noise, then E[u | s] = a f(s) + b, so that the regression of u on the
stable prediction f shows a. Both sources are then combined by their precisions. All
functions treat one replica; an effect is (a, b, variance of the noise).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import StudentT

from cirm.learners.steady.directions_adapt import FEWEST_ROWS, WORST_LEAK
from cirm.learners.steady.directions_state import (
    DirectionsAdaptation,
    SteadyNetworkState,
)
from cirm.learners.steady.meta_analysis import combine_effects_of_environments

DRAWS = 32  # quantiles of the posterior, as many as draws of tables of classes
STEPS = (1, 11, 13, 19)  # orders of the quantiles of each number: unrelated, since odd
GRID = 401  # slopes of the posterior, a twenty-fifth of a standard error apart
WIDTH = 8.0  # standard errors to both sides of the estimate
NEW = 0.2  # prior probability of a place unlike those seen, as with columns
INTERVAL = 0.025, 0.975
LEAST_NOISE = 0.02  # of the variance of u given s, so that no row decides alone
LEAST_CORRELATION = 0.1  # of stable predictions with targets, as with columns
LEAST_GAIN = 1.0  # of the log likelihood for each number: Akaike's criterion
IMPOSSIBLE = 3.0  # standard errors of a slope that u varies too little for


class PriorOfSlope(NamedTuple):
    """Student's distribution of a slope at a new place."""

    centre: float
    spread: float
    degrees_of_freedom: float


class SlopeEstimate(NamedTuple):
    """A posterior of the slope of a number, from rows without labels.

    `draws` [DRAWS, 3] are effects at its quantiles, `slope` and `error` the estimate by
    least squares, `limit` the largest slope that the variance of the number allows, and
    `gain` the log likelihood that the slope gains.
    """

    draws: Tensor
    slope: float
    error: float
    limit: float
    gain: float


def estimate_slope_without_labels(
    predictions: Tensor, numbers: Tensor, variance: float, prior: PriorOfSlope
) -> SlopeEstimate:
    """Return the posterior of a slope from stable predictions [n] and numbers [n].

    `variance` is that of the target given the stable features.
    """
    f, u = predictions.double(), numbers.double()
    n = len(f)
    centred, rest = f - f.mean(), u - u.mean()
    information = float(centred.square().sum())
    slope = float((centred * rest).sum()) / max(information, 1e-12)
    left = float((rest - slope * centred).square().sum()) / max(1, n - 2)
    left = max(left, 1e-12)
    error = (left / max(information, 1e-12)) ** 0.5
    limit = ((1 - LEAST_NOISE) * left / max(variance, 1e-12)) ** 0.5
    low, high = (
        min(max(slope + side * WIDTH * error, -limit), limit) for side in (-1, 1)
    )
    grid = torch.linspace(low, high, GRID, dtype=torch.float64)
    seen = StudentT(prior.degrees_of_freedom, prior.centre, max(prior.spread, 1e-9))
    density = (1 - NEW) * seen.log_prob(grid).exp() + NEW / (2 * limit)
    log_mass = density.log() - ((grid - slope) / error).square() / 2
    shares = log_mass.softmax(0).cumsum(0)
    levels = (torch.arange(DRAWS).double() + 0.5) / DRAWS
    drawn = grid[torch.searchsorted(shares, levels).clamp(max=GRID - 1)]
    levels_of_u = u.mean() - drawn * f.mean()
    noise = left - drawn.square() * variance
    total = float(rest.square().mean().clamp(min=1e-12))
    fitted = max(float((rest - slope * centred).square().mean()), 1e-12)
    gain = n / 2 * math.log(total / fitted)
    return SlopeEstimate(
        torch.stack([drawn, levels_of_u, noise], 1), slope, error, limit, gain
    )


def combine_predictions_with_numbers(
    predictions: Tensor, numbers: Tensor, effects: Tensor, variance: float
) -> tuple[Tensor, Tensor]:
    """Return means [draw, n] and variances [draw] of targets given numbers [number, n].

    `effects` are [draw, number, 3], and `variance` is that of targets given the stable
    predictions [n]. A number without a slope says nothing.
    """
    slope, level, noise = effects.double().unbind(-1)
    weights = slope / noise.clamp(min=1e-9)
    precision = 1 / variance + (slope * weights).sum(1)
    surprise = numbers.double() - level[..., None] - slope[..., None] * predictions
    moved = (weights[..., None] * surprise).sum(1) / precision[:, None]
    return predictions + moved, 1 / precision


def estimate_adaptation_of_regression(
    state: SteadyNetworkState, predictions: Tensor, numbers: Tensor, trust: str
) -> DirectionsAdaptation:
    """Return what unlabelled rows with stable predictions [n] and numbers tell."""
    kept, found = state.adaptation, len(numbers)
    variance = float(state.numbers.stable[3])
    draws = torch.zeros(DRAWS, *kept.draws.shape[1:]).to(kept.draws)
    table, error = torch.zeros_like(kept.tables), torch.zeros_like(kept.error)
    refused, gain = _find_reason_not_to_adapt_regression(state, predictions, found), 0.0
    if not refused:
        estimates = estimate_slopes_of_numbers(state, predictions, numbers, trust)
        gain = sum(one.gain for one in estimates)
        if any(
            abs(one.slope) - IMPOSSIBLE * one.error > one.limit for one in estimates
        ):
            refused = 7
        elif gain < LEAST_GAIN * found:
            refused = 6
        else:
            effects = stack_draws_of_numbers(estimates)
            draws[:, :found] = effects.to(draws)
            slopes = effects[..., 0]
            ends = [slopes.mean(0), *(slopes.quantile(q, 0) for q in INTERVAL)]
            table[:found] = torch.stack(ends, 1).to(table)
            means, variances = combine_predictions_with_numbers(
                predictions, numbers, effects, variance
            )
            left = float(variances.mean() + means.var(0).mean()) / variance
            error[0] = math.log(min(1.0, left)) / 2
    notes = torch.tensor([float(len(predictions)), float(refused), 0.0, gain])
    return DirectionsAdaptation(draws, table, error, notes)


def estimate_slopes_of_numbers(
    state: SteadyNetworkState, predictions: Tensor, numbers: Tensor, trust: str
) -> list[SlopeEstimate]:
    """Return the posterior of each number, with the places seen as its prior."""
    variance = float(state.numbers.stable[3])
    return [
        estimate_slope_without_labels(
            predictions, own, variance, compute_prior_of_slope(state, j, trust)
        )
        for j, own in enumerate(numbers)
    ]


def stack_draws_of_numbers(estimates: list[SlopeEstimate]) -> Tensor:
    """Return draws [draw, number, 3], the quantiles of numbers in unrelated orders."""
    turns = torch.arange(DRAWS)
    return torch.stack(
        [
            one.draws[turns * step % DRAWS]
            for one, step in zip(estimates, STEPS, strict=False)
        ],
        1,
    )


def compute_prior_of_slope(
    state: SteadyNetworkState, number: int, trust: str
) -> PriorOfSlope:
    """Return what the places seen suggest for the slope of a number at a new one.

    As with columns it is centred at zero if nothing is trusted, and as wide.
    """
    effects = state.numbers.effects[: int(state.places), number].double()
    effects = effects[effects[:, 1] > 0]
    if not len(effects):
        return PriorOfSlope(0.0, 1.0, 1.0)
    summary = combine_effects_of_environments(effects[:, 0], effects[:, 1])
    mean, spread = float(summary.mean), float(summary.prediction_error)
    degrees = float(summary.degrees_of_freedom)
    if trust == "invariant":
        return PriorOfSlope(0.0, math.hypot(mean, spread), degrees)
    return PriorOfSlope(mean, spread, degrees)


def choose_effects_for_prediction(state: SteadyNetworkState, trust: str) -> Tensor:
    """Return effects [draw, number, 3] to predict with, of one replica.

    Those of an adaptation, else by trust: none, or the mean over environments.
    """
    found, places = int(state.found), int(state.places)
    draws = state.adaptation.draws[:, :found].double()
    if trust == "invariant" or not found or draws.any():
        return draws
    mean = torch.zeros_like(draws)
    for j in range(found):
        effects = state.numbers.effects[:places, j].double()
        effects = effects[effects[:, 1] > 0]  # an earlier version kept none
        if not len(effects):
            continue
        summary = combine_effects_of_environments(effects[:, 0], effects[:, 1])
        low, high = summary.compute_prediction_interval()
        if trust == "average" or bool(low > 0) or bool(high < 0):
            level, noise = effects[:, 2:].mean(0)
            spread = noise + float(state.numbers.stable[3]) * effects[:, 0].var(
                correction=0
            )
            mean[:, j] = torch.stack([summary.mean, level, spread])
    return mean


def measure_gain_of_adapting_regression(
    state: SteadyNetworkState,
    predictions: Tensor,
    numbers: Tensor,
    targets: Tensor,
    trust: str,
) -> Tensor:
    """Return rows and squared errors, stable and adapted as if there were no labels."""
    if not len(numbers):
        return torch.zeros(3)
    estimates = estimate_slopes_of_numbers(state, predictions, numbers, trust)
    means, _ = combine_predictions_with_numbers(
        predictions,
        numbers,
        stack_draws_of_numbers(estimates),
        float(state.numbers.stable[3]),
    )
    errors = [
        float((p - targets).square().mean()) for p in (predictions, means.mean(0))
    ]
    return torch.tensor([float(len(targets)), *errors])


def _find_reason_not_to_adapt_regression(
    state: SteadyNetworkState, predictions: Tensor, n_numbers: int
) -> int:
    """Return the code of the reason not to adapt, or 0."""
    if not n_numbers:
        return 1
    if len(predictions) < FEWEST_ROWS:
        return 2
    if float(state.numbers.stable[4]) < LEAST_CORRELATION:
        return 3
    if 2 * float(state.leak[1]) > WORST_LEAK or bool(state.unexplained):
        return 4
    rows, before, after = state.gains.double().unbind(-1)
    return 5 if float((rows * (before - after)).sum()) < 0 else 0
