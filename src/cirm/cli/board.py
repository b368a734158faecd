"""`cirm board`: learners against data sets, with settings chosen without a leak."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.options import Address, BudgetText, EngineName, Workers

if TYPE_CHECKING:
    from cirm.board.plan import LeaderboardPlan
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import WallClockBudget
    from cirm.runs.jobs import TrainingJob

EXAMPLES = options.format_examples_for_command_help(
    "cirm board --quick",
    "cirm board --quick --learner steady --learner erm --budget 5m",
)

STEPS = {"honest": "chosen settings", "oracle": "the oracle's settings"}
N_BEST = 3  # learners of each data set that are printed


def run_leaderboard_command(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=(
                "Use small built-in data sets, small networks and few trials; takes "
                "minutes instead of days."
            ),
        ),
    ] = False,
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help="Learner to compare; can be given several times.",
            show_default="all learners",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Data set to compare the learners on, for example mnist-b01, "
                "pacs-sketch or gas-drift; can be given several times."
            ),
            show_default="all data sets",
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER:COLUMN",
            help="Use a table of your own beside the other data sets. FOLDER has one "
            "file for each place, and the last file by name is the unseen place; "
            "COLUMN is the column to predict. Can be given several times. To use no "
            "other data set, give the name of its folder as --column.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of seeds to run the chosen settings with; 0 means 5.",
        ),
    ] = 0,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of settings to try for each learner on each data set; 0 means "
            "4, or 2 with --quick.",
        ),
    ] = 0,
    examples: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of examples of each place to train on, drawn anew for each "
            "seed; 0 means 1,000, or 300 of PACS and of small data sets. At most 80 % "
            "of the rows of a table are drawn.",
        ),
    ] = 0,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    budget: BudgetText = "",
    out: Annotated[Path, typer.Option(help="Folder to write the results to.")] = Path(
        "board"
    ),
) -> None:
    """Compare learners on data sets whose places arrive one after another.

    For every learner and data set, the same number of settings is tried, and the best
    are chosen without the unseen place. The score of the settings that would have been
    best there is shown for comparison. Data sets that are not installed are named and
    left out. If the command is interrupted, run it again to continue.
    """
    from cirm.cli.jobs import parse_and_start_time_budget
    from cirm.cli.progress import show_progress_of_steps

    limit = parse_and_start_time_budget(budget)
    with show_progress_of_steps("no job was started") as progress:
        progress("preparing the data sets", 1)
        from cirm.board.columns import (
            OWN_TABLE,
            list_leaderboard_datasets,
            prepare_leaderboard_datasets,
        )
        from cirm.board.plan import FULL, QUICK, plan_leaderboard
        from cirm.board.rows import list_leaderboard_learners
        from cirm.runs.engines import JobEngine

        options.limit_torch_to_one_thread()
        place = JobEngine(engine, workers, address)
        columns = list_leaderboard_datasets(quick, table or [], examples)
        own = [each.name for each in columns if each.dataset == OWN_TABLE]
        names = [*column, *own] if column else None
        chosen = options.select_choices_by_name(columns, names, "--column")
        effort = QUICK if quick else FULL
        if seeds:
            effort = replace(effort, seeds=tuple(range(seeds)))
        if trials:
            effort = replace(effort, trials=trials)
        rows = list_leaderboard_learners(learner or [])
        plan = plan_leaderboard(
            rows, *prepare_leaderboard_datasets(chosen, progress), effort
        )
    run_leaderboard_plan(plan, out, place, limit)


def run_leaderboard_plan(
    plan: LeaderboardPlan,
    folder: Path,
    engine: JobEngine,
    limit: WallClockBudget | None = None,
) -> None:
    """Run the trials and then the runs of the picks; write and print the board.

    Cells are run in blocks, and their records are archived after each of them. The
    runs with the oracle's settings, which are no results, come after all others.
    """
    from cirm.board.archive import (
        archive_finished_jobs,
        restore_records_of_archived_jobs,
    )
    from cirm.board.costs import estimate_cost_of_leaderboard
    from cirm.board.page import write_leaderboard_summary_paragraph
    from cirm.board.plan import CHOICES
    from cirm.cli.jobs import describe_expected_cost_of_jobs, get_calibration_limit
    from cirm.cli.output import print_lines_to_stderr
    from cirm.cli.progress import show_progress_of_single_step
    from cirm.cli.run import exit_if_jobs_failed
    from cirm.cli.select import run_unfinished_jobs
    from cirm.runs.local import list_unfinished_jobs
    from cirm.runs.provenance import find_source_commit

    for title, reason in plan.absent.items():
        print_lines_to_stderr(f"{title} is left out: {reason}")
    for prepared in plan.columns:
        if prepared.missing_part:
            print_lines_to_stderr(prepared.missing_part)
    if not plan.tasks:
        raise ValueError(
            "There is nothing to run: none of the chosen learners works on any of "
            "the chosen data sets that are installed. Choose other data sets with "
            "--column, or download them with `cirm data fetch`."
        )
    options.create_result_folder(folder)
    restore_records_of_archived_jobs(folder)
    learners = f"{len(plan.rows)} learner{'s' * (len(plan.rows) != 1)}"
    data_sets = f"{len(plan.columns)} data set{'s' * (len(plan.columns) != 1)}"
    typer.echo(
        f"{learners} on {data_sets}: first "
        f"{len(plan.list_trials())} trials to choose settings, then runs with the "
        "chosen settings."
    )
    with show_progress_of_single_step("estimating the cost"):
        cost = estimate_cost_of_leaderboard(
            plan, folder, engine, get_calibration_limit(limit)
        )
    if cost.core_seconds:
        whole = "the whole board"
        print_lines_to_stderr(describe_expected_cost_of_jobs(cost, whole))
    if limit and plan.effort.block:  # a cell at a time, so that it has whole cells
        plan = replace(plan, effort=replace(plan.effort, block=1))
    jobs: dict[str, TrainingJob] = {}
    failures: dict[str, str] = {}
    blocks = plan.split_plan_by_learner_blocks()
    for choice, block in product(CHOICES, blocks):  # those of the oracle come last
        if limit and limit.remaining <= 0:
            print_lines_to_stderr(describe_leaderboard_left_by_time_budget(limit))
            break
        n_waiting = 0
        for kind in ("trials", STEPS[choice]):
            is_trial = kind == "trials"
            own = block.list_trials() if is_trial else block.list_runs(folder, [choice])
            n_waiting += len(list_unfinished_jobs(own, folder))
            title, others = f"cirm board, {kind}", list(jobs.values())
            failures |= run_unfinished_jobs(
                own, folder, engine, title, limit, others, cost.speed
            )
            jobs |= {job.key: job for job in own}
        if n_waiting:
            archive_finished_jobs(jobs.values(), folder, find_source_commit())
    archive_finished_jobs(jobs.values(), folder, find_source_commit())
    summary = write_leaderboard_files(plan, folder)
    print_leaderboard_tables(summary)
    typer.echo(write_leaderboard_summary_paragraph(summary))
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")
    exit_if_jobs_failed(list(jobs.values()), failures)


def describe_leaderboard_left_by_time_budget(limit: WallClockBudget) -> str:
    """Say that a budget ended before the board was complete, and how to continue."""
    from cirm.cli.progress import format_duration

    return (
        f"The time budget of {format_duration(limit.seconds)} is used up. Run the same "
        "command again to continue the board."
    )


def print_leaderboard_tables(summary: dict[str, Any]) -> None:
    """Print the ranks of the learners, and the best of each data set.

    The page has the score of every learner on every data set, for which a terminal is
    too narrow.
    """
    from cirm.board.page import format_rank_interval
    from cirm.board.results import list_best_learners_of_datasets
    from cirm.cli.output import print_rows_as_table

    ranks, cells = summary["ranks"], summary["cells"]
    rows = [
        [
            name,
            str(len(cells[name])),
            f"{ranks[name]['mean']:.0f}",
            format_rank_interval(summary, name),
        ]
        for name in sorted(ranks, key=lambda row: ranks[row]["mean"])
    ]
    headings = ["learner", "data sets", "beaten by, %", "95 %"]
    print_rows_as_table("Share of other learners with a higher score", headings, rows)
    best = [
        [title, *(f"{name} {score:.1f}" for name, score in own)]
        for title, own in list_best_learners_of_datasets(summary, N_BEST).items()
    ]
    rows = [row + [""] * (N_BEST + 1 - len(row)) for row in best]
    headings = ["data set", "best", *(f"{n + 2}." for n in range(N_BEST - 1))]
    title = "Highest mean scores at the unseen place, in percent"
    print_rows_as_table(title, headings, rows, len(headings))


def write_leaderboard_files(plan: LeaderboardPlan, folder: Path) -> dict[str, Any]:
    """Write the summary, the page and the document of a board; return the summary."""
    from cirm.board.page import build_leaderboard_page, render_leaderboard_markdown
    from cirm.board.results import summarise_leaderboard
    from cirm.cli.output import format_command_line_as_typed
    from cirm.cli.progress import show_progress_of_writing_report
    from cirm.records import write_text_atomically
    from cirm.runs.provenance import find_source_commit

    with show_progress_of_writing_report():
        summary = summarise_leaderboard(plan, folder)
        summary["commit"] = find_source_commit()
        command = format_command_line_as_typed()
        files = {
            "summary.json": json.dumps(summary, indent=1) + "\n",
            "report.html": build_leaderboard_page(summary, command),
            "board.md": render_leaderboard_markdown(summary, command),
        }
        for name, text in files.items():
            write_text_atomically(folder / name, text)
    return summary
