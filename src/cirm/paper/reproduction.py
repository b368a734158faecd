"""What a reproduction still has to run, and what it has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cirm.paper import EXPERIMENTS
from cirm.paper.trials import Experiment, Row, Trial
from cirm.records import Record
from cirm.runs.archive import Archive, inherit_jobs
from cirm.runs.jobs import Job
from cirm.runs.runner import list_unfinished


@dataclass(frozen=True)
class Plan:
    """The jobs of an experiment's chosen learners, and why others cannot run.

    `jobs` are the jobs by the identity of their trial, `absent` likewise the reasons.
    """

    experiment: Experiment
    seeds: int
    jobs: Mapping[str, list[Job]]
    absent: Mapping[str, str]

    @property
    def every(self) -> list[Job]:
        """All jobs, seed by seed, so that something of each learner is there early."""
        jobs = [job for some in self.jobs.values() for job in some]
        return sorted(jobs, key=lambda job: job.seeds[0])

    def waiting(self, folder: Path) -> list[Job]:
        """The jobs that neither this folder nor one beside it holds the results of."""
        archive = inherit_jobs(self.every, folder, neighbours(folder))
        missing = [job for job in self.every if job.key not in archive.entries]
        return list_unfinished(missing, folder)


def plan_reproduction(
    experiment: Experiment, seeds: int, keys: Iterable[str] = ()
) -> Plan:
    """What a reproduction with so many seeds consists of; of these learners, or all."""
    jobs, absent = {}, {}
    for trial in experiment.trials(keys):
        reason = explain_missing_data(trial)
        if reason:
            absent[trial.identity] = reason
        else:
            jobs[trial.identity] = trial.jobs(range(seeds))
    return Plan(experiment, seeds, jobs, absent)


def explain_missing_data(trial: Trial) -> str:
    """Why a trial's data cannot be had now; nothing if they can."""
    from cirm.data import cache

    way = explain_supply(trial)
    if not way or cache.folder(trial.source).is_dir():
        return ""
    return f"{trial.source} is not in the cache: run {way}"


def explain_supply(trial: Trial) -> str:
    """How to supply a trial's data; nothing if they need not be."""
    from cirm.data import image_catalog as sources

    source = trial.source
    if source not in sources.SOURCES:
        return ""
    return (
        f"`cirm data fetch {source}`, or `cirm data import {source} FOLDER` with its "
        "four files"
    )


def neighbours(folder: Path) -> list[Path]:
    """Folders of other tables beside this one; tables share jobs."""
    if folder.name not in EXPERIMENTS:
        return []
    return [folder.with_name(name) for name in EXPERIMENTS if name != folder.name]


def collect_rows(
    experiment: Experiment, archive: Archive, seeds: Sequence[int]
) -> dict[str, list[Record]]:
    """The records of each row, by its name."""
    return {
        row.name: [
            record
            for trial in row.trials
            for record in archive.records(trial.identity, seeds)
        ]
        for row in experiment.rows
    }


def explain_missing_records(
    made: Plan, failures: Mapping[str, str], archive: Archive
) -> dict[tuple[str, str], str]:
    """By row and learner, why there are no records though they were asked for."""
    notes: dict[tuple[str, str], str] = {}
    for row in made.experiment.rows:
        for trial in row.trials:
            if not archive.of(trial.identity):
                note = made.absent.get(trial.identity, "")
                keys = [job.key for job in made.jobs.get(trial.identity, [])]
                failed = [f"failed: {failures[key]}" for key in keys if key in failures]
                note = next(iter(failed), note or ("not run" if keys else ""))
                if note:
                    notes[row.name, trial.label] = note
    return notes


def select_distinct_rows(experiment: Experiment) -> list[Row]:
    """The rows that differ in their data, the first of each."""
    rows: dict[str, Row] = {}
    for row in experiment.rows:
        rows.setdefault("".join(trial.identity for trial in row.trials), row)
    return list(rows.values())
