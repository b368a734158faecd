"""Plan the jobs that a user asks for, and check them before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.data import get_dataset_class
from cirm.environments import Problem, Stream
from cirm.inference import get_inference_class
from cirm.learners import create, parse_learner_settings
from cirm.runs.jobs import PAPER_SELECTION, Job, hash_files
from cirm.settings import parse_assignments, parse_settings

SMALL = 256  # inputs; below this, seeds learn side by side in one job


class PreparedDataset(NamedTuple):
    """A data set that was drawn once.

    Attributes:
        dataset: Key or import path of the data set.
        data: Its settings.
        problem: What it gives for the first seed.
        description: What was found in the user's data.
        files: Names and content of its files, see `hash_files`.
    """

    dataset: str
    data: dict[str, Any]
    problem: Problem
    description: str
    files: str = ""


def prepare_dataset(dataset: str, texts: Mapping[str, str]) -> PreparedDataset:
    """Create a data set from settings in text, and draw it once to check them."""
    cls = get_dataset_class(dataset)
    data = parse_settings(cls, texts, f"data set {dataset}")
    instance = cls(**data)
    problem, description = instance.draw((0,)), instance.describe()
    files = hash_files(instance, data)
    return PreparedDataset(dataset, data, problem, description, files)


def plan_jobs(
    on: PreparedDataset,
    learner: str,
    order: str,
    seeds: Sequence[int],
    *,
    preset: str = "",
    texts: Sequence[str] = (),
    infer: str = "",
    label: str = "",
) -> list[Job]:
    """Plan the jobs of a learner; raise now for what would fail when they run.

    How many seeds share a job depends only on the data, so that the numbers do not
    depend on the machine.
    """
    settings = parse_learner_settings(learner, parse_assignments(list(texts), "--set"))
    if infer:
        get_inference_class(infer)
    first = on.problem.train[0]
    Stream.from_order(on.problem.train, order)
    create(learner, first, settings, preset)
    small = math.prod(first.features) < SMALL
    block = len(seeds) if small and not infer else 1
    return [
        Job(
            dataset=on.dataset,
            learner=learner,
            order=order,
            seeds=tuple(seeds[start : start + block]),
            data=on.data,
            settings=settings,
            preset=preset,
            selection=describe_selection(preset, settings),
            infer=infer,
            label=label or (f"{learner} after {infer}" if infer else learner),
            files=on.files,
        )
        for start in range(0, len(seeds), block)
    ]


def plan_ceiling(
    dataset: str,
    texts: Mapping[str, str],
    order: str,
    seeds: Sequence[int],
    preset: str,
) -> list[Job]:
    """Plan ERM on the same images without their colour: what an oracle could reach."""
    if dataset != "colored":
        raise ValueError(
            f"--ceiling is only known for the data set colored, not for {dataset!r}. "
            "Leave it out."
        )
    gray = prepare_dataset(dataset, {**texts, "scheme": "gray"})
    return plan_jobs(gray, "erm", order, seeds, preset=preset, label="erm on gray")


def describe_selection(preset: str, settings: Mapping[str, Any]) -> str:
    """Describe in words how settings were chosen."""
    words = {
        "": "library defaults, not tuned",
        "paper": PAPER_SELECTION,
    }.get(preset, f"preset {preset}, published values")
    if settings:
        given = ", ".join(f"{name}={value}" for name, value in settings.items())
        words += f"; set by hand: {given}"
    return words
