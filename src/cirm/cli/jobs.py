"""Run the jobs of a command: what they cost, a budget, progress, and what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cirm.cli.output import print_lines_to_stderr
from cirm.cli.progress import (
    exit_with_message_on_interrupt,
    format_duration,
    show_progress_of_jobs,
    show_progress_of_single_step,
)
from cirm.wording import format_count

if TYPE_CHECKING:
    from cirm.runs.durations import JobCostEstimate
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import JobQueue, WallClockBudget
    from cirm.runs.jobs import TrainingJob
    from cirm.runs.machine_speed import MachineSpeed
    from cirm.runs.tracker import JobTime

    Rank = Callable[[Sequence[TrainingJob]], dict[str, Any]]

CALIBRATION_SHARE = 0.1  # of a budget that may be spent on estimating the cost
MANY_MINUTES = 300  # from here on, hours are easier to read
BUSY = 0.8  # a process that gets less of a core than this shares it with others


def parse_and_start_time_budget(text: str) -> WallClockBudget | None:
    """Return the budget of a command, which begins now, or None without one."""
    from cirm.runs.job_queue import WallClockBudget, parse_time_budget

    return WallClockBudget(parse_time_budget(text)) if text else None


def get_calibration_limit(budget: WallClockBudget | None) -> float:
    """Return the seconds that may be spent on estimating the cost of jobs."""
    from cirm.runs.durations import CALIBRATION_SECONDS

    share = budget.seconds * CALIBRATION_SHARE if budget else CALIBRATION_SECONDS
    return min(share, CALIBRATION_SECONDS)


def run_jobs_with_progress(
    jobs: Sequence[TrainingJob],
    list_waiting: Callable[[], Sequence[TrainingJob]],
    folder: Path,
    engine: JobEngine,
    title: str,
    finished_job_times: Sequence[JobTime] = (),
    budget: WallClockBudget | None = None,
    rank_jobs: Rank | None = None,
    speed: MachineSpeed | None = None,
) -> dict[str, str]:
    """Run the jobs that are still waiting; return reasons of failures by job key.

    `finished_job_times` are those of jobs that finished earlier. With a budget, jobs of
    the same round start in the order that `rank_jobs` gives, and short ones before long
    ones; without one, long ones start first, so that all workers finish at about the
    same time. With `speed`, the jobs are a part of others whose cost was estimated and
    printed with this speed, so that nothing is timed or printed for them.
    """
    from cirm.runs.durations import estimate_cost_of_jobs
    from cirm.runs.job_queue import JobQueue
    from cirm.runs.local import get_records_folder
    from cirm.runs.tracker import JobProgressTracker

    def describe_finished_jobs() -> str:
        done = len(jobs) - len(list_waiting())
        return (
            f"The command was interrupted. {done} of {len(jobs)} jobs are finished "
            f"and kept in {folder}. Run the same command again to continue."
        )

    workers, is_local = engine.job_limit, engine.name == "local"
    limit = get_calibration_limit(budget)
    with show_progress_of_single_step("estimating the cost", describe_finished_jobs):
        cost = estimate_cost_of_jobs(
            list_waiting(), finished_job_times, workers, is_local, folder, limit, speed
        )
    if speed is None:
        print_lines_to_stderr(describe_expected_cost_of_jobs(cost))
    waiting, seconds = list_waiting(), cost.seconds_by_job

    def sort_jobs_by_rank_and_duration(jobs: list[TrainingJob]) -> list[TrainingJob]:
        ranks = rank_jobs(jobs) if rank_jobs and budget else {}
        sign = 1 if budget else -1
        return sorted(
            jobs,
            key=lambda job: (ranks.get(job.key, 0), sign * seconds.get(job.key, 0)),
        )

    # It shows later that the results are those of a run, even if no job finishes.
    get_records_folder(folder).mkdir(parents=True, exist_ok=True)
    queue = JobQueue(waiting, sort_jobs_by_rank_and_duration, budget, seconds)
    tracker = JobProgressTracker(waiting, workers, finished_job_times, expected=seconds)
    with (
        exit_with_message_on_interrupt(describe_finished_jobs),
        show_progress_of_jobs(tracker, folder, title) as report,
    ):
        failures = engine(waiting, folder, report, queue)
    if queue.unstarted:
        print_lines_to_stderr(describe_jobs_left_by_time_budget(queue, cost, len(jobs)))
    return failures


def describe_expected_cost_of_jobs(cost: JobCostEstimate, of: str = "") -> str:
    """Describe in one line what jobs are expected to cost, and how this is known."""
    start = f"Expected cost of {of or format_count(cost.jobs, 'job')}:"
    if not cost.estimates.seconds:
        return f"{start} unknown, because no job could be timed."
    text = f"{start} {format_core_minutes(cost.core_seconds)}"
    if cost.workers:
        count = f"{cost.workers} worker{'s' if cost.workers > 1 else ''}"
        text += f", {format_duration(cost.wall_seconds)} with {count}"
    sources = []
    if cost.estimates.recorded:
        sources.append("recorded durations")
    if cost.estimates.calibrated:
        sources.append("the first steps of some jobs")
    if sources:  # none if all jobs have finished
        text += f" (from {' and '.join(sources)})"
    if cost.is_local and cost.speed.share < BUSY:
        text += (
            f"; other programs leave {cost.speed.share:.0%} of a core to each process"
        )
    return f"{text}."


def describe_jobs_left_by_time_budget(
    queue: JobQueue, cost: JobCostEstimate, n_jobs: int
) -> str:
    """Say what a budget has left undone, and how to continue."""
    left = queue.unstarted
    seconds = [cost.estimates.seconds.get(job.key, 0.0) for job in left]
    budget = format_duration(queue.budget.seconds if queue.budget else 0.0)
    text = (
        f"The time budget of {budget} is used up: {len(left)} of {n_jobs} jobs have "
        f"not run and need about {format_core_minutes(sum(seconds))}."
    )
    if len(left) == n_jobs:
        shortest = format_duration(min(cost.seconds_by_job.values(), default=0.0))
        text = f"{text} The shortest of these jobs is expected to take {shortest}."
    return f"{text} Run the same command again to run these jobs."


def format_core_minutes(seconds: float) -> str:
    """Format processor time."""
    minutes = seconds / 60
    if minutes < 1:
        return format_count(math.ceil(seconds), "core-second")
    if minutes >= MANY_MINUTES:
        return f"{minutes / 60:.1f} core-hours"
    return f"{minutes:.{0 if minutes >= 10 else 1}f} core-minutes"
