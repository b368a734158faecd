"""Jobs run with progress on the screen; their tables and pages written and shown."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cirm.cli.shared import open_folder

if TYPE_CHECKING:
    from cirm.cli.progress import Timed
    from cirm.records import Record
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job


def run_and_show(
    jobs: Sequence[Job],
    folder: Path,
    engine: Engine,
    tensorboard: Path | None = None,
    title: str = "cirm run",
) -> None:
    """Run what is unfinished, write the results into the folder, show the table."""
    from cirm.cli.progress import size_of
    from cirm.runs.runner import collect_records, list_unfinished, read_duration

    if tensorboard is not None:
        check_tensorboard()
    open_folder(folder)
    waiting = {job.key for job in list_unfinished(jobs, folder)}
    done = [job for job in jobs if job.key not in waiting]
    failures: dict[str, str] = {}
    if not waiting:
        typer.echo(f"All {len(jobs)} jobs are done already; nothing is run again.")
    else:
        if done:
            typer.echo(f"Continuing: {len(done)} of {len(jobs)} jobs are done.")
        timed = [(job.name, size_of(job), read_duration(job, folder)) for job in done]
        failures = run_watched(
            jobs, lambda: list_unfinished(jobs, folder), folder, engine, title, timed
        )
    if records := collect_records(jobs, folder):
        write_and_show(records, jobs, folder, title, tensorboard)
    if failures:
        named = {job.key: job for job in jobs}
        for key, reason in failures.items():
            job = named[key]
            typer.echo(f"failed: {job.name}, seeds {job.seeds}: {reason}", err=True)
        raise typer.Exit(1)


def run_watched(
    jobs: Sequence[Job],
    waiting: Callable[[], Sequence[Job]],
    folder: Path,
    engine: Engine,
    title: str,
    timed: Sequence[Timed] = (),
    ended: Callable[[Job], object] = lambda job: None,
) -> dict[str, str]:
    """Run those of the jobs that wait, with progress shown; reasons of failures by key.

    `timed` and `ended` are those of `watched`. When it is interrupted it says how many
    jobs are done and how to go on.
    """
    from cirm.cli.screen import watched

    left = waiting()
    try:
        with watched(left, folder, engine.at_once, title, timed, ended) as report:
            return engine(left, folder, report)
    except KeyboardInterrupt:
        done = len(jobs) - len(waiting())
        typer.echo(
            f"cirm: interrupted with {done} of {len(jobs)} jobs done; the same command "
            "continues",
            err=True,
        )
        raise typer.Exit(130) from None


def write_and_show(
    records: Sequence[Record],
    jobs: Sequence[Job],
    folder: Path,
    title: str,
    tensorboard: Path | None,
) -> None:
    """Write records, summary, page and curves of a run, and show its tables."""
    from cirm.cli.diagnostics import diagnostics
    from cirm.cli.screen import coefficients, results
    from cirm.records import write_records, write_text
    from cirm.report.diagnostics import diagnosed
    from cirm.report.run import run_report
    from cirm.report.summary import summarise

    summary = summarise(records)
    summary["diagnostics"] = diagnosed(records)
    write_records(folder / "records.jsonl", records)
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    page = run_report(records, title, command(), **view_of(jobs[0]))
    write_text(folder / "report.html", page)
    results(summary)
    coefficients(records)
    diagnostics(records)
    if tensorboard is not None:
        write_curves(records, tensorboard)
        typer.echo(f"TensorBoard curves: {tensorboard}")
    typer.echo(f"Wrote records.jsonl and summary.json to {folder}")
    typer.echo(f"Report: {(folder / 'report.html').resolve()}")


def view_of(job: Job) -> dict[str, Any]:
    """What the page shows of the data: chance, the sweep's axis, samples."""
    from cirm.data import get_dataset_class
    from cirm.data.colored import Colored
    from cirm.paper.example_images import draw_examples

    dataset = get_dataset_class(job.dataset)(**job.data)
    if not isinstance(dataset, Colored):
        return {}
    return {
        "chance": 50.0,
        "axis": "colour flip of the unseen environment",
        "trained": dataset.color_flips(),
        "pictures": (draw_examples(dataset, job.seeds[0]),),
    }


def command() -> str:
    """The command as it was given."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def check_tensorboard() -> None:
    """Refuse early where TensorBoard is not installed."""
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard: the extra must be installed, as by "
            "`pip install cirm[tensorboard]`; got no tensorboard"
        )


def write_curves(records: Sequence[Record], folder: Path) -> None:
    """Training curves as TensorBoard events, a run per learner and seed."""
    from torch.utils.tensorboard import SummaryWriter

    from cirm.records import Curve

    curves = [record for record in records if isinstance(record, Curve)]
    for label, seed in dict.fromkeys((c.learner, c.seed) for c in curves):
        with SummaryWriter(str(folder / f"{label}-{seed}")) as writer:
            for curve in curves:
                if (curve.learner, curve.seed) == (label, seed):
                    tag = f"stage {curve.stage}/{curve.metric}"
                    writer.add_scalar(tag, curve.value, curve.step)
