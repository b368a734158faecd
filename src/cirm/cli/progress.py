"""The progress display of all commands, and the estimate of the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job
    from cirm.runs.local import Report

PAUSE = 10.0  # seconds between two lines where standard error is not a terminal
MAX_JOBS_SHOWN = 8  # more running jobs are only counted
MIN_FRACTION = 0.02  # of a job must be done before its speed is extrapolated

# Rough seconds of a job with 2,000 examples, used until jobs have been timed.
GUESSED_SECONDS = {
    "c-bvirm": 40.0,
    "c-virmg": 35.0,
    "c-virmv1": 22.0,
    "mer": 24.0,
    "vcl": 32.0,
    "vclc": 30.0,
}
USUAL_SECONDS = 7.0  # of the other learners

JobTime = tuple[str, float, float]
"""A finished job: its learner's name, its `job_size`, and its seconds."""


class TimeColumn(ProgressColumn):
    """The time spent on a task and the time left."""

    def render(self, task: Task) -> Text:
        """Return the times as text."""
        return Text(format_times(task))


class Display(Progress):
    """Progress bars on a terminal; elsewhere a line every `PAUSE` seconds.

    `refresh` is called before each drawing. It may update the tasks, and returns what
    to show below the bars.
    """

    def __init__(self, refresh: Callable[[Display], str] = lambda display: "") -> None:
        self.refresh_tasks = refresh
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeColumn(),
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

    def print_lines(self) -> None:
        """Print one line per running task."""
        below = self.refresh_tasks(self)
        for task in self.tasks:
            if not task.finished:
                amount = task.fields["amount"]
                parts = [*([amount] if amount else []), format_times(task)]
                line = f"{task.description}: {', '.join(parts)}"
                line += f"; running: {below}" if below else ""
                self.console.out(line, highlight=False)


@contextmanager
def open_display(
    refresh: Callable[[Display], str] = lambda display: "",
) -> Iterator[Display]:
    """Show a display for as long as the context lasts."""
    display = Display(refresh)
    stop = threading.Event()

    def print_now_and_then() -> None:
        while not stop.wait(PAUSE):
            display.print_lines()

    writer = threading.Thread(target=print_now_and_then, daemon=True)
    if display.disable:
        writer.start()
    try:
        with display:
            yield display
    finally:
        stop.set()
        if display.disable:
            writer.join()


@contextmanager
def exit_on_interrupt(describe_kept: Callable[[], str]) -> Iterator[None]:
    """On Ctrl-C, say in one line what was kept, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"cirm: interrupted. {describe_kept()}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def show_progress(kept: str) -> Iterator[Callable[[str, float], None]]:
    """Show the steps of a command one after another; yield the function to report.

    The function takes the name of the step and the fraction that is done, or the
    number of rows if it is more than 1. `kept` is printed if the user interrupts.
    """
    with exit_on_interrupt(lambda: kept), open_display() as display:
        task = display.add_task("starting", total=None, amount="")
        step = "starting"

        def report(name: str, done: float) -> None:
            nonlocal step
            if name != step:  # a step that begins with 1 does not say how far it is
                step = name
                display.tasks[task].total = 1.0 if done < 1 else None
                display.reset(task, description=name, amount="")
            if display.tasks[task].total:
                display.update(task, completed=done, amount=f"{done:.0%}")
            elif done > 1:
                display.update(task, amount=f"{done:,.0f} rows")

        yield report


@contextmanager
def show_step(name: str) -> Iterator[None]:
    """Show a single step whose length is not known, such as loading data."""
    with exit_on_interrupt(lambda: "Nothing was run."), open_display() as display:
        display.add_task(name, total=None, amount="")
        yield


@contextmanager
def show_downloads() -> Iterator[Callable[[str], DownloadBar]]:
    """Show downloads; yield the function that adds one."""
    with (
        exit_on_interrupt(lambda: "Finished downloads are kept in the cache."),
        open_display() as display,
    ):
        yield lambda name: DownloadBar(display, name)


class DownloadBar:
    """The bar of one download, driven by pooch."""

    def __init__(self, display: Display, name: str) -> None:
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


def run_with_progress(
    jobs: Sequence[Job],
    list_waiting: Callable[[], Sequence[Job]],
    folder: Path,
    engine: Engine,
    title: str,
    times: Sequence[JobTime] = (),
    on_finish: Callable[[Job], object] = lambda job: None,
) -> dict[str, str]:
    """Run the jobs that are still waiting; return reasons of failures by job key.

    `times` are those of jobs that finished earlier. `on_finish` is called once for
    each job whose records have been written.
    """
    waiting = list_waiting()

    def describe_kept() -> str:
        done = len(jobs) - len(list_waiting())
        return (
            f"{done} of {len(jobs)} jobs are finished and kept in {folder}. Run the "
            "same command again to continue."
        )

    tracker = JobTracker(waiting, engine.job_limit, times)
    with (
        exit_on_interrupt(describe_kept),
        show_jobs(tracker, folder, title, on_finish) as report,
    ):
        return engine(waiting, folder, report)


@contextmanager
def show_jobs(
    tracker: JobTracker,
    folder: Path,
    title: str,
    on_finish: Callable[[Job], object] = lambda job: None,
) -> Iterator[Report]:
    """Show the progress of jobs; yield the function that reports it."""
    from cirm.runs.local import get_record_path, read_duration

    lock, finished = threading.Lock(), set[str]()

    def report(job: Job, fraction: float) -> None:
        if fraction < 1 or not get_record_path(job, folder).exists():
            tracker.update(job, fraction)
            return
        with lock:  # reports come from several threads
            if job.key not in finished:
                finished.add(job.key)
                on_finish(job)
                tracker.finish(job, read_duration(job, folder))

    def refresh(display: Display) -> str:
        amount = f"{tracker.finished} of {len(tracker.jobs)} jobs, {tracker.share:.0%}"
        left = tracker.seconds_left
        display.update(task, completed=tracker.share, amount=amount, left=left)
        return ", ".join(tracker.list_running())

    with open_display(lambda shown: refresh(shown) if shown.tasks else "") as display:
        task = display.add_task(title, total=1.0, amount="", left=None)
        yield report


class JobTracker:
    """How far jobs are, and an estimate of the seconds left.

    `workers` jobs run at a time; 0 means as many as have been seen running. `times`
    are those of jobs that finished earlier: a learner is assumed to take as long per
    unit of `job_size` on other data and seeds. All units and seconds of a learner are
    added up, so that large jobs count most: small ones are mostly overhead.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        times: Sequence[JobTime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self.fractions = dict.fromkeys(self.jobs, 0.0)
        self.workers = workers
        self.running: dict[str, None] = {}  # an ordered set
        self.most_running = 1
        self.clock = clock
        self.first_reports: dict[str, tuple[float, float]] = {}
        self.times = list(times)

    def update(self, job: Job, fraction: float) -> None:
        """Record that a fraction of a job is done, from 0 to 1."""
        if self.fractions[job.key] >= 1:  # a late report: the job has finished
            return
        # A job counts as finished only when its records have been written.
        done = max(self.fractions[job.key], min(fraction, 0.99))
        self.fractions[job.key] = done
        self.first_reports.setdefault(job.key, (self.clock(), done))
        if done > 0:
            self.running[job.key] = None
        self.most_running = max(self.most_running, len(self.running))

    def finish(self, job: Job, seconds: float) -> None:
        """Record that a job has finished, and how long it took."""
        if self.fractions[job.key] < 1:
            self.fractions[job.key] = 1.0
            self.running.pop(job.key, None)
            self.times.append((job.name, job_size(job), seconds))

    @property
    def finished(self) -> int:
        """Number of finished jobs."""
        return sum(fraction >= 1 for fraction in self.fractions.values())

    @property
    def share(self) -> float:
        """Fraction of all work that is done."""
        seconds = self._estimate_seconds()
        total = sum(seconds.values())
        done = sum(seconds[key] * part for key, part in self.fractions.items())
        return done / total if total else 1.0

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until the last job finishes."""
        seconds = self._estimate_seconds()
        rest = [seconds[key] * (1 - part) for key, part in self.fractions.items()]
        workers = self.workers or self.most_running
        return max(sum(rest) / workers, max(rest, default=0.0))

    def list_running(self) -> list[str]:
        """Describe the running jobs; many are cut short by a count."""
        keys = list(self.running)  # another thread may change it
        names = [
            f"{describe_job(self.jobs[key])} {self.fractions[key]:.0%}"
            for key in keys[:MAX_JOBS_SHOWN]
        ]
        more = len(keys) - len(names)
        return [*names, f"{more} more"] if more else names

    def _estimate_seconds(self) -> dict[str, float]:
        """Return the expected seconds of each job, at the speed seen so far."""
        rates = self._measure_rates()
        ratios = [rate / guess_seconds(name) for name, rate in rates.items()]
        slowdown = sum(ratios) / len(ratios) if ratios else 1.0
        return {
            key: job_size(job) * rates.get(job.name, slowdown * guess_seconds(job.name))
            for key, job in self.jobs.items()
        }

    def _measure_rates(self) -> dict[str, float]:
        """Return the seconds per unit of each learner that has run or is running."""
        running = {}
        for key, (start, first) in list(self.first_reports.items()):
            if self.fractions[key] - first > MIN_FRACTION:
                seconds = (self.clock() - start) / (self.fractions[key] - first)
                running[self.jobs[key].name] = seconds / job_size(self.jobs[key])
        units: dict[str, float] = {}
        seconds_spent: dict[str, float] = {}
        for name, size, seconds in list(self.times):  # another thread may append
            units[name] = units.get(name, 0.0) + size
            seconds_spent[name] = seconds_spent.get(name, 0.0) + seconds
        return running | {name: seconds_spent[name] / units[name] for name in units}


def job_size(job: Job) -> float:
    """Return the work of a job, in units of 2,000 examples of one seed."""
    return data_size(job.data, len(job.seeds))


def data_size(data: Mapping[str, object], seeds: int) -> float:
    """Return the work on a data set, in units of 2,000 examples of one seed."""
    counts = [data.get("environments", 2), data.get("examples", 1000)]
    first, second = (float(n) if isinstance(n, int) else 1000.0 for n in counts)
    return first * second / 2000 * seeds


def guess_seconds(learner: str) -> float:
    """Return the rough seconds of a learner per unit of work."""
    return GUESSED_SECONDS.get(learner, USUAL_SECONDS)


def describe_job(job: Job) -> str:
    """Describe a job in a few words."""
    data = [str(job.data[n]) for n in ("source", "scheme") if n in job.data]
    count = job.data.get("environments")
    details = [" ".join([*data, *([f"n={count}"] if count else [])])]
    details.append(
        f"seed {job.seeds[0]}" if len(job.seeds) == 1 else f"{len(job.seeds)} seeds"
    )
    return f"{job.name} ({', '.join(filter(None, details))})"


def format_times(task: Task) -> str:
    """Describe the time spent on a task and, if it can be told, the time left."""
    left = task.fields.get("left", task.time_remaining)
    spent = f"{format_duration(task.elapsed or 0.0)} so far"
    return spent if left is None else f"{spent}, about {format_duration(left)} left"


def format_duration(seconds: float) -> str:
    """Format a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
