"""How time and memory grow with the size of the work; the power of each is fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.cells import Cell
from benchmarks.timing import Tell, exponent, interleaved, spread
from cirm.environments import Environment, Task
from cirm.learners.base import Learner
from cirm.memory import count_memory
from cirm.randomness import Randomness

CELL = Cell("growth", "", 392, (100, 100), 2, 1000, 0, 4)
SMALL = Cell("growth", "", 32, (16,), 2, 128, 0, 1)
CONTINUAL = ("cirm", "erm", "irmv1", "ewc", "gem", "mer", "vcl", "virmv1", "bvirm")


@dataclass(frozen=True)
class Axis:
    """One thing that grows: its sizes, the learners, and the cell of a size.

    Or a setting of the learner that takes the size, or the number of replicas.
    """

    name: str
    sizes: tuple[int, ...]
    learners: tuple[str, ...]
    cell: Callable[[Cell, int], Cell] = lambda cell, size: cell
    setting: str = ""
    replicas: bool = False


AXES = (
    Axis(
        "examples",
        (1, 2, 4, 8, 16),
        ("erm", "irmv1", "virmv1"),
        lambda cell, size: replace(cell, examples=size * cell.examples),
    ),
    Axis(
        "features",
        (1, 2, 4, 8),
        ("erm", "irmv1", "virmv1"),
        lambda cell, size: replace(cell, inputs=size * cell.inputs // 2),
    ),
    Axis(
        "environments at once",
        (1, 2, 4, 8),
        ("irmv1", "birm"),
        lambda cell, size: replace(cell, together=size),
    ),
    Axis("seeds side by side", (1, 2, 4, 8), ("erm", "irmv1"), replicas=True),
    Axis("Monte-Carlo evaluations", (1, 2, 4, 8), ("vcl", "virmv1"), setting="samples"),
)


def measured(quick: bool, rounds: int, tell: Tell) -> list[dict[str, Any]]:
    """Powers of time and of memory along every axis, and over past environments."""
    base, found = SMALL if quick else CELL, []
    for axis in AXES:
        sizes = axis.sizes[:2] if quick else axis.sizes
        for key in axis.learners:
            tell(f"{axis.name}, {key}")
            found.append(grown(axis, key, sizes, base, rounds))
    stages = 3 if quick else 9
    for key in CONTINUAL:
        tell(f"environments so far, {key}")
        found.append(remembered(key, base, stages, rounds))
    return found


def grown(
    axis: Axis, key: str, sizes: tuple[int, ...], base: Cell, rounds: int
) -> dict[str, Any]:
    """A learner along an axis."""
    works = {str(size): Step(axis, key, size, base) for size in sizes}
    times = interleaved(works, rounds)
    middles = [spread(values)["median"] for values in times.values()]
    kept = [work.kept() for work in works.values()]
    return {
        "axis": axis.name,
        "learner": key,
        "sizes": list(sizes),
        "seconds": middles,
        "bytes": kept,
        "time_power": exponent(sizes, middles),
        "memory_power": exponent(sizes, kept),
    }


class Step:
    """A learner at one size of an axis; a call learns a stage of a few steps."""

    def __init__(self, axis: Axis, key: str, size: int, base: Cell) -> None:
        cell = axis.cell(base, size)
        settings = {axis.setting: size} if axis.setting else {}
        self.learner: Learner[Any] = cell.learner(key, "", **settings)
        seeds = tuple(range(size)) if axis.replicas else (0,)
        self.randomness = Randomness(seeds)
        self.stage = cell.stages()[1]
        self.state = self.learner.init(self.randomness.at("init"))

    def __call__(self) -> object:
        """The state after the stage."""
        return self.learner.observe(self.state, self.stage, self.randomness)

    def kept(self) -> int:
        """Bytes that the largest backward pass of a stage keeps until it is done."""
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            descent = replace(self.learner.descent, epochs=1)
            replace(self.learner, descent=descent).observe(
                self.state, self.stage, self.randomness
            )
        return max(1, sum(sizes.values()))


def remembered(key: str, base: Cell, stages: int, rounds: int) -> dict[str, Any]:
    """Time of each further environment of a sequence, and what is kept of the past."""
    learner = base.learner(key, "")
    randomness = Randomness((0,))
    state = learner.init(randomness.at("init"))
    works: dict[str, Callable[[], object]] = {}
    kept = []
    for number in range(1, stages + 1):
        stage = (environment(base, number),)
        at = randomness.at("stage", number)

        def work(state: Any = state, stage: Any = stage, at: Randomness = at) -> object:  # noqa: ANN401
            return learner.observe(state, stage, at)

        state = work()
        if number > 1:  # the first has no past
            works[str(number)] = work
            kept.append(sum(part["bytes"] for part in count_memory(state).values()))
    times = interleaved(works, rounds)
    middles = [spread(values)["median"] for values in times.values()]
    sizes = [int(name) for name in works]
    return {
        "axis": "environments so far",
        "learner": key,
        "sizes": sizes,
        "seconds": middles,
        "bytes": kept,
        "time_power": exponent(sizes, middles),
        "memory_power": exponent(sizes, kept),
    }


def environment(cell: Cell, number: int) -> Environment:
    """An environment of a cell's size, with examples of its own."""
    source = Randomness((number,), ("growth",))
    x = source.at("x").uniform(cell.examples, cell.inputs)[0]
    y = source.at("y").integers(2, cell.examples)[0]
    return Environment(f"{number}", x, y, Task.classification(2))
