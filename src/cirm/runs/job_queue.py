"""The order in which jobs start, and a budget of time for all of them.

Jobs go in rounds: first those with the first seed of every learner and data set, then
those with the second, and so on. A round is put in order when it begins, so that the
order may depend on the results of the rounds before.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cirm.runs.jobs import TrainingJob

UNITS = {"s": 1, "m": 60, "h": 3600}
GRACE = 0.1  # of the budget: how long running jobs may overrun it before they stop
MIN_GRACE = 5.0  # seconds

Order = Callable[[list[TrainingJob]], Iterable[TrainingJob]]
"""Puts the jobs of a round in order."""


class TimeBudgetSpentError(Exception):
    """The budget and its grace period are over while a job is running."""


def parse_time_budget(text: str) -> float:
    """Return the seconds of a budget such as 30m, 2h, 90s or 1h30m.

    Example:
        >>> [parse_time_budget(text) for text in ("90s", "30m", "1h30m", "0.5h")]
        [90.0, 1800.0, 5400.0, 1800.0]
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    seconds = math.fsum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or seconds <= 0:
        raise ValueError(
            f"--budget: {text!r} is not a time. Write a number and h, m or s, for "
            "example 30m, 2h, 90s or 1h30m."
        )
    return seconds


@dataclass
class WallClockBudget:
    """A limit of wall-clock time.

    Attributes:
        seconds: The limit.
        start: When it began, by `clock`.
        clock: A clock in seconds.
    """

    seconds: float
    start: float = math.nan
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if math.isnan(self.start):
            self.start = self.clock()

    @property
    def remaining(self) -> float:
        """Seconds that are left; negative if the budget is overrun."""
        return self.start + self.seconds - self.clock()

    @property
    def is_overrun(self) -> bool:
        """Whether running jobs must stop: the grace period is over as well."""
        return self.remaining < -max(GRACE * self.seconds, MIN_GRACE)


class JobQueue:
    """Jobs that wait to be started.

    With a budget, a job starts only if it is expected to finish in the time left. Its
    expected seconds are corrected by how long the finished jobs took.

    Args:
        jobs: The jobs.
        order: Puts the jobs of a round in order; they keep theirs without it.
        budget: The limit of time, if there is one.
        seconds: Expected wall-clock seconds by job key. A job without is expected to
            take no time.

    Example:
        >>> jobs = [TrainingJob("scm", key, "joint", (s,)) for key in ("erm", "icp")
        ...         for s in (0, 1)]
        >>> queue = JobQueue(jobs)
        >>> [(job.learner, job.seeds) for job in iter(queue.take_next_job, None)]
        [('erm', (0,)), ('icp', (0,)), ('erm', (1,)), ('icp', (1,))]
    """

    def __init__(
        self,
        jobs: Iterable[TrainingJob],
        order: Order = list,
        budget: WallClockBudget | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        self.budget = budget
        self._seconds = seconds or {}
        self._order = order
        rounds: dict[int, list[TrainingJob]] = {}
        for job in jobs:
            rounds.setdefault(job.seeds[0], []).append(job)
        self._rounds = deque(rounds[first] for first in sorted(rounds))
        self._round: deque[TrainingJob] = deque()
        self._expected = self._spent = 0.0
        self.unstarted: list[TrainingJob] = []

    def take_next_job(self) -> TrainingJob | None:
        """Remove and return the next job; None if none is left that fits."""
        while self._round or self._rounds:
            if not self._round:
                self._round.extend(self._order(self._rounds.popleft()))
            job = self._round.popleft()
            if self._fits_into_time_budget(job):
                return job
            self.unstarted.append(job)
        return None

    def return_job_of_lost_worker(self, job: TrainingJob) -> None:
        """Return a job whose worker was lost; it is the next to start."""
        self._round.appendleft(job)

    def correct_expected_durations(self, key: str, seconds: float) -> None:
        """Correct the expected seconds of the other jobs by those of a finished one."""
        if key in self._seconds:
            self._expected += self._seconds[key]
            self._spent += seconds

    def check_time_budget(self) -> None:
        """Raise an error if running jobs must stop."""
        if self.budget and self.budget.is_overrun:
            raise TimeBudgetSpentError

    def _fits_into_time_budget(self, job: TrainingJob) -> bool:
        if self.budget is None:
            return True
        ratio = self._spent / self._expected if self._expected else 1.0
        remaining = self.budget.remaining
        return remaining > 0 and self._seconds.get(job.key, 0.0) * ratio <= remaining
