"""Find the feature behind a change: a function of the inputs with one value per class.

Its first guess is the class as a small network reads it from what changed. What tells
the guess apart among rows of the same class, its linear discriminants, is then looked
up in all inputs, and a small network of these scores gives the values of the feature.
A colour is read from the brightness of the channels alone, which show no shapes. All
functions treat one replica.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.learners.steady.directions_search import (
    Axes,
    Change,
    Moments,
    measure_pattern,
)
from cirm.learners.steady.directions_training import (
    Rows,
    compute_members,
    pick_held_out,
    train_members,
)
from cirm.learners.steady.directions_views import fit_discriminants, mean_by_group
from cirm.likelihoods import CrossEntropy
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

HIDDEN = 32  # units; scores are few
MEMBERS = 5
MOST_CHANGED = 5  # axes of the first guess
TURNS = 2  # stripes: 92 % right as guessed, 97 % after one turn, 99.5 % after two
DESCENT = Descent(epochs=120, batch=0, rate=5e-3)


class Feature(NamedTuple):
    """A function of rows [n, d]: linear scores [d, k], their scale, and a network.

    `scale` [2, k + 2 c] standardises the scores and the brightness of the channels,
    `params` [member, p] are the network's, and `is_colour` is 1 if it is read from the
    brightness alone, else from the scores alone.
    """

    scores: Tensor
    scale: Tensor
    params: Tensor
    is_colour: Tensor


class Finding(NamedTuple):
    """A feature, and its held-out values [n] on the rows that it was learned from."""

    feature: Feature
    values: Tensor
    merit: float


def make_network(width: int, classes: int) -> MLP:
    """Return the network that gives the values of a feature."""
    return MLP((width, HIDDEN, classes), "relu", 0.2)


def compute_values(feature: Feature, rows: Tensor, channels: int) -> Tensor:
    """Return the values [n] of a feature of rows [n, d]."""
    scores = feature.scores.to(rows)
    inputs = _describe(rows, scores, channels, bool(feature.is_colour))
    inputs = ((inputs - feature.scale[0]) / feature.scale[1]).to(feature.params)
    network = make_network(inputs.shape[1], feature.scores.shape[1])
    outputs = network(feature.params, inputs.expand(len(feature.params), -1, -1))
    return outputs.log_softmax(-1).mean(0).argmax(-1)


def find_feature(
    rows: Tensor,
    targets: Tensor,
    guesses: list[tuple[Tensor, bool]],
    past: Moments,
    new: Moments,
    axes: Axes,
    channels: int,
    known: list[Tensor],
    randomness: Randomness,
) -> Finding | None:
    """Return the feature, out of several first guesses [n], that changed most clearly.

    Each guess comes with whether it is of a colour. The merit of a feature is by how
    many standard errors what it says of the classes has changed, times how surely the
    inputs show it even where its value is not what the class suggests: a feature is not
    a mixture with what tells the class.
    """
    findings = []
    classes = len(new.counts)
    for i, (guess, is_colour) in enumerate(guesses):
        at = randomness.at("feature", i)
        finding = _refine(
            rows, targets, guess, is_colour, axes, channels, known, classes, at
        )
        if finding is not None:
            scores = fit_discriminants(rows, finding.values, targets, classes, axes)
            z = measure_pattern(scores.T, past, new, axes)[0]
            findings.append(finding._replace(merit=abs(z) * finding.merit))
    return max(findings, key=lambda finding: finding.merit, default=None)


def make_guesses(
    rows: Tensor,
    targets: Tensor,
    change: Change,
    axes: Axes,
    channels: int,
    offset: Tensor,
    randomness: Randomness,
) -> list[tuple[Tensor, bool]]:
    """Return first guesses [n]: the class as read from the axes that changed most.

    For inputs with channels also the class as read from the brightness of each. Each
    guess comes with whether it is of a colour.
    """
    order = change.axes.argsort()[:MOST_CHANGED]
    order = order[(change.axes[order] < 0.05) | (order == order[0])]
    views = [axes.whiten(rows)[:, order]]
    if channels > 1:
        views.append(_measure_brightness(rows, channels))
    guesses = []
    for i, view in enumerate(views):
        at = randomness.at("guess", i)
        answers = _learn(view, targets, offset, offset[:, :0], at)[2]
        guesses.append((answers.argmax(-1), i > 0))
    return guesses


def _refine(
    rows: Tensor,
    targets: Tensor,
    guess: Tensor,
    is_colour: bool,
    axes: Axes,
    channels: int,
    known: list[Tensor],
    classes: int,
    randomness: Randomness,
) -> Finding | None:
    """Return the function of inputs that tells a guess apart within classes."""
    context = torch.cat([F.one_hot(v, classes) for v in (targets, *known)], 1).to(rows)
    offset = torch.zeros(len(rows), classes).to(rows)
    values, finding = guess, None
    for turn in range(TURNS):
        if len(values.unique()) < 2:
            return None
        scores = fit_discriminants(rows, values, targets, classes, axes)
        inputs = _describe(rows, scores, channels, is_colour)
        at = randomness.at("turn", turn)
        params, scale, answers = _learn(inputs, values, offset, context, at)
        before, values = values, answers.argmax(-1)
        clarity = _measure_clarity(values, before, targets, classes)
        feature = Feature(scores.float(), scale, params, torch.tensor(float(is_colour)))
        finding = Finding(feature, values, clarity)
    return finding if len(values.unique()) > 1 else None


def _describe(rows: Tensor, scores: Tensor, channels: int, is_colour: bool) -> Tensor:
    """Return what a feature is read from, as wide for a colour as for scores."""
    if channels == 1:
        return rows @ scores
    bright = _measure_brightness(rows, channels)
    parts = [rows @ scores * (not is_colour), bright * is_colour]
    return torch.cat(parts, 1)


def _measure_brightness(rows: Tensor, channels: int) -> Tensor:
    """Return each channel's share of the brightness and of the contrast, [n, 2 c]."""
    pixels = rows.unflatten(1, (channels, -1))
    levels = pixels.mean(2).abs(), pixels.square().mean(2).sqrt()
    shares = [level / level.sum(1, keepdim=True).clamp(min=1e-6) for level in levels]
    return torch.cat(shares, 1)


def _learn(
    inputs: Tensor,
    targets: Tensor,
    offset: Tensor,
    context: Tensor,
    randomness: Randomness,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return members [member, p] that predict targets [n], scale, held-out logits."""
    classes = offset.shape[-1]
    scale = torch.stack([inputs.mean(0), inputs.std(0).clamp(min=1e-6)])
    inputs = (inputs - scale[0]) / scale[1]
    network = make_network(inputs.shape[1], classes)
    start = network.init(randomness.at("start").spawn(MEMBERS))
    start[:, network.head] = 0
    parts = inputs.float(), targets, offset.float(), context.float()
    rows = Rows(*(part[None] for part in parts))
    at = randomness.at("train")
    fit = train_members(network, start[None], rows, CrossEntropy(classes), DESCENT, at)
    outputs = compute_members(network, fit.params, rows.inputs)
    return fit.params[0], scale, pick_held_out(outputs, fit.folds)[0]


def _measure_clarity(
    answers: Tensor, values: Tensor, targets: Tensor, classes: int
) -> float:
    """Return how often held-out answers [n] are right, values independent of classes.

    Rows are weighted by P(value) / P(value | class).
    """
    member = F.one_hot(values, classes).double()
    given = mean_by_group(member, targets, classes)[targets]
    weights = ((member.mean(0) - given) * member).sum(1) / (given * member).sum(1) + 1
    right = (answers == values).double()
    return float((weights * right).sum() / weights.sum())
