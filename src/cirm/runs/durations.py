"""How long jobs take: from recorded durations, or from the first steps of a job.

`durations.json` has the seconds of the jobs of the paper's tables, and how long the
same machine took for `time_reference_training_steps`. On another machine, or on one
that other programs use as well, or by faster code, these steps say how much longer or
shorter jobs take there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from cirm.data.image_sets import IMAGE_SETS
from cirm.records import write_records
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.local import FAILURES, get_records_path
from cirm.runs.machine_speed import (
    STEP_KINDS,
    MachineSpeed,
    time_reference_training_steps,
)
from cirm.runs.tracker import (
    JobTime,
    estimate_training_cost_of_job,
    guess_seconds_per_unit_of_training_cost,
)

DURATIONS_NAME = "durations.json"
RECORDED_KINDS = {
    "TrainingJob": "Job",
    "ChooseSettingValueJob": "ChooseSettingJob",
    "FitModelJob": "FitJob",
    "SearchTrialJob": "CandidateJob",
}
"""What `durations.json` calls kinds of jobs that have another name by now."""
CALIBRATION_SECONDS = 10.0  # for all learners without a recorded duration
MAX_CALIBRATION = 2.0  # seconds for one of them
SAME_SIZE = 1.2  # the ratio up to which jobs count as equally large
MOST_POWER = 2.0  # of the size in the time of a job; more is noise
PATIENCE = 3  # how often the limit may pass until two reports give a rate
MOST_TIMED = 40  # jobs that share the time for calibration; with more, some wait
START_SECONDS = 4.0  # of processor time until a worker has loaded torch and the data


class JobSecondsEstimates(NamedTuple):
    """The expected processor seconds of jobs.

    Attributes:
        seconds: By job key; jobs without an estimate are missing.
        recorded: How many come from recorded durations.
        calibrated: How many come from the first steps of a job.
    """

    seconds: dict[str, float]
    recorded: int
    calibrated: int


@cache
def load_recorded_durations() -> Any:  # noqa: ANN401  parsed JSON
    """Return the recorded durations: `steps`, and `jobs` by the hash of settings."""
    text = files(__package__).joinpath(DURATIONS_NAME).read_text("utf-8")
    return json.loads(text)


def hash_duration_settings(job: TrainingJob) -> str:
    """Return a short name for what decides the time of a job, except its size.

    Example:
        >>> one = TrainingJob("colored", "erm", "joint", (0,), {"source": "mnist"})
        >>> other = TrainingJob("colored", "erm", "joint", (1, 2), {"source": "kmnist"})
        >>> hash_duration_settings(one) == hash_duration_settings(other)
        True
    """
    from cirm.learners import get_preset_settings

    source = job.data.get("source", "")
    work = [
        RECORDED_KINDS.get(type(job).__name__, type(job).__name__),
        job.dataset,
        "28x28" if source in IMAGE_SETS else source,
        job.data.get("side", 0),
        job.data.get("scheme") == "gray",
        job.learner,
        {**get_preset_settings(job.learner, job.preset), **job.settings},
        job.infer,
        job.inference,
        list(getattr(job, "values", ())),
    ]
    text = json.dumps(work, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measure_machine_speed() -> MachineSpeed:
    """Measure how fast this machine is now, in about a third of a second."""
    steps, share = time_reference_training_steps()
    quiet = load_recorded_durations()["steps"]
    slowness = {kind: steps[kind] / quiet[kind] for kind in STEP_KINDS}
    return MachineSpeed(slowness["small"], slowness["large"], share)


def estimate_seconds_from_recorded_jobs(job: TrainingJob) -> float | None:
    """Return the recorded seconds of such a job, or None if none was recorded.

    A job of another size takes as long per example as the recorded one whose size is
    nearest.
    """
    known: Sequence[Sequence[float]] = load_recorded_durations()["jobs"].get(
        hash_duration_settings(job), ()
    )
    if not known:
        return None
    work = estimate_training_cost_of_job(job)
    size, seconds = min(known, key=lambda pair: abs(math.log(pair[0] / work)))
    return seconds / size * work


def estimate_job_seconds(
    jobs: Sequence[TrainingJob],
    finished_job_times: Sequence[JobTime],
    speed: MachineSpeed,
    folder: Path,
    calibration: float = CALIBRATION_SECONDS,
) -> JobSecondsEstimates:
    """Estimate the processor seconds of jobs on this machine.

    A job takes as long as a recorded one of the same learner, settings and size, else
    as the jobs in `finished_job_times` of the same name, which finished here earlier,
    else as the first steps of such jobs let expect: the smallest and the largest are
    run for up to two seconds, all of them together for `calibration` seconds, and their
    records are written to the folder if they finish. Reading data takes time as well:
    once twice as many seconds have passed, the other jobs count as those that were run.
    Without any seconds for calibration, no job is run.
    """
    rates = _average_seconds_per_unit_of_training_cost(finished_job_times)
    unknown: dict[tuple[str, str, object], list[TrainingJob]] = {}
    seconds: dict[str, float] = {}
    for job in jobs:
        recorded = estimate_seconds_from_recorded_jobs(job)
        if recorded is not None:
            seconds[job.key] = recorded * speed.get_slowness(job)
        elif job.name in rates:
            seconds[job.key] = rates[job.name] * estimate_training_cost_of_job(job)
        else:
            kind = (job.name, hash_duration_settings(job), job.data.get("task"))
            unknown.setdefault(kind, []).append(job)
    recorded_count = len(seconds)
    chosen = [_choose_smallest_and_largest_job(alike) for alike in unknown.values()]
    count = min(max(sum(map(len, chosen)), 1), MOST_TIMED)
    limit = min(calibration / count, MAX_CALIBRATION)
    begin = time.monotonic()
    rest: list[TrainingJob] = []
    for alike, ends in _put_other_learners_first(list(unknown.values()), chosen):
        is_over = time.monotonic() - begin > 2 * calibration and seconds
        if not calibration or is_over:
            rest += alike
            continue
        measured = [
            (estimate_training_cost_of_job(job), own)
            for job in ends
            if (own := time_first_training_steps_of_job(job, limit, folder)) is not None
        ]
        if measured:
            seconds |= {
                job.key: _interpolate_seconds(
                    measured, estimate_training_cost_of_job(job)
                )
                for job in alike
            }
    rate = _average_seconds_per_unit_of_training_cost(
        [
            ("all", _guess_seconds_of_job(job), seconds[job.key])
            for job in jobs
            if job.key in seconds
        ]
    )
    seconds |= {
        job.key: rate.get("all", 0.0) * _guess_seconds_of_job(job) for job in rest
    }
    return JobSecondsEstimates(seconds, recorded_count, len(seconds) - recorded_count)


def _put_other_learners_first(
    kinds: Sequence[list[TrainingJob]], chosen: Sequence[Sequence[TrainingJob]]
) -> Iterator[tuple[list[TrainingJob], Sequence[TrainingJob]]]:
    """Yield the first kind of each learner, then the second of each, and so on."""
    counts: Counter[str] = Counter()
    turns = []
    for alike in kinds:
        turns.append(counts[alike[0].name])
        counts[alike[0].name] += 1
    for place in sorted(range(len(kinds)), key=turns.__getitem__):
        yield kinds[place], chosen[place]


def _guess_seconds_of_job(job: TrainingJob) -> float:
    return guess_seconds_per_unit_of_training_cost(
        job.name
    ) * estimate_training_cost_of_job(job)


def _choose_smallest_and_largest_job(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """Return the jobs to time: one if all are of about the same size, else two."""
    ends = [choose(jobs, key=estimate_training_cost_of_job) for choose in (min, max)]
    low, high = map(estimate_training_cost_of_job, ends)
    return ends if high > SAME_SIZE * low else ends[:1]


def _interpolate_seconds(
    measured: Sequence[tuple[float, float]], job_cost: float
) -> float:
    """Return the seconds of a job, by a power law through one or two sizes.

    The built-in digits, for example, are so few that six environments of them take no
    longer than two.
    """
    size, seconds = measured[0]
    power = 1.0
    if len(measured) > 1:
        other, more = measured[1]
        power = math.log(max(more, 1e-3) / max(seconds, 1e-3)) / math.log(other / size)
        power = min(max(power, 0.0), MOST_POWER)
    return seconds * (job_cost / size) ** power


def _average_seconds_per_unit_of_training_cost(
    times: Sequence[JobTime],
) -> Mapping[str, float]:
    """Return seconds per unit of work by the name of the learner."""
    totals: dict[str, tuple[float, float]] = {}
    for name, size, seconds in times:
        units, spent = totals.get(name, (0.0, 0.0))
        totals[name] = units + size, spent + seconds
    return {name: spent / units for name, (units, spent) in totals.items() if spent}


class _EnoughStepsTimedError(Exception):
    """Enough steps have been timed."""


def time_first_training_steps_of_job(
    job: TrainingJob, max_seconds: float, folder: Path
) -> float | None:
    """Run a job for a few moments, and return the processor seconds of all of it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> data = {"source": "digits", "examples": 50, "sweep": ()}
        >>> job = TrainingJob("colored", "erm", "joint", (0,), data, {"epochs": 2})
        >>> with TemporaryDirectory() as folder:
        ...     seconds = time_first_training_steps_of_job(job, 60.0, Path(folder))
        ...     get_records_path(job, Path(folder)).exists()
        True
    """
    start, clock = time.process_time(), time.monotonic()
    reports: list[tuple[float, float]] = []

    def stop_after_enough_steps(done: float) -> None:
        now = time.process_time() - start
        reports.append((now, done))
        is_over = now > max_seconds or time.monotonic() - clock > 2 * max_seconds
        has_rate = done > reports[0][1]
        if is_over and 0 < done < 1 and (has_rate or now > PATIENCE * max_seconds):
            raise _EnoughStepsTimedError

    try:
        records = run_job_and_return_records(job, stop_after_enough_steps, folder)
    except _EnoughStepsTimedError:
        (begin, first), (end, last) = reports[0], reports[-1]
        if last <= first:  # the learner trains in several phases, and reports of each
            return end / last
        return begin + (end - begin) / (last - first) * (1 - first)
    except FAILURES:
        return None
    write_records(get_records_path(job, folder), records)
    return time.process_time() - start


@dataclass(frozen=True)
class JobCostEstimate:
    """The expected cost of jobs.

    Attributes:
        estimates: The processor seconds of each job, and where they come from.
        speed: The speed of this machine now.
        workers: How many jobs run at a time; 0 if only a cluster knows.
        is_local: Whether they run on this machine.
        jobs: Number of jobs.
    """

    estimates: JobSecondsEstimates
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


def estimate_cost_of_jobs(
    jobs: Sequence[TrainingJob],
    finished_job_times: Sequence[JobTime],
    n_workers: int,
    is_local: bool,
    folder: Path,
    calibration: float = CALIBRATION_SECONDS,
    speed: MachineSpeed | None = None,
) -> JobCostEstimate:
    """Estimate what jobs cost on this machine, in a few seconds.

    With `speed`, which was measured for a larger number of jobs, nothing is timed.
    """
    calibration = 0.0 if speed else calibration
    speed = speed or measure_machine_speed()
    estimates = estimate_job_seconds(
        jobs, finished_job_times, speed, folder, calibration
    )
    return JobCostEstimate(estimates, speed, n_workers, is_local, len(jobs))
