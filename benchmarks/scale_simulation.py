"""Simulate many jobs on many workers: `python -m benchmarks.scale_simulation`.

The driver is the real one, with its queue, progress, retries and files. Only the
workers are simulated: a job sleeps for as long as the fastest recorded job of its kind
in table 1 took, and returns records of the usual size. Some workers are killed in the
middle of a job, one machine with all of its workers is lost, and some jobs fail.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cirm.cli.progress import show_progress_of_jobs
from cirm.records import (
    Record,
    RunRecord,
    ScoreRecord,
    TrainingCurveRecord,
    format_record_as_json,
    write_text_atomically,
)
from cirm.runs.archive import add_finished_jobs_to_archive
from cirm.runs.driver import LOST, run_queued_jobs
from cirm.runs.job_queue import JobQueue
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import get_records_path, list_unfinished_jobs
from cirm.runs.tracker import JobProgressTracker

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "table1" / "records.json"
MACHINE = 16  # workers of the machine that is lost
KILLED = 0.01  # of all attempts: the worker is killed
FAILED = 0.002  # of all jobs
LEARNERS = 100
EPOCHS, STAGES = 100, 2  # of the training curves in the records of a job


@dataclass
class Attempt:
    """A job on a worker: from when to when, and its result."""

    job: TrainingJob
    start: float
    end: float
    result: str


class SimulatedWorkers:
    """Workers that only sleep; time runs `speed` times as fast as recorded."""

    attempts = 4
    lost_message = "worker of the job was lost in each of 4 attempts"

    def __init__(self, folder: Path, limit: int, speed: float) -> None:
        self.folder, self.limit = folder, limit
        self.random = random.Random(0)
        stored = json.loads(RESULTS.read_text("utf-8"))
        # The least of each set-up: others waited for a core that was in use.
        least: dict[int, float] = {}
        for job in stored["jobs"]:
            seconds = least.get(job["setup"], job["seconds"])
            least[job["setup"]] = min(seconds, job["seconds"])
        self.seconds = [least[job["setup"]] / speed for job in stored["jobs"]]
        self.runs: dict[int, Attempt] = {}  # by the number of the attempt
        self.finished: Counter[str] = Counter()
        self.lost, self.busy, self.own_time = 0, 0.0, 0.0
        self._ends: list[tuple[float, int]] = []  # a heap
        self._submitted = 0

    def submit_job(self, job: TrainingJob) -> int:
        """Start a job on a worker."""
        begin = time.process_time()
        now, seconds = time.monotonic(), self.random.choice(self.seconds)
        result = "a bad job" if random.Random(job.key).random() < FAILED else ""
        if self.random.random() < KILLED:
            result, seconds = LOST, seconds * self.random.random()
        self._submitted += 1
        self.runs[self._submitted] = Attempt(job, now, now + seconds, result)
        heapq.heappush(self._ends, (now + seconds, self._submitted))
        if self._submitted == 2 * self.limit:
            self._lose_machine(now)
        self.own_time += time.process_time() - begin
        return self._submitted

    def _lose_machine(self, now: float) -> None:
        """Lose the running jobs of a machine, and its workers for the rest."""
        self.limit -= MACHINE
        for number in self.random.sample(sorted(self.runs), MACHINE):
            run = self.runs[number]
            run.end, run.result = min(now, run.end), LOST
            heapq.heappush(self._ends, (run.end, number))

    def wait_for_any_job(
        self, running: Collection[int], seconds: float
    ) -> Iterable[int]:
        """Return the attempts that have ended; sleep until one does."""
        begin, now = time.process_time(), time.monotonic()
        if self._ends and self._ends[0][0] > now:
            time.sleep(min(self._ends[0][0] - now, seconds))
            now = time.monotonic()
        ended = []
        while self._ends and self._ends[0][0] <= now:
            _, number = heapq.heappop(self._ends)
            if number in running and number not in ended:  # else it was lost before
                ended.append(number)
        self.own_time += time.process_time() - begin
        return ended

    def collect_result(self, reference: int, job: TrainingJob) -> str:
        """Write the records of a job, as the driver of a cluster does."""
        run = self.runs.pop(reference)
        self.busy += run.end - run.start
        if run.result == LOST:
            self.lost += 1
        elif not run.result:
            begin = time.process_time()
            text = format_usual_records(job, run.end - run.start)
            self.own_time += time.process_time() - begin
            write_text_atomically(get_records_path(job, self.folder), text)
            self.finished[job.key] += 1
        return run.result

    def read_progress(self) -> Mapping[str, float]:
        """Return how far the running jobs are, as one message per worker would say."""
        now = time.monotonic()
        return {
            run.job.key: min((now - run.start) / max(run.end - run.start, 1e-9), 0.99)
            for run in list(self.runs.values())[:MACHINE]
        }

    def cancel_jobs(self, running: Collection[int]) -> None:
        """Forget what is running."""
        self.runs.clear()


def format_usual_records(job: TrainingJob, seconds: float) -> str:
    """Return records of the size of a job of table 1, about 60 kB."""
    (seed,) = job.seeds
    curves: list[Record] = [
        TrainingCurveRecord(job.name, job.order, seed, stage, step, metric, 0.123456789)
        for stage in range(STAGES)
        for step in range(EPOCHS)
        for metric in ("risk", "penalty")
    ]
    scores: list[Record] = [
        ScoreRecord(job.name, job.order, seed, stage, name, "test", "accuracy", 71.5)
        for stage in range(STAGES)
        for name in ("train-1", "train-2", "test")
    ]
    data = {"name": job.dataset, **job.data}
    run = RunRecord(job.name, job.order, job.seeds, {}, data, "", {}, seconds)
    return "".join(format_record_as_json(row) + "\n" for row in [*curves, *scores, run])


def plan_simulated_jobs(count: int) -> list[TrainingJob]:
    """Return so many jobs, of a hundred learners."""
    data = {"source": "mnist", "environments": 2, "examples": 1000}
    return [
        TrainingJob(
            "colored",
            "erm",
            "sequential",
            (number // LEARNERS,),
            data,
            label=f"learner {number % LEARNERS}",
        )
        for number in range(count)
    ]


def simulate(
    jobs: Sequence[TrainingJob], workers: int, speed: float
) -> dict[str, float]:
    """Run jobs on simulated workers, and return what was measured."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        cluster = SimulatedWorkers(folder, workers, speed)
        begin, used = time.monotonic(), time.process_time()
        tracker = JobProgressTracker(jobs, workers, [])
        with show_progress_of_jobs(tracker, folder, "simulation") as report:
            failures = run_queued_jobs(JobQueue(jobs), cluster, report)
        used = time.process_time() - used - cluster.own_time
        seconds = time.monotonic() - begin
        archived = time.process_time()
        add_finished_jobs_to_archive(jobs, folder, "a simulation")
        archived = time.process_time() - archived
        missing = {job.key for job in list_unfinished_jobs(jobs, folder)}
    return {
        "jobs": len(jobs),
        "seconds": seconds,
        "driver milliseconds per job": 1e3 * used / len(jobs),
        "archive milliseconds per job": 1e3 * archived / len(jobs),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "utilisation in percent": 100 * cluster.busy / (workers * seconds),
        "attempts with a lost worker": cluster.lost,
        "failed jobs": len(failures),
        "jobs lost": len(missing - failures.keys()),
        "jobs run twice": sum(count > 1 for count in cluster.finished.values()),
    }


def main() -> None:
    """Simulate and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--speed", type=float, default=1.0)
    chosen = parser.parse_args()
    found = simulate(plan_simulated_jobs(chosen.jobs), chosen.workers, chosen.speed)
    for name, value in found.items():
        print(f"{name}: {value:,.4g}" if value < 100 else f"{name}: {value:,.0f}")


if __name__ == "__main__":
    main()
