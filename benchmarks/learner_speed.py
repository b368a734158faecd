"""The speed of our learners, compared with matrix products and usual code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import matrix_products as products
from benchmarks import pytorch_baselines as usual
from benchmarks import pytorch_variational_baselines as variational
from benchmarks import workloads
from benchmarks.timing import (
    Report,
    Work,
    compute_quartiles,
    compute_time_ratios,
    time_functions_in_turn,
)
from benchmarks.workloads import TimedLearner, Workload
from cirm.learners import get_preset_settings, list_learner_settings

Floor = Callable[[tuple[int, ...], int, int], Work]


@dataclass(frozen=True)
class LearnerBenchmark:
    """A learner, its workload, and what it is compared with.

    `floor` makes the matrix products of one step, the least that a step can take.
    `usual` trains the same method in the usual style. The goals: a step takes at most
    `aim` times its floor, and the usual code at least `faster` times as long as ours.
    `past` says whether an earlier environment is learned before the timing starts.
    """

    key: str
    workload: Callable[[bool], Workload]
    preset: str = "paper"
    floor: Floor | None = None
    usual: Callable[[Workload, Any], object] | None = None
    aim: float | None = None
    faster: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    past: bool = True


def compute_plain_floor(sizes: tuple[int, ...], rows: int, samples: int) -> Work:
    """Return the matrix products of a learner with a single network."""
    return products.list_plain_products(sizes, rows)


HEAD = {"constraint": "head", "rho0": 10.0, "rho1": 10.0}
LEARNER_BENCHMARKS = (
    LearnerBenchmark(
        "erm",
        workloads.build_table1_workload,
        floor=compute_plain_floor,
        usual=usual.train_erm,
        aim=1.6,
    ),
    LearnerBenchmark(
        "irmv1",
        workloads.build_table1_workload,
        floor=compute_plain_floor,
        usual=usual.train_irmv1,
        aim=1.6,
        faster=2,
    ),
    LearnerBenchmark(
        "ewc",
        workloads.build_table1_all_epochs_workload,
        floor=compute_plain_floor,
        usual=usual.train_ewc,
        aim=1.6,
    ),
    LearnerBenchmark("gem", workloads.build_table1_workload, usual=usual.train_gem),
    LearnerBenchmark(
        "mer",
        workloads.build_table1_one_epoch_workload,
        usual=usual.train_mer,
        faster=5,
    ),
    LearnerBenchmark(
        "vcl",
        workloads.build_table1_workload,
        floor=products.list_local_reparametrisation_products,
        usual=variational.train_vcl,
        aim=2,
        faster=2,
    ),
    LearnerBenchmark(
        "virmv1",
        workloads.build_table1_workload,
        floor=products.list_local_reparametrisation_products,
        usual=variational.train_virmv1,
        aim=2,
        faster=2,
    ),
    LearnerBenchmark(
        "bvirm",
        workloads.build_table1_workload,
        floor=products.list_gradient_norm_products,
        usual=variational.train_bvirm,
        aim=3,
        faster=2,
    ),
    LearnerBenchmark(
        "irmv1",
        workloads.build_two_environment_workload,
        floor=compute_plain_floor,
        usual=usual.train_irmv1,
        aim=1.6,
        faster=2,
    ),
    LearnerBenchmark(
        "birm",
        workloads.build_two_environment_workload,
        usual=variational.train_birm,
        faster=3,
        settings=HEAD,
    ),
    LearnerBenchmark(
        "irmv1",
        workloads.build_full_batch_workload,
        preset="irm",
        floor=compute_plain_floor,
        usual=usual.train_irmv1,
        aim=1.6,
        faster=1,
        past=False,
    ),
    LearnerBenchmark(
        "virmv1",
        workloads.build_full_batch_workload,
        preset="eiil",
        floor=products.list_sampled_weight_products,
        usual=variational.train_virmv1,
        aim=2,
        faster=1,
        past=False,
    ),
)


def measure_learners(quick: bool, rounds: int, report: Report) -> list[dict[str, Any]]:
    """Time every entry, and compare it with its floor and with usual code."""
    results = []
    for entry in LEARNER_BENCHMARKS:
        workload = entry.workload(quick)
        report(f"{entry.key}, {workload.name}")
        results.append(time_learner_benchmark(entry, workload, rounds))
    return results


def time_learner_benchmark(
    entry: LearnerBenchmark, workload: Workload, rounds: int
) -> dict[str, Any]:
    """Time one entry on a workload."""
    settings = get_benchmark_settings(entry)
    works: dict[str, Work] = {}
    learner = workload.make_learner(entry.key, entry.preset, **entry.settings)
    works["ours"] = TimedLearner(workload, learner, entry.past)
    if entry.floor is not None:
        step = entry.floor(workload.sizes, workload.rows, settings.get("samples", 1))
        works["floor"] = partial(repeat_step, step, workload.steps)
    if entry.usual is not None:
        works["usual"] = partial(entry.usual, workload, settings)
    times = time_functions_in_turn(works, rounds)
    row: dict[str, Any] = {
        "learner": entry.key,
        "cell": workload.name,
        "title": workload.title,
        "aim": entry.aim,
        "faster": entry.faster,
        "floor": None,
        "usual": None,
    }
    for name, values in times.items():
        row[f"{name}_step"] = compute_quartiles(
            [value / workload.steps for value in values]
        )
    if "floor" in times:
        row["floor"] = compute_time_ratios(times["ours"], times["floor"])
    if "usual" in times:
        row["usual"] = compute_time_ratios(times["usual"], times["ours"])
    return row


def get_benchmark_settings(entry: LearnerBenchmark) -> dict[str, Any]:
    """Return all settings of an entry's learner."""
    defaults = {name: default for name, _, default in list_learner_settings(entry.key)}
    return {
        **defaults,
        **get_preset_settings(entry.key, entry.preset),
        **entry.settings,
    }


def repeat_step(step: Work, times: int) -> None:
    """Run a step several times."""
    for _ in range(times):
        step()
