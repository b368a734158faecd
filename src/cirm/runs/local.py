"""Run jobs in processes of this machine; each writes one file and is run once."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from cirm.records import Record, Run, parse_record, read_records, write_records
from cirm.runs.jobs import Job, execute_job

Report = Callable[[Job, float], None]
"""Called with a job and the part of it that is done, from 0 to 1."""

MAX_ATTEMPTS = 2  # of a job whose worker was killed, perhaps for its neighbour's memory
KILLED_MESSAGE = (
    "its process was killed, perhaps because memory ran out. Use fewer --workers"
)
# Errors of the job itself; torch raises RuntimeError when memory is short.
FAILURES = (ValueError, ArithmeticError, OSError, MemoryError, RuntimeError)


def ignore_job_progress(job: Job, done: float) -> None:
    """Report nothing."""


def get_records_path(job: Job, folder: Path) -> Path:
    """Return the path of a job's records."""
    return folder / "jobs" / f"{job.key}.jsonl"


def list_unfinished_jobs(jobs: Iterable[Job], folder: Path) -> list[Job]:
    """List the jobs without records in the folder."""
    return [job for job in jobs if not get_records_path(job, folder).exists()]


def collect_records_of_jobs(jobs: Iterable[Job], folder: Path) -> list[Record]:
    """Return the records of all finished jobs, in the order of the jobs."""
    paths = [get_records_path(job, folder) for job in jobs]
    return [record for path in paths if path.exists() for record in read_records(path)]


def read_job_duration(job: Job, folder: Path) -> float:
    """Return how many seconds a finished job took, from the last of its records."""
    text = get_records_path(job, folder).read_text("utf-8").rstrip("\n")
    last = parse_record(text.rpartition("\n")[2])
    return last.seconds if isinstance(last, Run) else 0.0


def run_jobs_locally(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    report: Report = ignore_job_progress,
) -> dict[str, str]:
    """Run the unfinished jobs and return the reason of each failure by job key.

    A failed job does not stop the others.
    """
    waiting = list_unfinished_jobs(jobs, folder)
    if workers == 1 or len(waiting) <= 1:
        return _run_jobs_in_turn(waiting, folder, report)
    failures: dict[str, str] = {}
    for _ in range(MAX_ATTEMPTS):
        for job in waiting:
            failures.pop(job.key, None)
        failures |= _run_jobs_in_process_pool(waiting, folder, workers, report)
        waiting = [job for job in waiting if failures.get(job.key) == KILLED_MESSAGE]
        if not waiting:
            break
    return failures


def _run_jobs_in_turn(jobs: list[Job], folder: Path, report: Report) -> dict[str, str]:
    failures = {}
    for job in jobs:
        try:
            records = execute_job(job, partial(report, job), folder)
            write_records(get_records_path(job, folder), records)
            report(job, 1.0)
        except FAILURES as error:
            failures[job.key] = str(error) or type(error).__name__
    return failures


def _run_jobs_in_process_pool(
    jobs: list[Job], folder: Path, workers: int, report: Report
) -> dict[str, str]:
    context = multiprocessing.get_context("spawn")
    # A plain queue would stay locked by a worker that is killed while it reports.
    manager = SyncManager(ctx=context)
    manager.start(_exit_with_parent)
    queue: Any = manager.Queue()
    jobs_by_key = {job.key: job for job in jobs}
    listener = threading.Thread(
        target=_report_worker_progress, args=(queue, jobs_by_key, report)
    )
    listener.start()
    failures: dict[str, str] = {}
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)),
        context,
        initializer=_init_worker_process,
        initargs=(queue,),
    )
    try:
        futures: dict[Future[None], Job] = {
            pool.submit(_run_job_in_worker, job, folder): job for job in jobs
        }
        for future in as_completed(futures):
            job = futures[future]
            try:
                future.result()
                report(job, 1.0)
            except BrokenProcessPool:
                failures[job.key] = KILLED_MESSAGE
            except FAILURES as error:
                failures[job.key] = str(error) or type(error).__name__
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        queue.put(None)
        listener.join()
        manager.shutdown()
    return failures


def _report_worker_progress(
    queue: Any,  # noqa: ANN401
    jobs_by_key: dict[str, Job],
    report: Report,
) -> None:
    """Report the progress that workers put into the queue, until None is put."""
    while (message := queue.get()) is not None:
        key, done = message
        report(jobs_by_key[key], done)


def _init_worker_process(queue: Any) -> None:  # noqa: ANN401  a queue of a context
    global _progress
    _progress = queue
    _exit_with_parent()


_progress: Any = None  # the queue of this worker process


def _exit_with_parent() -> None:
    """Exit this process when its parent ends, even if that is killed."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _run_job_in_worker(job: Job, folder: Path) -> None:
    records = execute_job(job, lambda done: _progress.put((job.key, done)), folder)
    write_records(get_records_path(job, folder), records)
