"""`cirm fit --each` and `--each-set`: many models at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cirm.cli import options
from cirm.cli.exit_codes import ExitCode
from cirm.cli.output import print_lines_to_stderr, print_notes_once, print_rows_as_table
from cirm.cli.progress import exit_with_message_on_interrupt, show_progress_of_jobs

if TYPE_CHECKING:
    from cirm.runs.engines import JobEngine
    from cirm.runs.fit_jobs import FitModelJob

Entry = dict[str, Any]


@dataclass(frozen=True)
class FitManyOptions:
    """What to fit models to, and where they go.

    Attributes:
        data: Files of the command line, which all models are fitted to.
        each: Folder with a file for each model, instead of `data`.
        each_set: Settings with several values, one model for each.
        folder: Folder that the models are written to.
        overwrite: Whether models of other data or settings are replaced.
    """

    data: Sequence[Path]
    each: Path | None
    each_set: Sequence[str]
    folder: Path
    overwrite: bool

    def check_fit_options(self, report: Path | None) -> None:
        """Raise an error before any work for options that do not go together."""
        if self.each is not None and self.data:
            raise ValueError(
                "--each: one model is fitted to each file of the folder "
                f"{str(self.each)!r}, so no other data can be given. Leave out either "
                "--each or the other data."
            )
        if not (self.each or self.data) or options.STANDARD in self.data:
            raise ValueError(
                "--each-set: every model reads the data again, so they cannot come "
                "from standard input. Give files, or a folder with --each."
            )
        if report is not None:
            raise ValueError(
                "--report: no page can be written together with --each or "
                "--each-set. Leave out --report, and use `cirm inspect MODEL "
                "--report PAGE.html` for a page of a model."
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"--model: {str(self.folder)!r} is a file. With --each or --each-set, "
                "give the folder that models are written to."
            )

    def plan_jobs(
        self, base: FitModelJob, assignments: Sequence[str]
    ) -> list[FitModelJob]:
        """Return a job for each file and each combination of settings."""
        from cirm.cli.fit import parse_setting_options
        from cirm.runs.fit_jobs import (
            list_files_to_fit,
            list_setting_combinations,
            plan_fit_job,
        )

        groups = [("model", list(self.data))]
        if self.each:
            groups = [(path.stem, [path]) for path in list_files_to_fit(self.each)]
        jobs = []
        for combination in list_setting_combinations(self.each_set):
            chosen = parse_setting_options(base.learner, [*assignments, *combination])
            for stem, files in groups:
                name = options.make_file_name_from_key("-".join([stem, *combination]))
                job = replace(base, settings=chosen)
                jobs.append(plan_fit_job(files, name, self.folder, job))
        return jobs


def fit_many_models(
    jobs: Sequence[FitModelJob],
    fit_options: FitManyOptions,
    engine: JobEngine,
    as_json: bool,
) -> None:
    """Fit the models that are missing; print a summary of all of them."""
    from cirm.runs.fit_jobs import (
        read_summaries_of_fitted_models,
        select_fit_jobs_to_run,
    )
    from cirm.runs.tracker import JobProgressTracker

    folder = fit_options.folder
    options.create_result_folder(folder)
    waiting, failures = select_fit_jobs_to_run(jobs, folder, fit_options.overwrite)
    skipped = {job.key for job, _ in read_summaries_of_fitted_models(jobs, folder)}
    if skipped:
        print_lines_to_stderr(
            f"Skipped {len(skipped)} of {len(jobs)} models, because they were already "
            "fitted to the same data with the same settings."
        )

    def describe_finished_models() -> str:
        done = len(list(read_summaries_of_fitted_models(jobs, folder)))
        return (
            f"The command was interrupted. {done} of {len(jobs)} models are written "
            f"to {folder}. Run the same command again to continue."
        )

    tracker = JobProgressTracker(waiting, engine.job_limit, [])
    with (
        exit_with_message_on_interrupt(describe_finished_models),
        show_progress_of_jobs(tracker, folder, "fitting models") as report,
    ):
        failures = {**failures, **engine(waiting, folder, report)}
    summaries = {
        job.key: entry for job, entry in read_summaries_of_fitted_models(jobs, folder)
    }
    entries = [
        describe_state_of_fit_job(job, summaries.get(job.key), failures, skipped)
        for job in jobs
    ]
    print_summary_of_models(entries, folder, as_json)
    if failures:
        raise typer.Exit(ExitCode.FAILED_JOBS)


def describe_state_of_fit_job(
    job: FitModelJob,
    summary: Mapping[str, Any] | None,
    failures: Mapping[str, str],
    skipped: set[str],
) -> Entry:
    """Return the name, the state and the summary of a model, as JSON has them."""
    state = "skipped" if job.key in skipped else "fitted"
    if summary is None:
        state = "failed"
    reason = failures.get(job.key, "")
    return {"name": job.name, "state": state, "reason": reason, **(summary or {})}


def print_summary_of_models(
    entries: Sequence[Entry], folder: Path, as_json: bool
) -> None:
    """Print what became of each model."""
    if as_json:
        content = {"folder": str(folder), "models": list(entries)}
        typer.echo(json.dumps(content, indent=2))
    else:
        good = [entry for entry in entries if entry["state"] != "failed"]
        for entry in good:
            print_notes_once([f"{entry['name']}: {note}" for note in entry["notes"]])
        if good:
            metric = good[0]["metric"]
            headings = ["model", "state", "rows", f"{metric}, held out", "seconds"]
            print_rows_as_table(
                "Models", headings, [_format_table_row_of_model(e) for e in good], 2
            )
    for entry in entries:
        if entry["state"] == "failed":
            print_lines_to_stderr(f"failed: {entry['name']}: {entry['reason']}")
    count = sum(entry["state"] == "fitted" for entry in entries)
    print_lines_to_stderr(f"Wrote {count} models to {folder}")


def _format_table_row_of_model(entry: Entry) -> list[str]:
    """Return a row of the table of models."""
    score = "" if entry["score"] is None else f"{entry['score']:.4g}"
    seconds = f"{entry['seconds']:.1f}"
    return [entry["name"], entry["state"], f"{entry['rows']:,}", score, seconds]
