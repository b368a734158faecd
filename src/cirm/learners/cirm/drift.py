"""Test whether inputs predict the label differently in two environments.

A model of one environment is evaluated on held-out examples of it and of another. If
the inputs mean the same in both, the gradients of its risk in linear terms of the
inputs are the same up to noise. If not, their difference shows which feature changed
its meaning.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

ENOUGH = 50  # fewest examples of each environment for a comparison
FEW = 1024  # examples by which the degrees of freedom are estimated
FAR = 1e9  # larger than any feature
HEAVIEST = 10.0  # largest weight of an example, before weights are normalised
TURNS = 30  # iterations that fit a bias, which converges quickly
STEPS = 300  # proximal steps of the lasso


class Evaluation(NamedTuple):
    """Held-out examples: inputs [replica, n, d], and what models predict for them.

    `logits` [replica, n, k] are those of the plain model; `targets` and the reference's
    `answers` are [replica, n].
    """

    inputs: Tensor
    logits: Tensor
    targets: Tensor
    answers: Tensor


class Slope(NamedTuple):
    """The gradient of a risk in linear terms of the inputs, [replica, k, d].

    `noise` [replica, k, d] is its variance, `freedom` [replica] its degrees of freedom,
    and `cells` [replica, k, 2] counts the examples of each class for which the
    reference is wrong and right.
    """

    mean: Tensor
    noise: Tensor
    freedom: Tensor
    cells: Tensor


def concatenate_evaluations(parts: list[Evaluation]) -> Evaluation:
    """Concatenate evaluated examples."""
    return Evaluation(*(torch.cat(pieces, 1) for pieces in zip(*parts, strict=True)))


def compute_slope(examples: Evaluation, like: Tensor | None = None) -> Slope:
    """Return the slope, of examples weighted to have cells `like` [replica, k, 2].

    With [replica, k, 1] only the class frequencies are matched.
    """
    k = examples.logits.shape[-1]
    right = (examples.targets == examples.answers).long()
    cells = (
        one_hot(2 * examples.targets + right, 2 * k).float().sum(1).unflatten(1, (k, 2))
    )
    weights = torch.ones_like(examples.logits[..., :1])
    if like is not None:
        kept = like.shape[-1]
        have = cells if kept == 2 else cells.sum(2, keepdim=True)
        place = kept * examples.targets + (right if kept == 2 else 0)
        share = (like / have.clamp(min=1)).flatten(1).gather(1, place)
        weights = (share / share.mean(1, keepdim=True)).clamp(max=HEAVIEST)
        weights = (weights / weights.mean(1, keepdim=True)).unsqueeze(-1)
    off = weights * _compute_residuals(examples, weights)
    x = examples.inputs - (weights * examples.inputs).mean(1, keepdim=True)
    count = x.shape[1]
    mean = off.mT @ x / count
    noise = (off.square().mT @ x.square() / count - mean.square()) / count
    return Slope(mean, noise, _count_freedom(_thin_out(x), _thin_out(off)), cells)


def disagreement_p_value(one: Slope, other: Slope) -> Tensor:
    """Return the p-value [replica] of the difference between two slopes.

    It is 1 if they cannot be compared: with few examples, or with other classes.
    """
    square = (one.mean - other.mean).square().sum((1, 2))
    freedom = torch.minimum(one.freedom, other.freedom)
    ratio = square / (one.noise + other.noise).sum((1, 2)).clamp(min=1e-20)
    p_value = torch.special.gammaincc(freedom / 2, freedom / 2 * ratio)
    return torch.where(is_comparable(one, other), p_value, 1.0)


def is_comparable(one: Slope, other: Slope) -> Tensor:
    """Return whether there are enough examples of the same classes, [replica]."""
    counts = [s.cells.sum(2) for s in (one, other)]
    seen = [count > 0 for count in counts]
    alike = (seen[0] == seen[1]).all(1) & (seen[0].sum(1) > 1)
    return alike & (torch.minimum(*(c.sum(1) for c in counts)) >= ENOUGH)


def fit_change(examples: Evaluation, one: Slope, other: Slope) -> Tensor:
    """Return the sparsest linear logits [replica, k, d] that explain a difference.

    This is the lasso, by accelerated proximal steps, with a penalty larger than the
    largest coordinate that noise would give.
    """
    change = one.mean - other.mean
    spread = (one.noise + other.noise).sqrt()
    penalty = spread * (1 + math.sqrt(2 * math.log(max(2, change.shape[-1]))))
    probabilities = examples.logits.softmax(-1)
    bend = (probabilities * (1 - probabilities)).sum(
        -1, keepdim=True
    ) / probabilities.shape[-1]
    x = examples.inputs - examples.inputs.mean(1, keepdim=True)
    x = _thin_out(x * bend.sqrt())
    x = x / math.sqrt(x.shape[1])
    step = 1 / torch.linalg.matrix_norm(x, ord=2).square().clamp(min=1e-12)
    at = ahead = torch.zeros_like(change)
    for turn in range(STEPS):
        down = ahead - step.view(-1, 1, 1) * (ahead @ x.mT @ x - change)
        new = down.sign() * (down.abs() - step.view(-1, 1, 1) * penalty).clamp(min=0)
        ahead = new + turn / (turn + 3) * (new - at)
        at = new
    return at


def compute_centroids(seen: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the mean [replica, class, j] of the values [replica, n, j] of each class.

    That of a class without examples is far from all values.
    """
    hot = one_hot(targets, classes).to(seen.dtype)
    counts = hot.sum(1).unsqueeze(-1)
    return torch.where(counts > 0, hot.mT @ seen / counts.clamp(min=1), FAR)


def find_nearest(seen: Tensor, centres: Tensor) -> Tensor:
    """Return the class [replica, n] with the nearest centre."""
    return torch.cdist(seen, centres).argmin(-1)


def _thin_out(parts: Tensor) -> Tensor:
    """Return some examples of [replica, n, ...], evenly spaced."""
    return parts[:, :: max(1, parts.shape[1] // FEW)]


def _compute_residuals(examples: Evaluation, weights: Tensor) -> Tensor:
    """Return labels minus probabilities [replica, n, k], with mean zero by class."""
    hot = one_hot(examples.targets, examples.logits.shape[-1]).to(examples.logits.dtype)
    wanted = (weights * hot).sum(1, keepdim=True).clamp(min=1e-6)
    bias = torch.zeros_like(wanted)
    for _ in range(TURNS):
        probabilities = (examples.logits + bias).softmax(-1)
        had = (weights * probabilities).sum(1, keepdim=True).clamp(min=1e-30)
        bias = bias + (wanted / had).log()
    return hot - (examples.logits + bias).softmax(-1)


def _count_freedom(x: Tensor, off: Tensor) -> Tensor:
    """Return the effective degrees of freedom [replica] of a slope.

    They are estimated from products of pairs of examples, since there may be more
    directions than examples.
    """
    count = x.shape[1]
    products = (x @ x.mT) * (off @ off.mT)
    level = products.mean(2, keepdim=True)
    products = products - level - level.mT + level.mean(1, keepdim=True)
    own = products.diagonal(dim1=1, dim2=2)
    across = products.square().sum((1, 2)) - own.square().sum(1)
    spread = (across / max(1, count * (count - 1))).clamp(min=1e-20)
    return (own.mean(1).square() / spread).clamp(1, count)
