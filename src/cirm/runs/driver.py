"""Hand jobs to workers, whatever these are, until all have finished or failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from cirm.runs.job_queue import JobQueue, TimeBudgetSpentError
from cirm.runs.jobs import TrainingJob

Report = Callable[[TrainingJob, float], None]
"""Called with a job and the part of it that is done, from 0 to 1."""

Reference = Any  # what a kind of workers knows a running job by

LOST = "lost"
"""What `JobWorkers.collect` returns if the worker of a job was lost."""

PAUSE = 0.25  # seconds between two looks at the progress of running jobs


class JobWorkers(Protocol):
    """Processes, a cluster, or anything else that runs jobs."""

    attempts: int
    """How often a job is tried whose worker is lost."""

    lost_message: str
    """Why a job has failed whose worker was lost in every attempt."""

    @property
    def limit(self) -> int:
        """How many jobs may run at a time."""

    def submit_job(self, job: TrainingJob) -> Reference:
        """Start a job, and return a reference to it."""

    def wait_for_any_job(
        self, running: Collection[Reference], seconds: float
    ) -> Iterable[Reference]:
        """Return the references of finished jobs; wait for one, but not for longer."""

    def collect_result(self, reference: Reference, job: TrainingJob) -> str:
        """Store the records of a finished job; return why it failed, "" or `LOST`."""

    def read_progress(self) -> Mapping[str, float]:
        """Return what running jobs have reported since the last call, by key."""

    def cancel_jobs(self, running: Collection[Reference]) -> None:
        """Stop jobs that are still running."""


def run_queued_jobs(
    queue: JobQueue, workers: JobWorkers, report: Report
) -> dict[str, str]:
    """Run the jobs of a queue and return the reason of each failure by job key.

    A failed job does not stop the others. When the budget of the queue is overrun, the
    jobs that are still running are cancelled.
    """
    driver = _JobQueueDriver(queue, workers, report)
    try:
        while driver.start_jobs():
            driver.handle_finished_jobs()
            queue.check_time_budget()
    except TimeBudgetSpentError:
        queue.unstarted += [one.job for one in driver.running.values()]
    finally:
        if driver.running:
            workers.cancel_jobs(driver.running.keys())
    return driver.failures


class _RunningJobWithKey(NamedTuple):
    """A job that was started, with its key, which takes a moment to compute."""

    job: TrainingJob
    key: str
    start: float


class _JobQueueDriver:
    """The jobs that are running, and the failures so far.

    The time of each step depends on the jobs that run, not on those that wait.
    """

    def __init__(self, queue: JobQueue, workers: JobWorkers, report: Report) -> None:
        self.queue, self.workers, self.report = queue, workers, report
        self.failures: dict[str, str] = {}
        self.running: dict[Reference, _RunningJobWithKey] = {}
        self.jobs: dict[str, TrainingJob] = {}  # those that are running, by key
        self.attempts: Counter[str] = Counter()

    def start_jobs(self) -> bool:
        """Start as many jobs as may run; return whether any is running."""
        while len(self.running) < self.workers.limit:
            job = self.queue.take_next_job()
            if job is None:
                break
            one = _RunningJobWithKey(job, job.key, time.monotonic())
            self.jobs[one.key] = job
            self.running[self.workers.submit_job(job)] = one
        return bool(self.running)

    def handle_finished_jobs(self) -> None:
        """Wait a little, report progress, and deal with what has finished."""
        finished = list(self.workers.wait_for_any_job(self.running.keys(), PAUSE))
        for key, part in self.workers.read_progress().items():
            if key in self.jobs:  # else a late report
                self.report(self.jobs[key], part)
        for reference in finished:
            one = self.running.pop(reference)
            del self.jobs[one.key]
            self._handle_job_result(
                one, self.workers.collect_result(reference, one.job)
            )

    def _handle_job_result(self, running_job: _RunningJobWithKey, reason: str) -> None:
        self.attempts[running_job.key] += 1
        if reason == LOST and self.attempts[running_job.key] < self.workers.attempts:
            self.queue.return_job_of_lost_worker(running_job.job)
        elif reason:
            lost = self.workers.lost_message
            self.failures[running_job.key] = lost if reason == LOST else reason
        else:
            self.queue.correct_expected_durations(
                running_job.key, time.monotonic() - running_job.start
            )
            self.report(running_job.job, 1.0)
