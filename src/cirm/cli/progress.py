"""Progress of many jobs: how much is done, what runs now, how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cirm.runs.jobs import Job

NAMED = 8  # of the running jobs so many are named
ENOUGH = 0.02  # a part of a job that tells how long the whole takes

# Seconds of a job with 2,000 examples, roughly; only until some have been timed.
GUESSES = {
    "c-bvirm": 40.0,
    "c-virmg": 35.0,
    "c-virmv1": 22.0,
    "mer": 24.0,
    "vcl": 32.0,
    "vclc": 30.0,
}
USUAL = 7.0

Timed = tuple[str, float, float]
"""A learner's job that ended: its name, its `size` and the seconds that it took."""


class Watch:
    """How far jobs are, and an estimate of the seconds left.

    So many `workers` run at a time; 0: as many as were seen. `timed` are the jobs that
    ended before: the same learner takes as long per unit of `size` on other data and
    seeds. Large jobs tell most of that, since small ones mostly pay for their steps.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        timed: Sequence[Timed],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self.parts = dict.fromkeys(self.jobs, 0.0)
        self.workers = workers
        self.begun: dict[str, None] = {}  # an ordered set
        self.most = 1  # jobs seen running at a time
        self.clock = clock
        self.began = clock()
        self.first: dict[str, tuple[float, float]] = {}
        self.timed = list(timed)

    def moved(self, job: Job, part: float) -> None:
        """So much of a job is done, from 0 to 1."""
        if self.parts[job.key] >= 1:  # said late: it has ended
            return
        # The whole is only done when its records are there.
        self.parts[job.key] = max(self.parts[job.key], min(part, 0.99))
        self.first.setdefault(job.key, (self.clock(), self.parts[job.key]))
        if self.parts[job.key] > 0:
            self.begun[job.key] = None
        self.most = max(self.most, len(self.begun))

    def ended(self, job: Job, seconds: float) -> None:
        """A job has ended, and has taken so many seconds."""
        if self.parts[job.key] < 1:
            self.parts[job.key] = 1.0
            self.begun.pop(job.key, None)
            self.timed.append((job.name, size_of(job), seconds))

    @property
    def done(self) -> int:
        """Number of jobs that have ended."""
        return sum(part >= 1 for part in self.parts.values())

    @property
    def share(self) -> float:
        """The part of all work that is done, from 0 to 1."""
        costs = self._costs()
        whole = sum(costs.values())
        spent = sum(costs[key] * part for key, part in self.parts.items())
        return spent / whole if whole else 1.0

    @property
    def left(self) -> float:
        """Seconds until the last job ends."""
        costs = self._costs()
        rest = [costs[key] * (1 - part) for key, part in self.parts.items()]
        return max(sum(rest) / (self.workers or self.most), max(rest, default=0.0))

    @property
    def running(self) -> list[str]:
        """The jobs that have begun and not ended, the first of them by name."""
        keys = list(self.begun)  # another thread may change it
        some = [f"{told(self.jobs[key])} {self.parts[key]:.0%}" for key in keys[:NAMED]]
        more = len(keys) - len(some)
        return [*some, f"{more} more"] if more else some

    def line(self) -> str:
        """All this in one line."""
        now = f"; now {', '.join(self.running)}" if self.running else ""
        return (
            f"{self.done} of {len(self.jobs)} jobs, {self.share:.0%}, "
            f"about {spelled(self.left)} left{now}"
        )

    def _costs(self) -> dict[str, float]:
        """Expected seconds of each job, as fast as this machine has shown to be."""
        means = self._means()
        known = [mean / guess(name) for name, mean in means.items()]
        speed = sum(known) / len(known) if known else 1.0
        return {
            key: size_of(job) * means.get(job.name, speed * guess(job.name))
            for key, job in self.jobs.items()
        }

    def _means(self) -> dict[str, float]:
        """Seconds per unit of each learner that ran before or is running."""
        running = {}
        for key, (began, part) in list(self.first.items()):
            if self.parts[key] - part > ENOUGH:
                spent = (self.clock() - began) / (self.parts[key] - part)
                running[self.jobs[key].name] = spent / size_of(self.jobs[key])
        units: dict[str, float] = {}
        spans: dict[str, float] = {}
        for name, unit, seconds in list(self.timed):  # another thread may add to it
            units[name] = units.get(name, 0.0) + unit
            spans[name] = spans.get(name, 0.0) + seconds
        return running | {name: spans[name] / unit for name, unit in units.items()}


def size_of(job: Job) -> float:
    """A job's work, in units of 2,000 examples of one seed."""
    return size(job.data, len(job.seeds))


def size(data: Mapping[str, object], seeds: int) -> float:
    """Work on some data, in units of 2,000 examples of one seed."""
    counts = [data.get("environments", 2), data.get("examples", 1000)]
    first, second = (float(n) if isinstance(n, int) else 1000.0 for n in counts)
    return first * second / 2000 * seeds


def guess(name: str) -> float:
    """Seconds that such a unit takes, roughly."""
    return GUESSES.get(name, USUAL)


def told(job: Job) -> str:
    """A job in few words."""
    data = [str(job.data[n]) for n in ("source", "scheme") if n in job.data]
    count = job.data.get("environments")
    where = " ".join([*data, *([f"n={count}"] if count else [])])
    seeds = f"seed {job.seeds[0]}" if len(job.seeds) == 1 else f"{len(job.seeds)} seeds"
    return f"{job.name} ({where + ', ' if where else ''}{seeds})"


def spelled(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
