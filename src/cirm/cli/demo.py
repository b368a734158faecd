"""`cirm demo`: the main result on built-in data, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cirm.cli import options
from cirm.cli.options import Workers
from cirm.learners import DEFAULT_LEARNER

LEARNERS = (DEFAULT_LEARNER, "c-bvirm", "c-virmv1", "erm", "irmv1", "ewc", "gem")
DATA = {"source": "digits", "environments": "2", "examples": "600"}
ADAPT = (300,)  # of the 359 unseen images
EXAMPLES = options.format_examples_for_command_help(
    "cirm demo", "cirm demo --seeds 1 --out quick-demo"
)


def run_demo(
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of seeds to run; they are 0, 1, 2 and so on.",
        ),
    ] = 3,
    out: Annotated[Path, typer.Option(help="Folder to write the results to.")] = Path(
        "demo"
    ),
    workers: Workers = 0,
) -> None:
    """Compare seven learners on coloured digits, in about a minute.

    Two environments of coloured digits arrive one after the other. In both, the colour
    predicts the label better than the shape does; in the unseen environment it
    predicts the opposite. A learner that can adapt is scored twice there: before and
    after it was given some of the images without their labels. Nothing is downloaded.
    """
    from cirm.cli.progress import show_progress_of_single_step
    from cirm.cli.run import run_jobs_and_write_report

    typer.echo(
        "Two environments of coloured digits arrive one after the other. The colour "
        "agrees with the label in\n80 % and 90 % of the training examples, but only "
        "in 10 % of the unseen ones; the shape agrees with the label in 75 % of all "
        f"examples.\nAdapted: the model was first adapted to {ADAPT[0]} unseen images "
        "without their labels."
    )
    with show_progress_of_single_step("preparing the data set"):
        from cirm.learners import get_learner_class
        from cirm.runs.engines import JobEngine
        from cirm.runs.plans import (
            create_and_draw_dataset,
            plan_grey_image_jobs,
            plan_jobs_of_learner,
        )

        data, jobs = create_and_draw_dataset("colored", DATA), []
        for key in LEARNERS:
            preset = "paper" if "paper" in get_learner_class(key).presets else ""
            jobs += plan_jobs_of_learner(
                data, key, "sequential", range(seeds), preset=preset, adapt=ADAPT
            )
        jobs += plan_grey_image_jobs(
            "colored", DATA, "sequential", range(seeds), "paper"
        )
    run_jobs_and_write_report(jobs, out, JobEngine(workers=workers), title="cirm demo")
