"""Jobs run with progress on the screen; their tables and pages written and shown."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from cirm.experiments.jobs import Job
    from cirm.records import Record


def run_and_show(
    jobs: Sequence[Job],
    folder: Path,
    workers: int,
    tensorboard: Path | None = None,
    title: str = "cirm run",
) -> None:
    """Run what is unfinished, write the results into the folder, show the table."""
    from cirm.cli.screen import coefficients, progress_of, results
    from cirm.experiments.runner import collected, run_jobs, unfinished
    from cirm.records import write, write_text
    from cirm.report.run import run_report
    from cirm.report.summary import summarise

    if tensorboard is not None:
        check_tensorboard()
    folder.mkdir(parents=True, exist_ok=True)
    waiting = unfinished(jobs, folder)
    if not waiting:
        typer.echo(f"All {len(jobs)} jobs are done already; nothing is run again.")
    elif len(waiting) < len(jobs):
        typer.echo(
            f"Continuing: {len(jobs) - len(waiting)} of {len(jobs)} jobs are done."
        )
    failures: dict[str, str] = {}
    if waiting:
        with continued(jobs, folder), progress_of(waiting) as report:
            failures = run_jobs(jobs, folder, workers, report)
    records = collected(jobs, folder)
    if records:
        summary = summarise(records)
        write(folder / "records.jsonl", records)
        write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        page = run_report(records, title, command(), **view_of(jobs[0]))
        write_text(folder / "report.html", page)
        results(summary)
        coefficients(records)
        if tensorboard is not None:
            write_curves(records, tensorboard)
            typer.echo(f"TensorBoard curves: {tensorboard}")
        typer.echo(f"Wrote records.jsonl and summary.json to {folder}")
        typer.echo(f"Report: {(folder / 'report.html').resolve()}")
    if failures:
        named = {job.key: job for job in jobs}
        for key, reason in failures.items():
            job = named[key]
            typer.echo(f"failed: {job.name}, seeds {job.seeds}: {reason}", err=True)
        raise typer.Exit(1)


@contextmanager
def continued(jobs: Sequence[Job], folder: Path) -> Iterator[None]:
    """Say, when it is interrupted, what is done and how to go on."""
    from cirm.experiments.runner import unfinished

    try:
        yield
    except KeyboardInterrupt:
        done = len(jobs) - len(unfinished(jobs, folder))
        typer.echo(
            f"cirm: interrupted with {done} of {len(jobs)} jobs done; the same command "
            "continues",
            err=True,
        )
        raise typer.Exit(130) from None


def view_of(job: Job) -> dict[str, Any]:
    """What the page shows of the data: chance, the sweep's axis, samples."""
    from cirm.cli.samples import picture
    from cirm.datasets import dataset_class
    from cirm.datasets.colored import Colored

    dataset = dataset_class(job.dataset)(**job.data)
    if not isinstance(dataset, Colored):
        return {}
    return {
        "chance": 50.0,
        "axis": "colour flip of the unseen environment",
        "trained": dataset.color_flips(),
        "pictures": (picture(dataset, job.seeds[0]),),
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
