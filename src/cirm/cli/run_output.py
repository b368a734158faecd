"""Writing and printing the results of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import typer

from cirm.cli.output import get_command_line, print_table
from cirm.records import Curve, Record, Score

if TYPE_CHECKING:
    from cirm.runs.jobs import Job

DIAGNOSTICS = {
    "agreement": "agrees with ERM",
    "calibration": "calibration error",
    "calibration spread": "its spread",
    "slope penalty": "slope penalty",
}
"""Headings of the diagnostics that are printed beside the worst group."""


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
    from cirm.report.diagnostics import diagnosed
    from cirm.report.run import run_report
    from cirm.report.summary import summarise

    with show_step("writing the report"):
        summary = summarise(records)
        summary["diagnostics"] = diagnosed(records)
        write_records(folder / "records.jsonl", records)
        write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        page = run_report(records, title, get_command_line(), **describe_data(jobs[0]))
        write_text(folder / "report.html", page)
    print_scores(summary)
    print_coefficients(records)
    print_diagnostics(records)
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
        "trained": dataset.color_flips(),
        "pictures": (draw_examples(dataset, job.seeds[0]),),
    }


def print_scores(summary: dict[str, Any]) -> None:
    """Print the scores of each learner on training and unseen environments."""
    entries = summary["learners"]
    metrics = {entry["metric"] for entry in entries.values()}
    unit = "Accuracy in %" if metrics == {"accuracy"} else "Squared error"
    seeds = sorted({e["train"]["seeds"] for e in entries.values() if e.get("train")})
    count = " or ".join(map(str, seeds))
    rows = [
        [
            name,
            format_score(entry.get("train"), entry["metric"]),
            format_score(entry.get("test"), entry["metric"]),
            f"{entry['seconds']:.1f}",
            f"{sum(part['examples'] for part in entry['memory'].values()):,}",
            f"{sum(part['bytes'] for part in entry['memory'].values()) / 2**20:.1f}",
        ]
        for name, entry in entries.items()
    ]
    print_table(
        f"{unit}: mean (standard deviation over {count} seeds)",
        ("learner", "train", "unseen", "seconds", "stored examples", "state, MiB"),
        rows,
    )


def print_coefficients(records: Sequence[Record]) -> None:
    """Print the squared error of linear coefficients, where the true ones are known."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in records:
        if isinstance(row, Score) and row.metric == "coefficients":
            errors.setdefault((row.learner, row.environment), []).append(row.value)
    if not errors:
        return
    kinds = list(dict.fromkeys(kind for _, kind in errors))
    rows = []
    for name in dict.fromkeys(learner for learner, _ in errors):
        values = [errors[name, kind] for kind in kinds]
        cells = [
            {"mean": mean(v), "std": stdev(v) if len(v) > 1 else None} for v in values
        ]
        rows.append([name, *(format_score(cell, "error") for cell in cells)])
    title = "Squared error of the coefficients: mean (standard deviation)"
    print_table(title, ("learner", *kinds), rows)


def print_diagnostics(records: Sequence[Record]) -> None:
    """Print the diagnostics of each learner and what they mean, if there are any."""
    from cirm.report.diagnostics import basis, found_in, kind, remarks
    from cirm.report.summary import summarise

    diagnostics = found_in(records)
    if not diagnostics:
        return
    metric = next(iter(summarise(records)["learners"].values()))["metric"]
    rows = []
    for name, one in diagnostics.items():
        means = {c: {**one.numbers.get(c, {}), "std": None} for c in DIAGNOSTICS}
        rows.append(
            [
                name,
                format_score(one.numbers.get("worst group"), metric),
                *(format_score(cell, kind(c, metric)) for c, cell in means.items()),
                f"{one.succeeded} of {one.seeds}",
            ]
        )
    print_table(
        "Diagnostics, without looking at the unseen environment",
        ("learner", "worst group", *DIAGNOSTICS.values(), "seeds without a failure"),
        rows,
    )
    for remark in remarks(diagnostics):
        typer.echo(remark)
    typer.echo(basis(diagnostics))


def format_score(cell: Mapping[str, Any] | None, metric: str) -> str:
    """Format a mean with its standard deviation."""
    if not cell or cell.get("mean") is None:
        return "-"
    digits = 1 if metric == "accuracy" else 3
    spread = "" if cell.get("std") is None else f" ({cell['std']:.{digits}f})"
    return f"{cell['mean']:.{digits}f}{spread}"


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
