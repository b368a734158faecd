"""What is timed: the cell of table 1, and the full batch of tables 3 and 4.

The examples are noise with random labels: the time of a step does not depend on them.
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
class Cell:
    """A network's sizes, the environments of a stage and how they are learned.

    Each stage has `together` environments of `examples` each; a stage is timed after
    an earlier one, for `epochs` epochs in batches of `batch` (0: all at once).
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
        """Sizes of the layers."""
        return (self.inputs, *self.hidden, self.outputs)

    @property
    def head(self) -> tuple[int, int]:
        """Inputs and outputs of the last layer."""
        return self.sizes[-2], self.sizes[-1]

    @property
    def steps(self) -> int:
        """Steps of the timed stage."""
        per_epoch = -(-self.examples // self.batch) if self.batch else 1
        return self.epochs * per_epoch

    @property
    def rows(self) -> int:
        """Examples of a step, of all environments together."""
        return self.together * self.examples * self.epochs // self.steps

    @cached_property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs [n, features] and labels [n] of two stages' environments."""
        source = Randomness((0,), ("bench",))
        return [
            (
                source.at("x", place).uniform(self.examples, self.inputs)[0],
                source.at("y", place).integers(2, self.examples)[0],
            )
            for place in range(2 * self.together)
        ]

    def stages(self) -> tuple[Stage, Stage]:
        """An earlier stage, and the one that is timed."""
        task = Task.classification(2)
        made = [Environment(f"{i}", x, y, task) for i, (x, y) in enumerate(self.data)]
        return tuple(made[: self.together]), tuple(made[self.together :])

    def settings(self) -> dict[str, Any]:
        """Settings of a learner that make it learn this cell."""
        return {
            "hidden": self.hidden,
            "outputs": self.outputs,
            "epochs": self.epochs,
            "batch": self.batch,
        }

    def learner(self, key: str, preset: str, **settings: Any) -> Learner[Any]:  # noqa: ANN401
        """A learner for this cell, with the rest of its settings from a preset."""
        first = self.stages()[1][0]
        return create(key, first, {**self.settings(), **settings}, preset)


class Ours:
    """A learner of ours in a cell; a call learns the timed stage once."""

    def __init__(self, cell: Cell, learner: Learner[Any], past: bool = True) -> None:
        earlier, self.stage = cell.stages()
        self.learner, self.randomness = learner, Randomness((0,))
        self.state = learner.init(self.randomness.at("init"))
        if past:
            self.state = learner.observe(
                self.state, earlier, self.randomness.at("stage", 0)
            )

    def __call__(self) -> object:
        """The state after the stage."""
        at = self.randomness.at("stage", 1)
        return self.learner.observe(self.state, self.stage, at)


def table1(quick: bool) -> Cell:
    """The second environment of table 1's cell, for part of its epochs."""
    if quick:
        return Cell("table 1", "quick", 64, (16, 16), 2, 128, 64, 1)
    title = "1,000 examples, 1568-100-100-2, four batches an epoch"
    return Cell("table 1", title, 1568, (100, 100), 2, 1000, 256, 5)


def once(quick: bool) -> Cell:
    """Table 1's cell for one epoch, for what goes example by example."""
    return replace(table1(quick), epochs=1)


def whole(quick: bool) -> Cell:
    """Table 1's cell for all its epochs, for what also works at a stage's end."""
    return replace(table1(quick), epochs=1 if quick else 100)


def pair(quick: bool) -> Cell:
    """Two environments of table 1 at once, for methods that need them to meet."""
    if quick:
        return Cell("two at once", "quick", 64, (16, 16), 2, 128, 64, 1, 2)
    title = "2 x 1,000 examples, 1568-100-100-2, four batches an epoch"
    return Cell("two at once", title, 1568, (100, 100), 2, 1000, 256, 5, 2)


def full(quick: bool) -> Cell:
    """The full batch of tables 3 and 4, for a few of its steps."""
    if quick:
        return Cell("full batch", "quick", 32, (16, 16), 1, 200, 0, 1, 2)
    title = "2 x 25,000 examples at once, 392-390-390-1"
    return Cell("full batch", title, 392, (390, 390), 1, 25_000, 0, 2, 2)
