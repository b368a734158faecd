"""Record how long the jobs of the paper's tables take.

`python -m benchmarks.job_durations` writes src/cirm/runs/durations.json from the
records in docs/results. Some of them were made while other programs used the machine,
so the least seconds of all seeds count. Kinds of job with no record or only one, as
after a preset has changed, are timed by their first steps, and so are all kinds of
tables 3 and 4 with --time table3 table4, as after a change that makes them faster. With
--costs it only prints what the tables cost.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
    time_reference_training_steps,
)
from cirm.runs.jobs import TrainingJob
from cirm.runs.tracker import (
    estimate_training_cost_of_dataset,
    estimate_training_cost_of_job,
)

TABLES = ("table1", "table2", "table3", "table4", "table5")
DEAREST = 3  # cells of each table that are named
ROOT = Path(__file__).parents[1]
DOUBTFUL = 3.0  # times as long per example as at another size
TIMED_SECONDS = 3.0  # for a kind of job without a record


def collect_durations(
    results: Path, timed: Sequence[str], step: float
) -> dict[str, list[tuple[float, float]]]:
    """Return pairs of work and seconds of one seed, by `hash_duration_settings`.

    The jobs of the tables `timed` are timed anew. A reference step takes `step` seconds
    when nothing else runs.
    """
    least: dict[str, dict[float, float]] = {}
    counts: Counter[str] = Counter()
    for experiment in EXPERIMENTS.values():
        archive = load_job_archive(results / experiment.name)
        for trial in experiment.list_trials():
            (job,) = trial.plan_jobs((0,))
            for entry in archive.list_packed_jobs(trial.identity):
                known = least.setdefault(hash_duration_settings(job), {})
                counts[hash_duration_settings(job)] += 1
                work = estimate_training_cost_of_dataset(job.data, 1)
                seconds = entry["seconds"] / len(entry["seeds"])
                known[work] = round(min(seconds, known.get(work, seconds)), 2)
    time_doubtful_kinds(least, counts, step)
    for name in timed:
        least |= time_kinds_of_table(name, step)
    return {work: sorted(known.items()) for work, known in sorted(least.items())}


def time_doubtful_kinds(
    least: dict[str, dict[float, float]], counts: Counter[str], step: float
) -> None:
    """Time the first steps of jobs of the tables whose records say too little.

    These are kinds with at most one record, and sizes at which an example takes several
    times as long as at the others, as when other programs used the machine.
    """
    timed = set()
    for job in list_jobs_of_tables():
        work, size = hash_duration_settings(job), estimate_training_cost_of_job(job)
        known = least.setdefault(work, {})
        rates = [seconds / work for work, seconds in known.items()]
        slow = size in known and known[size] / size > DOUBTFUL * min(rates)
        if (work, size) in timed or (counts[work] > 1 and not slow):
            continue
        timed.add((work, size))
        seconds = time_quietly(job, step)
        known[size] = round(min(seconds, known.get(size, seconds)), 2)
        print(f"{job.name}: {known[size]:.1f} s, by its first steps", flush=True)


def list_jobs_of_tables() -> list[TrainingJob]:
    """Return a job of one seed for each trial of the tables."""
    trials = [t for name in TABLES for t in EXPERIMENTS[name].list_trials()]
    return [job for trial in trials for job in trial.plan_jobs((0,))]


def time_kinds_of_table(name: str, step: float) -> dict[str, dict[float, float]]:
    """Time the first steps of each kind and size of a table's jobs.

    Environments are inferred by the first job of their data, and stored for the others.
    """
    found: dict[str, dict[float, float]] = {}
    inferred: set[str] = set()
    for trial in EXPERIMENTS[name].list_trials():
        (job,) = trial.plan_jobs((0,))
        known, size = (
            found.setdefault(hash_duration_settings(job), {}),
            estimate_training_cost_of_job(job),
        )
        if size in known:
            continue
        seconds = time_quietly(replace(job, infer="", inference={}), step)
        data = json.dumps(job.data, sort_keys=True)
        if job.infer and data not in inferred:
            seconds += INFERENCE_SHARE * time_quietly(job, step)
            inferred.add(data)
        known[size] = round(seconds, 2)
        print(f"{job.name}, {2000 * size:,.0f} examples: {seconds:.1f} s", flush=True)
    return found


def time_quietly(job: TrainingJob, step: float) -> float:
    """Return the seconds of a job if a reference step takes `step` seconds."""
    with TemporaryDirectory() as folder:
        before = time_reference_training_steps()[0]
        seconds = time_first_training_steps_of_job(job, TIMED_SECONDS, Path(folder))
        after = time_reference_training_steps()[0]
    if seconds is None:
        raise RuntimeError(f"The job {job.name} failed; run its table to see why.")
    return seconds * 2 * step / (before + after)


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


def write_durations(timed: Sequence[str]) -> None:
    """Write the durations of the records, and the speed of a quiet machine."""
    step = load_recorded_durations()["step"]
    jobs = collect_durations(ROOT / "docs" / "results", timed, step)
    lines = [f"{json.dumps(work)}: {json.dumps(known)}" for work, known in jobs.items()]
    text = f'{{"step": {step:.3g}, "jobs": {{\n' + ",\n".join(lines) + "\n}}\n"
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
