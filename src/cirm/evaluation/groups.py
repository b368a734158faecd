"""Groups within an environment, inferred from the errors of a reference model.

The reference is a small network trained for a few epochs by plain risk minimisation. It
learns what is easiest: a shortcut, if there is one. The examples on which it errs are
those that contradict the shortcut. In classification the group of an example is its
class together with whether the reference is right. In regression it is the third that
the reference's residual falls into, so that groups have equal size and separate
predictions that are too low from those that are too high.

Within a group of one class a constant prediction is always right or always wrong, and
where the reference errs the shortcut is always wrong: both have a low worst group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.base import Learner
from cirm.randomness import Randomness

BATCH = 64
WIDE_INPUTS = 256  # from here on a step of the same rate moves the outputs too far
# Steps and settings of the reference; a thousand examples make 16 steps an epoch. It
# stays small and is stopped early, so that it learns only what is easiest.
WIDE = 40, {"hidden": (32,), "batch": BATCH, "rate": 1e-3, "decay": 0.05}
NARROW = 60, {"hidden": (32,), "batch": BATCH, "rate": 1e-2}
THIRDS = ("reference too high", "reference near", "reference too low")
MIN_GROUP_SIZE = 5  # the mean of fewer examples says nothing


class GroupOfEachExample(NamedTuple):
    """The group of each example.

    Attributes:
        indices: Index of each example's group, [replica, n].
        names: Name of each group.
        reference: The reference's class or value for each example, [replica, n].
    """

    indices: Tensor
    names: tuple[str, ...]
    reference: Tensor


@dataclass(frozen=True)
class GroupReferenceModel:
    """A plain model of one environment; it predicts standardised targets."""

    learner: Learner[Any]
    state: Any
    centre: Tensor
    scale: Tensor

    @classmethod
    def fit(
        cls, environment: Environment, randomness: Randomness
    ) -> GroupReferenceModel:
        """Train the reference of an environment, one per replica."""
        replicas = len(randomness.seeds)
        centre, scale = torch.zeros(replicas, 1), torch.ones(replicas, 1)
        if not environment.task.classes:
            environment, centre, scale = _standardise_targets(environment, replicas)
        inputs = math.prod(environment.features)
        steps, settings = WIDE if inputs >= WIDE_INPUTS else NARROW
        epochs = max(1, round(steps / -(-len(environment) // BATCH)))
        learner = create("erm", environment, {**settings, "epochs": epochs})
        state = learner.init(randomness.at("init"))
        state = learner.observe(state, (environment,), randomness.at("stage"))
        return cls(learner, state, centre, scale)

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the class or value [replica, n] of inputs [replica, n, ...]."""
        with torch.no_grad():
            predictions = self.learner.predict(self.state, inputs)
        if predictions.shape[-1] > 1:
            return predictions.argmax(-1)
        return self.centre + self.scale * predictions.squeeze(-1)

    def group_examples_by_reference_error(
        self, task: Task, x: Tensor, y: Tensor
    ) -> GroupOfEachExample:
        """Return the groups of inputs [replica, n, ...] with targets [replica, n]."""
        predictions = self.predict(x)
        if not task.classes:
            ranks = (y - predictions).argsort(-1).argsort(-1)
            return GroupOfEachExample(3 * ranks // y.shape[1], THIRDS, predictions)
        names = [
            f"{name}, reference {word}"
            for name in task.classes
            for word in ("wrong", "right")
        ]
        return GroupOfEachExample(2 * y + (predictions == y), tuple(names), predictions)


def concatenate_example_groups(
    groups: Sequence[GroupOfEachExample],
) -> GroupOfEachExample:
    """Concatenate the groups of several environments' examples."""
    indices = torch.cat([part.indices for part in groups], 1)
    reference = torch.cat([part.reference for part in groups], 1)
    return GroupOfEachExample(indices, groups[0].names, reference)


def count_group_sizes(groups: GroupOfEachExample) -> Tensor:
    """Return the number of examples in each group, [replica, group]."""
    return _compute_group_sums(torch.ones(groups.indices.shape), groups)


def compute_group_means(values: Tensor, groups: GroupOfEachExample) -> Tensor:
    """Return the means [replica, group] of values [replica, n]; NaN for no example."""
    return _compute_group_sums(values, groups) / count_group_sizes(groups)


def compute_worst_group_mean(
    values: Tensor, groups: GroupOfEachExample, is_highest_worst: bool
) -> Tensor:
    """Return the highest or else the lowest mean of a large enough group, [replica]."""
    means, large = (
        compute_group_means(values, groups),
        find_groups_with_enough_examples(groups),
    )
    if is_highest_worst:
        return means.masked_fill(~large, -torch.inf).amax(-1)
    return means.masked_fill(~large, torch.inf).amin(-1)


def find_groups_with_enough_examples(groups: GroupOfEachExample) -> Tensor:
    """Return which groups have enough examples, or any if none has enough.

    The result is [replica, group].
    """
    sizes = count_group_sizes(groups)
    large = sizes >= MIN_GROUP_SIZE
    return torch.where(large.any(-1, keepdim=True), large, sizes > 0)


def _compute_group_sums(values: Tensor, groups: GroupOfEachExample) -> Tensor:
    """Return the sums [replica, group] of values [replica, n]."""
    total = values.new_zeros(len(values), len(groups.names))
    return total.scatter_add(1, groups.indices, values)


def _standardise_targets(
    environment: Environment, n_replicas: int
) -> tuple[Environment, Tensor, Tensor]:
    """Scale targets to mean 0 and deviation 1; also return mean and deviation."""
    targets = environment.targets.reshape(-1, len(environment))
    centre = targets.mean(-1, keepdim=True)
    scale = targets.std(-1, keepdim=True, correction=0).clamp(min=1e-12)
    scaled = ((targets - centre) / scale).reshape(environment.targets.shape)
    environment = replace(environment, targets=scaled)
    return environment, centre.expand(n_replicas, 1), scale.expand(n_replicas, 1)
