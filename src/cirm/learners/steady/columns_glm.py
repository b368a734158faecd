"""Generalised linear models whose posterior is the prior of the next environment.

The intercept is one of the coefficients; how far that of an environment deviates from
it is not part of the posterior (see `columns_predict`). For classes the posterior is
Laplace's approximation; with more than two classes the information is kept per class,
times k / (k - 1), which is exact for two classes and for equal probabilities. For
regression it is computed from moments, without loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import ROWS_AT_ONCE

STEPS = 40  # of Newton's method; two classes need about six
TOLERANCE = 1e-5  # gain in log likelihood at which Newton's method stops
CURVATURE_ROWS = 5_000  # at most so many rows give the curvature of a step
RIDGE_ROWS = 4_000  # rows that decide the ridge: it is a variance of p coefficients
RIDGE_ROUNDS = 12
ROUNDING = 1e-10  # of a sum of squares, far below the error of any real column


class CoefficientPosterior(NamedTuple):
    """Mean [k, p] and precision [k, p, p] of the coefficients of k outputs."""

    mean: Tensor
    precision: Tensor


def fit_classifier(
    basis: Tensor,
    targets: Tensor,
    prior: CoefficientPosterior,
    initial_coefficients: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fit the coefficients to one environment by Newton's method.

    Args:
        basis: Basis functions, [n, p].
        targets: One column of zeros and ones per output, [n, k]: one for two classes.
        prior: What is known of the coefficients.
        initial_coefficients: Coefficients to start from, [k, p]; by default those of
            the prior.

    Returns:
        The coefficients [k, p], and the information [k, p, p] of the rows.
    """
    # The steps need not be exact, so that some of the rows give the curvature.
    part = slice(None, None, -(-len(basis) // CURVATURE_ROWS))
    factor = len(basis) / len(basis[part])
    mean = prior.mean if initial_coefficients is None else initial_coefficients
    logits = basis @ mean.T
    value = _compute_log_posterior(logits, targets, mean, prior)
    for _ in range(STEPS):
        errors = targets - compute_class_probabilities(logits)
        change = (prior.precision @ (mean - prior.mean)[..., None]).squeeze(-1)
        information = _compute_information_matrix(basis[part], logits[part])
        hessian = factor * information + prior.precision
        step = torch.linalg.solve(hessian, errors.T @ basis - change)
        size, gain, new, new_logits = 1.0, -1.0, mean, logits
        while gain < 0 and size > 1e-3:
            new = mean + size * step
            new_logits = basis @ new.T
            new_value = _compute_log_posterior(new_logits, targets, new, prior)
            gain = float(new_value - value)
            size /= 2
        if gain < 0:
            break
        mean, value, logits = new, value + gain, new_logits
        if gain < TOLERANCE:
            break
    return mean, _compute_information_matrix(basis, logits)


def compute_class_probabilities(logits: Tensor) -> Tensor:
    """Return probabilities of logits [n, k]; one logit is that of the second class."""
    return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)


def _compute_log_posterior(
    logits: Tensor, targets: Tensor, mean: Tensor, prior: CoefficientPosterior
) -> Tensor:
    if logits.shape[1] == 1:
        normaliser = torch.logaddexp(torch.zeros_like(logits), logits).sum()
    else:
        normaliser = logits.logsumexp(1).sum()
    change = mean - prior.mean
    penalty = (change * (prior.precision @ change[..., None]).squeeze(-1)).sum()
    return (targets * logits).sum() - normaliser - 0.5 * penalty


def _compute_information_matrix(basis: Tensor, logits: Tensor) -> Tensor:
    """Return the information of rows [n, p] about coefficients, [k, p, p]."""
    k, p = logits.shape[1], basis.shape[1]
    information = basis.new_zeros(k, p, p)
    parts = zip(basis.split(ROWS_AT_ONCE), logits.split(ROWS_AT_ONCE), strict=True)
    for rows, own_logits in parts:
        probabilities = compute_class_probabilities(own_logits)
        weights = (probabilities * (1 - probabilities)).T.clamp(min=1e-8)
        for own, weight in zip(information, weights, strict=True):
            # NumPy computes one half of a product that is symmetric.
            scaled = (rows * weight.sqrt()[:, None]).numpy()
            own += torch.from_numpy(scaled.T @ scaled)
    return information * (k / (k - 1) if k > 1 else 1.0)


def choose_ridge_penalties(
    basis: Tensor, targets: Tensor, group_of_coefficient: Tensor
) -> Tensor:
    """Choose the ridge [p] of each group [p] of coefficients by empirical Bayes.

    MacKay's fixed point: the precision of a group is its number of well-determined
    coefficients over their sum of squares. One coefficient of size one is added as
    prior knowledge, so that neither can vanish.
    """
    stride = -(-len(basis) // RIDGE_ROWS)
    basis, targets = basis[::stride], targets[::stride]
    k, p = targets.shape[1], basis.shape[1]
    ridge = torch.ones(p, dtype=basis.dtype)
    mean = zero = torch.zeros(k, p, dtype=basis.dtype)
    for _ in range(RIDGE_ROUNDS):
        prior = CoefficientPosterior(zero, torch.diag(ridge).expand(k, p, p))
        mean, information = fit_classifier(basis, targets, prior, mean)
        variances = torch.linalg.inv(information + prior.precision)
        new = _update_ridge_penalties(ridge, mean, variances, group_of_coefficient)
        done = bool(((new / ridge).log().abs() < 0.1).all())
        ridge = new
        if done:
            break
    return ridge


def _update_ridge_penalties(
    ridge: Tensor, mean: Tensor, variances: Tensor, group_of_coefficient: Tensor
) -> Tensor:
    left = variances.diagonal(dim1=-2, dim2=-1).mean(0)
    size = mean.square().mean(0)
    for group in group_of_coefficient.unique():
        own = group_of_coefficient == group
        determined = float((1 - ridge[own] * left[own]).clamp(min=0).sum())
        value = (determined + 1) / (float(size[own].sum()) + 1)
        ridge = torch.where(own, value, ridge)
    return ridge.clamp(max=1e6)


def fit_regression_to_moments(
    moments: Tensor, used_columns: Tensor, group_of_coefficient: Tensor, n_rows: int
) -> tuple[CoefficientPosterior, float]:
    """Fit a linear regression to moments; choose ridge and noise by empirical Bayes.

    Args:
        moments: Sums of products of the basis and the target, the last one,
            [p + 1, p + 1].
        used_columns: Which basis functions are used, [p].
        group_of_coefficient: Group of each basis function that shares a ridge, [p].
        n_rows: Number of rows.

    Returns:
        The posterior, with coefficients 0 for other columns, and the noise variance.
    """
    p = len(used_columns)
    gram = moments[:p, :p][used_columns][:, used_columns]
    # With copies of a column and hardly any noise, rounding would hide the ridge.
    gram = gram + torch.diag(ROUNDING * gram.diagonal())
    cross, total = moments[:p, p][used_columns], moments[p, p]
    group_of_coefficient = group_of_coefficient[used_columns]
    ridge = torch.ones_like(cross)
    centre = moments[p - 1, p].square() / moments[p - 1, p - 1].clamp(min=1e-9)
    noise = float((total - centre) / max(n_rows, 1)) + 1e-12
    mean = torch.zeros_like(cross)
    precision = gram / noise + torch.diag(ridge)
    for _ in range(3 * RIDGE_ROUNDS if len(cross) else 0):
        variance = torch.linalg.inv(precision)
        mean = variance @ cross / noise
        determined = len(mean) - float((ridge * variance.diagonal()).sum())
        rest = float(total - 2 * mean @ cross + mean @ gram @ mean)
        new = max(rest, 1e-9 * float(total)) / max(n_rows - determined, 1.0) + 1e-12
        before, ridge = (
            ridge,
            _update_ridge_penalties(
                ridge, mean[None], variance[None], group_of_coefficient
            ),
        )
        done = bool(((ridge / before).log().abs() < 0.05).all())
        done &= abs(new / noise - 1) < 0.01
        noise = new
        precision = gram / noise + torch.diag(ridge)
        if done:
            break
    if len(cross):
        mean = torch.linalg.solve(precision, cross / noise)
    whole = torch.eye(p, dtype=gram.dtype)
    index = used_columns.nonzero()[:, 0]
    whole[index[:, None], index] = precision
    full = torch.zeros(p, dtype=gram.dtype)
    full[used_columns] = mean
    return CoefficientPosterior(full[None], whole[None]), noise
