"""How far jobs are, and an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from cirm.runs.jobs import TrainingJob

MAX_JOBS_SHOWN = 8  # more running jobs are only counted
MIN_FRACTION = 0.02  # of a job must be done before its speed replaces a rough guess
TRUSTED_SECONDS = 30.0  # what is expected counts as much as so many seconds seen
OWN_PACE = 0.5  # of a job must be done for its own pace to count as much as the rest

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
"""A finished job: its learner's name, its estimated work units, and its seconds."""


class JobProgressTracker:
    """How far jobs are, and an estimate of the seconds left.

    Seconds are first those expected, and are then corrected by how long jobs take. What
    is seen counts by its seconds, not by its share of a job: the first steps of a job
    are slow, since they wait for data and other processes, and say little about the
    rest.

    Args:
        jobs: The jobs.
        workers: How many run at a time; 0 means as many as have been seen running.
        times: Those of jobs that finished earlier. Without `expected`, a learner is
            assumed to take as long per work unit on other data and seeds.
        clock: Returns the time in seconds.
        expected: Seconds by job key, as estimated before the start.
    """

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        n_workers: int,
        times: Sequence[JobTime],
        clock: Callable[[], float] = time.monotonic,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self.fractions = dict.fromkeys(self.jobs, 0.0)
        self.workers = n_workers
        self.running: dict[str, None] = {}  # an ordered set
        self.most_running = 1
        self.clock = clock
        self.first_reports: dict[str, tuple[float, float]] = {}
        self.expected = estimate_seconds_of_jobs(self.jobs, expected or {})
        self.trust = TRUSTED_SECONDS if expected else 0.0
        # Jobs that are expected to take so long in total, by learner, took so long.
        self.seen: dict[str, tuple[float, float]] = {}
        for name, work, seconds in () if expected else times:
            self._record_seen_duration(
                name, guess_seconds_per_unit_of_training_cost(name) * work, seconds
            )

    def _record_seen_duration(self, name: str, expected: float, seconds: float) -> None:
        before = self.seen.get(name, (0.0, 0.0))
        self.seen[name] = (before[0] + expected, before[1] + seconds)

    def update(self, job: TrainingJob, fraction: float) -> None:
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

    def finish(self, job: TrainingJob, seconds: float) -> None:
        """Record that a job has finished, and how long its learner took.

        Other parts of the job, such as diagnostics, are seen by the clock.
        """
        if self.fractions[job.key] < 1:
            start, first = self.first_reports.get(job.key, (self.clock(), 0.0))
            seconds = max(seconds, (self.clock() - start) / max(1 - first, 0.5))
            self.fractions[job.key] = 1.0
            self.running.pop(job.key, None)
            self._record_seen_duration(job.name, self.expected[job.key], seconds)

    @property
    def finished_jobs(self) -> int:
        """Number of finished jobs."""
        return sum(fraction >= 1 for fraction in self.fractions.values())

    @property
    def fraction_done(self) -> float:
        """Fraction of all work that is done."""
        seconds = self._estimate_seconds_of_each_job()
        total = sum(seconds.values())
        done = sum(seconds[key] * part for key, part in self.fractions.items())
        return done / total if total else 1.0

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the last job finishes."""
        seconds = self._estimate_seconds_of_each_job()
        rest = [seconds[key] * (1 - part) for key, part in self.fractions.items()]
        workers = self.workers or self.most_running
        return max(sum(rest) / workers, max(rest, default=0.0))

    def describe_running_jobs(self) -> list[str]:
        """Describe the running jobs; many are cut short by a count."""
        keys = list(self.running)  # another thread may change it
        names = [
            f"{describe_job_in_few_words(self.jobs[key])} {self.fractions[key]:.0%}"
            for key in keys[:MAX_JOBS_SHOWN]
        ]
        more = len(keys) - len(names)
        return [*names, f"{more} more"] if more else names

    def _estimate_seconds_of_each_job(self) -> dict[str, float]:
        """Return the expected seconds of each job, at the speed seen so far."""
        running = self._measure_progress_of_running_jobs()
        seen = dict(self.seen)  # another thread may add to it
        for key, (part, seconds) in running.items():
            if self.trust or part > MIN_FRACTION:
                name, expected = self.jobs[key].name, self.expected[key]
                before = seen.get(name, (0.0, 0.0))
                seen[name] = (before[0] + part * expected, before[1] + seconds)
        whole = sum(e for e, _ in seen.values()) + self.trust
        ratio = (sum(s for _, s in seen.values()) + self.trust) / whole if whole else 1
        ratios = {
            name: (seconds + self.trust * ratio) / (expected + self.trust)
            for name, (expected, seconds) in seen.items()
        }
        estimates = {
            key: self.expected[key] * ratios.get(job.name, ratio)
            for key, job in self.jobs.items()
        }
        for key, (part, seconds) in running.items():
            pace = OWN_PACE * estimates[key] + seconds
            estimates[key] = pace / (OWN_PACE + part)
        return estimates

    def _measure_progress_of_running_jobs(self) -> dict[str, tuple[float, float]]:
        """Return the part of each running job since its first report, and seconds."""
        now, reports = self.clock(), dict(self.first_reports)
        return {
            key: (self.fractions[key] - first, now - start)
            for key, (start, first) in reports.items()
            if self.fractions[key] < 1
        }


def estimate_seconds_of_jobs(
    jobs: Mapping[str, TrainingJob], known_seconds: Mapping[str, float]
) -> dict[str, float]:
    """Return the expected seconds of all jobs, of which some are known.

    Another job takes as long per unit of work as those of its learner, or else as
    guessed, on a machine as fast as the known jobs say.
    """
    work = {key: estimate_training_cost_of_job(job) for key, job in jobs.items()}
    rates: dict[str, list[float]] = {}
    for key in known_seconds.keys() & jobs.keys():
        rates.setdefault(jobs[key].name, []).append(known_seconds[key] / work[key])
    means = {name: sum(own) / len(own) for name, own in rates.items()}
    ratios = [
        rate / guess_seconds_per_unit_of_training_cost(n) for n, rate in means.items()
    ]
    ratio = sum(ratios) / len(ratios) if ratios else 1.0
    return {
        key: known_seconds[key]
        if key in known_seconds
        else work[key]
        * means.get(job.name, ratio * guess_seconds_per_unit_of_training_cost(job.name))
        for key, job in jobs.items()
    }


def estimate_training_cost_of_job(job: TrainingJob) -> float:
    """Return the work of a job, in units of 2,000 examples of one seed."""
    return estimate_training_cost_of_dataset(job.data, len(job.seeds))


def estimate_training_cost_of_dataset(
    data: Mapping[str, object], n_seeds: int
) -> float:
    """Return the work on a data set, in units of 2,000 examples of one seed."""
    counts = [data.get("environments", 2), data.get("examples", 1000)]
    first, second = (float(n) if isinstance(n, int) else 1000.0 for n in counts)
    return first * second / 2000 * n_seeds


def guess_seconds_per_unit_of_training_cost(learner: str) -> float:
    """Return the rough seconds of a learner per unit of work."""
    return GUESSED_SECONDS.get(learner, USUAL_SECONDS)


def describe_job_in_few_words(job: TrainingJob) -> str:
    """Describe a job in a few words."""
    data = [str(job.data[n]) for n in ("source", "scheme") if n in job.data]
    count = job.data.get("environments")
    details = [" ".join([*data, *([f"n={count}"] if count else [])])]
    details.append(
        f"seed {job.seeds[0]}" if len(job.seeds) == 1 else f"{len(job.seeds)} seeds"
    )
    return f"{job.name} ({', '.join(filter(None, details))})"
