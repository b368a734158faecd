"""`cirm reproduce`: the paper's tables and figures, next to its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.exit_codes import ExitCode
from cirm.cli.options import Address, BudgetText, EngineName, Workers

if TYPE_CHECKING:
    from cirm.paper.experiment import PaperExperiment
    from cirm.paper.reproduction import PaperReproductionPlan
    from cirm.report.paper_page import ExperimentReport
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import WallClockBudget
    from cirm.runs.jobs import TrainingJob

TABLES = ("table1", "table2", "table3", "table4", "table5")
READINGS = (
    "readings", "readings-inferred", "readings-table2", "colourings", "parts"
)  # fmt: skip
BEYOND = ("beyond", "ablation", "groups", "label-noise")
NAMES = (*TABLES, *READINGS, *BEYOND, "figures", "theory", "all")
MAX_COLUMNS = 4  # wider tables do not fit on a terminal
EXAMPLES = options.format_examples_for_command_help(
    "cirm reproduce table1 --seeds 1", "cirm reproduce figures --out figures"
)


def reproduce_paper_experiments(
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
    budget: BudgetText = "",
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
    With --budget, one seed of every cell comes first, then a second seed, and so on;
    from then on cells whose verdict is still open come before the others.
    """
    if name not in NAMES:
        raise ValueError(
            f"reproduce: there is no experiment {name!r}. Use one of "
            f"{', '.join(NAMES)}."
        )
    from cirm.cli.jobs import parse_and_start_time_budget
    from cirm.cli.progress import (
        show_progress_of_single_step,
        show_progress_of_writing_report,
    )

    limit = parse_and_start_time_budget(budget)
    root = out or Path("reproduction") / ("" if name == "all" else name)
    failures: list[str] = []
    parts = []
    with show_progress_of_single_step("preparing the experiments"):
        from cirm.paper.pages import (
            render_example_images_of_sources,
            write_overview_of_experiments,
            write_paper_figures,
        )
        from cirm.paper.reproduction import plan_paper_reproduction
        from cirm.runs.engines import JobEngine

        place = JobEngine(engine, workers, address)
        plans = [
            plan_paper_reproduction(experiment, seeds or experiment.seeds, keys)
            for experiment, keys in choose_experiments_and_learners(name, learner or [])
        ]
    folders = [root / p.experiment.name if name == "all" else root for p in plans]
    figures = root / "figures" if name == "all" else root
    for folder in (root, figures, *folders):
        options.create_result_folder(folder)
    reasons = run_missing_jobs_of_plans(plans, folders, place, limit)
    for plan, folder in zip(plans, folders, strict=True):
        parts.append(write_reproduction_results(plan, folder, reasons))
        failures += list_failed_jobs_of_plan(plan, reasons)
    if name == "theory":
        measure_and_write_theory_results(root)
    if name in ("figures", "all"):
        with show_progress_of_single_step("drawing the figures"):
            write_paper_figures(figures)
        typer.echo(f"Wrote the figures to {(figures / 'report.html').resolve()}")
    if name == "all":
        with show_progress_of_writing_report():
            pictures = render_example_images_of_sources(
                [plan.experiment for plan in plans]
            )
            write_overview_of_experiments(parts, root, pictures.values())
        page = (root / "report.html").resolve()
        typer.echo(f"Wrote the report of all experiments to {page}")
    for line in failures:
        typer.echo(line, err=True)
    if failures:
        raise typer.Exit(ExitCode.FAILED_JOBS)


def choose_experiments_and_learners(
    name: str, learner_keys: Sequence[str]
) -> list[tuple[PaperExperiment, list[str]]]:
    """Return the experiments of a name, each with those of the learners it has."""
    from cirm.paper import EXPERIMENTS, get_paper_experiment

    if name in ("figures", "theory"):
        return []
    if name != "all":
        experiment = get_paper_experiment(name)
        experiment.list_trials(learner_keys)  # raises an error for unknown learners
        return [(experiment, list(learner_keys))]
    known = {key for one in EXPERIMENTS.values() for key in one.keys}
    for key in learner_keys:
        if key not in known:
            raise ValueError(
                f"--learner: no experiment of the paper uses the learner {key!r}. Use "
                f"one of {'; '.join(sorted(known))}."
            )
    pairs = [
        (one, [k for k in learner_keys if k in one.keys])
        for one in EXPERIMENTS.values()
    ]
    return [(one, chosen) for one, chosen in pairs if chosen or not learner_keys]


def measure_and_write_theory_results(folder: Path) -> None:
    """Measure what the paper proves or cites, and write figures and numbers."""
    from cirm.cli.progress import show_progress_of_single_step
    from cirm.paper.theory import write_theory_files

    with show_progress_of_single_step("measuring"):
        write_theory_files(folder)
    typer.echo(f"Wrote the figures to {(folder / 'report.html').resolve()}")


def run_missing_jobs_of_plans(
    plans: Sequence[PaperReproductionPlan],
    folders: Sequence[Path],
    engine: JobEngine,
    budget: WallClockBudget | None,
) -> dict[str, str]:
    """Run what the folders lack of the experiments; return reasons of failures.

    With a budget, the experiments take turns: one seed of each, then the next.
    """
    rounds: list[int | None] = [None]
    if budget and len(plans) > 1:
        rounds = [*range(max(plan.seeds for plan in plans))]
    failures: dict[str, str] = {}
    for seed in rounds:
        for plan, folder in zip(plans, folders, strict=True):
            if seed == rounds[0]:
                print_reproduction_plan(plan, plan.list_jobs_without_results(folder))
            failures |= run_missing_jobs_of_plan(plan, folder, engine, budget, seed)
    return failures


def run_missing_jobs_of_plan(
    plan: PaperReproductionPlan,
    folder: Path,
    engine: JobEngine,
    budget: WallClockBudget | None,
    seed: int | None,
) -> dict[str, str]:
    """Run what a folder lacks of an experiment, or only the jobs of a seed."""
    from cirm.cli.jobs import run_jobs_with_progress
    from cirm.paper.priorities import rank_jobs_by_open_verdicts
    from cirm.runs.archive import add_finished_jobs_to_archive
    from cirm.runs.provenance import find_source_commit

    commit = find_source_commit()
    archive = add_finished_jobs_to_archive(plan.all_jobs, folder, commit)

    def list_jobs_without_records() -> list[TrainingJob]:
        waiting = plan.list_jobs_without_results(folder)
        return [job for job in waiting if seed is None or job.seeds[0] == seed]

    def rank_jobs(jobs: Sequence[TrainingJob]) -> dict[str, int]:
        archive = add_finished_jobs_to_archive(plan.all_jobs, folder, commit)
        return rank_jobs_by_open_verdicts(plan, jobs, archive)

    if not list_jobs_without_records():
        return {}
    times = archive.list_job_times()
    name = plan.experiment.name
    failures = run_jobs_with_progress(
        plan.all_jobs,
        list_jobs_without_records,
        folder,
        engine,
        name,
        times,
        budget,
        rank_jobs,
    )
    # Other tables find the jobs that they share with this one in its archive.
    add_finished_jobs_to_archive(plan.all_jobs, folder, commit)
    return failures


def write_reproduction_results(
    plan: PaperReproductionPlan, folder: Path, failures: Mapping[str, str]
) -> ExperimentReport:
    """Write and print the results that a folder has of an experiment."""
    from cirm.cli.progress import show_progress_of_writing_report
    from cirm.paper.pages import (
        render_example_images_of_sources,
        write_experiment_files,
    )
    from cirm.paper.reproduction import (
        list_reasons_for_missing_records,
        summarise_experiment,
    )
    from cirm.runs.archive import add_finished_jobs_to_archive
    from cirm.runs.provenance import find_source_commit

    archive = add_finished_jobs_to_archive(plan.all_jobs, folder, find_source_commit())
    with show_progress_of_writing_report():
        notes = list_reasons_for_missing_records(plan, failures, archive)
        part = summarise_experiment(plan.experiment, archive, plan.seeds, notes)
        pictures = render_example_images_of_sources([plan.experiment]).values()
        write_experiment_files(part, folder, pictures)
    print_comparison_with_paper(part, folder)
    return part


def list_failed_jobs_of_plan(
    plan: PaperReproductionPlan, failures: Mapping[str, str]
) -> list[str]:
    """Return a line for each job of a plan that has failed."""
    from cirm.runs.tracker import describe_job_in_few_words

    return [
        f"failed: {describe_job_in_few_words(job)}: {failures[job.key]}"
        for job in plan.all_jobs
        if job.key in failures
    ]


def print_reproduction_plan(
    plan: PaperReproductionPlan, waiting: Sequence[TrainingJob]
) -> None:
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


def print_comparison_with_paper(report: ExperimentReport, folder: Path) -> None:
    """Print our numbers next to the paper's, and where the results are."""
    from cirm.cli.output import print_table
    from cirm.report.paper_page import (
        build_paper_comparison_tables,
        transpose_table_if_wide,
        write_comparison_lead_paragraph,
    )

    for table in map(
        transpose_table_if_wide, build_paper_comparison_tables(report.summary)
    ):
        if len(table.columns) - table.row_headings <= MAX_COLUMNS:
            print_table(table)
    typer.echo(write_comparison_lead_paragraph([report], report.summary["claims"]))
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")
