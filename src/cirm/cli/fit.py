"""`cirm fit` and `cirm update`: a model of the first places, and of later ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import shared
from cirm.cli.shared import (
    Data,
    Device,
    Environment,
    FillMissing,
    Json,
    ModelFile,
    Order,
    Report,
)
from cirm.learners import DEFAULT_LEARNER

if TYPE_CHECKING:
    from cirm.model.model import Model


def fit(
    data: Data,
    model: ModelFile,
    target: Annotated[
        str,
        typer.Option(help="Column to predict; arrays and images have their own."),
    ] = "",
    environment: Environment = "",
    learner: Annotated[
        str, typer.Option(help="How to learn; `cirm list learners` names them.")
    ] = DEFAULT_LEARNER,
    task: Annotated[
        str, typer.Option(help="classification or regression; auto detects it.")
    ] = "auto",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A learner's setting, name=value; repeat."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Named settings of the learner.")] = "",
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    device: Device = "cpu",
    order: Order = "joint",
    held_out: Annotated[
        float, typer.Option(help="Part of each environment that only tests it.")
    ] = 0.1,
    classes: Annotated[
        str, typer.Option(help="All classes, as a,b; also those that come later.")
    ] = "",
    category: Annotated[
        list[str] | None, typer.Option(help="Column whose numbers are codes; repeat.")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Column that names rows: kept, not used; repeat."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; repeat.")
    ] = None,
    side: Annotated[int, typer.Option(min=1, help="Of images, in pixels.")] = 32,
    channels: Annotated[int, typer.Option(help="Of images: 1 or 3.")] = 3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is there.")
    ] = False,
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Learn a first model from data, and write it to a file.

    What is found in the data and how each column is treated is said. The first
    environment alone decides the scale of the columns.
    """
    from cirm.model.file import save
    from cirm.model.fit import fit as fit_model

    shared.check_folder(model, "--model")
    shared.check_report(report)
    shared.one_thread()
    if model.exists() and not overwrite:
        raise ValueError(
            f"--model: {str(model)!r} must not be there yet (--overwrite replaces it, "
            "`cirm update` goes on with it); got a file"
        )
    with shared.watching(f"no model was written to {model}") as progress:
        made = fit_model(
            list(data),
            target,
            environment=environment,
            task=checked_task(task),
            learner=learner,
            settings=settings_of(learner, assignments or []),
            preset=preset,
            seed=seed,
            device=checked_device(device),
            order=order,
            held_out=held_out,
            classes=[part.strip() for part in classes.split(",") if part.strip()],
            categories=category or [],
            ids=ids or [],
            ignore=ignore or [],
            side=side,
            channels=channels,
            progress=progress,
        )
        save(made, model)
    shown(made, model, as_json, report, task == "auto")


def update(
    data: Data,
    model: ModelFile,
    environment: Environment = "",
    device: Device = "cpu",
    order: Order = "joint",
    fill_missing: FillMissing = False,
    accept_units: Annotated[
        bool,
        typer.Option(
            "--accept-units", help="Learn numbers that look like another unit."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Learn rows that were learned before.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the new model here.", show_default="the same file"),
    ] = None,
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Go on learning where the model stopped; earlier data are not needed.

    The file is replaced when all is done, and stays as it was if anything fails.
    """
    from cirm.model.file import load, read_checksum, save
    from cirm.model.fit import update as update_model

    shared.check_folder(out or model, "--out" if out else "--model")
    shared.check_report(report)
    shared.one_thread()
    old = load(model, device=checked_device(device))
    mark = read_checksum(model)
    with shared.watching(f"{model} is as it was") as progress:
        new = update_model(
            old,
            list(data),
            environment=environment,
            order=order,
            fill_missing=fill_missing,
            accept_units=accept_units,
            again=again,
            progress=progress,
        )
        if out is None and read_checksum(model) != mark:
            raise ValueError(
                f"model {str(model)!r}: it must not change while it is updated; got "
                "another update's (run this one again)"
            )
        save(new, out or model)
    shown(new, out or model, as_json, report)


def shown(
    model: Model, path: Path, as_json: bool, report: Path | None, detected: bool = False
) -> None:
    """Show a model that was just written."""
    from cirm.cli.model_screen import learned
    from cirm.model.description import describe_model
    from cirm.report.model import model_page

    content = {"model": str(path), **describe_model(model)}
    if not as_json:
        learned(content, detected, first=model.stages == 1)
    page = model_page(content, shared.command()) if report else ""
    shared.finish(content, as_json, report, page)
    shared.say(f"Wrote {path}")


def settings_of(learner: str, assignments: list[str]) -> dict[str, Any]:
    """The learner's settings among assignments such as epochs=10."""
    from cirm.learners import parse_learner_settings
    from cirm.settings import parse_assignments

    return parse_learner_settings(learner, parse_assignments(assignments, "--set"))


def checked_task(task: str) -> Any:  # noqa: ANN401  one of the literal names
    """A task's name that is one."""
    if task not in ("auto", "classification", "regression"):
        raise ValueError(
            f"--task: it must be one of auto, classification, regression; got {task!r}"
        )
    return task


def checked_device(device: str) -> str:
    """A device that is there."""
    import torch

    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            "--device: it must be a device of this machine, such as cpu; "
            f"got {device!r}"
        ) from None
    return device
