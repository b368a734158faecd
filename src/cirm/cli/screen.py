"""What commands show: columns, result tables, and progress of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

    metrics = {entry["metric"] for entry in summary["learners"].values()}
    unit = "accuracy, %" if metrics == {"accuracy"} else "squared error"
    table = Table(title=f"{unit}: mean (standard deviation over seeds)")
    table.add_column("learner", style="bold")
    for heading in ("train", "unseen", "seeds", "seconds", "kept of the past"):
        table.add_column(heading, justify="right")
    for name, entry in summary["learners"].items():
        table.add_row(
            name,
            number(entry.get("train"), entry["metric"]),
            number(entry.get("test"), entry["metric"]),
            str((entry.get("train") or {}).get("seeds", "")),
            f"{entry['seconds']:.1f}",
            kept(entry["memory"]),
        )
    Console().print(table)


def number(cell: dict[str, Any] | None, metric: str) -> str:
    """A mean with its spread."""
    if not cell or cell.get("mean") is None:
        return "-"
    digits = 1 if metric == "accuracy" else 3
    spread = "" if cell.get("std") is None else f" ({cell['std']:.{digits}f})"
    return f"{cell['mean']:.{digits}f}{spread}"


def kept(memory: dict[str, dict[str, int]]) -> str:
    """What a learner keeps, in a few words."""
    examples = sum(entry["examples"] for entry in memory.values())
    spent = sum(entry["bytes"] for entry in memory.values())
    return f"{examples:,} examples, {spent / 2**20:.1f} MiB in all"


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
