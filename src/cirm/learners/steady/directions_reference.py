"""The easiest predictor, as a hypothesis of what may change between environments.

A network is stopped early, after a fixed number of steps, when it has learned the
easiest feature and little else. How often its answers are right is compared between
environments: one number, and hence a sharper test than one of many directions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_training import (
    EARLY,
    LabelledTrainingRows,
    Model,
    compute_ensemble_member_outputs,
    select_held_out_outputs_of_members,
    train_ensemble_members,
)
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent


class EasiestFeaturePredictions(NamedTuple):
    """Answers [n] of what is learned first (the easiest feature), and its accuracy.

    `tallies` [place, k, 3] are those of earlier environments, if any, as the first one,
    and of each environment of the stage.
    """

    answers: Tensor
    tallies: list[Tensor]


def train_easiest_predictor(
    model: Model,
    initial_params: Tensor,
    inputs: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
) -> tuple[Tensor, Tensor]:
    """Return held-out answers [replica, n] of a network stopped early, and if right."""
    classes = likelihood.classes  # type: ignore[attr-defined]
    offset = torch.zeros(*targets.shape, classes)
    rows = LabelledTrainingRows(inputs, targets, offset)
    short = replace(descent, epochs=EARLY)
    fit = train_ensemble_members(
        model, initial_params, rows, likelihood, short, randomness
    )
    outputs = compute_ensemble_member_outputs(model, fit.early, inputs)
    answers = select_held_out_outputs_of_members(outputs, fit.folds).argmax(-1)
    return answers, (answers == targets).double()


def predict_with_easiest_feature_ensemble(
    model: Model, params: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the answers [replica, n] on new rows, and the share of right members."""
    outputs = compute_ensemble_member_outputs(model, params, inputs)
    answers = outputs.log_softmax(-1).mean(1).argmax(-1)
    return answers, (outputs.argmax(-1) == targets[:, None]).double().mean(1)


def count_correct_answers_by_class(
    is_right: Tensor, targets: Tensor, n_classes: int
) -> Tensor:
    """Return [k, 3]: rows of a class, and sums of `is_right` [n] and of its square."""
    tally = torch.zeros(n_classes, 3, dtype=torch.float64)
    parts = torch.stack(
        [torch.ones_like(is_right), is_right, is_right.square()], 1
    ).double()
    return tally.index_add_(0, targets.cpu(), parts.cpu())


def compute_z_of_correct_counts(counts_before: Tensor, counts_here: Tensor) -> float:
    """Return z of a change of how often the answers of a class are right."""
    change, variance = 0.0, 0.0
    for first, second in zip(counts_before.tolist(), counts_here.tolist(), strict=True):
        if min(first[0], second[0]) < 2:
            continue
        for sign, (n, total, square) in ((-1, first), (1, second)):
            change += sign * total / n
            variance += max(square / n - (total / n) ** 2, 0.25 / n) / n
    return change / max(variance, 1e-12) ** 0.5
