"""Predictors of the columns engine for an environment of which nothing is known.

A new environment has an intercept of its own. It is drawn from the distribution of the
intercepts of the environments seen, not taken from the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_glm import Posterior
from cirm.learners.steady.columns_state import SAMPLES, Places, Predictor
from cirm.learners.steady.meta_analysis import combine_effects
from cirm.randomness import Randomness

USUAL_SPREAD = 0.3  # between intercepts; counts as much as one more environment
NODES = 128  # points of the integral over logits


def normal_quantiles(count: int) -> Tensor:
    """Return the normal quantiles at evenly spaced probabilities, [count]."""
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    values = torch.special.ndtri(levels)
    return values / values.square().mean().sqrt()


def find_levels(
    mean: Tensor, places: Places, covariance: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Return the intercepts [e, k] of coefficients [k, p] in each environment.

    With an intercept the mean prediction is the mean target there. For classes, logits
    are taken for normal around those of the mean input.

    Args:
        mean: The coefficients.
        places: Summaries of the environments.
        covariance: Covariance of the basis within environments, [p, p].
        noise: Noise variance of a regression; 0 for classes.

    Returns:
        The intercepts and their sampling variances.
    """
    centres = places.inputs @ mean.T
    rows = places.rows[:, None]
    if noise > 0:
        return places.targets - centres, (noise / rows).expand_as(centres)
    k, c = len(mean), places.targets.shape[1]
    frequency = (places.targets * rows + 0.5) / (rows + 0.5 * c)
    spread = mean @ covariance @ mean.T
    if k == 1:
        shifts = normal_quantiles(NODES)[:, None] * spread.clamp(min=0).sqrt()
        frequency = frequency[:, 1:]
        levels = frequency.logit() - centres
        for _ in range(30):
            here = (centres + levels + shifts[:, None]).sigmoid().mean(0)
            levels = levels + frequency.logit() - here.logit()
    else:
        draws = Randomness((0,), ("levels",)).start_draws().normal(NODES, k)[0].double()
        values, vectors = torch.linalg.eigh(spread)
        shifts = draws @ (vectors * values.clamp(min=0).sqrt()).T
        levels = frequency.log() - centres
        for _ in range(30):
            here = (centres + levels + shifts[:, None]).softmax(-1).mean(0)
            levels = levels + frequency.log() - here.clamp(min=1e-12).log()
        levels = levels - levels.mean(1, keepdim=True)
    return levels, 1 / (rows * frequency * (1 - frequency))


def draw_predictor(
    posterior: Posterior,
    used: Tensor,
    places: Places,
    covariance: Tensor,
    noise: float,
    normals: Tensor,
) -> Predictor:
    """Draw samples of coefficients and of the intercept of a new environment.

    Args:
        posterior: The posterior of the coefficients.
        used: Which basis functions the model uses, [p].
        places: Summaries of the environments.
        covariance: Covariance of the basis within environments, [p, p].
        noise: Noise variance of a regression; 0 for classes.
        normals: Standard normal numbers, [SAMPLES / 2, k, p].
    """
    k, p = posterior.mean.shape
    index = used.nonzero()[:, 0]
    coefficients = torch.zeros(SAMPLES, k, p, dtype=torch.float64)
    for output in range(k):
        precision = posterior.precision[output][index[:, None], index]
        factor = torch.linalg.cholesky(precision)
        steps = torch.linalg.solve_triangular(
            factor.T, normals[:, output, index].T, upper=True
        ).T
        steps = torch.cat([steps, -steps])
        coefficients[:, output, index] = posterior.mean[output, index] + steps
    levels, variances = find_levels(posterior.mean, places, covariance, noise)
    summary = combine_effects(levels, variances)
    count = len(levels)
    usual = USUAL_SPREAD**2 * (noise if noise > 0 else 1.0)
    spread = ((count - 1) * summary.spread.square() + usual) / count
    scale = (spread + summary.error.square()).sqrt()
    # Each half has symmetric levels, so that they do not follow the coefficients.
    order = torch.arange(SAMPLES) * 5 % SAMPLES
    quantiles = normal_quantiles(SAMPLES)[order]
    rolled = torch.stack([quantiles.roll(3 * i) for i in range(k)], 1)
    return Predictor(coefficients, summary.mean + scale * rolled)


def apply_predictor(predictor: Predictor, basis: Tensor) -> Tensor:
    """Return outputs [s, n, k] of a basis [n, p]."""
    s, k, p = predictor.coefficients.shape
    flat = basis @ predictor.coefficients.reshape(s * k, p).T
    return flat.unflatten(1, (s, k)).movedim(0, 1) + predictor.levels[:, None]
