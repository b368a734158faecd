"""Predictions for whole environments, and for those of a sweep.

A sweep over the strength of a shortcut shows every image in one of two colours, again
and again. Each image is then predicted once in each colour, for all environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cirm.data.coloring import ColoredImages
from cirm.environments import Environment
from cirm.evaluation.diagnostics import predict_examples
from cirm.learners.base import Learner

CHUNK = 4096  # examples that are predicted at once, to bound memory

Predictions = tuple[Tensor, Tensor]
"""Predictions [replica, n, k] and targets [replica, n]."""


def predict_environment(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    environment: Environment,
    n_replicas: int,
    chunk_size: int = CHUNK,
) -> Predictions:
    """Return predictions and targets of all examples, of `chunk_size` at a time."""
    predictions, targets = [], []
    for start in range(0, len(environment), chunk_size):
        rows = torch.arange(start, min(start + chunk_size, len(environment)))
        x, y = environment.take(rows.expand(n_replicas, -1))
        predictions.append(predict_examples(learner, state, x))
        targets.append(y)
    return torch.cat(predictions, 1), torch.cat(targets, 1)


def predict_sweep(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    environments: Sequence[Environment],
    n_replicas: int,
) -> Iterator[Predictions]:
    """Yield predictions and targets of each environment of a sweep."""
    both: list[Tensor] = []
    if are_colorings_of_the_same_images(environments):
        first = environments[0]
        for color in (0, 1):
            inputs: Any = first.inputs
            inputs = replace(inputs, colors=torch.full_like(inputs.colors, color))
            one_color = replace(first, inputs=inputs)
            both.append(predict_environment(learner, state, one_color, n_replicas)[0])
    for environment in environments:
        if both:
            inputs = environment.inputs
            colors = inputs.colors.unsqueeze(-1) == 1
            yield torch.where(colors, both[1], both[0]), environment.targets
        else:
            yield predict_environment(learner, state, environment, n_replicas)


def are_colorings_of_the_same_images(environments: Sequence[Environment]) -> bool:
    """Return whether there are several environments, which differ only in colours."""
    inputs = [environment.inputs for environment in environments]
    coloured = [one for one in inputs if isinstance(one, ColoredImages)]
    if len(coloured) < max(3, len(inputs)):  # two colourings are two predictions
        return False
    first = coloured[0]
    return all(
        one.grey is first.grey
        and (one.scheme, one.mean, one.std) == (first.scheme, first.mean, first.std)
        and one.rows.equal(first.rows)
        for one in coloured
    )
