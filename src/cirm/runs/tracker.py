"""How far jobs are, and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from cirm.runs.jobs import Job

MAX_JOBS_SHOWN = 8  # more running jobs are only counted
MIN_FRACTION = 0.02  # of a job must be done before its speed is extrapolated

# Rough seconds of a job with 2,000 examples, used until jobs have been timed.
GUESSED_SECONDS = {
    "c-bvirm": 40.0,
    "c-virmg": 35.0,
    "c-virmv1": 22.0,
    "mer": 24.0,
    "vcl": 32.0,
    "vclc": 30.0,
}
USUAL_SECONDS = 7.0  # of the other learners

JobTime = tuple[str, float, float]
"""A finished job: its learner's name, its `estimate_job_work`, and its seconds."""


class JobTracker:
    """How far jobs are, and an estimate of the seconds left.

    `workers` jobs run at a time; 0 means as many as have been seen running. `times`
    are those of jobs that finished earlier: a learner is assumed to take as long per
    unit of `estimate_job_work` on other data and seeds. All units and seconds of a
    learner are added up, so that large jobs count most: small ones are mostly overhead.
    `expected` are the seconds, by job key, until jobs have been timed.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        times: Sequence[JobTime],
        clock: Callable[[], float] = time.monotonic,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self.fractions = dict.fromkeys(self.jobs, 0.0)
        self.workers = workers
        self.running: dict[str, None] = {}  # an ordered set
        self.most_running = 1
        self.clock = clock
        self.first_reports: dict[str, tuple[float, float]] = {}
        self.times = list(times)
        self._work = {key: estimate_job_work(job) for key, job in self.jobs.items()}
        self._guessed_rates = {
            job.name: (
                expected[key] / self._work[key]
                if expected and key in expected
                else guess_seconds_per_work_unit(job.name)
            )
            for key, job in self.jobs.items()
        }

    def update(self, job: Job, fraction: float) -> None:
        """Record that a fraction of a job is done, from 0 to 1."""
        if self.fractions[job.key] >= 1:  # a late report: the job has finished
            return
        # A job counts as finished only when its records have been written.
        done = max(self.fractions[job.key], min(fraction, 0.99))
        self.fractions[job.key] = done
        self.first_reports.setdefault(job.key, (self.clock(), done))
        if done > 0:
            self.running[job.key] = None
        self.most_running = max(self.most_running, len(self.running))

    def finish(self, job: Job, seconds: float) -> None:
        """Record that a job has finished, and how long it took."""
        if self.fractions[job.key] < 1:
            self.fractions[job.key] = 1.0
            self.running.pop(job.key, None)
            self.times.append((job.name, estimate_job_work(job), seconds))

    @property
    def finished_jobs(self) -> int:
        """Number of finished jobs."""
        return sum(fraction >= 1 for fraction in self.fractions.values())

    @property
    def fraction_done(self) -> float:
        """Fraction of all work that is done."""
        seconds = self._estimate_seconds()
        total = sum(seconds.values())
        done = sum(seconds[key] * part for key, part in self.fractions.items())
        return done / total if total else 1.0

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the last job finishes."""
        seconds = self._estimate_seconds()
        rest = [seconds[key] * (1 - part) for key, part in self.fractions.items()]
        workers = self.workers or self.most_running
        return max(sum(rest) / workers, max(rest, default=0.0))

    def describe_running_jobs(self) -> list[str]:
        """Describe the running jobs; many are cut short by a count."""
        keys = list(self.running)  # another thread may change it
        names = [
            f"{describe_job(self.jobs[key])} {self.fractions[key]:.0%}"
            for key in keys[:MAX_JOBS_SHOWN]
        ]
        more = len(keys) - len(names)
        return [*names, f"{more} more"] if more else names

    def _estimate_seconds(self) -> dict[str, float]:
        """Return the expected seconds of each job, at the speed seen so far."""
        rates = self._measure_seconds_per_work_unit()
        guesses = self._guessed_rates
        ratios = [
            rate / guesses.get(name, guess_seconds_per_work_unit(name))
            for name, rate in rates.items()
        ]
        slowdown = sum(ratios) / len(ratios) if ratios else 1.0
        return {
            key: self._work[key] * rates.get(job.name, slowdown * guesses[job.name])
            for key, job in self.jobs.items()
        }

    def _measure_seconds_per_work_unit(self) -> dict[str, float]:
        """Return the seconds per unit of each learner that has run or is running."""
        running = {}
        for key, (start, first) in list(self.first_reports.items()):
            if self.fractions[key] - first > MIN_FRACTION:
                seconds = (self.clock() - start) / (self.fractions[key] - first)
                running[self.jobs[key].name] = seconds / estimate_job_work(
                    self.jobs[key]
                )
        units: dict[str, float] = {}
        seconds_spent: dict[str, float] = {}
        for name, size, seconds in list(self.times):  # another thread may append
            units[name] = units.get(name, 0.0) + size
            seconds_spent[name] = seconds_spent.get(name, 0.0) + seconds
        return running | {name: seconds_spent[name] / units[name] for name in units}


def estimate_job_work(job: Job) -> float:
    """Return the work of a job, in units of 2,000 examples of one seed."""
    return estimate_data_work(job.data, len(job.seeds))


def estimate_data_work(data: Mapping[str, object], seeds: int) -> float:
    """Return the work on a data set, in units of 2,000 examples of one seed."""
    counts = [data.get("environments", 2), data.get("examples", 1000)]
    first, second = (float(n) if isinstance(n, int) else 1000.0 for n in counts)
    return first * second / 2000 * seeds


def guess_seconds_per_work_unit(learner: str) -> float:
    """Return the rough seconds of a learner per unit of work."""
    return GUESSED_SECONDS.get(learner, USUAL_SECONDS)


def describe_job(job: Job) -> str:
    """Describe a job in a few words."""
    data = [str(job.data[n]) for n in ("source", "scheme") if n in job.data]
    count = job.data.get("environments")
    details = [" ".join([*data, *([f"n={count}"] if count else [])])]
    details.append(
        f"seed {job.seeds[0]}" if len(job.seeds) == 1 else f"{len(job.seeds)} seeds"
    )
    return f"{job.name} ({', '.join(filter(None, details))})"
