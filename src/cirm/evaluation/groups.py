"""Groups within an environment, inferred from where a plain model errs.

A small reference, a network that plain risk minimisation trains for a few epochs, takes
what is easiest to learn: a shortcut, where there is one. Examples on which it errs are
those that contradict the shortcut. The group of an example is thus its class together
with whether the reference is right; of a regression, the third that the reference's
residual falls into, so that groups are of equal size and tell too low from too high.

Within a group of one class a constant prediction is right always or never, and where
the reference errs the shortcut is right never: the worst group is low for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment
from cirm.learners import create
from cirm.learners.base import Learner
from cirm.randomness import Randomness

BATCH = 64
MANY = 256  # inputs, from which on a step of the same rate moves the outputs far
# Steps and settings of the reference; a thousand examples have 16 steps an epoch. It
# stays small and is stopped early, lest it learn more than what is easiest.
WIDE = 40, {"hidden": (32,), "batch": BATCH, "rate": 1e-3, "decay": 0.05}
NARROW = 60, {"hidden": (32,), "batch": BATCH, "rate": 1e-2}
THIRDS = ("reference too high", "reference near", "reference too low")
FEWEST = 5  # examples; a smaller group says nothing, unless all are smaller


class Groups(NamedTuple):
    """The group of each example, [replica, n], by number, and the groups' names.

    `answers` are the reference's: its class or its value for each example,
    [replica, n].
    """

    number: Tensor
    names: tuple[str, ...]
    answers: Tensor


@dataclass(frozen=True)
class Reference:
    """A plain model of one environment; values are learned in units of their spread."""

    learner: Learner[Any]
    state: Any
    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, environment: Environment, randomness: Randomness) -> Reference:
        """The reference of an environment, one per replica."""
        replicas = len(randomness.seeds)
        centre, scale = torch.zeros(replicas, 1), torch.ones(replicas, 1)
        if not environment.task.classes:
            environment, centre, scale = _standardised(environment, replicas)
        inputs = math.prod(environment.features)
        steps, settings = WIDE if inputs >= MANY else NARROW
        epochs = max(1, round(steps / -(-len(environment) // BATCH)))
        learner = create("erm", environment, {**settings, "epochs": epochs})
        state = learner.init(randomness.at("init"))
        state = learner.observe(state, (environment,), randomness.at("stage"))
        return cls(learner, state, centre, scale)

    def answers(self, inputs: Tensor) -> Tensor:
        """Class or value of each of inputs [replica, n, ...], [replica, n]."""
        with torch.no_grad():
            predictions = self.learner.predict(self.state, inputs)
        if predictions.shape[-1] > 1:
            return predictions.argmax(-1)
        return self.centre + self.scale * predictions.squeeze(-1)

    def groups(self, environment: Environment, answers: Tensor, y: Tensor) -> Groups:
        """The groups of examples with targets y [replica, n] and these answers."""
        classes = environment.task.classes
        if not classes:
            order = (y - answers).argsort(-1).argsort(-1)
            return Groups(3 * order // y.shape[1], THIRDS, answers)
        names = [
            f"{name}, reference {word}"
            for name in classes
            for word in ("wrong", "right")
        ]
        return Groups(2 * y + (answers == y), tuple(names), answers)


def joined(parts: Sequence[Groups]) -> Groups:
    """The groups of several environments' examples, one after another."""
    number = torch.cat([part.number for part in parts], 1)
    answers = torch.cat([part.answers for part in parts], 1)
    return Groups(number, parts[0].names, answers)


def group_sums(values: Tensor, groups: Groups) -> Tensor:
    """Sums [replica, group] of values [replica, n]."""
    total = values.new_zeros(len(values), len(groups.names))
    return total.scatter_add(1, groups.number, values)


def group_sizes(groups: Groups) -> Tensor:
    """Number of examples of each group, [replica, group]."""
    return group_sums(torch.ones(groups.number.shape), groups)


def group_means(values: Tensor, groups: Groups) -> Tensor:
    """Means [replica, group] of values [replica, n]; not a number where none is."""
    return group_sums(values, groups) / group_sizes(groups)


def counted(groups: Groups) -> Tensor:
    """Which groups are large enough to count, [replica, group]; never none."""
    sizes = group_sizes(groups)
    large = sizes >= FEWEST
    return torch.where(large.any(-1, keepdim=True), large, sizes > 0)


def worst(values: Tensor, groups: Groups, high: bool) -> Tensor:
    """Mean of the worst group that counts, [replica]; the highest is if `high`."""
    means = group_means(values, groups)
    if high:
        return means.masked_fill(~counted(groups), -torch.inf).amax(-1)
    return means.masked_fill(~counted(groups), torch.inf).amin(-1)


def _standardised(
    environment: Environment, replicas: int
) -> tuple[Environment, Tensor, Tensor]:
    """The environment with targets of mean 0 and deviation 1, and what these were."""
    targets = environment.targets.reshape(-1, len(environment))
    centre = targets.mean(-1, keepdim=True)
    scale = targets.std(-1, keepdim=True, correction=0).clamp(min=1e-12)
    scaled = ((targets - centre) / scale).reshape(environment.targets.shape)
    made = replace(environment, targets=scaled)
    return made, centre.expand(replicas, 1), scale.expand(replicas, 1)
