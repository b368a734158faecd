"""The speed of our learners, compared with matrix products and usual code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import matrix_products as products
from benchmarks import usual_pytorch as usual
from benchmarks import usual_pytorch_variational as variational
from benchmarks import workloads
from benchmarks.timing import (
    Report,
    Work,
    compare_times,
    compute_quartiles,
    time_in_turns,
)
from benchmarks.workloads import OwnLearner, Workload
from cirm.learners import get_preset_settings, list_learner_settings

Floor = Callable[[tuple[int, ...], int, int], Work]


@dataclass(frozen=True)
class Entry:
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


def plain_floor(sizes: tuple[int, ...], rows: int, samples: int) -> Work:
    """Return the matrix products of a learner with a single network."""
    return products.plain_products(sizes, rows)


HEAD = {"constraint": "head", "rho0": 10.0, "rho1": 10.0}
ENTRIES = (
    Entry("erm", workloads.table1, floor=plain_floor, usual=usual.erm, aim=1.6),
    Entry(
        "irmv1",
        workloads.table1,
        floor=plain_floor,
        usual=usual.irmv1,
        aim=1.6,
        faster=2,
    ),
    Entry(
        "ewc", workloads.table1_all_epochs, floor=plain_floor, usual=usual.ewc, aim=1.6
    ),
    Entry("gem", workloads.table1, usual=usual.gem),
    Entry("mer", workloads.table1_one_epoch, usual=usual.mer, faster=5),
    Entry(
        "vcl",
        workloads.table1,
        floor=products.local_products,
        usual=variational.vcl,
        aim=2,
        faster=2,
    ),
    Entry(
        "virmv1",
        workloads.table1,
        floor=products.local_products,
        usual=variational.virmv1,
        aim=2,
        faster=2,
    ),
    Entry(
        "bvirm",
        workloads.table1,
        floor=products.constrained_products,
        usual=variational.bvirm,
        aim=3,
        faster=2,
    ),
    Entry(
        "irmv1",
        workloads.two_environments,
        floor=plain_floor,
        usual=usual.irmv1,
        aim=1.6,
        faster=2,
    ),
    Entry(
        "birm",
        workloads.two_environments,
        usual=variational.birm,
        faster=3,
        settings=HEAD,
    ),
    Entry(
        "irmv1",
        workloads.full_batch,
        preset="irm",
        floor=plain_floor,
        usual=usual.irmv1,
        aim=1.6,
        faster=1,
        past=False,
    ),
    Entry(
        "virmv1",
        workloads.full_batch,
        preset="eiil",
        floor=products.sampled_products,
        usual=variational.virmv1,
        aim=2,
        faster=1,
        past=False,
    ),
)


def measure_learners(quick: bool, rounds: int, report: Report) -> list[dict[str, Any]]:
    """Time every entry, and compare it with its floor and with usual code."""
    results = []
    for entry in ENTRIES:
        workload = entry.workload(quick)
        report(f"{entry.key}, {workload.name}")
        results.append(compare_entry(entry, workload, rounds))
    return results


def compare_entry(entry: Entry, workload: Workload, rounds: int) -> dict[str, Any]:
    """Time one entry on a workload."""
    settings = get_entry_settings(entry)
    works: dict[str, Work] = {}
    learner = workload.make_learner(entry.key, entry.preset, **entry.settings)
    works["ours"] = OwnLearner(workload, learner, entry.past)
    if entry.floor is not None:
        step = entry.floor(workload.sizes, workload.rows, settings.get("samples", 1))
        works["floor"] = partial(repeat_step, step, workload.steps)
    if entry.usual is not None:
        works["usual"] = partial(entry.usual, workload, settings)
    times = time_in_turns(works, rounds)
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
        row["floor"] = compare_times(times["ours"], times["floor"])
    if "usual" in times:
        row["usual"] = compare_times(times["usual"], times["ours"])
    return row


def get_entry_settings(entry: Entry) -> dict[str, Any]:
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
