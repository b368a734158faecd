"""What commands show: columns, result tables, and progress of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cirm.records import Record, Score

if TYPE_CHECKING:
    from cirm.experiments.jobs import Job
    from cirm.experiments.runner import Report


def columns(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and what they stand for."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def results(summary: dict[str, Any]) -> None:
    """Print train and unseen-environment scores of each learner, with spread."""
    from rich.console import Console
    from rich.table import Table

    entries = summary["learners"].values()
    metrics = {entry["metric"] for entry in entries}
    unit = "accuracy, %" if metrics == {"accuracy"} else "squared error"
    seeds = sorted({cell["seeds"] for e in entries if (cell := e.get("train"))})
    over = " or ".join(map(str, seeds))
    table = Table(title=f"{unit}: mean (standard deviation over {over} seeds)")
    table.add_column("learner", style="bold", no_wrap=True)
    for heading in ("train", "unseen", "seconds", "examples", "state"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, entry in summary["learners"].items():
        table.add_row(
            name,
            number(entry.get("train"), entry["metric"]),
            number(entry.get("test"), entry["metric"]),
            f"{entry['seconds']:.1f}",
            f"{kept(entry, 'examples'):,}",
            f"{kept(entry, 'bytes') / 2**20:.1f} MiB",
        )
    Console().print(table)


def coefficients(records: Sequence[Record]) -> None:
    """Print how far linear coefficients are from the truth, where it is known."""
    from statistics import mean, stdev

    from rich.console import Console
    from rich.table import Table

    found: dict[tuple[str, str], list[float]] = {}
    for row in records:
        if isinstance(row, Score) and row.metric == "coefficients":
            found.setdefault((row.learner, row.environment), []).append(row.value)
    if not found:
        return
    table = Table(title="squared error of the coefficients: mean (deviation)")
    table.add_column("learner", style="bold", no_wrap=True)
    for heading in (kinds := list(dict.fromkeys(kind for _, kind in found))):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(learner for learner, _ in found):
        values = [found[name, kind] for kind in kinds]
        cells = [
            {"mean": mean(v), "std": stdev(v) if len(v) > 1 else None} for v in values
        ]
        table.add_row(name, *(number(cell, "error") for cell in cells))
    Console().print(table)


def number(cell: dict[str, Any] | None, metric: str) -> str:
    """A mean with its spread."""
    if not cell or cell.get("mean") is None:
        return "-"
    digits = 1 if metric == "accuracy" else 3
    spread = "" if cell.get("std") is None else f" ({cell['std']:.{digits}f})"
    return f"{cell['mean']:.{digits}f}{spread}"


def kept(entry: dict[str, Any], what: str) -> int:
    """What a learner's state holds in all: examples of the past, or bytes."""
    return sum(part[what] for part in entry["memory"].values())


@contextmanager
def progress_of(jobs: Sequence[Job]) -> Iterator[Report]:
    """A bar for each learner; gives the function that moves them."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    done = {job.key: 0.0 for job in jobs}
    names = list(dict.fromkeys(job.name for job in jobs))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ) as progress:
        tasks = {
            name: progress.add_task(name, total=sum(j.name == name for j in jobs))
            for name in names
        }

        def report(job: Job, part: float) -> None:
            progress.advance(tasks[job.name], part - done[job.key])
            done[job.key] = part

        yield report
