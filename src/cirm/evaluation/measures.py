"""What a model's predictions on some examples say, beside those of a reference.

Everything is by replica; percentages are from 0 to 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Task
from cirm.evaluation import groups as inferred
from cirm.evaluation.groups import Groups
from cirm.learners.base import Learner
from cirm.likelihoods import Likelihood
from cirm.objectives import Batch, gradient_penalties
from cirm.randomness import Randomness
from cirm.training import averaging_weights

BINS = 10  # of confidence, or of values, that calibration is measured in
NEARLY_ALL = 95.0  # percent of the predictions that are one class
ALIKE = 85.0  # percent of the answers that are the reference's; the rest is noise
FAILED = 0.5  # part of chance that a group's accuracy falls below
LOPSIDED = 20.0  # percentage points by which they exceed the targets of that class
FLAT = 0.01  # part of the targets' variance that predictions must not fall below
EXPLAINED = 0.1  # part of it that the reference explains, if there is aught to learn


class Look(NamedTuple):
    """A model's predictions on some examples, beside the reference's.

    predictions [replica, n, k], y [replica, n]; `groups` hold the reference's answers.
    """

    predictions: Tensor
    y: Tensor
    groups: Groups


def predict_examples(learner: Learner[Any], state: Any, x: Tensor) -> Tensor:  # noqa: ANN401
    """Predictions [replica, n, k] of inputs [replica, n, ...], on the CPU."""
    with torch.no_grad():
        return learner.predict(state, x.to(learner.descent.device)).cpu()


def together(looks: Sequence[Look]) -> Look:
    """All examples of several environments."""
    return Look(
        torch.cat([look.predictions for look in looks], 1),
        torch.cat([look.y for look in looks], 1),
        inferred.joined([look.groups for look in looks]),
    )


def worst_group(likelihood: Likelihood, look: Look) -> Tensor:
    """Score of the worst inferred group, [replica]: least accuracy, or most error."""
    values = likelihood.scores(look.predictions, look.y)
    return inferred.worst(values, look.groups, high=likelihood.metric == "error")


def calibrations(task: Task, look: Look) -> Tensor:
    """Calibration error in percent, [replica, 1 + group]: of all, and of each group.

    Not a number for a group without examples.
    """
    if task.classes:
        sure, answer = look.predictions.max(-1)
        gaps = (answer == look.y).float() - sure
        bins = (sure * BINS).long().clamp(0, BINS - 1)
    else:
        values = look.predictions.squeeze(-1)
        gaps = (look.y - values) / look.y.std(-1, keepdim=True).clamp(min=1e-12)
        ranks = values.argsort(-1).argsort(-1)
        bins = BINS * ranks // values.shape[1]
    counts = len(look.groups.names)
    sums = gaps.new_zeros(len(gaps), counts * BINS)
    sums = sums.scatter_add(1, look.groups.number * BINS + bins, gaps)
    sums = sums.unflatten(1, (counts, BINS))
    every = sums.sum(1).abs().sum(-1, keepdim=True) / gaps.shape[1]
    each = sums.abs().sum(-1) / inferred.group_sizes(look.groups)
    return 100 * torch.cat([every, each], 1)


def spread(errors: Tensor) -> Tensor:
    """Largest less least error, [replica], of errors [replica, m] that are numbers."""
    known = errors.isfinite()
    most = errors.masked_fill(~known, -torch.inf).amax(-1)
    return most - errors.masked_fill(~known, torch.inf).amin(-1)


def slope_penalty(likelihood: Likelihood, look: Look) -> Tensor:
    """Squared slope of the risk of the predictions in a factor on them, [replica].

    Logarithms of probabilities serve as outputs: they differ from a network's by a
    shift that does not matter, and stand for the mean of several networks as well.
    """
    outputs = look.predictions
    if likelihood.metric == "accuracy":
        outputs = outputs.clamp(min=1e-12).log()
    size = look.y.shape[1]
    share = averaging_weights((size,), look.y.device).expand(len(look.y), -1, -1)
    noise = Randomness(()).start_draws()
    batch = Batch(look.predictions, look.y, share, (size,), 1.0, noise)
    return gradient_penalties(likelihood, outputs, batch)[:, 0]


def agreement(task: Task, look: Look) -> Tensor:
    """Percent of answers that are the reference's, or the values' correlation."""
    if task.classes:
        same = look.predictions.argmax(-1) == look.groups.answers
        return 100 * same.float().mean(-1)
    pair = torch.stack([look.predictions.squeeze(-1), look.groups.answers], 1)
    pair = pair - pair.mean(-1, keepdim=True)
    norms = pair.square().sum(-1).sqrt().clamp(min=1e-12)
    return 100 * (pair[:, 0] * pair[:, 1]).sum(-1) / (norms[:, 0] * norms[:, 1])


def reference_score(task: Task, look: Look) -> Tensor:
    """The reference's accuracy in percent, or its mean squared error, [replica]."""
    if task.classes:
        return 100 * (look.groups.answers == look.y).float().mean(-1)
    return (look.groups.answers - look.y).square().mean(-1)


def is_constant(task: Task, look: Look) -> Tensor:
    """Whether nearly all predictions are alike though the targets are not, [replica].

    Of values only where the reference shows that there is something to learn.
    """
    if not task.classes:
        total = look.y.var(-1, correction=0)
        flat = look.predictions.squeeze(-1).var(-1, correction=0) < FLAT * total
        return flat & (reference_score(task, look) < (1 - EXPLAINED) * total)
    chosen = _shares(look.predictions.argmax(-1), len(task.classes))
    most, which = chosen.max(-1)
    targets = _shares(look.y, len(task.classes)).gather(1, which[:, None])[:, 0]
    return (most >= NEARLY_ALL) & (most - targets >= LOPSIDED)


def is_shortcut(likelihood: Likelihood, task: Task, look: Look) -> Tensor:
    """Whether it answers as the reference and fails where that one does, [replica].

    A group fails far below chance, or with more error than the mean target would have.
    """
    alike = agreement(task, look) >= ALIKE
    if task.classes:
        chance = 100 / len(task.classes)
        return alike & (worst_group(likelihood, look) < FAILED * chance)
    own = inferred.group_means(likelihood.scores(look.predictions, look.y), look.groups)
    flat = (look.y - look.y.mean(-1, keepdim=True)).square()
    return alike & (own > inferred.group_means(flat, look.groups)).any(-1)


def _shares(classes: Tensor, count: int) -> Tensor:
    """Percent of each class among classes [replica, n], [replica, count]."""
    ones = torch.ones(classes.shape)
    sums = torch.zeros(len(classes), count).scatter_add(1, classes, ones)
    return 100 * sums / classes.shape[1]
