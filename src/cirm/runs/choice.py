"""Jobs that try several values of a setting and use the best one for each seed.

The values are compared on training environments that are not trained on, as in the
original experiments of IRM on the structural causal model. Neither the unseen
environments nor the true coefficients have a part in the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cirm.records import AdaptedScoreRecord, Record, RunRecord, ScoreRecord
from cirm.runs.jobs import (
    TrainingJob,
    draw_environments_of_job,
    run_job_and_return_records,
    run_learner_of_job,
)

if TYPE_CHECKING:
    from cirm.environments import Problem

VALIDATION, CHOSEN = "validation", "chosen"  # a split, and where a choice is recorded


@dataclass(frozen=True)
class ChooseSettingValueJob(TrainingJob):
    """A job that tries several values of a setting.

    For each seed it chooses the value with the least mean error, or the highest
    accuracy, on the held-out training environments. Its records are those of the chosen
    values, with a score that states the value.

    Attributes:
        setting: Name of the setting.
        values: Values to try.
        held: Number of training environments, the last ones, that are held out.
    """

    setting: str = ""
    values: tuple[float, ...] = ()
    held: int = 1


@run_job_and_return_records.register(ChooseSettingValueJob)
def run_each_setting_value_and_keep_best(
    job: ChooseSettingValueJob,
    progress: Callable[[float], None],
    folder: Path | None = None,
) -> list[Record]:
    """Run a learner with each value and return the records of each seed's best."""
    start = time.perf_counter()
    problem = hold_out_last_training_environments(
        draw_environments_of_job(job), job.held
    )
    names = {environment.name for environment in problem.test[: job.held]}
    records: dict[float, list[Record]] = {}
    for index, value in enumerate(job.values):
        settings = {**job.settings, job.setting: value}
        one = replace(job, settings=settings, diagnose=False)

        def report_progress_of_value(done: float, index: int = index) -> None:
            progress((index + done) / len(job.values))

        rows = run_learner_of_job(one, problem, report_progress_of_value, folder)
        records[value] = [_mark_scores_as_held_out(row, names) for row in rows]
    best = {seed: pick_best_setting_value(records, seed) for seed in job.seeds}
    choices = [
        ScoreRecord(
            job.name, job.order, seed, 0, CHOSEN, VALIDATION, job.setting, value
        )
        for seed, value in best.items()
    ]
    rest = [
        row
        for value, rows in records.items()
        for row in rows
        if not isinstance(row, RunRecord) and best[row.seed] == value
    ]
    # One run for all seeds, with the values that there were to choose from.
    run = next(r for rows in records.values() for r in rows if isinstance(r, RunRecord))
    settings = {**run.settings, job.setting: list(job.values)}
    seconds = time.perf_counter() - start
    return [*choices, *rest, replace(run, settings=settings, seconds=seconds)]


def hold_out_last_training_environments(
    problem: Problem, n_environments: int
) -> Problem:
    """Move the last training environments to the front of the unseen ones."""
    if not 0 < n_environments < len(problem.train):
        raise ValueError(
            f"To choose a setting, {n_environments} training environments would be "
            f"held out, but the data set has {len(problem.train)}: at least one must "
            "be held out and at least one left to train on. Use a data set with more "
            "environments."
        )
    return replace(
        problem,
        train=problem.train[:-n_environments],
        test=(*problem.train[-n_environments:], *problem.test),
        fresh=problem.fresh[:-n_environments],
    )


def pick_best_setting_value(
    records_by_value: Mapping[float, Sequence[Record]], seed: int
) -> float:
    """Return the first value with the best validation score of a seed."""

    def get_validation_error(value: float) -> float:
        scores = [
            row
            for row in records_by_value[value]
            if isinstance(row, ScoreRecord)
            and (row.split, row.seed) == (VALIDATION, seed)
        ]
        last = max(score.stage for score in scores)
        mean = fmean(score.value for score in scores if score.stage == last)
        return mean if scores[0].metric == "error" else -mean

    return min(records_by_value, key=get_validation_error)


def _mark_scores_as_held_out(record: Record, held_out_names: set[str]) -> Record:
    """Mark scores on held-out environments as neither training nor test scores."""
    if (
        isinstance(record, ScoreRecord | AdaptedScoreRecord)
        and record.environment in held_out_names
    ):
        return replace(record, split=VALIDATION)
    return record
