"""Run jobs on a Ray cluster, each as a task of one core.

Workers need no folder in common with the driver: a job's records come back as text and
are written by the driver. They need the same version of cirm and their own copy of the
data. A job whose worker or machine is lost is run again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cirm import __version__
from cirm.records import format_record, write_text_atomically
from cirm.runs.jobs import Job, execute_job
from cirm.runs.local import (
    FAILURES,
    Report,
    get_records_path,
    ignore_job_progress,
    list_unfinished_jobs,
)

MAX_ATTEMPTS = 4  # of a job whose worker is lost: machines of a cluster come and go
PAUSE = 1.0  # seconds between two reports of a job
TIMEOUT = 5.0  # seconds in which a cluster must answer


def run_jobs_on_ray(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    report: Report = ignore_job_progress,
    address: str = "",
) -> dict[str, str]:
    """Run the unfinished jobs and return the reason of each failure by job key.

    At most `workers` run at a time; 0: as many as the cluster has cores.
    """
    waiting = list_unfinished_jobs(jobs, folder)
    if not waiting:
        return {}
    with connect_to_ray(address):
        return _run_jobs_as_ray_tasks(waiting, folder, workers, report)


@contextmanager
def connect_to_ray(address: str) -> Iterator[None]:
    """Connect to the cluster at an address, or start one without an address.

    A process that is already connected stays connected.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is loaded
    import ray

    if ray.is_initialized():
        yield
        return
    check_ray_address(address)
    ray.init(
        address=address or None,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


def check_ray_address(address: str) -> None:
    """Raise if no cluster answers at an address; Ray itself waits for minutes."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT).close()
    except (OSError, ValueError):
        raise ValueError(
            f"No Ray cluster answers at {address!r}. Start one with `ray start "
            "--head`, or give --address as HOST:PORT or ray://HOST:PORT."
        ) from None


def _run_jobs_as_ray_tasks(
    jobs: list[Job], folder: Path, workers: int, report: Report
) -> dict[str, str]:
    import ray

    board: Any = ray.remote(num_cpus=0, max_restarts=-1)(ProgressBoard).remote()
    task = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(run_job_on_worker)
    jobs_by_key = {job.key: job for job in jobs}
    waiting, running = deque(jobs), dict[Any, Job]()
    failures: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and (not workers or len(running) < workers):
                job = waiting.popleft()
                running[task.remote(job, __version__, board)] = job
            ready, _ = ray.wait(list(running), timeout=PAUSE)
            if ready:  # then all that are ready, not only the first
                ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
            for key, part in _read_progress_from_board(board).items():
                report(jobs_by_key[key], part)
            for reference in ready:
                job = running.pop(reference)
                text, reason = _get_task_result(reference)
                if reason:
                    failures[job.key] = reason
                else:
                    write_text_atomically(get_records_path(job, folder), text)
                    report(job, 1.0)
    finally:
        for reference in running:  # only after an interrupt
            ray.cancel(reference, force=True)
        ray.kill(board)
    return failures


def _get_task_result(reference: Any) -> tuple[str, str]:  # noqa: ANN401  a reference of ray
    """Return the text of a task's records, or "" and the reason of the failure."""
    import ray

    try:
        result: tuple[str, str] = ray.get(reference)
        return result
    except ray.exceptions.RayTaskError as error:
        return "", str(error).strip().splitlines()[-1]
    except ray.exceptions.RayError as error:
        kind = type(error).__name__
        return "", (
            f"its worker was lost in each of {MAX_ATTEMPTS} attempts ({kind}): "
            "check the memory of the machines"
        )


def _read_progress_from_board(board: Any) -> dict[str, float]:  # noqa: ANN401  a handle of ray
    """Return the progress reported since the last call, {} while the board restarts."""
    import ray

    try:
        parts: dict[str, float] = ray.get(board.take_new_progress.remote())
    except ray.exceptions.RayActorError:
        return {}
    return parts


class ProgressBoard:
    """An actor that holds the progress of running jobs for the driver."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def store_progress(self, key: str, part: float) -> None:
        """Store the part of a job that is done, from 0 to 1."""
        self.parts[key] = part

    def take_new_progress(self) -> dict[str, float]:
        """Return and forget what was stored since the last call."""
        parts, self.parts = self.parts, {}
        return parts


def run_job_on_worker(job: Job, version: str, board: Any) -> tuple[str, str]:  # noqa: ANN401
    """Run a job on a worker; return its records as text, or "" and the reason."""
    if version != __version__:
        return "", (
            f"its worker has cirm {__version__}, and the driver has {version}: install "
            "the same version on both"
        )
    last = 0.0

    def progress(done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            board.store_progress.remote(job.key, done)

    try:
        records = execute_job(job, progress)
    except FAILURES as error:
        return "", str(error) or type(error).__name__
    return "".join(format_record(record) + "\n" for record in records), ""
