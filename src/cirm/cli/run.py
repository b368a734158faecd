"""`cirm run`: train learners on a data set, over several seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.options import (
    Address,
    EngineName,
    LearnerSettings,
    Preset,
    RunOrder,
    Workers,
)

if TYPE_CHECKING:
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job

EXAMPLES = options.list_examples(
    "cirm run --learner erm --learner irmv1 --seeds 3 --ceiling",
    "cirm run --dataset scm --learner icp --order joint --examples 500",
)


def run(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Option(
            help="Data set: a name that `cirm list datasets` shows, or "
            "package.module:Class."
        ),
    ] = "colored",
    learner: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Learner to train: {options.LEARNER_HELP}; repeatable.",
            show_default="erm",
        ),
    ] = None,
    order: RunOrder = "sequential",
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Number of seeds: 0, 1, 2 and so on."),
    ] = 5,
    preset: Preset = "",
    settings: LearnerSettings = None,
    infer: Annotated[
        str,
        typer.Option(
            help="Method that infers environments before training, for example eiil; "
            "`cirm list inference` describes them.",
            show_default="none, the data set's environments are used",
        ),
    ] = "",
    no_diagnostics: Annotated[
        bool,
        typer.Option(
            "--no-diagnostics",
            help="Skip the diagnostics, which show from the training environments "
            "alone whether a learner relies on a shortcut.",
        ),
    ] = False,
    ceiling: Annotated[
        bool,
        typer.Option(
            "--ceiling",
            help="Also train ERM on images without colour: the accuracy that a learner "
            "could reach. Only for the data set colored.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the results to.", show_default="runs/DATASET-HASH"
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Also write training curves for TensorBoard to this folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train learners on a stream of environments and score them on unseen ones.

    All other options are settings of the data set, for example --source mnist
    --environments 3 --examples 1000; `cirm list datasets NAME` shows them. If a run is
    interrupted, the same command continues it.
    """
    from cirm.cli.progress import show_step
    from cirm.cli.run_output import check_tensorboard

    texts = options.parse_extra_options(context.args, "run")
    if tensorboard is not None:
        check_tensorboard()
    with show_step("preparing the data set"):
        from cirm.runs.engines import Engine
        from cirm.runs.plans import plan_ceiling, plan_jobs, prepare_dataset

        chosen = Engine(engine, workers, address)
        data = prepare_dataset(dataset, texts)
        jobs: list[Job] = []
        for key in learner or ["erm"]:
            jobs += plan_jobs(
                data, key, order, range(seeds),
                preset=preset, texts=settings or [], infer=infer,
            )  # fmt: skip
        if ceiling:
            jobs += plan_ceiling(dataset, texts, order, range(seeds), preset)
        if no_diagnostics:
            jobs = [replace(job, diagnose=False) for job in jobs]
    if data.description:
        typer.echo(data.description)
    name = options.make_file_name(dataset)
    folder = out or Path("runs") / f"{name}-{hash_jobs(jobs)}"
    run_and_report(jobs, folder, chosen, tensorboard)


def run_and_report(
    jobs: Sequence[Job],
    folder: Path,
    engine: Engine,
    tensorboard: Path | None = None,
    title: str = "cirm run",
) -> None:
    """Run the unfinished jobs, then write and print the results of all of them."""
    from cirm.cli.progress import job_size, run_with_progress
    from cirm.cli.run_output import write_and_print_results
    from cirm.runs.local import collect_records, list_unfinished, read_duration

    options.create_result_folder(folder)
    waiting = {job.key for job in list_unfinished(jobs, folder)}
    finished = [job for job in jobs if job.key not in waiting]
    failures: dict[str, str] = {}
    if not waiting:
        typer.echo(f"All {len(jobs)} jobs have finished already; nothing to run.")
    else:
        if finished:
            typer.echo(
                f"Continuing: {len(finished)} of {len(jobs)} jobs have finished."
            )
        times = [(j.name, job_size(j), read_duration(j, folder)) for j in finished]
        failures = run_with_progress(
            jobs, lambda: list_unfinished(jobs, folder), folder, engine, title, times
        )
    if records := collect_records(jobs, folder):
        write_and_print_results(records, jobs, folder, title, tensorboard)
    exit_on_failure(jobs, failures)


def exit_on_failure(jobs: Sequence[Job], failures: dict[str, str]) -> None:
    """If jobs have failed, print why and exit with status 1."""
    from cirm.cli.progress import describe_job

    for job in jobs:
        if job.key in failures:
            line = f"failed: {describe_job(job)}: {failures[job.key]}"
            typer.echo(line, err=True)
    if failures:
        raise typer.Exit(1)


def hash_jobs(jobs: Sequence[Job]) -> str:
    """Return a short name for these jobs."""
    text = " ".join(job.key for job in jobs)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
