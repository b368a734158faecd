"""`cirm run`: learners on a data set, over seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli.options import Address, EngineName, Workers

if TYPE_CHECKING:
    from cirm.runs.jobs import Job

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def run(
    context: typer.Context,
    dataset: Annotated[
        str, typer.Option(help="A data set; `cirm list datasets` names them.")
    ] = "colored",
    learner: Annotated[
        list[str] | None,
        typer.Option(help="A learner; repeat for more.", show_default="erm"),
    ] = None,
    order: Annotated[
        str, typer.Option(help="sequential, joint, or stage sizes such as 2+1.")
    ] = "sequential",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0.")] = 5,
    preset: Annotated[
        str, typer.Option(help="Named settings of the learners, such as paper.")
    ] = "",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A learner's setting, name=value; repeat."),
    ] = None,
    infer: Annotated[
        str, typer.Option(help="Infer environments first; such as eiil.")
    ] = "",
    diagnostics: Annotated[
        bool, typer.Option(help="Also measure how far the learners can be trusted.")
    ] = True,
    ceiling: Annotated[
        bool, typer.Option(help="Also ERM without the colour: the ceiling.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results.", show_default="runs/DATASET-HASH"),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Folder for TensorBoard's training curves.")
    ] = None,
) -> None:
    """Train learners on a stream of environments and score them, also on unseen ones.

    Options that are not listed here are settings of the data set, such as
    `--source mnist --scheme b01 --environments 2 --examples 1000`;
    `cirm list datasets NAME` shows them. An interrupted run continues when it is
    started again.
    """
    from cirm.cli.results import run_and_show
    from cirm.runs.engines import Engine
    from cirm.runs.plans import plan_ceiling as ceiling_of
    from cirm.runs.plans import plan_jobs, prepare_dataset

    chosen = Engine(engine, workers, address)
    data = extra_options(context.args)
    on = prepare_dataset(dataset, data)
    jobs: list[Job] = []
    for key in learner or ["erm"]:
        jobs += plan_jobs(
            on, key, order, range(seeds),
            preset=preset, texts=assignments or [], infer=infer,
        )  # fmt: skip
    if ceiling:
        jobs += ceiling_of(dataset, data, order, range(seeds), preset)
    if not diagnostics:
        jobs = [replace(job, diagnose=False) for job in jobs]
    if on.description:
        typer.echo(on.description)
    folder = out or Path("runs") / f"{dataset}-{folder_name(jobs)}"
    run_and_show(jobs, folder, chosen, tensorboard)


def extra_options(arguments: list[str]) -> dict[str, str]:
    """The data set's settings among the arguments: --name value or --name=value."""
    options: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, equals, text = waiting.pop(0).partition("=")
        if not name.startswith("--") or not (equals or waiting):
            raise ValueError(
                f"run: a data set's setting must be --name value; got {name!r}"
            )
        options[name[2:].replace("-", "_")] = text if equals else waiting.pop(0)
    return options


def folder_name(jobs: list[Any]) -> str:
    """A short name that stands for these jobs."""
    import hashlib

    text = " ".join(job.key for job in jobs)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
