"""`cirm stress`: where a learner withstands shortcuts, and where it does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.options import Address, BudgetText, EngineName, Workers
from cirm.wording import format_count

if TYPE_CHECKING:
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import WallClockBudget
    from cirm.stress.cells import StressTestCell
    from cirm.stress.results import StressTestPlan

LEARNER = "steady"
SEEDS, QUICK_SEEDS = 5, 2
EXAMPLES = options.format_examples_for_command_help(
    "cirm stress --quick",
    "cirm stress --source digits --kind corner --kind table-numeric --seeds 3",
)


def run_stress_command(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=(
                "Use the built-in digits and only a few conditions; takes minutes "
                "instead of hours."
            ),
        ),
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of shortcut, for example figure, corner or table-numeric; can "
            "be given several times.",
            show_default="all kinds",
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="Images: digits, mnist, fashion-mnist, kmnist, or a folder with four "
            "IDX files.",
            show_default="mnist, or digits with --quick",
        ),
    ] = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER:TARGET",
            help="Also add shortcuts to your own table, given as FOLDER:COLUMN: a "
            "folder with one file for each place, and the column to predict; "
            "can be given several times.",
            show_default="synthetic tables only",
        ),
    ] = None,
    learner: Annotated[
        str, typer.Option(help=f"Learner to test: {options.LEARNER_HELP}.")
    ] = LEARNER,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help=f"Number of seeds; 0 means {SEEDS}, or {QUICK_SEEDS} with --quick.",
        ),
    ] = 0,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    budget: BudgetText = "",
    out: Annotated[Path, typer.Option(help="Folder to write the results to.")] = Path(
        "stress"
    ),
) -> None:
    """Test a learner against many kinds of shortcut, under many conditions.

    Every cell of the stress map compares the learner at an unseen place, before and
    after adapting to unlabelled rows, with an oracle (the same learner on the same data
    without the shortcut), with plain training, and with the best that is possible where
    this is known. If it is interrupted, the same command continues it.
    """
    from cirm.cli.jobs import parse_and_start_time_budget
    from cirm.cli.progress import show_progress_of_single_step

    limit = parse_and_start_time_budget(budget)
    source = source or ("digits" if quick else "mnist")
    with show_progress_of_single_step("preparing the stress test"):
        from cirm.runs.engines import JobEngine
        from cirm.stress.cells import list_shortcut_kinds, list_stress_test_cells
        from cirm.stress.results import StressTestPlan

        place = JobEngine(engine, workers, address)
        kinds = list_shortcut_kinds(source, table or [])
        chosen = options.select_choices_by_name(kinds, kind, "--kind")
        cells = list_stress_test_cells(chosen, source, quick)
        check_stress_test_data_exist(cells)
        count = seeds or (QUICK_SEEDS if quick else SEEDS)
        plan = StressTestPlan.from_cells(cells, learner, range(count))
    run_unfinished_jobs_of_stress_map(plan, out, place, source, limit)


def check_stress_test_data_exist(cells: Sequence[StressTestCell]) -> None:
    """Raise an error before any work if the data of a kind cannot be drawn."""
    from cirm.data import create_dataset

    seen = set()
    for cell in cells:
        if cell.kind.name not in seen:
            seen.add(cell.kind.name)
            create_dataset(cell.kind.dataset, cell.data).draw_problem((0,))


def run_unfinished_jobs_of_stress_map(
    plan: StressTestPlan,
    folder: Path,
    engine: JobEngine,
    source: str,
    budget: WallClockBudget | None = None,
) -> None:
    """Run the unfinished jobs of a stress map, then write and print its results."""
    from cirm.cli.jobs import run_jobs_with_progress
    from cirm.cli.output import format_command_line_as_typed, print_table
    from cirm.cli.progress import show_progress_of_writing_report
    from cirm.cli.run import exit_if_jobs_failed
    from cirm.records import write_text_atomically
    from cirm.runs.archive import add_finished_jobs_to_archive
    from cirm.runs.provenance import find_source_commit
    from cirm.stress.examples import render_shortcut_examples
    from cirm.stress.page import (
        build_stress_test_page,
        build_stress_test_table,
        write_stress_test_summary_paragraph,
    )
    from cirm.stress.results import summarise_stress_test_cells

    options.create_result_folder(folder)
    commit, jobs = find_source_commit(), plan.jobs
    waiting = plan.list_jobs_without_results(folder)
    failures: dict[str, str] = {}
    if not waiting:
        typer.echo(f"All {len(jobs)} jobs have finished already; nothing to run.")
    else:
        done = len(jobs) - len(waiting)
        finished = f"; {done} of them have finished" if done else ""
        typer.echo(
            f"Stress test with {format_count(len(plan.cells), 'combination')} of "
            f"shortcut and condition: {format_count(len(jobs), 'job')}{finished}."
        )
        failures = run_jobs_with_progress(
            jobs,
            lambda: plan.list_jobs_without_results(folder),
            folder,
            engine,
            "cirm stress",
            budget=budget,
        )
    with show_progress_of_writing_report():
        cells = summarise_stress_test_cells(
            plan, add_finished_jobs_to_archive(jobs, folder, commit)
        )
        summary = {
            "learner": plan.learner,
            "source": source,
            "seeds": list(plan.seeds),
            "commit": commit,
            "cells": cells,
        }
        write_text_atomically(
            folder / "summary.json", json.dumps(summary, indent=2) + "\n"
        )
        notes = [describe_stress_test_data(plan, source)]
        kinds = list({cell.kind.name: cell.kind for cell, _ in plan.cells}.values())
        picture = render_shortcut_examples(kinds)
        page = build_stress_test_page(
            cells,
            plan.learner,
            notes,
            format_command_line_as_typed(),
            [picture] if picture else [],
        )
        write_text_atomically(folder / "report.html", page)
    print_table(build_stress_test_table(cells, plan.learner))
    typer.echo(write_stress_test_summary_paragraph(cells, plan.learner))
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")
    exit_if_jobs_failed(waiting, failures)


def describe_stress_test_data(plan: StressTestPlan, source: str) -> str:
    """Say what data and how many seeds the map was made with."""
    count = len(plan.seeds)
    size = "719 examples" if source == "digits" else "1,000 examples"
    return (
        f"Images: {source}. Unless a cell says otherwise, two places with {size} each "
        "(tables: 1,000 rows) arrive one after the other. The shortcut contradicts "
        "20 % of the labels at the first place, 10 % at the second (tables: 10 % and "
        "20 %), and 90 % at the unseen place. 25 % of the labels are wrong at random, "
        "except where there are ten hues. The network is a multilayer perceptron. "
        f"{count} seed{'s' if count > 1 else ''}."
    )
