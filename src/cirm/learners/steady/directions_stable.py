"""Learn the stable model of a stage: an ensemble that sees inputs without features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_tables import Leak
from cirm.learners.steady.directions_training import (
    Ensemble,
    Model,
    Rows,
    compute_members,
    pick_held_out,
    train_members,
)
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent, Watch

CLEAR_LEAK = 2.0  # standard errors of the leak above which features become an offset


class Evidence(NamedTuple):
    """What is known of the rows of one replica, [n, k] each.

    `frequencies` are those of the classes in the row's environment, `features` adds
    what features say there, and `weights` [n] make features independent of the class.
    """

    frequencies: Tensor
    features: Tensor
    weights: Tensor


class Judgement(NamedTuple):
    """Held-out logits [n, k] of a model, without leak and calibrated, and its loss.

    The loss is that of rows reweighted so that features are independent of the class.
    """

    logits: Tensor
    leak: Leak
    temperature: float
    loss: float


def gather_evidence(
    values: Tensor, targets: Tensor, places: Tensor, classes: int
) -> Evidence:
    """Return what is known of rows with values [feature, n] of the environments."""
    frequencies = torch.zeros(len(targets), classes).double()
    features, weights = frequencies.clone(), torch.ones(len(targets)).double()
    for place in range(int(places.max()) + 1):
        here = places == place
        counts = torch.bincount(targets[here], minlength=classes).double()
        log_prior = tables.normalise(counts).log()
        frequencies[here] = log_prior
        table = tables.count_values(values[:, here], targets[here], classes)
        log_tables = tables.normalise(table).log()
        said = tables.score_values(log_tables, values[:, here])
        features[here] = log_prior + said
        own = said.gather(1, targets[here, None])[:, 0]
        weights[here] = ((log_prior + said).logsumexp(-1) - own).exp()
    return Evidence(frequencies, features, weights)


def train_stable(
    model: Model,
    start: Tensor,
    inputs: Tensor,
    targets: Tensor,
    values: list[Tensor],
    places: Tensor,
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
    watch: Watch,
) -> tuple[Ensemble, list[Judgement]]:
    """Train an ensemble on inputs [replica, n, ...] that no longer show the features.

    Where the view hides them entirely, nothing else is needed, and every row counts in
    full. Where held-out logits still depend on a feature, the ensemble is trained again
    with what features say as an offset, and the better one is kept, by the likelihood
    of held-out rows reweighted so that features say nothing about the class.
    """
    classes = likelihood.classes  # type: ignore[attr-defined]
    known = [
        gather_evidence(v, t, places, classes)
        for v, t in zip(values, targets, strict=True)
    ]

    def fit(replicas: list[int], which: str) -> tuple[Ensemble, list[Judgement]]:
        offset = torch.stack([getattr(known[r], which) for r in replicas]).float()
        rows = Rows(inputs[replicas], targets[replicas], offset, offset[..., :0])
        seeds = tuple(randomness.seeds[r] for r in replicas)
        at = Randomness(seeds, randomness.path).at(which)
        trained = train_members(
            model, start[replicas], rows, likelihood, descent, at, watch
        )
        outputs = compute_members(model, trained.params, rows.inputs)
        held_out = centre_logits(pick_held_out(outputs, trained.folds))
        judged = [
            judge(held_out[i], values[r], targets[r], known[r])
            for i, r in enumerate(replicas)
        ]
        return trained, judged

    best, judgements = fit(list(range(len(inputs))), "frequencies")
    leaky = [
        r for r, j in enumerate(judgements) if j.leak.size > CLEAR_LEAK * j.leak.error
    ]
    if not leaky:
        return best, judgements
    again, others = fit(leaky, "features")
    parts = [part.clone() for part in best]
    for i, r in enumerate(leaky):
        if others[i].loss < judgements[r].loss:
            judgements[r] = others[i]
            for part, new in zip(parts, again, strict=True):
                part[r] = new[i]
    return Ensemble(*parts), judgements


def judge(
    held_out: Tensor, values: Tensor, targets: Tensor, known: Evidence
) -> Judgement:
    """Return held-out logits [n, k] of one replica corrected, with their loss."""
    leak = Leak(torch.zeros(0), 0.0, 0.0)
    logits = held_out.double()
    if len(values):
        leak = tables.measure_leak(logits, values, targets)
        for part, feature in zip(leak.parts, values, strict=True):
            logits = logits - part[feature]
    scale = tables.fit_temperature(logits, known.features, targets)
    logits = scale * logits
    scores = (logits + known.frequencies).log_softmax(-1).gather(1, targets[:, None])
    loss = -(known.weights * scores[:, 0]).sum() / known.weights.sum()
    return Judgement(logits, leak, scale, float(loss))


def centre_logits(logits: Tensor) -> Tensor:
    """Return logits less their mean over classes."""
    return logits - logits.mean(-1, keepdim=True)
