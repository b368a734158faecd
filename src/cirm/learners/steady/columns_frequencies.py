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
STEPS = 100  # of Newton's method, which mostly needs fewer than ten
HALVINGS = 30  # of a step; below a billionth of it nothing is gained


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

    def measure_log_posterior(shift: Tensor) -> float:
        weights = _prepend_zero_shift_of_first_class(shift, c)
        rows = (soft.log() + weights).logsumexp(1).sum()
        usual = (frequencies.log() + weights).logsumexp(0)
        return float(rows - len(soft) * usual - 0.5 * shift @ precision @ shift)

    hessian, reached = precision, measure_log_posterior(shift)
    for _ in range(STEPS):
        weights = _prepend_zero_shift_of_first_class(shift, c)
        shares = (soft.log() + weights).softmax(1)
        base = (frequencies.log() + weights).softmax(0)
        slope = (shares - base).sum(0)[c - k :] - precision @ shift
        bound = len(soft) * (torch.diag(base) - torch.outer(base, base))
        fitted = shares.T @ shares - torch.diag(shares.sum(0))
        hessian = (bound + fitted)[c - k :, c - k :] + precision
        # Far from the maximum the curvature may have the wrong sign; EM's never has.
        factor, is_indefinite = torch.linalg.cholesky_ex(hessian)
        if bool(is_indefinite):
            factor = torch.linalg.cholesky(bound[c - k :, c - k :] + precision)
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        for _ in range(HALVINGS):
            if (value := measure_log_posterior(shift + step)) > reached:
                break
            step = step / 2
        else:
            break
        shift, reached = shift + step, value
        if float(step.abs().max()) < 1e-6:
            break
    values, vectors = torch.linalg.eigh(hessian)
    root = vectors / values.clamp(min=float(precision.diagonal().min())).sqrt()
    quantiles = compute_normal_quantiles(SAMPLES)
    normals = torch.stack([quantiles.roll(3 * i) for i in range(k)], 1)
    return ClassInterceptShifts(shift, shift + normals @ root.T)


def fit_intercept_shifts_to_labels(
    logits: Tensor, targets: Tensor, intercept_spread: Tensor
) -> Tensor:
    """Return the shifts [k] of intercepts that labelled rows show, with a normal prior.

    The prior keeps the shift finite where all rows have one class.

    Args:
        logits: Logits of the rows at the common intercepts, [n, k].
        targets: Their classes, one-hot, [n, c].
        intercept_spread: Standard deviation of the shifts between environments, [k].
    """
    k, c = logits.shape[1], targets.shape[1]
    precision = torch.diag(1 / intercept_spread.square())
    shift = torch.zeros(k, dtype=logits.dtype)
    for _ in range(STEPS):
        soft = _convert_logits_to_probabilities(logits + shift)
        slope = (targets - soft).sum(0)[c - k :] - precision @ shift
        curvature = torch.diag(soft.sum(0)) - soft.T @ soft
        step = torch.linalg.solve(curvature[c - k :, c - k :] + precision, slope)
        shift = shift + step.clamp(-1, 1)
        if float(step.abs().max()) < 1e-6:
            break
    return shift


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
