"""Jobs on a Ray cluster, each a task of one core.

Workers need no folder in common with the driver: a job's records come back as text and
are written here. What they do need is the same version of cirm and their own copy of
the data. A job whose worker or machine is lost is run again.
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
from cirm.records import format_record, write_text
from cirm.runs.jobs import Job, execute
from cirm.runs.runner import FAILURES, Report, get_record_path, list_unfinished, silent

TRIES = 4  # of a job whose worker is lost: machines of a cluster come and go
PAUSE = 1.0  # seconds between two reports of a job
PATIENCE = 5.0  # seconds in which a cluster must answer


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    report: Report = silent,
    address: str = "",
) -> dict[str, str]:
    """Run what is unfinished; the reason of each failure, by the job's key.

    At most `workers` run at a time; 0: as many as the cluster has cores.
    """
    waiting = list_unfinished(jobs, folder)
    if not waiting:
        return {}
    with joined(address):
        return _run(waiting, folder, workers, report)


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Be connected to the cluster at an address, or to one that starts here without.

    A process that is connected already stays so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray is loaded
    import ray

    if ray.is_initialized():
        yield
        return
    check_address(address)
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


def check_address(address: str) -> None:
    """Refuse early what no cluster answers at; Ray itself waits for minutes."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, ValueError):
        raise ValueError(
            "address: a Ray cluster must answer at HOST:PORT or ray://HOST:PORT; "
            f"got none at {address!r}"
        ) from None


def _run(jobs: list[Job], folder: Path, workers: int, report: Report) -> dict[str, str]:
    import ray

    board: Any = ray.remote(num_cpus=0, max_restarts=-1)(Board).remote()
    task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(work)
    named = {job.key: job for job in jobs}
    waiting, running = deque(jobs), dict[Any, Job]()
    failures: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and (not workers or len(running) < workers):
                job = waiting.popleft()
                running[task.remote(job, __version__, board)] = job
            ready, _ = ray.wait(list(running), timeout=PAUSE)
            if ready:  # and with the first all others that are
                ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
            for key, part in _told(board).items():
                report(named[key], part)
            for reference in ready:
                job = running.pop(reference)
                text, reason = _outcome(reference)
                if reason:
                    failures[job.key] = reason
                else:
                    write_text(get_record_path(job, folder), text)
                    report(job, 1.0)
    finally:
        for reference in running:  # where there was an interrupt
            ray.cancel(reference, force=True)
        ray.kill(board)
    return failures


def _outcome(reference: Any) -> tuple[str, str]:  # noqa: ANN401  a reference of ray
    """What a task gave: its text, or nothing and the reason."""
    import ray

    try:
        outcome: tuple[str, str] = ray.get(reference)
        return outcome
    except ray.exceptions.RayTaskError as error:
        return "", str(error).strip().splitlines()[-1]
    except ray.exceptions.RayError as error:
        kind = type(error).__name__
        return "", f"its worker was lost in each of {TRIES} tries ({kind})"


def _told(board: Any) -> dict[str, float]:  # noqa: ANN401  a handle of ray
    """What the jobs have reported since; nothing while the board is being moved."""
    import ray

    try:
        parts: dict[str, float] = ray.get(board.take.remote())
    except ray.exceptions.RayActorError:
        return {}
    return parts


class Board:
    """Where running jobs report, and the driver looks."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def put(self, key: str, part: float) -> None:
        """So much of a job is done, from 0 to 1."""
        self.parts[key] = part

    def take(self) -> dict[str, float]:
        """What was put since the last time."""
        parts, self.parts = self.parts, {}
        return parts


def work(job: Job, version: str, board: Any) -> tuple[str, str]:  # noqa: ANN401
    """Run a job on a worker: the text of its records, or nothing and the reason."""
    if version != __version__:
        return "", f"its worker must have cirm {version}; got {__version__}"
    last = 0.0

    def progress(done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            board.put.remote(job.key, done)

    try:
        records = execute(job, progress)
    except FAILURES as error:
        return "", str(error) or type(error).__name__
    return "".join(format_record(record) + "\n" for record in records), ""
