"""Plan the jobs that a user asks for, and check them before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cirm.data import get_dataset_class
from cirm.environments import Problem, Stream
from cirm.inference import get_inference_class
from cirm.learners import (
    create,
    get_learner_class,
    get_learner_key_and_settings,
    get_preset_settings,
    parse_learner_settings,
)
from cirm.runs.jobs import PAPER_SELECTION, TrainingJob, hash_dataset_files
from cirm.settings import parse_name_value_assignments, parse_settings_by_type

if TYPE_CHECKING:
    from cirm.evaluation.adaptation import RowCount
    from cirm.learners import LearnerLike

BORROWED = {"replay": "GEM", "vrex": "IRMv1"}
"""Learners that the paper does not have, and whose values their presets use."""

SMALL = 256  # inputs; below this, seeds learn side by side in one job


class DrawnDataset(NamedTuple):
    """A data set that was drawn once.

    Attributes:
        dataset: Key or import path of the data set.
        data: Its settings.
        problem: What it gives for the first seed.
        description: What was found in the user's data.
        files: Names and content of its files, see `hash_dataset_files`.
    """

    dataset: str
    data: dict[str, Any]
    problem: Problem
    description: str
    files: str = ""


def create_and_draw_dataset(
    dataset: str,
    setting_texts: Mapping[str, str],
    progress: Callable[[str, float], None] | None = None,
) -> DrawnDataset:
    """Create a data set from settings in text, and draw it once to check them.

    `progress` is called while features are computed, if an encoder makes them.
    """
    cls = get_dataset_class(dataset)
    data = parse_settings_by_type(cls, setting_texts, f"data set {dataset}")
    instance = cls(**data)
    if progress is not None:
        instance.fill_feature_cache(progress)
    problem, description = instance.draw_problem((0,)), instance.describe()
    files = hash_dataset_files(instance, data)
    return DrawnDataset(dataset, data, problem, description, files)


def resolve_learner_settings(
    learner: LearnerLike, preset: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return key and settings of a learner, as jobs store them.

    A key or class has no settings. An instance has all of its own, below the preset.
    """
    key, settings = get_learner_key_and_settings(learner)
    if "<locals>" in key:
        raise ValueError(
            f"The learner {key!r} is defined inside a function, so other processes "
            "cannot import it. Define it at the top level of a module."
        )
    if not isinstance(learner, str | type) and learner.network is not None:
        raise ValueError(
            f"The learner {key!r} was created with a network, which cannot be passed "
            "on to other processes. Create the learner without a network and "
            "describe the network by settings such as hidden, or call cirm.run."
        )
    return key, {**settings, **get_preset_settings(key, preset)} if settings else {}


def plan_jobs_of_learner(
    data: DrawnDataset,
    learner: LearnerLike,
    order: str,
    seeds: Sequence[int],
    *,
    preset: str = "",
    setting_texts: Sequence[str] = (),
    infer: str = "",
    label: str = "",
    adapt: tuple[RowCount, ...] = (),
) -> list[TrainingJob]:
    """Plan the jobs of a learner, and raise now for what would fail when they run.

    How many seeds share a job depends only on the data, so that the numbers do not
    depend on the machine.

    Example:
        >>> from cirm.learners.vrex import VREx
        >>> on = create_and_draw_dataset("colored", {"examples": "50"})
        >>> jobs = plan_jobs_of_learner(on, VREx(penalty=10.0), "joint", (0, 1))
        >>> [(job.learner, job.seeds, job.settings["penalty"]) for job in jobs]
        [('vrex', (0, 1), 10.0)]
    """
    key, settings = resolve_learner_settings(learner, preset)
    settings |= parse_learner_settings(
        key, parse_name_value_assignments(list(setting_texts), "--set")
    )
    if infer:
        get_inference_class(infer)
    first = data.problem.train[0]
    Stream.from_order(data.problem.train, order)
    create(key, first, settings, preset)
    small = math.prod(first.features) < SMALL
    block = len(seeds) if small and not infer else 1
    return [
        TrainingJob(
            dataset=data.dataset,
            learner=key,
            order=order,
            seeds=tuple(seeds[start : start + block]),
            data=data.data,
            settings=settings,
            preset=preset,
            selection=describe_setting_selection(key, preset, settings),
            infer=infer,
            label=label or (f"{key} after {infer}" if infer else key),
            files=data.files,
            adapt=adapt if get_learner_class(key).adapts else (),
        )
        for start in range(0, len(seeds), block)
    ]


def plan_grey_image_jobs(
    dataset: str,
    setting_texts: Mapping[str, str],
    order: str,
    seeds: Sequence[int],
    preset: str,
) -> list[TrainingJob]:
    """Plan ERM on the same images without their colour: what an oracle could reach."""
    if dataset != "colored":
        raise ValueError(
            "--ceiling is only available for the data set colored, not for "
            f"{dataset!r}. Leave out the option."
        )
    gray = create_and_draw_dataset(dataset, {**setting_texts, "scheme": "gray"})
    return plan_jobs_of_learner(
        gray, "erm", order, seeds, preset=preset, label="erm on gray"
    )


def describe_setting_selection(
    learner: str, preset: str, settings: Mapping[str, Any]
) -> str:
    """Describe in words how settings were chosen."""
    if not get_preset_settings(learner, preset):
        words = "library defaults"
    elif preset != "paper":
        words = f"preset {preset}"
    elif learner in BORROWED:
        words = f"the paper's values for {BORROWED[learner]}"
    else:
        words = PAPER_SELECTION
    if settings:
        given = ", ".join(f"{name}={value}" for name, value in settings.items())
        words += f"; set by hand: {given}"
    return words
