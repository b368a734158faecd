"""How frequent the classes are in a new environment, from unlabelled rows.

If the classes look alike everywhere and only their frequencies differ, the density of
the inputs of a new environment is a mixture whose weights are the frequencies (Saerens,
Latinne and Decaestecker 2002). Their prior is the spread of the intercepts on arrival.
Other changes of the inputs look the same, which is why this must have been earned, and
why the estimate is trusted only as far as the labels confirmed it on arrival.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_state import SAMPLES
from cirm.randomness import compute_normal_quantiles

WITHIN = 1.96  # standard deviations, of 95 % of a normal distribution
STEPS = 50  # of Newton's method; a concave function of few numbers needs about eight


class ClassInterceptShifts(NamedTuple):
    """By how much the intercepts of an environment differ from the common ones.

    Attributes:
        mean: Posterior mean, [k].
        samples: Samples of the posterior, [s, k].
    """

    mean: Tensor
    samples: Tensor


def estimate_intercept_shifts(
    logits: Tensor, frequencies: Tensor, intercept_spread: Tensor
) -> ClassInterceptShifts:
    """Estimate the intercepts of an environment from logits of its rows.

    With weights w(y) = exp(shift(y)) the density of a row is proportional to
    sum f(y | x) w(y) / sum pi(y) w(y). Its maximum is that of EM; the posterior is
    Laplace's approximation.

    Args:
        logits: Logits of the rows at the common intercepts, [n, k].
        frequencies: Class frequencies that the intercepts belong to, [c].
        intercept_spread: Standard deviation of the shifts between environments, [k].
    """
    k, c = logits.shape[1], len(frequencies)
    soft = _convert_logits_to_probabilities(logits)
    shift = torch.zeros(k, dtype=logits.dtype)
    precision = torch.diag(1 / intercept_spread.square())
    hessian = precision
    for _ in range(STEPS):
        shares = soft * _prepend_zero_shift_of_first_class(shift, c).exp()
        shares = shares / shares.sum(1, keepdim=True)
        base = frequencies * _prepend_zero_shift_of_first_class(shift, c).exp()
        base = base / base.sum()
        slope = (shares - base).sum(0)[c - k :] - precision @ shift
        # EM's curvature is a bound of the true one, so that each step is an ascent.
        bound = len(soft) * (torch.diag(base) - torch.outer(base, base))
        fitted = shares.T @ shares - torch.diag(shares.sum(0))
        hessian = (bound + fitted)[c - k :, c - k :] + precision
        bound = bound[c - k :, c - k :] + precision
        step = torch.linalg.solve(bound, slope)
        shift = shift + step
        if float(step.abs().max()) < 1e-6:
            break
    values, vectors = torch.linalg.eigh(hessian)
    root = vectors / values.clamp(min=float(precision.diagonal().min())).sqrt()
    quantiles = compute_normal_quantiles(SAMPLES)
    normals = torch.stack([quantiles.roll(3 * i) for i in range(k)], 1)
    return ClassInterceptShifts(shift, shift + normals @ root.T)


def estimate_confirmed_intercept_shifts(
    logits: Tensor, frequencies: Tensor, intercept_spread: Tensor, miss_spread: Tensor
) -> ClassInterceptShifts:
    """Estimate the intercepts from rows that show them with an error.

    What the rows show is the shift plus an error, which has the spread [k] that it had
    on arrival. Given their sum, the shift has a normal distribution, too. Its mean is
    kept within the 95 % interval of the shifts between environments.
    """
    total = intercept_spread.square() + miss_spread.square()
    shown = estimate_intercept_shifts(logits, frequencies, total.sqrt())
    share = intercept_spread.square() / total
    limit = WITHIN * intercept_spread
    mean = (share * shown.mean).clamp(-limit, limit)
    differences = shown.samples - shown.mean
    variance = differences.square().mean(0).clamp(min=1e-12)
    remaining = share * miss_spread.square() + share.square() * variance
    return ClassInterceptShifts(
        mean, mean + differences * (remaining / variance).sqrt()
    )


def compute_shifted_class_frequencies(shifts: Tensor, frequencies: Tensor) -> Tensor:
    """Return the class frequencies [c] of an environment with shifts [k]."""
    weights = (
        frequencies * _prepend_zero_shift_of_first_class(shifts, len(frequencies)).exp()
    )
    return weights / weights.sum()


def _convert_logits_to_probabilities(logits: Tensor) -> Tensor:
    """Return probabilities [n, c] of logits [n, k]; one is that of the second class."""
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits.softmax(1)


def _prepend_zero_shift_of_first_class(shifts: Tensor, n_classes: int) -> Tensor:
    """Return one shift for each of c classes; that of the first may be left out."""
    return torch.cat([shifts.new_zeros(n_classes - len(shifts)), shifts])
