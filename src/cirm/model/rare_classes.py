"""Weights, thresholds and constant predictions: what rare classes need in `fit`.

Class weights count in training only; scores are not weighted by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.data.rows import EncodedRows
from cirm.environments import Environment, Stage
from cirm.model.compute import predict_rows_by_index
from cirm.model.facts import set_decision_threshold
from cirm.model.metrics import PredictionsWithDeviation
from cirm.model.model import Model
from cirm.model.threshold import (
    HeldOutProbabilities,
    parse_threshold_rule,
    summarise_held_out_probabilities,
)
from cirm.model.verdict import describe_constant_predictions

MOST_REPEATED = 2_000_000  # rows after repeating them by weight, of an environment
MOST_OF_CLASS = 500  # rows of a class on which constant predictions show
ClassWeight = str | Mapping[str, float] | None
"""Weights by class, or "balanced"."""


class PredictionsWithTargetsAndWeights(NamedTuple):
    """Predictions for rows, their targets [n] and, if they have any, weights [n]."""

    predictions: PredictionsWithDeviation
    targets: Tensor
    weights: Tensor | None


def choose_positive_class(
    user_choice: str, classes: tuple[str, ...], rows: EncodedRows
) -> str:
    """Return the positive one of two classes: the user's choice, or the rarer one."""
    if len(classes) != 2:
        if user_choice:
            raise ValueError(
                "--positive: only a classification into two classes has a positive "
                "class. Remove the option."
            )
        return ""
    if user_choice and user_choice not in classes:
        raise ValueError(
            f"--positive: there is no class {user_choice!r}. Use {classes[0]!r} or "
            f"{classes[1]!r}."
        )
    first, second = torch.bincount(rows.targets, minlength=2).tolist()
    return user_choice or classes[int(second <= first)]


def choose_class_weights(
    chosen_weights: ClassWeight, classes: tuple[str, ...], rows: EncodedRows
) -> dict[str, float]:
    """Return the weight of each class; nothing if all count once.

    "balanced" gives n / (classes * rows of the class), as scikit-learn does. A class
    that does not occur yet counts once.
    """
    if not chosen_weights:
        return {}
    if not classes:
        raise ValueError(
            "--class-weight: a regression has no classes. Leave out the option (in "
            "Python class_weight=)."
        )
    if chosen_weights == "balanced":
        mass = rows.weights
        counts = torch.bincount(rows.targets, mass, len(classes)).double().tolist()
        total, present = sum(counts), sum(count > 0 for count in counts)
        weights = [total / (present * n) if n else 1.0 for n in counts]
        return dict(zip(classes, weights, strict=True))
    if isinstance(chosen_weights, str):
        raise ValueError(
            f"--class-weight: {chosen_weights!r} cannot be used. Give balanced, or a "
            "weight for each class, such as yes=5,no=1."
        )
    given = {str(name): float(value) for name, value in chosen_weights.items()}
    if unknown := [name for name in given if name not in classes]:
        listed = ", ".join(classes[:10])
        raise ValueError(
            f"--class-weight: there is no class {unknown[0]!r}. The classes are "
            f"{listed}; check the spelling."
        )
    if bad := [n for n, v in given.items() if not (v > 0 and math.isfinite(v))]:
        raise ValueError(
            f"--class-weight: the weight of the class {bad[0]!r} is "
            f"{given[bad[0]]:g}, which is not a positive number. Write, for example, "
            "yes=5."
        )
    return {name: given.get(name, 1.0) for name in classes}


def weight_examples_of_stage(model: Model, stage: Stage) -> Stage:
    """Return the environments of a stage, weighted as the learner needs it.

    A learner that honours weights gets those of rows times those of classes. For any
    other one rows are repeated by their weights, and `predict` shifts the logits by the
    weights of the classes.
    """
    if not model.learner.weighs_examples:
        return tuple(repeat_examples_by_weight(one) for one in stage)
    by_class = model.plan.class_weight
    if not by_class:
        return stage
    factors = torch.tensor([by_class[name] for name in model.task.classes])
    weighted = []
    for one in stage:
        own = factors[one.targets]
        own = own if one.weights is None else own * one.weights
        weighted.append(replace(one, weights=own))
    return tuple(weighted)


def repeat_examples_by_weight(environment: Environment) -> Environment:
    """Repeat each example as often as its weight says.

    The sums of weights so far are rounded, so that fractions add up: of two examples
    of weight 0.5 one is used.
    """
    if environment.weights is None:
        return environment
    weights = environment.weights.reshape(-1, len(environment))[0].double()
    if float(weights.sum()) > MOST_REPEATED:
        raise ValueError(
            f"place {environment.name!r}: the weights of the rows add up to "
            f"{float(weights.sum()):,.0f}, but this learner repeats each row "
            f"according to its weight, and at most {MOST_REPEATED:,} repeated rows "
            "are possible. Divide all weights by the same number."
        )
    ends = (weights.cumsum(0) + 0.5).floor().long()
    copies = ends.diff(prepend=ends.new_zeros(1))
    if not int(ends[-1]):
        raise ValueError(
            f"place {environment.name!r}: the weights of the rows add up to less than "
            "1, but this learner repeats each row according to its weight, so no row "
            "would be used. Multiply all weights by the same large number."
        )
    rows = torch.arange(len(environment)).repeat_interleave(copies)
    return replace(environment.subset(rows[None]), weights=None)


def check_threshold_rule_fits_model(model: Model, rule: str) -> None:
    """Raise an error before training if a rule cannot apply to a model."""
    if rule:
        parse_threshold_rule(rule)
        set_decision_threshold(replace(model, held_out_scores=None), "0.5")


def get_threshold_rule_of_model(model: Model) -> str:
    """Return the rule of a model's threshold; empty if it has none."""
    return "" if model.threshold is None else model.threshold.rule


def set_threshold_by_held_out(
    model: Model, held_out: Sequence[PredictionsWithTargetsAndWeights], rule: str
) -> tuple[Model, list[str]]:
    """Choose the threshold anew on held-out rows; return also notes for the user.

    If the model's own rule, which nobody gave now, cannot be applied to these rows, the
    threshold is not changed.
    """
    scores = _summarise_held_out_probabilities_of_stages(model, held_out)
    if rule:
        return set_decision_threshold(replace(model, held_out_scores=scores), rule), []
    old = get_threshold_rule_of_model(model)
    try:
        renewed = set_decision_threshold(replace(model, held_out_scores=scores), old)
    except ValueError:
        assert model.threshold is not None
        note = (
            f"the threshold stays at {model.threshold.value:.4g}: there are too few "
            f"held-out rows to choose it again for {old}. Give a number with "
            "--threshold to change it."
        )
        return replace(model, held_out_scores=scores), [note]
    return renewed, []


def _summarise_held_out_probabilities_of_stages(
    model: Model, held_out: Sequence[PredictionsWithTargetsAndWeights]
) -> HeldOutProbabilities | None:
    """Return the probabilities of the positive class on all held-out rows."""
    if not model.positive or not held_out:
        return None
    index = model.task.classes.index(model.positive)
    means = torch.cat([one.predictions.mean[:, index] for one in held_out])
    targets = torch.cat([one.targets for one in held_out])
    weights = [one.weights for one in held_out if one.weights is not None]
    mass = torch.cat(weights) if weights else None
    return summarise_held_out_probabilities(means, targets == index, mass)


def warn_of_constant_predictions(
    model: Model,
    rows: EncodedRows,
    indices: Tensor,
    held_out: PredictionsWithTargetsAndWeights,
) -> list[str]:
    """Warn if rows [m] of every class are predicted alike.

    Whether they are ranked nevertheless is judged by held-out rows.
    """
    targets = rows.targets[indices]
    parts = []
    for index in targets.unique() if model.task.classes else ():
        own = indices[targets == index]
        parts.append(own[:: -(-len(own) // MOST_OF_CLASS)])
    if len(parts) < 2:
        return []
    chosen = torch.cat(parts)
    predictions = predict_rows_by_index(model, rows, chosen)
    text = describe_constant_predictions(
        model,
        predictions.mean,
        rows.targets[chosen],
        (held_out.predictions.mean, held_out.targets),
    )
    return [text.strip()] if text else []
