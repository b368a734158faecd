"""Engines that run jobs: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cirm.runs import local
from cirm.runs.driver import Report
from cirm.runs.job_queue import JobQueue
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import ignore_job_progress

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class JobEngine:
    """Runs jobs, several at a time.

    Attributes:
        name: "local" or "ray".
        workers: How many jobs run at a time; 0: one per core.
        address: Address of a Ray cluster. Without it Ray uses a cluster that runs on
            this machine, or starts one.

    Example:
        >>> JobEngine("local", workers=2).job_limit
        2
    """

    name: str = "local"
    workers: int = 0
    address: str = ""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(
                f"There is no engine {self.name!r}. Choose one of {', '.join(ENGINES)}."
            )
        if self.address and self.name != "ray":
            raise ValueError(
                f"--address is {self.address!r}, but the engine {self.name} runs on "
                "this machine and has no address. Add --engine ray, or remove "
                "--address."
            )
        if self.name == "ray" and find_spec("ray") is None:
            raise ValueError(
                "--engine ray needs the package ray, which is not installed. Install "
                "it with `pip install 'cirm[ray]'`."
            )

    @property
    def job_limit(self) -> int:
        """How many jobs run at a time; 0 if only the cluster knows."""
        cores = (os.cpu_count() or 1) if self.name == "local" else 0
        return self.workers or cores

    def __call__(
        self,
        jobs: Sequence[TrainingJob],
        folder: Path,
        report: Report = ignore_job_progress,
        queue: JobQueue | None = None,
    ) -> dict[str, str]:
        """Run the jobs without records in the folder."""
        if self.name == "local":
            return local.run_jobs_locally(jobs, folder, self.job_limit, report, queue)
        from cirm.runs import ray_engine

        return ray_engine.run_jobs_on_ray(
            jobs, folder, self.workers, report, self.address, queue
        )
