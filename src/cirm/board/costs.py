"""What a board is expected to cost: its trials, and runs whose settings are open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

from cirm.board.plan import LeaderboardPlan, LeaderboardTask
from cirm.runs.durations import JobCostEstimate, estimate_cost_of_jobs
from cirm.runs.engines import JobEngine
from cirm.runs.local import list_job_times, list_unfinished_jobs, read_job_duration


def estimate_cost_of_leaderboard(
    plan: LeaderboardPlan, folder: Path, engine: JobEngine, calibration: float
) -> JobCostEstimate:
    """Estimate what the whole board costs that has not been run yet.

    A run takes as long for each seed as a trial, and is repeated with the oracle's
    choice if there are several trials.
    """
    trials = plan.list_trials()
    waiting = {job.key: job for job in list_unfinished_jobs(trials, folder)}
    cost = estimate_cost_of_jobs(
        list(waiting.values()), list_job_times(trials, folder), engine.job_limit,
        engine.name == "local", folder, calibration,
    )  # fmt: skip
    expected = cost.estimates.seconds
    seconds = {key: expected[key] for key in waiting if key in expected}
    for task in plan.tasks:
        own = [
            expected.get(job.key, 0.0)
            if job.key in waiting
            else read_job_duration(job, folder)
            for job in task.search.plan_jobs()
        ]
        is_open = any(job.key in waiting for job in task.search.plan_jobs())
        share = 1.0 if is_open else _compute_share_of_unfinished_runs(task, folder)
        choices = 2 if task.effort.trials > 1 else 1
        count = choices * len(task.effort.seeds) / len(task.search.seeds)
        name = f"{task.row.name} {task.column.name} {task.order} {task.data.data}"
        seconds[name] = share * count * fmean(own)
    estimates = cost.estimates._replace(seconds=seconds)
    return replace(cost, estimates=estimates, jobs=len(seconds))


def _compute_share_of_unfinished_runs(task: LeaderboardTask, folder: Path) -> float:
    runs = [
        job for own in task.plan_runs_of_chosen_settings(folder).values() for job in own
    ]
    return len(list_unfinished_jobs(runs, folder)) / len(runs) if runs else 0.0
