"""Where jobs run: in processes of this machine, or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from cirm.experiments.jobs import Job
from cirm.experiments.runner import Report

ENGINES = {"local": "runner", "ray": "ray_engine"}
"""Module by name; each has a function `run_jobs`."""


class Engine(Protocol):
    """Runs what is unfinished; gives the reason of each failure by the job's key."""

    def __call__(
        self, jobs: Sequence[Job], folder: Path, workers: int, report: Report
    ) -> dict[str, str]:
        """Run the jobs that have left no records in the folder yet."""


def engine(name: str) -> Engine:
    """The engine of a name."""
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {name!r}")
    module = f"{__package__}.{ENGINES[name]}"
    if find_spec(module) is None:
        raise ValueError(f"engine must be local in this version; got {name!r}")
    found: Engine = import_module(module).run_jobs
    return found
