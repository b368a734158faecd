"""What commands show: columns, result tables, and progress of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cirm.records import Record, Score

if TYPE_CHECKING:
    from rich.console import Group

    from cirm.cli.progress import Timed, Watch
    from cirm.runs.jobs import Job
    from cirm.runs.runner import Report

PAUSE = 30.0  # seconds between two lines where there is no terminal


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
def watched(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    title: str,
    timed: Sequence[Timed] = (),
    ended: Callable[[Job], object] = lambda job: None,
) -> Iterator[Report]:
    """Show how far jobs are; gives the function that is told of it.

    `workers` and `timed` are those of `Watch`; `ended` is called once for each job
    that has left its records in the folder.
    """
    import threading

    from cirm.cli.progress import Watch
    from cirm.runs.runner import get_record_path, read_duration

    watch, lock, over = Watch(jobs, workers, timed), threading.Lock(), set[str]()

    def report(job: Job, part: float) -> None:
        if part < 1 or not get_record_path(job, folder).exists():
            watch.moved(job, part)
            return
        with lock:  # progress comes from several threads
            if job.key not in over:
                over.add(job.key)
                ended(job)
                watch.ended(job, read_duration(job, folder))

    with shown(watch, title):
        yield report


@contextmanager
def shown(watch: Watch, title: str) -> Iterator[None]:
    """Show how far jobs are: a bar, or without a terminal a line now and then."""
    import threading

    from rich.console import Console

    console = Console(stderr=True)
    ended = threading.Event()
    if console.is_terminal:
        from rich.live import Live

        with Live(console=console, get_renderable=lambda: _bar(watch, title)):
            yield
        return

    def speak() -> None:
        while not ended.wait(PAUSE):
            console.out(f"{title}: {watch.line()}", highlight=False)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()
        console.out(f"{title}: {watch.line()}", highlight=False)


def _bar(watch: Watch, title: str) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from cirm.cli.progress import spelled

    words = (
        f"{title}: {watch.done} of {len(watch.jobs)} jobs, {watch.share:.0%}, "
        f"{spelled(watch.clock() - watch.began)} so far, "
        f"about {spelled(watch.left)} left"
    )
    now = Text(", ".join(watch.running) or "starting", style="dim")
    return Group(Text(words), ProgressBar(total=1.0, completed=watch.share), now)
