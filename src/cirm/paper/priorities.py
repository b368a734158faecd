"""Which jobs of a reproduction to run first if there is no time for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from cirm.paper.reproduction import PaperReproductionPlan, summarise_experiment
from cirm.paper.verdicts import is_verdict_unlikely_to_change
from cirm.runs.archive import FinishedJobArchive
from cirm.runs.jobs import TrainingJob


def rank_jobs_by_open_verdicts(
    plan: PaperReproductionPlan,
    jobs: Sequence[TrainingJob],
    archive: FinishedJobArchive,
) -> dict[str, int]:
    """Return by key 0 for jobs of cells with an open verdict, and 1 for others."""
    report = summarise_experiment(plan.experiment, archive, plan.seeds, {})
    decided: dict[tuple[str, str], bool] = {}
    for cell in report.summary["cells"]:
        place = cell["row"], cell["learner"]
        decided[place] = decided.get(place, True) and is_verdict_unlikely_to_change(
            cell
        )
    open_trials = {
        trial.identity
        for row in plan.experiment.rows
        for trial in row.trials
        if not decided.get((row.name, trial.label), False)
    }
    keys = {
        job.key
        for trial, trial_jobs in plan.jobs.items()
        if trial in open_trials
        for job in trial_jobs
    }
    return {job.key: int(job.key not in keys) for job in jobs}
