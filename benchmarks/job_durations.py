"""Record how long the jobs of the paper's tables take.

`python -m benchmarks.job_durations` writes src/cirm/runs/durations.json from the
records in docs/results. Some of them were made while other programs used the machine,
so the least seconds of all seeds count.
"""

from __future__ import annotations

import json
from pathlib import Path

from cirm.paper import EXPERIMENTS
from cirm.records import write_text_atomically
from cirm.runs.archive import load_archive
from cirm.runs.durations import DURATIONS_NAME, hash_work, time_reference_steps
from cirm.runs.tracker import estimate_data_work

ROOT = Path(__file__).parents[1]
REPEATS = 40  # of the reference steps; the fastest counts


def collect_durations(results: Path) -> dict[str, list[tuple[float, float]]]:
    """Return pairs of work and seconds of one seed, by `hash_work`."""
    least: dict[str, dict[float, float]] = {}
    for experiment in EXPERIMENTS.values():
        archive = load_archive(results / experiment.name)
        for trial in experiment.list_trials():
            (job,) = trial.plan_jobs((0,))
            for entry in archive.list_entries(trial.identity):
                seeds = len(entry["seeds"])
                known = least.setdefault(hash_work(job), {})
                work = estimate_data_work(job.data, 1)
                seconds = entry["seconds"] / seeds
                known[work] = round(min(seconds, known.get(work, seconds)), 2)
    return {work: sorted(known.items()) for work, known in sorted(least.items())}


def main() -> None:
    """Write the durations."""
    step = min(time_reference_steps()[0] for _ in range(REPEATS))
    jobs = collect_durations(ROOT / "docs" / "results")
    lines = [f"{json.dumps(work)}: {json.dumps(known)}" for work, known in jobs.items()]
    text = f'{{"step": {step:.3g}, "jobs": {{\n' + ",\n".join(lines) + "\n}}\n"
    write_text_atomically(ROOT / "src" / "cirm" / "runs" / DURATIONS_NAME, text)
    print(f"{len(jobs)} kinds of job, {1e3 * step:.2f} ms per reference step")


if __name__ == "__main__":
    main()
