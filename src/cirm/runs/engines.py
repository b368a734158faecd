"""Where jobs run: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cirm.runs import runner
from cirm.runs.jobs import Job
from cirm.runs.runner import Report, silent

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Engine:
    """Where jobs run, and so many `workers` at a time; 0: one per core.

    `address` is that of a Ray cluster; without it Ray uses one that runs here, or
    starts one.
    """

    name: str = "local"
    workers: int = 0
    address: str = ""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(
                f"engine must be one of {', '.join(ENGINES)}; got {self.name!r}"
            )
        if self.address and self.name != "ray":
            raise ValueError(
                "address: it must come with the engine ray; "
                f"got {self.address!r} with {self.name}"
            )
        if self.name == "ray" and find_spec("ray") is None:
            raise ValueError(
                "engine ray: the extra must be installed, as by "
                "`pip install cirm[ray]`; got no ray"
            )

    @property
    def at_once(self) -> int:
        """How many jobs run at a time; 0 where only the cluster knows."""
        here = (os.cpu_count() or 1) if self.name == "local" else 0
        return self.workers or here

    def __call__(
        self, jobs: Sequence[Job], folder: Path, report: Report = silent
    ) -> dict[str, str]:
        """Run what has left no records in the folder; reasons of failures by key."""
        if self.name == "local":
            return runner.run_jobs(jobs, folder, self.at_once, report)
        from cirm.runs import ray_engine

        return ray_engine.run_jobs(jobs, folder, self.workers, report, self.address)
