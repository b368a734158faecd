"""How time and memory grow with the size of the work: exponents of a power law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.timing import (
    Report,
    compute_quartiles,
    fit_exponent,
    time_functions_in_turn,
)
from benchmarks.workloads import Workload
from cirm.environments import Environment, Task
from cirm.learners.base import Learner
from cirm.memory import measure_state_size
from cirm.randomness import Randomness

WORKLOAD = Workload("growth", "", 392, (100, 100), 2, 1000, 0, 4)
SMALL = Workload("growth", "", 32, (16,), 2, 128, 0, 1)
CONTINUAL = ("steady", "erm", "irmv1", "ewc", "gem", "mer", "vcl", "virmv1", "bvirm")


@dataclass(frozen=True)
class ScalingAxis:
    """A quantity that grows, its sizes, and the learners that are measured.

    The size goes into the workload (`resize`), into a setting of the learner, or into
    the number of replicas.
    """

    name: str
    sizes: tuple[int, ...]
    learners: tuple[str, ...]
    resize: Callable[[Workload, int], Workload] = lambda workload, size: workload
    setting: str = ""
    replicas: bool = False


AXES = (
    ScalingAxis(
        "examples",
        (1, 2, 4, 8, 16),
        ("erm", "irmv1", "virmv1"),
        lambda workload, size: replace(workload, examples=size * workload.examples),
    ),
    ScalingAxis(
        "features",
        (1, 2, 4, 8),
        ("erm", "irmv1", "virmv1"),
        lambda workload, size: replace(workload, inputs=size * workload.inputs // 2),
    ),
    ScalingAxis(
        "environments at once",
        (1, 2, 4, 8),
        ("irmv1", "birm"),
        lambda workload, size: replace(workload, together=size),
    ),
    ScalingAxis("seeds side by side", (1, 2, 4, 8), ("erm", "irmv1"), replicas=True),
    ScalingAxis(
        "Monte-Carlo evaluations", (1, 2, 4, 8), ("vcl", "virmv1"), setting="samples"
    ),
)


def measure_scaling(quick: bool, rounds: int, report: Report) -> list[dict[str, Any]]:
    """Measure the exponents along every axis, and over past environments."""
    base, results = SMALL if quick else WORKLOAD, []
    for axis in AXES:
        sizes = axis.sizes[:2] if quick else axis.sizes
        for key in axis.learners:
            report(f"{axis.name}, {key}")
            results.append(measure_scaling_along_axis(axis, key, sizes, base, rounds))
    stages = 3 if quick else 9
    for key in CONTINUAL:
        report(f"environments so far, {key}")
        results.append(measure_cost_of_past_environments(key, base, stages, rounds))
    return results


def measure_scaling_along_axis(
    axis: ScalingAxis, key: str, sizes: tuple[int, ...], base: Workload, rounds: int
) -> dict[str, Any]:
    """Measure one learner along an axis."""
    works = {str(size): TimedStep(axis, key, size, base) for size in sizes}
    times = time_functions_in_turn(works, rounds)
    medians = [compute_quartiles(values)["median"] for values in times.values()]
    saved = [work.count_saved_bytes() for work in works.values()]
    return {
        "axis": axis.name,
        "learner": key,
        "sizes": list(sizes),
        "seconds": medians,
        "bytes": saved,
        "time_power": fit_exponent(sizes, medians),
        "memory_power": fit_exponent(sizes, saved),
    }


class TimedStep:
    """A learner at one size of an axis; each call trains it for a few steps."""

    def __init__(self, axis: ScalingAxis, key: str, size: int, base: Workload) -> None:
        workload = axis.resize(base, size)
        settings = {axis.setting: size} if axis.setting else {}
        self.learner: Learner[Any] = workload.make_learner(key, "", **settings)
        seeds = tuple(range(size)) if axis.replicas else (0,)
        self.randomness = Randomness(seeds)
        self.stage = workload.make_stages()[1]
        self.state = self.learner.init(self.randomness.at("init"))

    def __call__(self) -> object:
        """Return the state after the stage."""
        return self.learner.observe(self.state, self.stage, self.randomness)

    def count_saved_bytes(self) -> int:
        """Return the bytes that autograd saves for the backward pass."""
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


def measure_cost_of_past_environments(
    key: str, base: Workload, stages: int, rounds: int
) -> dict[str, Any]:
    """Measure the time of each further environment, and the size of the state."""
    learner = base.make_learner(key, "")
    randomness = Randomness((0,))
    state = learner.init(randomness.at("init"))
    works: dict[str, Callable[[], object]] = {}
    kept = []
    for number in range(1, stages + 1):
        stage = (build_environment(base, number),)
        at = randomness.at("stage", number)

        def work(state: Any = state, stage: Any = stage, at: Randomness = at) -> object:  # noqa: ANN401
            return learner.observe(state, stage, at)

        state = work()
        if number > 1:  # the first has no past
            works[str(number)] = work
            kept.append(
                sum(part["bytes"] for part in measure_state_size(state).values())
            )
    times = time_functions_in_turn(works, rounds)
    medians = [compute_quartiles(values)["median"] for values in times.values()]
    sizes = [int(name) for name in works]
    return {
        "axis": "environments so far",
        "learner": key,
        "sizes": sizes,
        "seconds": medians,
        "bytes": kept,
        "time_power": fit_exponent(sizes, medians),
        "memory_power": fit_exponent(sizes, kept),
    }


def build_environment(workload: Workload, number: int) -> Environment:
    """Return an environment with the sizes of a workload and its own examples."""
    source = Randomness((number,), ("growth",))
    x = source.at("x").uniform(workload.examples, workload.inputs)[0]
    y = source.at("y").integers(2, workload.examples)[0]
    return Environment(f"{number}", x, y, Task.classification(2))
