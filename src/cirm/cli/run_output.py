"""Writing and printing the results of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cirm.cli.output import get_command_line, print_table
from cirm.records import Curve, Record

if TYPE_CHECKING:
    from cirm.runs.jobs import Job


def write_and_print_results(
    records: Sequence[Record],
    jobs: Sequence[Job],
    folder: Path,
    title: str,
    tensorboard: Path | None,
) -> None:
    """Write records, summary, page and curves of a run, and print its tables."""
    from cirm.cli.progress import show_step
    from cirm.records import write_records, write_text
    from cirm.report.diagnostics import summarise_diagnostics
    from cirm.report.drawing import make_svg_file
    from cirm.report.run_page import (
        build_coefficient_table,
        build_results_table,
        build_run_page,
        build_sweep_figure,
    )
    from cirm.report.summary import summarise_records

    with show_step("writing the report"):
        summary = summarise_records(records)
        summary["diagnostics"] = summarise_diagnostics(records)
        write_records(folder / "records.jsonl", records)
        write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        data = describe_data(jobs[0])
        page = build_run_page(records, title, get_command_line(), **data)
        write_text(folder / "report.html", page)
        data.pop("pictures", None)
        if figure := build_sweep_figure(records, **data):
            write_text(folder / "sweep.svg", make_svg_file(figure))
    print_table(build_results_table(summary))
    if coefficients := build_coefficient_table(records):
        print_table(coefficients)
    print_diagnostics(records, next(iter(summary["learners"].values()))["metric"])
    if tensorboard is not None:
        write_curves(records, tensorboard)
        typer.echo(
            f"Wrote the training curves to {tensorboard}; `tensorboard --logdir "
            f"{tensorboard}` shows them."
        )
    typer.echo(f"Wrote records.jsonl and summary.json to {folder}")
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")


def describe_data(job: Job) -> dict[str, Any]:
    """Return what the page shows about the data: chance, axis and example images."""
    from cirm.data import get_dataset_class
    from cirm.data.colored import Colored
    from cirm.paper.example_images import draw_examples

    dataset = get_dataset_class(job.dataset)(**job.data)
    if not isinstance(dataset, Colored):
        return {}
    return {
        "chance": 50.0,
        "axis": "colour flip of the unseen environment",
        "trained": dataset.list_flips(),
        "pictures": (draw_examples(dataset, job.seeds[0]),),
    }


def print_diagnostics(records: Sequence[Record], metric: str) -> None:
    """Print the diagnostics of each learner and what they mean, if there are any."""
    from cirm.report.diagnostics import (
        build_diagnostics_table,
        collect_diagnostics,
        describe_basis,
        describe_failures,
    )

    diagnoses = collect_diagnostics(records)
    if not diagnoses:
        return
    print_table(build_diagnostics_table(diagnoses, metric))
    for sentence in (*describe_failures(diagnoses), describe_basis(diagnoses)):
        typer.echo(sentence)


def check_tensorboard() -> None:
    """Raise an error before any work if TensorBoard is not installed."""
    from importlib.util import find_spec

    if find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard: TensorBoard is not installed. Install it with `pip install "
            "cirm[tensorboard]`."
        )


def write_curves(records: Sequence[Record], folder: Path) -> None:
    """Write training curves as TensorBoard events, one run per learner and seed."""
    from torch.utils.tensorboard import SummaryWriter

    curves = [record for record in records if isinstance(record, Curve)]
    for label, seed in dict.fromkeys((c.learner, c.seed) for c in curves):
        with SummaryWriter(str(folder / f"{label}-{seed}")) as writer:
            for curve in curves:
                if (curve.learner, curve.seed) == (label, seed):
                    tag = f"stage {curve.stage}/{curve.metric}"
                    writer.add_scalar(tag, curve.value, curve.step)
