"""`cirm reproduce`: the paper's tables and figures, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli.options import Address, EngineName, Workers
from cirm.cli.shared import open_folder

if TYPE_CHECKING:
    from cirm.cli.progress import Timed
    from cirm.paper.reproduction import Plan
    from cirm.paper.trials import Experiment
    from cirm.report.comparison import Grid
    from cirm.report.findings import Part
    from cirm.runs.archive import Archive
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job

TABLES = ("table1", "table2", "table3", "table4", "table5")
READINGS = ("readings", "readings-inferred")
NAMES = (*TABLES, *READINGS, "beyond", "ablation", "figures", "all")
SHOWN = 4  # columns; wider tables do not fit a terminal


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}.")],
    seeds: Annotated[
        int, typer.Option(min=0, help="How many seeds, from 0; 0: as the paper.")
    ] = 0,
    learner: Annotated[
        list[str] | None, typer.Option(help="Run this learner only; repeat for more.")
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results.", show_default="reproduction/NAME"),
    ] = None,
) -> None:
    """Run the paper's experiments and set the results beside its numbers.

    What has run is not run again: an interrupted reproduction continues, and tables in
    folders beside one another share their jobs. A data set that is not in the cache
    leaves its cells without data.
    """
    from cirm.paper.reproduction import plan_reproduction
    from cirm.runs.engines import Engine

    if name not in NAMES:
        raise ValueError(
            f"reproduce: it must be one of {', '.join(NAMES)}; got {name!r}"
        )
    place = Engine(engine, workers, address)
    root = out or Path("reproduction") / ("" if name == "all" else name)
    failed: list[str] = []
    parts = []
    for experiment, keys in chosen(name, learner or []):
        folder = root / experiment.name if name == "all" else root
        made = plan_reproduction(experiment, seeds or experiment.seeds, keys)
        part, failures = carry_out(made, folder, place)
        parts.append(part)
        failed += failures
    if name in ("figures", "all"):
        figures(root / "figures" if name == "all" else root)
    if name == "all":
        overview(parts, root)
    for line in failed:
        typer.echo(line, err=True)
    if failed:
        raise typer.Exit(1)


def chosen(name: str, keys: Sequence[str]) -> list[tuple[Experiment, list[str]]]:
    """The experiments of a name, each with those of the learners that it has."""
    from cirm.paper import EXPERIMENTS, get_experiment

    if name == "figures":
        return []
    if name != "all":
        one = get_experiment(name)
        one.trials(keys)  # refuses unknown learners
        return [(one, list(keys))]
    known = {key for one in EXPERIMENTS.values() for key in one.keys}
    for key in keys:
        if key not in known:
            raise ValueError(
                f"reproduce: learners are {'; '.join(sorted(known))}; got {key!r}"
            )
    pairs = [(one, [k for k in keys if k in one.keys]) for one in EXPERIMENTS.values()]
    return [(one, found) for one, found in pairs if found or not keys]


def carry_out(made: Plan, folder: Path, engine: Engine) -> tuple[Part, list[str]]:
    """Run what an experiment's folder lacks, write what was found; the failures."""
    from cirm.cli.results import run_watched
    from cirm.paper.pages import draw_samples, write_experiment
    from cirm.paper.reproduction import explain_missing_records, summarise_experiment
    from cirm.runs.archive import pack_jobs
    from cirm.runs.provenance import find_commit

    open_folder(folder)
    waiting = made.waiting(folder)
    say_what_waits(made, waiting)
    state = find_commit()
    archive = pack_jobs(made.every, folder, state)
    failures: dict[str, str] = {}
    if waiting:
        failures = run_watched(
            made.every,
            lambda: made.waiting(folder),
            folder,
            engine,
            made.experiment.name,
            timed(archive),
            lambda job: pack_jobs([job], folder, state),
        )
        archive = pack_jobs(made.every, folder, state)
    notes = explain_missing_records(made, failures, archive)
    part = summarise_experiment(made.experiment, archive, made.seeds, notes)
    write_experiment(part, folder, draw_samples([made.experiment]).values())
    say_what_was_found(part, folder)
    named = {job.key: job for job in waiting}
    return part, [_failure(named[key], reason) for key, reason in failures.items()]


def timed(archive: Archive) -> list[Timed]:
    """The jobs that ended before, as the estimate of the time left wants them."""
    from cirm.cli.progress import size

    return [
        (entry["setup"]["learner"], units, entry["seconds"])
        for entry in archive.entries.values()
        if (units := size(entry["setup"]["dataset"], len(entry["seeds"])))
    ]


def figures(folder: Path) -> None:
    """Write the coloured samples and the projections, each and as a page."""
    from cirm.paper.pages import write_figures

    write_figures(folder)
    typer.echo(f"Figures: {(folder / 'report.html').resolve()}")


def overview(parts: Sequence[Part], folder: Path) -> None:
    """Write the page and the summary of all experiments together."""
    from cirm.paper import EXPERIMENTS
    from cirm.paper.pages import draw_samples, write_overview

    pictures = draw_samples(list(EXPERIMENTS.values()))
    write_overview(parts, folder, pictures.values())
    typer.echo(f"All together: {(folder / 'report.html').resolve()}")


def say_what_waits(made: Plan, waiting: Sequence[Job]) -> None:
    """Say how much is to run, and what cannot."""
    total = len(made.every)
    done = total - len(waiting)
    name = made.experiment.name
    if not waiting and total:
        typer.echo(f"{name}: all {total} jobs are done already; nothing is run again.")
    elif done:
        typer.echo(f"{name}: {done} of {total} jobs are done; continuing.")
    elif total:
        typer.echo(f"{name}: {total} jobs, {made.seeds} seeds.")
    for reason in dict.fromkeys(made.absent.values()):
        typer.echo(f"{name}: {reason}", err=True)


def say_what_was_found(part: Part, folder: Path) -> None:
    """Say how our numbers stand to the paper's, and where the results are."""
    from cirm.report.comparison import grids, readable
    from cirm.report.reproduction import lead

    for grid in map(readable, grids(part.summary)):
        if len(grid.columns) <= SHOWN:
            show(grid)
    typer.echo(lead([part], part.summary["claims"]))
    typer.echo(f"Report: {(folder / 'report.html').resolve()}")


def show(grid: Grid) -> None:
    """Print a table, ours with the paper's in brackets."""
    from rich.console import Console
    from rich.table import Table

    from cirm.report.comparison import marked, number

    table = Table(title=f"{grid.title}: ours (paper)", title_justify="left")
    for heading in [*grid.corner, *[""] * len(grid.lines[0].headings)][
        : len(grid.lines[0].headings)
    ]:
        table.add_column(heading, style="bold")
    for column in grid.columns:
        table.add_column(" ".join(column), justify="right")
    for line in grid.lines:
        numbers = [
            f"{marked(cell, 'mean')} ({number(cell, 'paper') or '-'})" if cell else ""
            for cell in line.cells
        ]
        table.add_row(*line.headings, *numbers)
    Console().print(table)


def _failure(job: Job, reason: str) -> str:
    from cirm.cli.progress import told

    return f"failed: {told(job)}: {reason}"
