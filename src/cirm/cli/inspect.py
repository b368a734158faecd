"""`cirm inspect`: all that a model's file says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cirm.cli import shared
from cirm.cli.shared import Json, Report


def inspect(
    model: Annotated[
        Path, typer.Argument(help="The model's file.", show_default=False)
    ],
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Show where a model has been, what it keeps of the past, and what it relies on."""
    from cirm.cli.model_screen import described as show
    from cirm.model.description import describe_model
    from cirm.model.file import load
    from cirm.report.model import model_page

    shared.check_report(report)
    content = {"model": str(model), **describe_model(load(model))}
    if not as_json:
        show(content)
    page = model_page(content, shared.command()) if report else ""
    shared.finish(content, as_json, report, page)
