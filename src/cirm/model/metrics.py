"""What a model predicts of encoded inputs, and how good that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from cirm.data.rows import EncodedRows
from cirm.likelihoods import CrossEntropy
from cirm.model.model import Model
from cirm.model.threads import cores
from cirm.networks import MLP

CHUNK = 2048  # rows predicted at once
BINS = 10  # of the calibration error
LEVEL = 0.9  # of intervals


class Answers(NamedTuple):
    """Predictions of n rows, and how the posterior's draws of them spread.

    `mean` are class probabilities [n, classes] or scaled values [n, 1]; `spread` is
    the standard deviation over the draws, of the same shape: zero if the learner
    believes in one network.
    """

    mean: Tensor
    spread: Tensor


@torch.no_grad()
def answers(model: Model, inputs: Tensor) -> Answers:
    """Predictions of inputs [n, *shape]."""
    device = model.learner.descent.device
    outputs = model.learner.outputs(model.state, inputs[None].to(device))
    likelihood = model.learner.likelihood
    if isinstance(likelihood, CrossEntropy):
        outputs = likelihood.logits(outputs)
    # Rows come last, [k, sample, n]: sums over a few classes or samples are fast so.
    each = outputs[0].movedim(-1, 0).contiguous()
    each = each.softmax(0) if isinstance(likelihood, CrossEntropy) else each
    each = each.cpu()
    apart = each - each[:, :1]  # exactly zero where all samples are the same
    apart -= apart.mean(1, keepdim=True)
    return Answers(each.mean(1).T, apart.square_().mean(1).sqrt_().T)


def answered(model: Model, brought: EncodedRows, rows: Tensor) -> Answers:
    """Predictions of some of the rows [m] of a store."""
    pieces = [answers(model, brought.store.take(part)) for part in rows.split(CHUNK)]
    return joined(pieces)


def joined(pieces: Sequence[Answers]) -> Answers:
    """Predictions of one portion after another."""
    return Answers(*(torch.cat(part) for part in zip(*pieces, strict=True)))


def workers(model: Model) -> int:
    """How many threads may ask a model at once: a module of the user's own, one."""
    known = isinstance(model.learner.network, MLP)
    return cores() if known and model.learner.descent.device == "cpu" else 1


def compute_metrics(model: Model, answer: Answers, targets: Tensor) -> dict[str, float]:
    """How good predictions of n rows are at targets [n].

    Classes: accuracy and calibration error in percent, the mean log loss and, of two
    classes that both occur, the area under the curve (the chance that of two rows the
    one of the second class is the one thought likelier to be). Values,
    in the target's own units: the root mean squared and the mean absolute error, and
    the part r2 of the variance that is explained.
    """
    mean = answer.mean
    if model.task.classes:
        found = {
            "accuracy": 100 * float((mean.argmax(-1) == targets).double().mean()),
            "calibration": calibration(mean, targets),
            "log_loss": float(
                -mean.double().gather(1, targets[:, None]).clamp(min=1e-12).log().mean()
            ),
        }
        if len(model.task.classes) == 2 and 0 < int(targets.sum()) < len(targets):
            found["auc"] = roc_auc(mean[:, 1], targets)
        return found
    scale = model.schema.target.scale
    misses = (mean[:, 0] - targets).double()
    rest, whole = (
        float(misses.square().sum()),
        float((targets - targets.double().mean()).square().sum()),
    )
    found = {
        "rmse": scale * (rest / len(targets)) ** 0.5,
        "mae": scale * float(misses.abs().mean()),
    }
    if whole > 0:
        found["r2"] = 1 - rest / whole
    return found


def roc_auc(chances: Tensor, targets: Tensor) -> float:
    """Area under the curve of chances [n] for targets [n] of 0 and 1."""
    ranks = torch.tensor(pd.Series(chances.double().numpy()).rank().to_numpy())
    second = targets == 1
    count, rest = int(second.sum()), int((~second).sum())
    return float((ranks[second].sum() - count * (count + 1) / 2) / (count * rest))


def half_widths(model: Model, spread: Tensor) -> Tensor:
    """Half widths [n] of 90 % intervals around scaled values whose draws so spread.

    Wide enough for each environment as it was when it was learned: `interval` times
    the root of its mean squared error and the squared spread together.
    """
    scale = model.schema.target.scale
    each = [
        visit.after["interval"]
        * (spread.double().square() + (visit.after["rmse"] / scale) ** 2).sqrt()
        for visit in model.visits
        if "interval" in visit.after
    ]
    return torch.stack(each).amax(0) if each else torch.full_like(spread, torch.nan)


def interval(answer: Answers, targets: Tensor) -> float:
    """By what 90 % of the misses, in units of their expected size, are exceeded.

    Values [n, 1] at targets [n]; the rank has the usual correction for few rows.
    """
    misses = (answer.mean[:, 0] - targets).double().abs()
    expected = (misses.square().mean() + answer.spread[:, 0].double().square()).sqrt()
    ratios = (misses / expected.clamp(min=1e-12)).sort().values
    rank = min(len(ratios), math.ceil(LEVEL * (len(ratios) + 1)))
    return float(ratios[rank - 1])


def calibration(chances: Tensor, targets: Tensor) -> float:
    """Expected calibration error in percent: ten equal parts of the confidence.

    The mean distance, by bins of the probability of the likeliest class, between that
    probability and how often it is right.
    """
    confidence, guess = chances.double().max(-1)
    right = (guess == targets).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, right - confidence)
    return 100 * float(gaps.abs().sum()) / len(targets)
