"""Plan a reproduction, and summarise its records beside the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cirm.data.colored import Colored
from cirm.data.image_sets import (
    IMAGE_SETS,
    DownloadableImageSubset,
    get_cached_image_folder,
)
from cirm.paper import EXPERIMENTS, get_paper_experiment
from cirm.paper.experiment import ExperimentRow, ExperimentTrial, PaperExperiment
from cirm.paper.pooling import pool_test_scores_by_learner
from cirm.paper.verdicts import (
    check_claims_of_paper,
    compare_cells_with_paper,
    count_cells_by_verdict,
    summarise_verdicts_of_experiment,
)
from cirm.records import Record
from cirm.report.paper_page import (
    DatasetRecords,
    ExperimentReport,
    summarise_learners_of_row,
)
from cirm.runs.archive import (
    ARCHIVE_NAME,
    FinishedJobArchive,
    copy_jobs_from_other_archives,
    load_job_archive,
)
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import list_unfinished_jobs

Notes = Mapping[tuple[str, str], str]
"""By row and learner: why there are no records."""


@dataclass(frozen=True)
class PaperReproductionPlan:
    """The jobs of an experiment, and why some trials cannot run.

    Attributes:
        experiment: The experiment.
        seeds: Number of seeds.
        jobs: Jobs by the identity of their trial.
        absent: Why the data of a trial are missing, by its identity.
    """

    experiment: PaperExperiment
    seeds: int
    jobs: Mapping[str, list[TrainingJob]]
    absent: Mapping[str, str]

    @property
    def all_jobs(self) -> list[TrainingJob]:
        """All jobs, seed by seed, so that each learner has some results early."""
        jobs = [job for trial_jobs in self.jobs.values() for job in trial_jobs]
        return sorted(jobs, key=lambda job: job.seeds[0])

    def list_jobs_without_results(self, folder: Path) -> list[TrainingJob]:
        """List the jobs without results in this folder or those of other tables."""
        archive = copy_jobs_from_other_archives(
            self.all_jobs, folder, list_sibling_result_folders(folder)
        )
        missing = [job for job in self.all_jobs if job.key not in archive.entries]
        return list_unfinished_jobs(missing, folder)


def plan_paper_reproduction(
    experiment: PaperExperiment, n_seeds: int, learner_keys: Iterable[str] = ()
) -> PaperReproductionPlan:
    """Plan a reproduction with these learners, or all."""
    jobs, absent = {}, {}
    for trial in experiment.list_trials(learner_keys):
        reason = explain_why_trial_data_are_missing(trial)
        if reason:
            absent[trial.identity] = reason
        else:
            jobs[trial.identity] = trial.plan_jobs(range(n_seeds))
    return PaperReproductionPlan(experiment, n_seeds, jobs, absent)


def explain_why_trial_data_are_missing(trial: ExperimentTrial) -> str:
    """Return why a trial's data are missing, or "" if they are not."""
    remedy = describe_how_to_get_trial_data(trial)
    if not remedy or get_cached_image_folder(trial.source).is_dir():
        return ""
    return f"{trial.source} is not in the cache: run {remedy}"


def describe_how_to_get_trial_data(trial: ExperimentTrial) -> str:
    """Return how to supply a trial's data, or "" if they are built in."""
    source = trial.source
    if source not in IMAGE_SETS:
        return ""
    if isinstance(IMAGE_SETS[source], DownloadableImageSubset):
        return f"`{IMAGE_SETS[source].command}`"
    return (
        f"`cirm data fetch {source}`, or `cirm data import {source} FOLDER` with its "
        "four files"
    )


def list_sibling_result_folders(folder: Path) -> list[Path]:
    """List the folders of other tables beside this one, since tables share jobs."""
    if folder.name not in EXPERIMENTS:
        return []
    return [folder.with_name(name) for name in EXPERIMENTS if name != folder.name]


def collect_records_by_row(
    experiment: PaperExperiment, archive: FinishedJobArchive, seeds: Sequence[int]
) -> dict[str, list[Record]]:
    """Return the records of each row, by its name."""
    return {
        row.name: [
            record
            for trial in row.trials
            for record in archive.list_records(trial.identity, seeds)
        ]
        for row in experiment.rows
    }


def list_reasons_for_missing_records(
    plan: PaperReproductionPlan,
    failures: Mapping[str, str],
    archive: FinishedJobArchive,
) -> dict[tuple[str, str], str]:
    """Return, by row and learner, why there are no records of planned jobs."""
    notes: dict[tuple[str, str], str] = {}
    for row in plan.experiment.rows:
        for trial in row.trials:
            if not archive.list_packed_jobs(trial.identity):
                note = plan.absent.get(trial.identity, "")
                keys = [job.key for job in plan.jobs.get(trial.identity, [])]
                failed = [f"failed: {failures[key]}" for key in keys if key in failures]
                note = next(iter(failed), note or ("not run" if keys else ""))
                if note:
                    notes[row.name, trial.label] = note
    return notes


def list_rows_with_distinct_trials(
    experiment: PaperExperiment,
) -> list[ExperimentRow]:
    """Return the rows with different trials, the first of each."""
    rows: dict[str, ExperimentRow] = {}
    for row in experiment.rows:
        rows.setdefault("".join(trial.identity for trial in row.trials), row)
    return list(rows.values())


def summarise_experiment(
    experiment: PaperExperiment, archive: FinishedJobArchive, n_seeds: int, notes: Notes
) -> ExperimentReport:
    """Summarise an experiment from the records of an archive."""
    records = collect_records_by_row(experiment, archive, range(n_seeds))
    numbers = {
        name: summarise_learners_of_row(rows) for name, rows in records.items() if rows
    }
    for row in experiment.rows:
        if row.pools and set(row.pools) <= numbers.keys():
            numbers[row.name] = pool_test_scores_by_learner(
                [numbers[name] for name in row.pools]
            )
    cells = compare_cells_with_paper(experiment, numbers, notes)
    command = f"cirm reproduce {experiment.name} --seeds {n_seeds}"
    data = [
        DatasetRecords(row.title, records[row.name], list_color_flip_probabilities(row))
        for row in list_rows_with_distinct_trials(experiment)
        if records[row.name]
    ]
    commits = list_source_commits(experiment, archive)
    summary = summarise_verdicts_of_experiment(experiment, cells, command, commits)
    axis = {"axis": experiment.axis} if experiment.axis else {}
    return ExperimentReport(summary, data, experiment.chance, **axis)


def read_experiment_summary(folder: Path) -> ExperimentReport:
    """Summarise the experiment whose records a folder holds."""
    if not (folder / ARCHIVE_NAME).exists():
        raise FileNotFoundError(
            f"{folder}: there is no file {ARCHIVE_NAME} in this folder. Give a folder "
            "that `cirm reproduce` has written."
        )
    path, name = folder / "summary.json", folder.resolve().name
    if path.exists():
        name = str(json.loads(path.read_text("utf-8"))["experiment"])
    experiment, archive = get_paper_experiment(name), load_job_archive(folder)
    trials = [(row.name, trial) for row in experiment.rows for trial in row.trials]
    available = {
        trial.source for _, trial in trials if archive.list_packed_jobs(trial.identity)
    }
    notes = {}
    for row, trial in trials:
        if not archive.list_packed_jobs(trial.identity):
            # The same on every machine, whatever its cache holds.
            way = (
                ""
                if trial.source in available
                else describe_how_to_get_trial_data(trial)
            )
            note = f"not run (the images come by {way})" if way else "not run"
            notes[row, trial.label] = note
    return summarise_experiment(
        experiment, archive, count_seeds_in_archive(archive), notes
    )


def combine_experiment_summaries(reports: Sequence[ExperimentReport]) -> dict[str, Any]:
    """Combine the cells of several experiments, and judge the claims by all of them."""
    cells = [
        {"experiment": part.summary["experiment"], **cell}
        for part in reports
        for cell in part.summary["cells"]
    ]
    repeats = {p.summary["experiment"] for p in reports if p.summary.get("repeats")}
    counted = [cell for cell in cells if cell["experiment"] not in repeats]
    return {
        "experiment": "all",
        "verdicts": count_cells_by_verdict(counted),
        "cells": cells,
        "claims": check_claims_of_paper(counted),
    }


def list_source_commits(
    experiment: PaperExperiment, archive: FinishedJobArchive
) -> list[str]:
    """List the commits of the source code that an experiment's records come from."""
    entries = [
        e
        for t in experiment.list_trials()
        for e in archive.list_packed_jobs(t.identity)
    ]
    return list(dict.fromkeys(str(entry["commit"]) for entry in entries))


def count_seeds_in_archive(archive: FinishedJobArchive) -> int:
    """Return one more than the largest seed of an archive."""
    entries = archive.entries.values()
    return max((max(entry["seeds"]) for entry in entries), default=-1) + 1


def list_color_flip_probabilities(row: ExperimentRow) -> tuple[float, ...]:
    """List the colour flips of a row's training environments."""
    trial = row.trials[0]
    return (
        Colored(**trial.data).list_flip_probabilities()
        if trial.dataset == "colored"
        else ()
    )
