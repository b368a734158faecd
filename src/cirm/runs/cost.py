"""What jobs cost: processor time, and time by the clock with so many workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cirm.runs.durations import (
    CALIBRATION_SECONDS,
    JobEstimates,
    MachineSpeed,
    estimate_job_seconds,
    measure_machine_speed,
)
from cirm.runs.jobs import Job
from cirm.runs.tracker import JobTime

START_SECONDS = 4.0  # of processor time until a worker has loaded torch and the data


@dataclass(frozen=True)
class CostEstimate:
    """The expected cost of jobs.

    Attributes:
        estimates: The processor seconds of each job, and where they come from.
        speed: The speed of this machine now.
        workers: How many jobs run at a time; 0 if only a cluster knows.
        is_local: Whether they run on this machine.
        jobs: Number of jobs.
    """

    estimates: JobEstimates
    speed: MachineSpeed
    workers: int
    is_local: bool
    jobs: int

    @property
    def core_seconds(self) -> float:
        """Processor seconds of all jobs; those without an estimate count as others."""
        known = self.estimates.seconds.values()
        mean = sum(known) / len(known) if known else 0.0
        return sum(known) + mean * (self.jobs - len(known))

    @property
    def share(self) -> float:
        """Part of a core that a worker gets."""
        if not self.is_local:
            return 1.0
        return self.speed.share * min((os.cpu_count() or 1) / self.workers, 1.0)

    @property
    def wall_seconds(self) -> float:
        """Seconds until the last job has finished; 0 if the workers are not known."""
        if not self.workers:
            return 0.0
        longest = max(self.estimates.seconds.values(), default=0.0)
        workers = min(self.workers, self.jobs)
        start = START_SECONDS if workers > 1 or not self.is_local else 0.0
        return (max(self.core_seconds / workers, longest) + start) / self.share

    @property
    def seconds_by_job(self) -> dict[str, float]:
        """Expected wall-clock seconds of each job that has an estimate."""
        return {key: s / self.share for key, s in self.estimates.seconds.items()}


def estimate_cost(
    jobs: Sequence[Job],
    times: Sequence[JobTime],
    workers: int,
    is_local: bool,
    folder: Path,
    calibration: float = CALIBRATION_SECONDS,
) -> CostEstimate:
    """Estimate what jobs cost on this machine, in a few seconds."""
    speed = measure_machine_speed()
    estimates = estimate_job_seconds(jobs, times, speed, folder, calibration)
    return CostEstimate(estimates, speed, workers, is_local, len(jobs))
