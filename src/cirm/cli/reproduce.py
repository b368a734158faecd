"""`cirm reproduce`: the paper's tables and figures, next to its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.exit_codes import ExitCode
from cirm.cli.options import Address, EngineName, Workers

if TYPE_CHECKING:
    from cirm.paper.experiment import PaperExperiment
    from cirm.paper.reproduction import ReproductionPlan
    from cirm.report.paper_page import ExperimentReport
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job

TABLES = ("table1", "table2", "table3", "table4", "table5")
READINGS = (
    "readings", "readings-inferred", "readings-table2", "colourings", "parts"
)  # fmt: skip
NAMES = (*TABLES, *READINGS, "beyond", "ablation", "figures", "all")
MAX_COLUMNS = 4  # wider tables do not fit on a terminal
EXAMPLES = options.format_command_examples(
    "cirm reproduce table1 --seeds 1", "cirm reproduce figures --out figures"
)


def reproduce_paper(
    name: Annotated[
        str, typer.Argument(help=f"What to reproduce: {', '.join(NAMES)}.")
    ],
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of seeds; 0 means as many as the paper uses.",
        ),
    ] = 0,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this learner; can be given several times.",
            show_default="all learners",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the results to.", show_default="reproduction/NAME"
        ),
    ] = None,
) -> None:
    """Run the experiments of the paper and compare the results with its numbers.

    Jobs that have finished are not run again: the same command continues an
    interrupted reproduction, and tables in neighbouring folders share their jobs.
    Data sets that are not in the cache are skipped; `cirm data fetch` downloads them.
    """
    if name not in NAMES:
        raise ValueError(
            f"reproduce: {name!r} is not an experiment of the paper. Use one of "
            f"{', '.join(NAMES)}."
        )
    from cirm.cli.progress import show_single_step

    root = out or Path("reproduction") / ("" if name == "all" else name)
    failures: list[str] = []
    parts = []
    with show_single_step("preparing the experiments"):
        from cirm.paper.pages import (
            draw_example_images_of_sources,
            write_overview_files,
            write_paper_figures,
        )
        from cirm.paper.reproduction import plan_reproduction
        from cirm.runs.engines import Engine

        place = Engine(engine, workers, address)
        plans = [
            plan_reproduction(experiment, seeds or experiment.seeds, keys)
            for experiment, keys in choose_experiments_and_learners(name, learner or [])
        ]
    for plan in plans:
        folder = root / plan.experiment.name if name == "all" else root
        part, failed = run_reproduction_plan(plan, folder, place)
        parts.append(part)
        failures += failed
    if name in ("figures", "all"):
        folder = root / "figures" if name == "all" else root
        with show_single_step("drawing the figures"):
            write_paper_figures(folder)
        typer.echo(f"Wrote the figures to {(folder / 'report.html').resolve()}")
    if name == "all":
        with show_single_step("writing the report"):
            pictures = draw_example_images_of_sources(
                [plan.experiment for plan in plans]
            )
            write_overview_files(parts, root, pictures.values())
        page = (root / "report.html").resolve()
        typer.echo(f"Wrote the report of all experiments to {page}")
    for line in failures:
        typer.echo(line, err=True)
    if failures:
        raise typer.Exit(ExitCode.FAILED_JOBS)


def choose_experiments_and_learners(
    name: str, keys: Sequence[str]
) -> list[tuple[PaperExperiment, list[str]]]:
    """Return the experiments of a name, each with those of the learners it has."""
    from cirm.paper import EXPERIMENTS, get_experiment

    if name == "figures":
        return []
    if name != "all":
        experiment = get_experiment(name)
        experiment.list_trials(keys)  # raises an error for unknown learners
        return [(experiment, list(keys))]
    known = {key for one in EXPERIMENTS.values() for key in one.keys}
    for key in keys:
        if key not in known:
            raise ValueError(
                f"--learner: no experiment of the paper uses the learner {key!r}. Use "
                f"one of {'; '.join(sorted(known))}."
            )
    pairs = [(one, [k for k in keys if k in one.keys]) for one in EXPERIMENTS.values()]
    return [(one, chosen) for one, chosen in pairs if chosen or not keys]


def run_reproduction_plan(
    plan: ReproductionPlan, folder: Path, engine: Engine
) -> tuple[ExperimentReport, list[str]]:
    """Run what a folder lacks of an experiment and write it; also return failures."""
    from cirm.cli.progress import run_jobs_with_progress, show_single_step
    from cirm.paper.pages import draw_example_images_of_sources, write_experiment_files
    from cirm.paper.reproduction import (
        list_reasons_for_missing_records,
        summarise_experiment,
    )
    from cirm.runs.archive import add_finished_jobs_to_archive
    from cirm.runs.provenance import find_source_commit
    from cirm.runs.tracker import describe_job, estimate_data_work

    options.create_result_folder(folder)
    waiting = plan.list_waiting_jobs(folder)
    print_reproduction_plan(plan, waiting)
    commit = find_source_commit()
    archive = add_finished_jobs_to_archive(plan.all_jobs, folder, commit)
    failures: dict[str, str] = {}
    if waiting:
        times = [
            (entry["setup"]["learner"], size, entry["seconds"])
            for entry in archive.entries.values()
            if (
                size := estimate_data_work(
                    entry["setup"]["dataset"], len(entry["seeds"])
                )
            )
        ]
        failures = run_jobs_with_progress(
            plan.all_jobs,
            lambda: plan.list_waiting_jobs(folder),
            folder,
            engine,
            plan.experiment.name,
            times,
            lambda job: add_finished_jobs_to_archive([job], folder, commit),
        )
        archive = add_finished_jobs_to_archive(plan.all_jobs, folder, commit)
    with show_single_step("writing the report"):
        notes = list_reasons_for_missing_records(plan, failures, archive)
        part = summarise_experiment(plan.experiment, archive, plan.seeds, notes)
        pictures = draw_example_images_of_sources([plan.experiment]).values()
        write_experiment_files(part, folder, pictures)
    print_comparison_with_paper(part, folder)
    jobs = {job.key: job for job in waiting}
    return part, [
        f"failed: {describe_job(jobs[key])}: {reason}"
        for key, reason in failures.items()
    ]


def print_reproduction_plan(plan: ReproductionPlan, waiting: Sequence[Job]) -> None:
    """Print how many jobs there are to run, and which data sets are missing."""
    total = len(plan.all_jobs)
    finished = total - len(waiting)
    name = plan.experiment.name
    if not waiting and total:
        typer.echo(f"{name}: all {total} jobs have finished already; nothing to run.")
    elif finished:
        typer.echo(f"{name}: continuing; {finished} of {total} jobs have finished.")
    elif total:
        seeds = f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''}"
        typer.echo(f"{name}: {total} jobs, {seeds}.")
    for reason in dict.fromkeys(plan.absent.values()):
        typer.echo(f"{name}: {reason}", err=True)


def print_comparison_with_paper(part: ExperimentReport, folder: Path) -> None:
    """Print our numbers next to the paper's, and where the results are."""
    from cirm.cli.output import print_table
    from cirm.report.paper_page import (
        build_comparison_tables,
        transpose_wide_table,
        write_comparison_lead,
    )

    for table in map(transpose_wide_table, build_comparison_tables(part.summary)):
        if len(table.columns) - table.row_headings <= MAX_COLUMNS:
            print_table(table)
    typer.echo(write_comparison_lead([part], part.summary["claims"]))
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")
