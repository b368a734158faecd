"""`cirm evaluate`: how good a model is where the answers are known."""

from __future__ import annotations

from typing import Annotated

import typer

from cirm.cli import shared
from cirm.cli.shared import (
    Data,
    Device,
    Environment,
    FillMissing,
    Json,
    ModelFile,
    Report,
)


def evaluate(
    data: Data,
    model: ModelFile,
    environment: Environment = "",
    group: Annotated[
        list[str] | None,
        typer.Option(help="Column by whose values to group; repeat."),
    ] = None,
    fill_missing: FillMissing = False,
    device: Device = "cpu",
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Score a model: overall, by environment, class and group, and its calibration.

    The scores are set beside what the training environments let one expect.
    """
    from cirm.cli.fit import checked_device
    from cirm.cli.model_screen import judged
    from cirm.model.evaluate import evaluate as evaluate_model
    from cirm.model.file import load
    from cirm.report.model import evaluation_page

    shared.check_report(report)
    shared.one_thread()
    loaded = load(model, device=checked_device(device))
    with shared.watching("nothing was written") as progress:
        found = evaluate_model(
            loaded,
            list(data),
            environment=environment,
            groups=group or [],
            fill_missing=fill_missing,
            progress=progress,
        )
    content = {"model": str(model), "data": [str(path) for path in data], **found}
    if not as_json:
        judged(content)
    page = evaluation_page(content, shared.command()) if report else ""
    shared.finish(content, as_json, report, page)
