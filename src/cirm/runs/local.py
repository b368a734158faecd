"""Run jobs in processes of this machine; each writes one file and is run once."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, Self

from cirm.records import Record, RunRecord, parse_record, read_records, write_records
from cirm.runs.driver import LOST, Report, run_queued_jobs
from cirm.runs.job_queue import JobQueue, TimeBudgetSpentError
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.tracker import JobTime, estimate_training_cost_of_job

MAX_ATTEMPTS = 2  # of a job whose worker was killed, perhaps for its neighbour's memory
KILLED_MESSAGE = (
    "the process of the job was killed, perhaps because memory ran out. Run fewer "
    "jobs at a time with --workers"
)
# Errors of the job itself; torch raises RuntimeError when memory is short.
FAILURES = (ValueError, ArithmeticError, OSError, MemoryError, RuntimeError)


def ignore_job_progress(job: TrainingJob, done: float) -> None:
    """Report nothing."""


def get_records_folder(folder: Path) -> Path:
    """Return the folder of the records of jobs in a folder of results."""
    return folder / "jobs"


def get_records_path(job: TrainingJob | str, folder: Path) -> Path:
    """Return the path of the records of a job, which is given by itself or its key."""
    key = job if isinstance(job, str) else job.key
    return get_records_folder(folder) / f"{key}.jsonl"


def list_unfinished_jobs(
    jobs: Iterable[TrainingJob], folder: Path
) -> list[TrainingJob]:
    """List the jobs without records in the folder."""
    return [job for job in jobs if not get_records_path(job, folder).exists()]


def read_records_of_finished_jobs(
    jobs: Iterable[TrainingJob], folder: Path
) -> list[Record]:
    """Return the records of all finished jobs, in the order of the jobs."""
    paths = [get_records_path(job, folder) for job in jobs]
    return [record for path in paths if path.exists() for record in read_records(path)]


def read_job_duration(job: TrainingJob, folder: Path) -> float:
    """Return how many seconds a finished job took, from the last of its records."""
    text = get_records_path(job, folder).read_text("utf-8").rstrip("\n")
    last = parse_record(text.rpartition("\n")[2])
    return last.seconds if isinstance(last, RunRecord) else 0.0


def list_job_times(jobs: Iterable[TrainingJob], folder: Path) -> list[JobTime]:
    """List the times of those jobs that have finished."""
    return [
        (job.name, estimate_training_cost_of_job(job), read_job_duration(job, folder))
        for job in jobs
        if get_records_path(job, folder).exists()
    ]


def run_jobs_locally(
    jobs: Sequence[TrainingJob],
    folder: Path,
    n_workers: int,
    report: Report = ignore_job_progress,
    queue: JobQueue | None = None,
) -> dict[str, str]:
    """Run the unfinished jobs and return the reason of each failure by job key.

    A failed job does not stop the others. The jobs start in the order of the queue.
    """
    waiting = list_unfinished_jobs(jobs, folder)
    queue = queue or JobQueue(waiting)
    if n_workers == 1 or len(waiting) <= 1:
        return _run_jobs_in_turn(queue, folder, report)
    with ProcessWorkers(folder, min(n_workers, len(waiting))) as processes:
        return run_queued_jobs(queue, processes, report)


def _run_jobs_in_turn(queue: JobQueue, folder: Path, report: Report) -> dict[str, str]:
    failures = {}
    while job := queue.take_next_job():

        def report_job_progress(done: float, job: TrainingJob = job) -> None:
            queue.check_time_budget()
            report(job, done)

        start = time.monotonic()
        try:
            records = run_job_and_return_records(job, report_job_progress, folder)
            write_records(get_records_path(job, folder), records)
            queue.correct_expected_durations(job.key, time.monotonic() - start)
            report(job, 1.0)
        except TimeBudgetSpentError:
            queue.unstarted.append(job)
        except FAILURES as error:
            failures[job.key] = str(error) or type(error).__name__
    return failures


class ProcessWorkers:
    """Processes of this machine, each of which runs one job at a time.

    If one of them is killed, all are started again: the jobs that were running are
    tried once more.
    """

    attempts = MAX_ATTEMPTS
    lost_message = KILLED_MESSAGE

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._context = multiprocessing.get_context("spawn")
        # A plain queue would stay locked by a worker that is killed while it reports.
        self._manager = SyncManager(ctx=self._context)
        self._manager.start(_exit_when_parent_ends)
        self._progress: Any = self._manager.Queue()
        self._pool = self._start_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._manager.shutdown()

    def _start_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.limit,
            self._context,
            initializer=_init_worker_process,
            initargs=(self._progress,),
        )

    def submit_job(self, job: TrainingJob) -> Future[None]:
        """Start a job, in new processes if one of the old ones was killed."""
        try:
            return self._pool.submit(_run_job_in_worker, job, self.folder)
        except BrokenProcessPool:
            self._pool.shutdown(cancel_futures=True)
            self._pool = self._start_pool()
            return self._pool.submit(_run_job_in_worker, job, self.folder)

    def wait_for_any_job(
        self, running: Collection[Future[None]], seconds: float
    ) -> Iterable[Future[None]]:
        """Return the finished jobs; wait for one, but not for longer."""
        return wait(running, seconds, FIRST_COMPLETED).done

    def collect_result(self, reference: Future[None], job: TrainingJob) -> str:
        """Return why a job has failed, "" if it has not; its worker has stored it."""
        try:
            reference.result()
        except BrokenProcessPool:
            return LOST
        except FAILURES as error:
            return str(error) or type(error).__name__
        return ""

    def read_progress(self) -> dict[str, float]:
        """Return what the workers have put into the queue."""
        parts = {}
        for _ in range(self._progress.qsize()):
            key, part = self._progress.get()
            parts[key] = part
        return parts

    def cancel_jobs(self, running: Collection[Future[None]]) -> None:
        """Stop all processes."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()


def _init_worker_process(queue: Any) -> None:  # noqa: ANN401  a queue of a context
    global _progress
    _progress = queue
    _exit_when_parent_ends()


_progress: Any = None  # the queue of this worker process


def _exit_when_parent_ends() -> None:
    """Exit this process when its parent ends, even if that is killed."""

    def wait_for_end_of_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_end_of_parent, daemon=True).start()


def _run_job_in_worker(job: TrainingJob, folder: Path) -> None:
    records = run_job_and_return_records(
        job, lambda done: _progress.put((job.key, done)), folder
    )
    write_records(get_records_path(job, folder), records)
