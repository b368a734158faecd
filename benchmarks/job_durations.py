"""Record how long the jobs of the paper's tables take.

`python -m benchmarks.job_durations` writes src/cirm/runs/durations.json from the
records in docs/results. Some of them were made while other programs used the machine,
so the least seconds of all seeds count. With --time TABLE ... the jobs of tables are
timed anew, as after a change that makes them faster or on another machine: whole jobs,
or the first steps of long ones. The records of the other jobs are then multiplied by
how much longer the timed jobs of the same learner took than their records. Kinds of job
with no record or only one, as after a preset has changed, are always timed. With
--costs it only prints what the tables cost.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from cirm.evaluation.run import INFERENCE_SHARE
from cirm.paper import EXPERIMENTS
from cirm.records import write_text_atomically
from cirm.runs.archive import load_job_archive
from cirm.runs.durations import (
    DURATIONS_NAME,
    estimate_seconds_from_recorded_jobs,
    hash_duration_settings,
    load_recorded_durations,
    time_first_training_steps_of_job,
)
from cirm.runs.jobs import TrainingJob
from cirm.runs.machine_speed import (
    STEP_KINDS,
    StepKind,
    StepSeconds,
    find_step_kind,
    time_reference_training_steps,
)
from cirm.runs.tracker import (
    estimate_training_cost_of_dataset,
    estimate_training_cost_of_job,
)

TABLES = ("table1", "table2", "table3", "table4", "table5")
DEAREST = 3  # cells of each table that are named
ROOT = Path(__file__).parents[1]
DOUBTFUL = 3.0  # times as long per example as at another size
TIMED_SECONDS: dict[StepKind, float] = {"small": 10.0, "large": 3.0}
"""For a job; steps of a full batch are alike, so that fewer seconds suffice."""
QUIET_TRIES = 20  # the fastest is taken for the speed of a quiet machine

Durations = dict[str, dict[float, float]]
"""The seconds of one seed by the work of a job, by `hash_duration_settings`."""


class RecordedDurations(NamedTuple):
    """What the records in docs/results say.

    Attributes:
        least: The least seconds of all seeds.
        counts: How many records there are, by `hash_duration_settings`.
        groups: The data set, the learner and the kind of step, by
            `hash_duration_settings`.
    """

    least: Durations
    counts: Counter[str]
    groups: dict[str, tuple[str, str, StepKind]]


def collect_recorded_durations(results: Path) -> RecordedDurations:
    """Return what the records in a folder say."""
    recorded = RecordedDurations({}, Counter(), {})
    for experiment in EXPERIMENTS.values():
        archive = load_job_archive(results / experiment.name)
        for trial in experiment.list_trials():
            (job,) = trial.plan_jobs((0,))
            kind = hash_duration_settings(job)
            recorded.groups[kind] = (job.dataset, job.learner, find_step_kind(job))
            for entry in archive.list_packed_jobs(trial.identity):
                known = recorded.least.setdefault(kind, {})
                recorded.counts[kind] += 1
                work = estimate_training_cost_of_dataset(job.data, 1)
                seconds = entry["seconds"] / len(entry["seeds"])
                known[work] = round(min(seconds, known.get(work, seconds)), 2)
    return recorded


def scale_recorded_durations(recorded: RecordedDurations, timed: Durations) -> None:
    """Multiply records by how much longer timed jobs took than theirs.

    A record counts as those of its data set and learner with steps of the same kind, or
    else as the median of those with steps of the same kind.
    """
    ratios: dict[object, list[float]] = {}
    for kind, sizes in timed.items():
        for work in sizes.keys() & recorded.least.get(kind, {}).keys():
            ratio = sizes[work] / recorded.least[kind][work]
            group = recorded.groups[kind]
            ratios.setdefault(group, []).append(ratio)
            ratios.setdefault(group[-1], []).append(ratio)
    for name, values in ratios.items():
        print(f"{name}: {median(values):.2f} times the records", flush=True)
    for kind, sizes in recorded.least.items():
        group = recorded.groups[kind]
        ratio = median(ratios.get(group) or ratios.get(group[-1]) or [1.0])
        for work in sizes:
            sizes[work] = round(ratio * sizes[work], 2)


def time_doubtful_kinds(
    recorded: RecordedDurations, timed: Durations, quiet: StepSeconds
) -> None:
    """Time jobs of the tables whose records say too little.

    These are kinds with at most one record, and sizes at which an example takes several
    times as long as at the others, as when other programs used the machine.
    """
    least, counts = recorded.least, recorded.counts
    for job in list_jobs_of_tables():
        work, size = hash_duration_settings(job), estimate_training_cost_of_job(job)
        known = least.setdefault(work, {})
        rates = [seconds / work for work, seconds in known.items()]
        slow = size in known and known[size] / size > DOUBTFUL * min(rates)
        if size in timed.get(work, {}) or (counts[work] > 1 and not slow):
            continue
        seconds = round(time_quietly(job, quiet), 2)
        timed.setdefault(work, {})[size] = seconds
        print(f"{job.name}: {seconds:.1f} s", flush=True)


def list_jobs_of_tables() -> list[TrainingJob]:
    """Return a job of one seed for each trial of the tables."""
    trials = [t for name in TABLES for t in EXPERIMENTS[name].list_trials()]
    return [job for trial in trials for job in trial.plan_jobs((0,))]


def time_kinds_of_table(name: str, timed: Durations, quiet: StepSeconds) -> None:
    """Time each kind and size of a table's jobs that was not timed yet.

    Environments are inferred by the first job of their data, and stored for the others.
    """
    inferred: set[str] = set()
    for trial in EXPERIMENTS[name].list_trials():
        (job,) = trial.plan_jobs((0,))
        known = timed.setdefault(hash_duration_settings(job), {})
        size = estimate_training_cost_of_job(job)
        if size in known:
            continue
        seconds = time_quietly(replace(job, infer="", inference={}), quiet)
        data = json.dumps(job.data, sort_keys=True)
        if job.infer and data not in inferred:
            seconds += INFERENCE_SHARE * time_quietly(job, quiet)
            inferred.add(data)
        known[size] = round(seconds, 2)
        print(f"{job.name}, {2000 * size:,.0f} examples: {seconds:.1f} s", flush=True)


def time_quietly(job: TrainingJob, quiet: StepSeconds) -> float:
    """Return the seconds of a job on a quiet machine, where steps take `quiet`."""
    kind = find_step_kind(job)
    with TemporaryDirectory() as folder:
        before = time_reference_training_steps()[0][kind]
        seconds = time_first_training_steps_of_job(
            job, TIMED_SECONDS[kind], Path(folder)
        )
        after = time_reference_training_steps()[0][kind]
    if seconds is None:
        raise RuntimeError(f"The job {job.name} failed; run its table to see why.")
    return seconds * 2 * quiet[kind] / (before + after)


def time_quiet_steps() -> StepSeconds:
    """Return the seconds of a reference step of each kind when nothing else runs."""
    tries = [time_reference_training_steps()[0] for _ in range(QUIET_TRIES)]
    return {kind: min(steps[kind] for steps in tries) for kind in STEP_KINDS}


def print_costs() -> None:
    """Print what each table costs with the paper's seeds, and its dearest cells."""
    total, unknown = 0.0, 0
    for name in TABLES:
        experiment = EXPERIMENTS[name]
        cells: dict[str, float] = {}
        for trial in experiment.list_trials():
            size = trial.data.get("environments", 1) * trial.data.get("examples", 1000)
            cell = f"{trial.label}, {size:,} examples"
            for job in trial.plan_jobs(range(experiment.seeds)):
                seconds = estimate_seconds_from_recorded_jobs(job)
                unknown += seconds is None
                cells[cell] = cells.get(cell, 0.0) + (seconds or 0.0) / 60
        total += sum(cells.values())
        dearest = sorted(cells.items(), key=lambda item: -item[1])[:DEAREST]
        listed = "; ".join(f"{cell} {minutes:.0f}" for cell, minutes in dearest)
        print(
            f"{name}: {experiment.seeds} seeds, {sum(cells.values()):.0f} core-minutes "
            f"({listed})"
        )
    print(f"together: {total / 60:.1f} core-hours")
    if unknown:
        print(f"not counted, since none of their kind was recorded: {unknown} jobs")


def write_durations(tables: Sequence[str]) -> None:
    """Write the durations of jobs, and the speed of a quiet machine.

    The jobs of these tables are timed on this machine.
    """
    torch.set_num_threads(1)
    quiet = time_quiet_steps() if tables else load_recorded_durations()["steps"]
    recorded = collect_recorded_durations(ROOT / "docs" / "results")
    timed: Durations = {}
    for name in tables:
        time_kinds_of_table(name, timed, quiet)
    time_doubtful_kinds(recorded, timed, quiet)
    scale_recorded_durations(recorded, timed)
    jobs = {
        kind: sorted({**recorded.least.get(kind, {}), **timed.get(kind, {})}.items())
        for kind in sorted(recorded.least.keys() | timed.keys())
    }
    lines = [f"{json.dumps(work)}: {json.dumps(known)}" for work, known in jobs.items()]
    steps = json.dumps({kind: float(f"{quiet[kind]:.3g}") for kind in STEP_KINDS})
    text = f'{{"steps": {steps}, "jobs": {{\n' + ",\n".join(lines) + "\n}}\n"
    write_text_atomically(ROOT / "src" / "cirm" / "runs" / DURATIONS_NAME, text)
    print(f"{len(jobs)} kinds of job")


def main() -> None:
    """Write the durations, or print what the tables cost by those that were written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", action="store_true", help="only print the costs")
    parser.add_argument(
        "--time", nargs="+", default=(), choices=TABLES, help="tables to time anew"
    )
    args = parser.parse_args()
    if args.costs:
        print_costs()
    else:
        write_durations(args.time)


if __name__ == "__main__":
    main()
