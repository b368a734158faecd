"""The progress display of all commands, and the estimate of the time left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from cirm.cli.exit_codes import ExitCode
from cirm.cli.output import remove_control_characters

if TYPE_CHECKING:
    from cirm.runs.driver import Report
    from cirm.runs.jobs import TrainingJob
    from cirm.runs.tracker import JobProgressTracker

LEAST_DONE = 0.01  # of a step, from which on the time left is told
PAUSE = 10.0  # seconds between two lines where standard error is not a terminal


class ElapsedAndRemainingTimeColumn(ProgressColumn):
    """The time spent on a task and the time left."""

    def render(self, task: Task) -> Text:
        """Return the times as text."""
        return Text(format_time_spent_and_left(task))


class TerminalProgressDisplay(Progress):
    """Progress bars on a terminal; elsewhere a line every `PAUSE` seconds.

    `refresh` is called before each drawing. It may update the tasks, and returns what
    to show below the bars.
    """

    def __init__(
        self, refresh: Callable[[TerminalProgressDisplay], str] = lambda display: ""
    ) -> None:
        self.refresh_tasks = refresh
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            ElapsedAndRemainingTimeColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,  # results go there, maybe to a file
            disable=not console.is_terminal,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bars, and the text below them."""
        below = self.refresh_tasks(self)
        yield from super().get_renderables()
        if below:
            yield Text(below, style="dim")

    def print_line_per_running_task(self) -> None:
        """Print one line per running task."""
        below = self.refresh_tasks(self)
        for task in self.tasks:
            if not task.finished:
                amount = task.fields["amount"]
                parts = [
                    *([amount] if amount else []),
                    format_time_spent_and_left(task),
                ]
                line = f"{task.description}: {', '.join(parts)}"
                line += f"; running: {below}" if below else ""
                self.console.out(line, highlight=False)


@contextmanager
def open_progress_display(
    refresh: Callable[[TerminalProgressDisplay], str] = lambda display: "",
) -> Iterator[TerminalProgressDisplay]:
    """Show a display for as long as the context lasts."""
    display = TerminalProgressDisplay(refresh)
    stop = threading.Event()

    def print_progress_periodically() -> None:
        while not stop.wait(PAUSE):
            display.print_line_per_running_task()

    writer = threading.Thread(target=print_progress_periodically, daemon=True)
    if display.disable:
        writer.start()
    try:
        with display:
            yield display
    finally:
        stop.set()
        if display.disable:
            writer.join()


interruption_message: ContextVar[str] = ContextVar(
    "interruption_message",
    default="The command was interrupted. Run the command again.",
)
"""What was said when the user interrupted, for the JSON error of `--json`."""

UNFINISHED_REPORT = (
    "The command was interrupted before its report was complete. The results are kept; "
    "run the command again to write the report."
)


def describe_interruption(kept_results: str) -> str:
    """Return the message for a command that has to start over, with what it kept."""
    return (
        f"The command was interrupted, so {kept_results}. Run the command again to "
        "start over."
    )


@contextmanager
def exit_with_message_on_interrupt(describe_kept: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, say in one line what was kept, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        message = describe_kept()
        interruption_message.set(message)
        typer.echo(f"cirm: {message}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


@contextmanager
def show_progress_of_steps(
    kept_results: str = "nothing was written",
) -> Iterator[Callable[[str, float], None]]:
    """Show the steps of a command one after another; yield the function to report.

    The function takes the name of the step and the fraction that is done, or the
    number of rows if it is more than 1. `kept_results` is a clause that says what the
    command leaves behind if the user interrupts it.
    """
    with (
        exit_with_message_on_interrupt(lambda: describe_interruption(kept_results)),
        open_progress_display() as display,
    ):
        task = display.add_task("starting", total=None, amount="")
        step = "starting"

        def report_step_progress(name: str, done: float) -> None:
            nonlocal step
            if name != step:  # a step that begins with 1 does not say how far it is
                step = name
                display.tasks[task].total = 1.0 if done < 1 else None
                text = remove_control_characters(name)
                display.reset(task, description=text, amount="", left=None)
            if display.tasks[task].total:
                # Not from the speed of late: a training whose loss still falls moves
                # its end, and would seem to stand still.
                spent = display.tasks[task].elapsed or 0.0
                left = spent * (1 - done) / done if done > LEAST_DONE else None
                text = f"{done:.0%}"
                display.update(
                    task, completed=done, amount=text, left=left, reported=spent
                )
            elif done > 1:
                display.update(task, amount=f"{done:,.0f} rows")

        yield report_step_progress


@contextmanager
def show_progress_of_single_step(
    name: str,
    describe_kept: Callable[[], str] = lambda: describe_interruption(
        "nothing was written"
    ),
) -> Iterator[None]:
    """Show a single step whose length is not known, such as loading data.

    `describe_kept` returns the message that is printed if the user interrupts.
    """
    with (
        exit_with_message_on_interrupt(describe_kept),
        open_progress_display() as display,
    ):
        display.add_task(name, total=None, amount="")
        yield


@contextmanager
def show_progress_of_writing_report() -> Iterator[None]:
    """Show that a report is written, whose results are kept if the user interrupts."""
    with show_progress_of_single_step("writing the report", lambda: UNFINISHED_REPORT):
        yield


@contextmanager
def show_download_progress() -> Iterator[Callable[[str], DownloadProgressBar]]:
    """Show downloads; yield the function that adds one."""
    with (
        exit_with_message_on_interrupt(
            lambda: (
                "The command was interrupted. Finished downloads are kept in the "
                "cache. Run the command again to download the rest."
            )
        ),
        open_progress_display() as display,
    ):
        yield lambda name: DownloadProgressBar(display, name)


class DownloadProgressBar:
    """The bar of one download, driven by pooch."""

    def __init__(self, display: TerminalProgressDisplay, name: str) -> None:
        self._display = display
        self._task = display.add_task(name, total=None, amount="")
        self._done = 0

    @property
    def total(self) -> int:
        """Bytes of the whole file; 0 if unknown."""
        return int(self._display.tasks[self._task].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._display.update(self._task, total=size or None)

    def update(self, amount: int) -> None:
        """Add bytes that have arrived."""
        self._done += amount
        size = f" of {self.total / 1e6:.1f}" if self.total else ""
        text = f"{self._done / 1e6:.1f}{size} MB"
        self._display.update(self._task, completed=self._done, amount=text)

    def reset(self) -> None:
        """Start again from nothing."""
        self._done = 0
        self._display.reset(self._task, total=self.total or None)

    def close(self) -> None:
        """Mark the download as finished."""
        self._display.update(self._task, total=self._done, completed=self._done)


@contextmanager
def show_progress_of_jobs(
    tracker: JobProgressTracker, folder: Path, title: str
) -> Iterator[Report]:
    """Show the progress of jobs; yield the function that reports it."""
    from cirm.runs.local import get_records_path, read_job_duration

    lock, finished = threading.Lock(), set[str]()

    def report_job_progress(job: TrainingJob, fraction: float) -> None:
        if fraction < 1 or not get_records_path(job, folder).exists():
            tracker.update(job, fraction)
            return
        with lock:  # reports come from several threads
            if job.key not in finished:
                finished.add(job.key)
                tracker.finish(job, read_job_duration(job, folder))

    def refresh_progress_display(display: TerminalProgressDisplay) -> str:
        if not display.tasks:
            return ""
        done, left = tracker.fraction_done, tracker.seconds_left
        amount = f"{tracker.finished_jobs} of {len(tracker.jobs)} jobs, {done:.0%}"
        # Not by what `add_task` returns: it already draws the task.
        task = display.tasks[0].id
        display.update(task, completed=done, amount=amount, left=left)
        return ", ".join(tracker.describe_running_jobs())

    with open_progress_display(refresh_progress_display) as display:
        display.add_task(title, total=1.0, amount="", left=None)
        yield report_job_progress


def format_time_spent_and_left(task: Task) -> str:
    """Describe the time spent on a task and, if it can be told, the time left."""
    left, elapsed = task.fields.get("left", task.time_remaining), task.elapsed or 0.0
    spent = f"{format_duration(elapsed)} so far"
    if left is None:
        return spent
    if "reported" not in task.fields:
        return f"{spent}, about {format_duration(left)} left"
    left -= elapsed - task.fields["reported"]  # as time has passed
    if left < 0.5:  # the step takes longer than expected, or is at its end
        return spent
    return f"{spent}, about {format_duration(left)} left of this step"


def format_duration(seconds: float) -> str:
    """Format a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
