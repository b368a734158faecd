"""Find the feature behind a change: a function of the inputs with one value per class.

Its first guess is the class as a small network reads it from what changed. What tells
the guess apart among rows of the same class, its linear discriminants, is then looked
up in all inputs, and a small network of these scores gives the values of the feature.
All functions treat one replica.
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

    `scale` [2, k + 2 c] standardises the scores and the brightness of the channels;
    `params` [member, p] are the network's.
    """

    scores: Tensor
    scale: Tensor
    params: Tensor


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
    inputs = _describe(rows, feature.scores.to(rows), channels)
    inputs = ((inputs - feature.scale[0]) / feature.scale[1]).to(feature.params)
    network = make_network(inputs.shape[1], feature.scores.shape[1])
    outputs = network(feature.params, inputs.expand(len(feature.params), -1, -1))
    return outputs.log_softmax(-1).mean(0).argmax(-1)


def find_feature(
    rows: Tensor,
    targets: Tensor,
    guesses: list[Tensor],
    past: Moments,
    new: Moments,
    axes: Axes,
    channels: int,
    known: list[Tensor],
    randomness: Randomness,
) -> Finding | None:
    """Return the feature, out of several first guesses [n], that changed most clearly.

    Its merit is by how many standard errors what it says of the classes has changed,
    times the share of its variance within classes that the inputs explain linearly: a
    feature is something that inputs show, not a mixture.
    """
    findings = []
    for i, guess in enumerate(guesses):
        at = randomness.at("feature", i)
        finding = _refine(rows, targets, guess, axes, channels, known, at)
        if finding is not None:
            classes = len(new.counts)
            scores = fit_discriminants(rows, finding.values, targets, classes, axes)
            z = measure_pattern(scores.T, past, new, axes)[0]
            share = _explain_variance(rows @ scores, finding.values, targets, classes)
            findings.append(finding._replace(merit=abs(z) * share))
    return max(findings, key=lambda finding: finding.merit, default=None)


def make_guesses(
    rows: Tensor,
    targets: Tensor,
    change: Change,
    axes: Axes,
    channels: int,
    offset: Tensor,
    randomness: Randomness,
) -> list[Tensor]:
    """Return first guesses [n]: the class as read from the axes that changed most.

    For inputs with channels also the class as read from the brightness of each.
    """
    order = change.axes.argsort()[:MOST_CHANGED]
    order = order[(change.axes[order] < 0.05) | (order == order[0])]
    views = [axes.whiten(rows)[:, order]]
    if channels > 1:
        views.append(_describe(rows, axes.vectors[:, :0], channels))
    guesses = []
    for i, view in enumerate(views):
        at = randomness.at("guess", i)
        answers = _learn(view, targets, offset, offset[:, :0], at)[2]
        guesses.append(answers.argmax(-1))
    return guesses


def _refine(
    rows: Tensor,
    targets: Tensor,
    guess: Tensor,
    axes: Axes,
    channels: int,
    known: list[Tensor],
    randomness: Randomness,
) -> Finding | None:
    """Return the function of all inputs that tells a guess apart within classes."""
    classes = int(targets.max()) + 1
    for values in (guess, *known):
        classes = max(classes, int(values.max()) + 1)
    context = torch.cat([F.one_hot(v, classes) for v in (targets, *known)], 1).to(rows)
    offset = torch.zeros(len(rows), classes).to(rows)
    values, finding = guess, None
    for turn in range(TURNS):
        if len(values.unique()) < 2:
            return None
        scores = fit_discriminants(rows, values, targets, classes, axes)
        inputs = _describe(rows, scores, channels)
        at = randomness.at("turn", turn)
        params, scale, answers = _learn(inputs, values, offset, context, at)
        values = answers.argmax(-1)
        finding = Finding(Feature(scores.float(), scale, params), values, 0.0)
    return finding if len(values.unique()) > 1 else None


def _describe(rows: Tensor, scores: Tensor, channels: int) -> Tensor:
    """Return the scores of rows and, if there are channels, the brightness of each."""
    if channels == 1:
        return rows @ scores
    pixels = rows.unflatten(1, (channels, -1))
    levels = [pixels.mean(2), pixels.square().mean(2).sqrt()]
    return torch.cat([rows @ scores, *levels], 1)


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


def _explain_variance(
    scores: Tensor, values: Tensor, targets: Tensor, classes: int
) -> float:
    """Return the share of a feature's variance within classes that scores explain."""
    member = F.one_hot(values, classes).to(scores)
    rest = [t - mean_by_group(t, targets, classes)[targets] for t in (member, scores)]
    unexplained = (rest[0] - rest[1]).square().sum()
    return float(1 - unexplained / rest[0].square().sum().clamp(min=1e-9))
