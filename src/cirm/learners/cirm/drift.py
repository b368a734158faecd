"""Whether inputs tell the label otherwise in one environment than in another.

A model of one environment is asked about examples of it and of another, none of which
it learned from. If the inputs mean the same in both, its risk slopes the same way in
linear terms of the inputs, up to chance. If not, the change of slope shows which
feature means something else here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

ENOUGH = 50  # examples of each environment below which nothing can be told
FEW = 1024  # examples that are enough for the shape of the noise
FAR = 1e9  # where no feature comes to
HEAVIEST = 10.0  # weight of an example at most, before all are brought to a mean of 1
TURNS = 30  # of refitting a bias, each of which brings it close
STEPS = 300  # towards the logits that explain a change


class Evaluation(NamedTuple):
    """Examples of a replica: inputs [replica, n, d] and what is known of each.

    `logits` [replica, n, k] are a model's that did not learn from them, `targets` and a
    reference's `answers` are [replica, n].
    """

    inputs: Tensor
    logits: Tensor
    targets: Tensor
    answers: Tensor


class Slope(NamedTuple):
    """How a risk slopes in the inputs, [replica, k, d], at the best biases.

    `noise` [replica, k, d] is its variance by chance, `freedom` [replica] in how many
    directions chance can move it, and `cells` [replica, k, 2] counts the examples: of
    each class, those where the reference is wrong, and right.
    """

    mean: Tensor
    noise: Tensor
    freedom: Tensor
    cells: Tensor


def concatenate_evaluations(samples: list[Evaluation]) -> Evaluation:
    """All examples as one sample."""
    return Evaluation(*(torch.cat(parts, 1) for parts in zip(*samples, strict=True)))


def compute_slope(sample: Evaluation, like: Tensor | None = None) -> Slope:
    """The slope, of examples weighted so that their cells are `like` [replica, k, 2].

    With cells of [replica, k, 1] the classes are.
    """
    k = sample.logits.shape[-1]
    right = (sample.targets == sample.answers).long()
    cells = (
        one_hot(2 * sample.targets + right, 2 * k).float().sum(1).unflatten(1, (k, 2))
    )
    weights = torch.ones_like(sample.logits[..., :1])
    if like is not None:
        kept = like.shape[-1]
        have = cells if kept == 2 else cells.sum(2, keepdim=True)
        place = kept * sample.targets + (right if kept == 2 else 0)
        share = (like / have.clamp(min=1)).flatten(1).gather(1, place)
        weights = (share / share.mean(1, keepdim=True)).clamp(max=HEAVIEST)
        weights = (weights / weights.mean(1, keepdim=True)).unsqueeze(-1)
    off = weights * _compute_residuals(sample, weights)
    x = sample.inputs - (weights * sample.inputs).mean(1, keepdim=True)
    count = x.shape[1]
    mean = off.mT @ x / count
    noise = (off.square().mT @ x.square() / count - mean.square()) / count
    return Slope(mean, noise, _count_freedom(_thin_out(x), _thin_out(off)), cells)


def disagreement_p_value(one: Slope, other: Slope) -> Tensor:
    """Probability [replica] that slopes of like environments are so far apart.

    It is 1 where nothing can be told: of few examples, or of other classes.
    """
    square = (one.mean - other.mean).square().sum((1, 2))
    freedom = torch.minimum(one.freedom, other.freedom)
    ratio = square / (one.noise + other.noise).sum((1, 2)).clamp(min=1e-20)
    chance = torch.special.gammaincc(freedom / 2, freedom / 2 * ratio)
    return torch.where(is_comparable(one, other), chance, 1.0)


def is_comparable(one: Slope, other: Slope) -> Tensor:
    """Whether there are enough examples [replica], of the same two or more classes."""
    counts = [s.cells.sum(2) for s in (one, other)]
    seen = [count > 0 for count in counts]
    alike = (seen[0] == seen[1]).all(1) & (seen[0].sum(1) > 1)
    return alike & (torch.minimum(*(c.sum(1) for c in counts)) >= ENOUGH)


def fit_change(sample: Evaluation, one: Slope, other: Slope) -> Tensor:
    """The sparsest linear logits [replica, k, d] that would undo a change of slope.

    Up to its noise, that is: least squares with a penalty on each coefficient that is
    larger than chance makes the largest coordinate of the slope (the lasso, by
    accelerated proximal steps).
    """
    change = one.mean - other.mean
    spread = (one.noise + other.noise).sqrt()
    penalty = spread * (1 + math.sqrt(2 * math.log(max(2, change.shape[-1]))))
    chances = sample.logits.softmax(-1)
    bend = (chances * (1 - chances)).sum(-1, keepdim=True) / chances.shape[-1]
    x = sample.inputs - sample.inputs.mean(1, keepdim=True)
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
    """Mean [replica, class, j] of what is seen [replica, n, j] of each class.

    That of a class without examples is far from everything.
    """
    hot = one_hot(targets, classes).to(seen.dtype)
    counts = hot.sum(1).unsqueeze(-1)
    return torch.where(counts > 0, hot.mT @ seen / counts.clamp(min=1), FAR)


def find_nearest(seen: Tensor, centres: Tensor) -> Tensor:
    """Class [replica, n] whose centre is the nearest."""
    return torch.cdist(seen, centres).argmin(-1)


def _thin_out(parts: Tensor) -> Tensor:
    """Some examples of [replica, n, ...], evenly from all."""
    return parts[:, :: max(1, parts.shape[1] // FEW)]


def _compute_residuals(sample: Evaluation, weights: Tensor) -> Tensor:
    """Labels less chances [replica, n, k], on average zero for each class."""
    hot = one_hot(sample.targets, sample.logits.shape[-1]).to(sample.logits.dtype)
    wanted = (weights * hot).sum(1, keepdim=True).clamp(min=1e-6)
    bias = torch.zeros_like(wanted)
    for _ in range(TURNS):
        chances = (sample.logits + bias).softmax(-1)
        had = (weights * chances).sum(1, keepdim=True).clamp(min=1e-30)
        bias = bias + (wanted / had).log()
    return hot - (sample.logits + bias).softmax(-1)


def _count_freedom(x: Tensor, off: Tensor) -> Tensor:
    """In how many directions [replica] examples move a slope, if all moved it alike.

    By the products of the parts of any two examples, since there may be more
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
