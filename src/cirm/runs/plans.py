"""Jobs for what a user asks for, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.data import get_dataset_class
from cirm.environments import Problem, Stream
from cirm.inference import get_inference_class
from cirm.learners import create, parse_learner_settings
from cirm.runs.jobs import PAPERS, Job, fingerprint
from cirm.settings import parse_assignments, parse_settings

SMALL = 256  # inputs; below this, seeds learn side by side in one job


class PreparedDataset(NamedTuple):
    """A data set by name and settings, and what it gives the first seed."""

    dataset: str
    data: dict[str, Any]
    problem: Problem
    description: str


def prepare_dataset(dataset: str, texts: Mapping[str, str]) -> PreparedDataset:
    """A data set whose settings are read from text, drawn once to see that it works."""
    cls = get_dataset_class(dataset)
    data = parse_settings(cls, texts, f"data set {dataset}")
    made = cls(**data)
    return PreparedDataset(dataset, data, made.draw((0,)), made.describe())


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
    """The jobs of a learner; refuses now what would fail when they run.

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
            selection=selection(preset, settings),
            infer=infer,
            label=label or (f"{learner} after {infer}" if infer else learner),
            files=fingerprint(on.data),
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
    """ERM on the same images without their colour: what an oracle could reach."""
    if dataset != "colored":
        raise ValueError(
            "--ceiling: the data set must be colored, where the ceiling is known; "
            f"got {dataset!r}"
        )
    gray = prepare_dataset(dataset, {**texts, "scheme": "gray"})
    return plan_jobs(gray, "erm", order, seeds, preset=preset, label="erm on gray")


def selection(preset: str, settings: Mapping[str, Any]) -> str:
    """How the settings were chosen, in words."""
    words = {
        "": "library defaults, not tuned",
        "paper": PAPERS,
    }.get(preset, f"preset {preset}, published values")
    if settings:
        given = ", ".join(f"{name}={value}" for name, value in settings.items())
        words += f"; set by hand: {given}"
    return words
