"""`cirm run`: train learners on a data set, over several seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.exit_codes import ExitCode
from cirm.cli.options import (
    Address,
    BudgetText,
    EngineName,
    LearnerSettings,
    Preset,
    RunOrder,
    Workers,
)
from cirm.cli.output import format_command_line_as_typed, print_notes_once, print_table
from cirm.records import Record, TrainingCurveRecord

if TYPE_CHECKING:
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import WallClockBudget
    from cirm.runs.jobs import TrainingJob

EXAMPLES = options.format_examples_for_command_help(
    "cirm run --learner erm --learner irmv1 --seeds 3 --ceiling",
    "cirm run --dataset scm --learner icp --order joint --examples 500",
)


def run_learners(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Option(
            help="Data set: a name that `cirm list datasets` shows, or "
            "package.module:Class."
        ),
    ] = "colored",
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                f"Learner to train: {options.LEARNER_HELP}; can be given several times."
            ),
            show_default="erm",
        ),
    ] = None,
    order: RunOrder = "sequential",
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of seeds to run; they are 0, 1, 2 and so on.",
        ),
    ] = 5,
    preset: Preset = "",
    settings: LearnerSettings = None,
    infer: Annotated[
        str,
        typer.Option(
            help="Method that infers environments before training, for example eiil; "
            "`cirm list inference` describes them.",
            show_default="none: the environments of the data set are used",
        ),
    ] = "",
    adapt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N",
            help=(
                "Number of unlabelled rows of each unseen environment, or all. "
                "Learners that can adapt are also adapted to these rows and scored "
                "again; can be given several times."
            ),
            show_default="no adaptation",
        ),
    ] = None,
    no_diagnostics: Annotated[
        bool,
        typer.Option(
            "--no-diagnostics",
            help="Skip the diagnostics, which show from the training environments "
            "alone whether a learner relies on a shortcut.",
        ),
    ] = False,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling",
            help="Also train ERM on images without colour, to show which accuracy is "
            "possible without the shortcut. Only for the data set colored.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the results to.", show_default="runs/DATASET-HASH"
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    budget: BudgetText = "",
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Also write training curves for TensorBoard to this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Train learners on a stream of environments and score them on unseen ones.

    All other options are settings of the data set, for example --source mnist
    --environments 3 --examples 1000; `cirm list datasets NAME` shows them. If a run is
    interrupted, the same command continues it.
    """
    from cirm.cli.jobs import parse_and_start_time_budget
    from cirm.cli.progress import show_progress_of_steps

    limit = parse_and_start_time_budget(budget)
    texts = options.parse_dataset_options(context.args, "run")
    if tensorboard is not None:
        check_tensorboard_is_installed()
    with show_progress_of_steps("no job was started") as progress:
        progress("preparing the data set", 1)
        from cirm.runs.engines import JobEngine
        from cirm.runs.plans import (
            create_and_draw_dataset,
            plan_grey_image_jobs,
            plan_jobs_of_learner,
        )

        chosen = JobEngine(engine, workers, address)
        counts = options.parse_adaptation_row_count_option(adapt or [])
        data = create_and_draw_dataset(dataset, texts, progress)
        jobs: list[TrainingJob] = []
        for key in learner or ["erm"]:
            jobs += plan_jobs_of_learner(
                data, key, order, range(seeds),
                preset=preset, setting_texts=settings or [], infer=infer, adapt=counts,
            )  # fmt: skip
        if ceiling:
            jobs += plan_grey_image_jobs(dataset, texts, order, range(seeds), preset)
        if no_diagnostics:
            jobs = [replace(job, diagnose=False) for job in jobs]
    if adapt and not any(job.adapt for job in jobs):
        print_notes_once(
            [
                "None of the learners can adapt, so --adapt has no effect. Choose a "
                "learner such as steady."
            ]
        )
    if data.description:
        typer.echo(data.description, err=as_json)
    name = options.make_file_name_from_key(dataset)
    folder = out or Path("runs") / f"{name}-{hash_jobs_to_short_name(jobs)}"
    run_jobs_and_write_report(
        jobs, folder, chosen, tensorboard, as_json=as_json, budget=limit
    )


def run_jobs_and_write_report(
    jobs: Sequence[TrainingJob],
    folder: Path,
    engine: JobEngine,
    tensorboard: Path | None = None,
    title: str = "cirm run",
    as_json: bool = False,
    budget: WallClockBudget | None = None,
) -> None:
    """Run the unfinished jobs, then write and print the results of all of them.

    As JSON, standard output has the summary and the reasons of failures only.
    """
    from cirm.cli.jobs import run_jobs_with_progress
    from cirm.runs.local import (
        list_job_times,
        list_unfinished_jobs,
        read_records_of_finished_jobs,
    )
    from cirm.runs.tracker import describe_job_in_few_words

    options.create_result_folder(folder)
    waiting = {job.key for job in list_unfinished_jobs(jobs, folder)}
    finished = [job for job in jobs if job.key not in waiting]
    failures: dict[str, str] = {}
    if not waiting:
        line = f"All {len(jobs)} jobs have finished already; nothing to run."
        typer.echo(line, err=as_json)
    else:
        if finished:
            line = f"Continuing: {len(finished)} of {len(jobs)} jobs have finished."
            typer.echo(line, err=as_json)
        failures = run_jobs_with_progress(
            jobs,
            lambda: list_unfinished_jobs(jobs, folder),
            folder,
            engine,
            title,
            list_job_times(finished, folder),
            budget,
        )
    summary: dict[str, Any] = {}
    if records := read_records_of_finished_jobs(jobs, folder):
        summary = write_result_files_of_run(records, jobs, folder, title, tensorboard)
        if not as_json:
            print_result_tables_of_run(records, summary)
        for line in list_files_written_by_run(folder, tensorboard):
            typer.echo(line, err=as_json)
    if as_json:
        reasons = {
            describe_job_in_few_words(j): failures[j.key]
            for j in jobs
            if j.key in failures
        }
        content = {"folder": str(folder), **summary, "failures": reasons}
        typer.echo(json.dumps(content, indent=2))
    exit_if_jobs_failed(jobs, failures)


def exit_if_jobs_failed(jobs: Sequence[TrainingJob], failures: dict[str, str]) -> None:
    """If jobs have failed, print why and exit with status 1."""
    from cirm.runs.tracker import describe_job_in_few_words

    for job in jobs:
        if job.key in failures:
            line = f"failed: {describe_job_in_few_words(job)}: {failures[job.key]}"
            typer.echo(line, err=True)
    if failures:
        raise typer.Exit(ExitCode.FAILED_JOBS)


def hash_jobs_to_short_name(jobs: Sequence[TrainingJob]) -> str:
    """Return a short name for these jobs."""
    text = " ".join(job.key for job in jobs)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def write_result_files_of_run(
    records: Sequence[Record],
    jobs: Sequence[TrainingJob],
    folder: Path,
    title: str,
    tensorboard: Path | None,
) -> dict[str, Any]:
    """Write records, summary, page and curves of a run; return the summary."""
    from cirm.cli.progress import show_progress_of_writing_report
    from cirm.records import write_records, write_text_atomically
    from cirm.report.diagnostics import summarise_diagnostics_by_learner
    from cirm.report.drawing import render_svg_file
    from cirm.report.measures import summarise_transfer_measures
    from cirm.report.run_page import build_run_page, render_sweep_figure_of_run
    from cirm.report.summary import summarise_records

    with show_progress_of_writing_report():
        summary = summarise_records(records)
        summary["diagnostics"] = summarise_diagnostics_by_learner(records)
        summary["measures"] = summarise_transfer_measures(records)
        write_records(folder / "records.jsonl", records)
        write_text_atomically(
            folder / "summary.json", json.dumps(summary, indent=2) + "\n"
        )
        data = collect_data_facts_for_page(jobs[0])
        page = build_run_page(records, title, format_command_line_as_typed(), **data)
        write_text_atomically(folder / "report.html", page)
        data.pop("pictures", None)
        if figure := render_sweep_figure_of_run(records, **data):
            write_text_atomically(folder / "sweep.svg", render_svg_file(figure))
        if tensorboard is not None:
            write_tensorboard_curves(records, tensorboard)
    return summary


def print_result_tables_of_run(
    records: Sequence[Record], summary: Mapping[str, Any]
) -> None:
    """Print the tables of a run."""
    from cirm.report.run_page import (
        build_coefficient_error_table,
        build_run_results_table,
    )

    print_table(build_run_results_table(summary))
    if coefficients := build_coefficient_error_table(records):
        print_table(coefficients)
    print_learner_diagnostics(
        records, next(iter(summary["learners"].values()))["metric"]
    )


def list_files_written_by_run(folder: Path, tensorboard: Path | None) -> list[str]:
    """Return lines that say which files a run has written."""
    lines = [
        f"Wrote records.jsonl and summary.json to {folder}",
        f"Wrote the report to {(folder / 'report.html').resolve()}",
    ]
    if tensorboard is not None:
        curves = f"Wrote the training curves to {tensorboard}; `tensorboard --logdir "
        lines.insert(0, f"{curves}{tensorboard}` shows them.")
    return lines


def collect_data_facts_for_page(job: TrainingJob) -> dict[str, Any]:
    """Return what the page shows about the data: chance, axis and example images."""
    from cirm.data import create_dataset
    from cirm.data.colored import Colored
    from cirm.paper.example_images import render_example_images

    dataset = create_dataset(job.dataset, job.data)
    if not isinstance(dataset, Colored):
        return {}
    return {
        "chance": 50.0,
        "axis": "colour flip of the unseen environment",
        "trained_at": dataset.list_flip_probabilities(),
        "pictures": (render_example_images(dataset, job.seeds[0]),),
    }


def print_learner_diagnostics(records: Sequence[Record], metric: str) -> None:
    """Print the diagnostics of each learner and what they mean, if there are any."""
    from cirm.report.diagnostics import (
        build_learner_diagnostics_table,
        collect_diagnostics_by_learner,
        describe_examples_of_diagnostics,
        describe_failed_diagnostics,
    )

    diagnoses = collect_diagnostics_by_learner(records)
    if not diagnoses:
        return
    print_table(build_learner_diagnostics_table(diagnoses, metric))
    for sentence in (
        *describe_failed_diagnostics(diagnoses),
        describe_examples_of_diagnostics(diagnoses),
    ):
        typer.echo(sentence)


def check_tensorboard_is_installed() -> None:
    """Raise an error before any work if TensorBoard is not installed."""
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard: TensorBoard is not installed. Install it with `pip install "
            "cirm[tensorboard]`."
        )


def write_tensorboard_curves(records: Sequence[Record], folder: Path) -> None:
    """Write training curves as TensorBoard events, one run per learner and seed."""
    from torch.utils.tensorboard import SummaryWriter

    curves = [record for record in records if isinstance(record, TrainingCurveRecord)]
    for label, seed in dict.fromkeys((c.learner, c.seed) for c in curves):
        with SummaryWriter(str(folder / f"{label}-{seed}")) as writer:
            for curve in curves:
                if (curve.learner, curve.seed) == (label, seed):
                    tag = f"stage {curve.stage}/{curve.metric}"
                    writer.add_scalar(tag, curve.value, curve.step)
