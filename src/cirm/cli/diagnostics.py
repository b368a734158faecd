"""Diagnostics on the screen: one table, and a sentence for each failure."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from cirm.records import Record

COLUMNS = {
    "agreement": "like ERM",
    "calibration": "calibration",
    "calibration spread": "spread",
    "slope penalty": "slope",
}
"""What the screen shows beside the worst group, with its heading."""


def diagnostics(records: Sequence[Record]) -> None:
    """Print how far each learner can be trusted; nothing where it was not measured."""
    from rich.console import Console
    from rich.table import Table

    from cirm.cli.screen import number
    from cirm.report.diagnostics import basis, found_in, kind, remarks
    from cirm.report.summary import summarise

    found = found_in(records)
    if not found:
        return
    metric = next(iter(summarise(records)["learners"].values()))["metric"]
    table = Table(title="can they be trusted? (the unseen had no part in this)")
    table.add_column("learner", style="bold", no_wrap=True)
    for heading in ("worst group", *COLUMNS.values(), "did well"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in found.items():
        worst = number(one.numbers.get("worst group"), metric)
        means = {c: {**one.numbers.get(c, {}), "std": None} for c in COLUMNS}
        rest = [number(cell, kind(c, metric)) for c, cell in means.items()]
        table.add_row(name, worst, *rest, f"{one.succeeded} of {one.seeds}")
    Console().print(table)
    for remark in remarks(found):
        typer.echo(remark)
    typer.echo(basis(found))
