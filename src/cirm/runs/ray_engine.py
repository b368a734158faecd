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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from cirm import __version__
from cirm.records import format_record_as_json, write_text_atomically
from cirm.runs.driver import LOST, Report, run_queued_jobs
from cirm.runs.job_queue import JobQueue
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.local import (
    FAILURES,
    get_records_path,
    ignore_job_progress,
    list_unfinished_jobs,
)

MAX_ATTEMPTS = 4  # of a job whose worker is lost: machines of a cluster come and go
PAUSE = 1.0  # seconds between two reports of a job
JOBS_PER_CORE = 2  # one runs and one waits, so that a core that gets free is not idle
TIMEOUT = 5.0  # seconds in which a cluster must answer


def run_jobs_on_ray(
    jobs: Sequence[TrainingJob],
    folder: Path,
    n_workers: int,
    report: Report = ignore_job_progress,
    address: str = "",
    queue: JobQueue | None = None,
) -> dict[str, str]:
    """Run the unfinished jobs and return the reason of each failure by job key.

    At most `n_workers` run at a time; 0: as many as the cluster has cores. The jobs
    start in the order of the queue.
    """
    waiting = list_unfinished_jobs(jobs, folder)
    if not waiting:
        return {}
    queue = queue or JobQueue(waiting)
    # With a budget no job may wait on the cluster, where its time would run.
    depth = 1 if queue.budget else JOBS_PER_CORE
    with connect_to_ray(address), RayJobWorkers(folder, n_workers, depth) as cores:
        return run_queued_jobs(queue, cores, report)


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


class RayJobWorkers:
    """The cores of a Ray cluster; Ray itself tries a job again whose worker is lost."""

    attempts = 1
    lost_message = (
        f"the Ray worker of the job was lost in each of {MAX_ATTEMPTS} attempts. "
        "Check that the machines have enough memory"
    )

    def __init__(self, folder: Path, most: int, depth: int = 1) -> None:
        import ray

        self.folder, self._most, self._depth = folder, most, depth
        self._board: Any = ray.remote(num_cpus=0, max_restarts=-1)(
            RayProgressActor
        ).remote()
        self._task = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(
            run_job_on_ray_worker
        )
        self._cores = 0
        self._counted = self._read = -PAUSE  # when cores and progress were asked for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.kill(self._board)

    @property
    def limit(self) -> int:
        """How many jobs may be on the cluster, which may grow meanwhile."""
        import ray

        if self._most:
            return self._most
        if time.monotonic() - self._counted >= PAUSE:
            self._counted = time.monotonic()
            self._cores = int(ray.cluster_resources().get("CPU", 1))
        return max(self._depth * self._cores, 1)

    def submit_job(self, job: TrainingJob) -> Any:  # noqa: ANN401  a reference of ray
        """Send a job to the cluster."""
        return self._task.remote(job, __version__, self._board)

    def wait_for_any_job(
        self, running: Collection[Any], seconds: float
    ) -> Iterable[Any]:
        """Return the finished jobs; wait for one, but not for longer."""
        import ray

        references = list(running)
        ready, _ = ray.wait(references, timeout=seconds)
        if ready:  # then all that are ready, not only the first
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return ready

    def collect_result(self, reference: Any, job: TrainingJob) -> str:  # noqa: ANN401
        """Write the records of a job, or return why it has failed."""
        import ray

        try:
            text, reason = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            return str(error).strip().splitlines()[-1]
        except ray.exceptions.RayError:
            return LOST
        if not reason:
            write_text_atomically(get_records_path(job, self.folder), text)
        return str(reason)

    def read_progress(self) -> dict[str, float]:
        """Return the progress since the last call, {} while the board restarts."""
        import ray

        if time.monotonic() - self._read < PAUSE:
            return {}
        self._read = time.monotonic()
        try:
            parts: dict[str, float] = ray.get(self._board.take_new_progress.remote())
        except ray.exceptions.RayActorError:
            return {}
        return parts

    def cancel_jobs(self, running: Collection[Any]) -> None:
        """Stop jobs that are still running."""
        import ray

        for reference in running:
            ray.cancel(reference, force=True)


class RayProgressActor:
    """An actor that holds the progress of running jobs for the driver."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def set_fraction_done(self, key: str, fraction: float) -> None:
        """Store the part of a job that is done, from 0 to 1."""
        self.parts[key] = fraction

    def take_new_progress(self) -> dict[str, float]:
        """Return and forget what was stored since the last call."""
        parts, self.parts = self.parts, {}
        return parts


def run_job_on_ray_worker(
    job: TrainingJob,
    expected_version: str,
    progress_actor: Any,  # noqa: ANN401
) -> tuple[str, str]:
    """Run a job on a worker; return its records as text, or "" and the reason."""
    if expected_version != __version__:
        return "", (
            f"its worker has cirm {__version__}, and the driver has "
            f"{expected_version}: install the same version on both"
        )
    last = 0.0

    def report_job_progress(done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            progress_actor.set_fraction_done.remote(job.key, done)

    try:
        records = run_job_and_return_records(job, report_job_progress)
    except FAILURES as error:
        return "", str(error) or type(error).__name__
    return "".join(format_record_as_json(record) + "\n" for record in records), ""
