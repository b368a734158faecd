"""Time the first steps of a job, to expect from them how long all of it takes."""

from __future__ import annotations

import time
from pathlib import Path

from cirm.records import write_records
from cirm.runs.jobs import Job, execute_job
from cirm.runs.local import FAILURES, get_records_path

PATIENCE = 3  # how often the limit may pass until two reports give a rate


class _EnoughStepsTimedError(Exception):
    """Enough steps have been timed."""


def time_first_steps(job: Job, limit: float, folder: Path) -> float | None:
    """Run a job for a few moments, and return the processor seconds of all of it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> data = {"source": "digits", "examples": 50, "sweep": ()}
        >>> job = Job("colored", "erm", "joint", (0,), data, {"epochs": 2})
        >>> with TemporaryDirectory() as folder:
        ...     seconds = time_first_steps(job, 60.0, Path(folder))
        ...     get_records_path(job, Path(folder)).exists()
        True
    """
    start, clock = time.process_time(), time.monotonic()
    reports: list[tuple[float, float]] = []

    def stop_after_enough_steps(done: float) -> None:
        now = time.process_time() - start
        reports.append((now, done))
        is_over = now > limit or time.monotonic() - clock > 2 * limit
        has_rate = done > reports[0][1]
        if is_over and 0 < done < 1 and (has_rate or now > PATIENCE * limit):
            raise _EnoughStepsTimedError

    try:
        records = execute_job(job, stop_after_enough_steps, folder)
    except _EnoughStepsTimedError:
        (begin, first), (end, last) = reports[0], reports[-1]
        if last <= first:  # the learner trains in several phases, and reports of each
            return end / last
        return begin + (end - begin) / (last - first) * (1 - first)
    except FAILURES:
        return None
    write_records(get_records_path(job, folder), records)
    return time.process_time() - start
