"""Predictors of the columns engine for an environment of which nothing is known.

A new environment has an intercept of its own. It is drawn around the common intercept,
with the spread by which environments differed from it on their arrival.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_glm import (
    CoefficientPosterior,
    compute_class_probabilities,
)
from cirm.learners.steady.columns_state import (
    SAMPLES,
    CoefficientSamples,
    ScoresBeforeTraining,
)
from cirm.randomness import compute_normal_quantiles

USUAL_SPREAD = 0.3  # between intercepts; counts as much as one more environment
SLOPE_SPREAD = 0.3  # between environments, of the factor of outputs that suits them
SLOPE_STEPS = 10  # of Newton's method for one number, at most
SLOPE_ERROR = 1e-3  # far below its sampling error
WIDEST_SPREAD = 1.0  # of log odds: a larger shift is not one of the base rate alone


def fit_logit_shifts_to_frequencies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the shifts [k] of logits [n, k] after which classes are as frequent."""
    frequency = (targets.sum(0) + 0.5) / (len(targets) + 1)
    shift = torch.zeros_like(frequency)
    for _ in range(30):
        if len(shift) == 1:
            here = (outputs + shift).sigmoid().mean(0).clamp(1e-9, 1 - 1e-9)
            step = frequency.logit() - here.logit()
        else:
            here = (outputs + shift).softmax(-1).mean(0).clamp(min=1e-9)
            step = frequency.log() - here.log()
            step = step - step.mean()
        shift = shift + step
        if float(step.abs().max()) < 1e-6:
            break
    return shift


def draw_coefficients(
    posterior: CoefficientPosterior, is_used: Tensor, normal_draws: Tensor
) -> Tensor:
    """Draw coefficients [2 m, k, p] of basis functions used [p], in opposite pairs.

    The normal numbers are [m, k, p].
    """
    k, p = posterior.mean.shape
    index = is_used.nonzero()[:, 0]
    coefficients = torch.zeros(2 * len(normal_draws), k, p, dtype=torch.float64)
    for output in range(k):
        precision = posterior.precision[output][index[:, None], index]
        factor = torch.linalg.cholesky(precision)
        own = normal_draws[:, output, index].T
        steps = torch.linalg.solve_triangular(factor.T, own, upper=True).T
        steps = torch.cat([steps, -steps])
        coefficients[:, output, index] = posterior.mean[output, index] + steps
    return coefficients


def measure_intercept_spread(arrivals: ScoresBeforeTraining, noise: float) -> Tensor:
    """Return by how much intercepts differ between environments, [k].

    Args:
        arrivals: How environments differed from what was known before.
        noise: Noise variance of a regression; 0 for classes.
    """
    spread = compute_spread_beyond_noise(
        arrivals.shifts, arrivals.shift_variances, noise if noise > 0 else 1.0
    )
    return spread if noise > 0 else spread.clamp(max=WIDEST_SPREAD)


def compute_spread_beyond_noise(
    shifts: Tensor, variances: Tensor, unit: float = 1.0
) -> Tensor:
    """Return the spread [k] of shifts [a, k], less what their sampling variances make.

    One more shift of the usual size is assumed, in units of the variance `unit`.
    """
    excess = (shifts.square() - variances).clamp(min=0)
    usual = USUAL_SPREAD**2 * unit
    return ((excess.sum(0) + usual) / (len(excess) + 1)).sqrt()


def fit_calibration_slope(
    outputs: Tensor, targets: Tensor, is_regression: bool
) -> tuple[Tensor, Tensor]:
    """Fit the factor of outputs [n, k] that suits the targets [n, k] best.

    The intercepts are free. A factor below one means that the outputs of the rows
    differ too much: predictions are too extreme, or too sure.

    Returns:
        The factor and its sampling variance, [] each.
    """
    if is_regression:
        centred, aims = outputs - outputs.mean(0), targets - targets.mean(0)
        information = centred.square().sum().clamp(min=1e-9)
        slope = (aims * centred).sum() / information
        errors = (aims - slope * centred) * centred
        return slope, errors.square().sum() / information.square() + 1e-9
    slope = outputs.new_ones(())
    for _ in range(SLOPE_STEPS):
        shifted = slope * outputs
        means = compute_class_probabilities(
            shifted + fit_logit_shifts_to_frequencies(shifted, targets)
        )
        weights = means * (1 - means)
        centred = outputs - (weights * outputs).sum(0) / weights.sum(0).clamp(min=1e-9)
        information = (weights * centred.square()).sum().clamp(min=1e-9)
        errors = (targets - means) * centred
        step = (errors.sum() / information).clamp(-1, 1)
        slope = slope + step
        if float(step.abs()) < SLOPE_ERROR:
            break
    return slope, errors.square().sum() / information.square() + 1e-9


def predict_calibration_slope(arrivals: ScoresBeforeTraining) -> Tensor:
    """Return the factor of outputs for a new environment, from 0 to 1, [].

    It is the mean over arrivals and one more environment in which it is one. The
    factors differ between environments; those that are known poorly count for less.
    """
    usual = SLOPE_SPREAD**2
    weights = usual / (usual + arrivals.slope_variances)
    mean = (1 + (weights * arrivals.slopes).sum()) / (1 + weights.sum())
    return mean.clamp(0, 1)


def draw_intercept_differences(spread: Tensor) -> Tensor:
    """Draw by how much the intercept of a new environment differs, [s, k]."""
    # An order in which the intercepts do not follow the coefficients.
    quantiles = compute_normal_quantiles(SAMPLES)[torch.arange(SAMPLES) * 5 % SAMPLES]
    rolled = [quantiles.roll(3 * i) for i in range(len(spread))]
    return spread * torch.stack(rolled, 1)


def compute_outputs_of_predictor(
    predictor: CoefficientSamples, basis: Tensor
) -> Tensor:
    """Return outputs [s, n, k] of a basis [n, p]."""
    s, k, p = predictor.coefficients.shape
    coefficients, levels = (part.to(basis.dtype) for part in predictor)
    flat = basis @ coefficients.reshape(s * k, p).T
    return flat.unflatten(1, (s, k)).movedim(0, 1) + levels[:, None]
