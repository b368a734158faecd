"""How frequent the classes are in a new environment, from unlabelled rows.

If the classes look alike everywhere and only their frequencies differ, the density of
the inputs of a new environment is a mixture whose weights are the frequencies (Saerens,
Latinne and Decaestecker 2002). Their prior is the spread of the intercepts on arrival.
Other changes of the inputs look the same, which is why this must have been earned.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_predict import normal_quantiles
from cirm.learners.steady.columns_state import SAMPLES

STEPS = 50  # of Newton's method; a concave function of few numbers needs about eight


class Levels(NamedTuple):
    """By how much the intercepts of an environment differ from the common ones.

    Attributes:
        mean: Posterior mean, [k].
        samples: Samples of the posterior, [s, k].
    """

    mean: Tensor
    samples: Tensor


def estimate_levels(logits: Tensor, frequencies: Tensor, spread: Tensor) -> Levels:
    """Estimate the intercepts of an environment from logits of its rows.

    With weights w(y) = exp(level(y)) the density of a row is proportional to
    sum f(y | x) w(y) / sum pi(y) w(y). Its maximum is that of EM; the posterior is
    Laplace's approximation.

    Args:
        logits: Logits of the rows at the common intercepts, [n, k].
        frequencies: Class frequencies that the intercepts belong to, [c].
        spread: Standard deviation of the levels between environments, [k].
    """
    k, c = logits.shape[1], len(frequencies)
    soft = _predict(logits)
    level = torch.zeros(k, dtype=logits.dtype)
    precision = torch.diag(1 / spread.square())
    hessian = precision
    for _ in range(STEPS):
        shares = soft * _widen(level, c).exp()
        shares = shares / shares.sum(1, keepdim=True)
        base = frequencies * _widen(level, c).exp()
        base = base / base.sum()
        slope = (shares - base).sum(0)[c - k :] - precision @ level
        # EM's curvature is a bound of the true one, so that each step is an ascent.
        bound = len(soft) * (torch.diag(base) - torch.outer(base, base))
        fitted = shares.T @ shares - torch.diag(shares.sum(0))
        hessian = (bound + fitted)[c - k :, c - k :] + precision
        bound = bound[c - k :, c - k :] + precision
        step = torch.linalg.solve(bound, slope)
        level = level + step
        if float(step.abs().max()) < 1e-6:
            break
    values, vectors = torch.linalg.eigh(hessian)
    root = vectors / values.clamp(min=float(precision.diagonal().min())).sqrt()
    quantiles = normal_quantiles(SAMPLES)
    normals = torch.stack([quantiles.roll(3 * i) for i in range(k)], 1)
    return Levels(level, level + normals @ root.T)


def predict_frequencies(levels: Tensor, frequencies: Tensor) -> Tensor:
    """Return the class frequencies [c] of an environment with levels [k]."""
    weights = frequencies * _widen(levels, len(frequencies)).exp()
    return weights / weights.sum()


def _predict(logits: Tensor) -> Tensor:
    """Return probabilities [n, c] of logits [n, k]; one is that of the second class."""
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits.softmax(1)


def _widen(levels: Tensor, c: int) -> Tensor:
    """Return one level for each of c classes."""
    return torch.cat([levels.new_zeros(c - len(levels)), levels])
