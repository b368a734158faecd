"""The workloads to time: those of table 1, and the full batch of tables 3 and 4.

Inputs and labels are random, because the time of a step does not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from cirm.environments import Environment, Stage, Task
from cirm.learners import create
from cirm.learners.base import Learner
from cirm.randomness import Randomness


@dataclass(frozen=True)
class Workload:
    """The sizes of a network and of the data it is trained on.

    There are two stages of `together` environments each, with `examples` examples in
    every environment. The second stage is timed: it is trained for `epochs` epochs in
    batches of `batch` examples, where 0 means the full batch.
    """

    name: str
    title: str
    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    examples: int
    batch: int
    epochs: int
    together: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the layers, from the inputs to the outputs."""
        return (self.inputs, *self.hidden, self.outputs)

    @property
    def head(self) -> tuple[int, int]:
        """Inputs and outputs of the last layer."""
        return self.sizes[-2], self.sizes[-1]

    @property
    def steps(self) -> int:
        """Number of training steps in the timed stage."""
        per_epoch = -(-self.examples // self.batch) if self.batch else 1
        return self.epochs * per_epoch

    @property
    def rows(self) -> int:
        """Number of examples in a step, over all environments."""
        return self.together * self.examples * self.epochs // self.steps

    @cached_property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs [n, features] and labels [n] of the environments of both stages."""
        source = Randomness((0,), ("bench",))
        return [
            (
                source.at("x", place).uniform(self.examples, self.inputs)[0],
                source.at("y", place).integers(2, self.examples)[0],
            )
            for place in range(2 * self.together)
        ]

    def make_stages(self) -> tuple[Stage, Stage]:
        """Return the earlier stage and the timed one."""
        task = Task.classification(2)
        every = [Environment(f"{i}", x, y, task) for i, (x, y) in enumerate(self.data)]
        return tuple(every[: self.together]), tuple(every[self.together :])

    def get_settings(self) -> dict[str, Any]:
        """Return the settings of a learner for this workload."""
        return {
            "hidden": self.hidden,
            "outputs": self.outputs,
            "epochs": self.epochs,
            "batch": self.batch,
        }

    def make_learner(self, key: str, preset: str, **settings: Any) -> Learner[Any]:  # noqa: ANN401
        """Return a learner for this workload; other settings come from a preset."""
        first = self.make_stages()[1][0]
        return create(key, first, {**self.get_settings(), **settings}, preset)


class TimedLearner:
    """One of our learners; each call trains it on the timed stage once."""

    def __init__(
        self, workload: Workload, learner: Learner[Any], past: bool = True
    ) -> None:
        earlier, self.stage = workload.make_stages()
        self.learner, self.randomness = learner, Randomness((0,))
        self.state = learner.init(self.randomness.at("init"))
        if past:
            self.state = learner.observe(
                self.state, earlier, self.randomness.at("stage", 0)
            )

    def __call__(self) -> object:
        """Return the state after the stage."""
        at = self.randomness.at("stage", 1)
        return self.learner.observe(self.state, self.stage, at)


def build_table1_workload(quick: bool) -> Workload:
    """Return the second environment of table 1, for five of its 100 epochs."""
    if quick:
        return Workload("table 1", "quick", 64, (16, 16), 2, 128, 64, 1)
    title = "1,000 examples, 1568-100-100-2, four batches an epoch"
    return Workload("table 1", title, 1568, (100, 100), 2, 1000, 256, 5)


def build_table1_one_epoch_workload(quick: bool) -> Workload:
    """Return one epoch of table 1, for methods that go example by example."""
    return replace(build_table1_workload(quick), epochs=1)


def build_table1_all_epochs_workload(quick: bool) -> Workload:
    """Return all epochs of table 1, for methods with work at the end of a stage."""
    return replace(build_table1_workload(quick), epochs=1 if quick else 100)


def build_two_environment_workload(quick: bool) -> Workload:
    """Return two joint environments of table 1, for methods that compare them."""
    if quick:
        return Workload("two at once", "quick", 64, (16, 16), 2, 128, 64, 1, 2)
    title = "2 x 1,000 examples, 1568-100-100-2, four batches an epoch"
    return Workload("two at once", title, 1568, (100, 100), 2, 1000, 256, 5, 2)


def build_full_batch_workload(quick: bool) -> Workload:
    """Return two steps on the full batch of tables 3 and 4."""
    if quick:
        return Workload("full batch", "quick", 32, (16, 16), 1, 200, 0, 1, 2)
    title = "2 x 25,000 examples at once, 392-390-390-1"
    return Workload("full batch", title, 392, (390, 390), 1, 25_000, 0, 2, 2)
