"""Beyond the paper: methods without group labels, and EIIL as label noise grows.

Creager et al., "Environment Inference for Invariant Learning", 2021, vary the label
noise of coloured digits. EIIL needs a reference model that follows the colour. Where
labels are less noisy than colours, the reference follows the digit, the inferred
environments differ in the digit, and what is invariant between them is the colour: the
accuracy falls far below that of plain training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cirm.paper.beyond import FROZEN_DEFAULTS_NOTE
from cirm.paper.experiment import ExperimentRow, ExperimentTrial, PaperExperiment
from cirm.paper.tables_1_2 import (
    GRAY,
    MNIST,
    build_colored_image_experiment,
    build_colored_image_trial,
    build_layout_with_line_per_learner,
    build_unpublished_accuracy_cells,
)
from cirm.paper.tables_3_4 import DATA, SELECTIONS, build_environment_inference_trial

SIZES = (1000, 25_000)
LABEL_FLIPS = tuple(n / 20 for n in range(8))  # 0 to 0.35
CONTROL_SIZE = 25_000  # of a place, as EIIL's authors have it
CONTROL_FLIPS = (0.05, 0.1, 0.25)  # where their accuracy is lowest, and their usual one
USUAL_FLIP = 0.25
DEFAULTS_NOTE = "library defaults, not tuned to these data"
TRUE_GROUPS = {"groups": True}
INFERRED: dict[str, Any] = {"infer": "eiil", "infer_preset": "eiil"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("erm", {}),
    "groupdro": ("groupdro", {}),
    "groupdro, true groups": ("groupdro", {"settings": {"groups": "classes"}}),
    "groupdro after eiil": ("groupdro", INFERRED),
    "jtt": ("jtt", {}),
    "lff": ("lff", {}),
    "dfr": ("dfr", {}),
    "dfr after eiil": ("dfr", INFERRED),
}
"""Learners that see all data at once, which favours them, by their label."""


def build_group_methods_experiment() -> PaperExperiment:
    """Return methods with, without and with inferred groups, beside our learner."""
    rows = [
        _build_group_methods_row(
            f"{size}", f"MNIST, b01, 2 environments of {size:,}", trials
        )
        for size in SIZES
        for trials in [
            _list_trials_of_group_methods({**MNIST, "examples": size, "sweep": ()})
        ]
    ]
    return _build_experiment_beyond_paper(
        "groups", "Methods with and without groups", 5, rows
    )


def build_label_noise_experiment() -> PaperExperiment:
    """Return plain training, EIIL and our learner as the label noise grows."""
    rows = [
        _build_group_methods_row(
            f"{flip:g}",
            f"label noise {flip:g}",
            _list_trials_with_label_noise(flip, SIZES[0]),
        )
        for flip in LABEL_FLIPS
    ]
    rows += [
        _build_group_methods_row(
            f"{flip:g}-{CONTROL_SIZE}",
            f"label noise {flip:g}, 2 environments of {CONTROL_SIZE:,}",
            _list_trials_with_label_noise(flip, CONTROL_SIZE),
        )
        for flip in CONTROL_FLIPS
    ]
    return _build_experiment_beyond_paper(
        "label-noise", "Label noise on coloured MNIST", 3, rows
    )


def _list_trials_of_group_methods(data: dict[str, Any]) -> list[ExperimentTrial]:
    trials = [_build_group_trial_of_steady(data)]
    for label, (learner, rest) in METHODS.items():
        own = {**data, **TRUE_GROUPS} if "true groups" in label else data
        way = "joint", DEFAULTS_NOTE, ""
        trials.append(build_colored_image_trial(label, learner, own, *way, **rest))
    return trials


def _list_trials_with_label_noise(
    flip_probability: float, n_examples: int
) -> list[ExperimentTrial]:
    data = {
        **DATA, "environments": 2, "flips": (0.2, 0.1), "examples": n_examples,
        "label_flip": flip_probability, "sweep": (),
    }  # fmt: skip
    if n_examples == CONTROL_SIZE and flip_probability == USUAL_FLIP:
        del data["label_flip"], data["sweep"]  # these are the runs of table 3
    way = "joint", SELECTIONS["erm"], "irm"
    return [
        _build_group_trial_of_steady(data),
        build_colored_image_trial("erm", "erm", data, *way),
        build_environment_inference_trial("irmv1", data, "eiil"),
        build_environment_inference_trial("irmv1", data, ""),
        build_colored_image_trial(GRAY, "erm", {**data, "scheme": "gray"}, *way),
    ]


def _build_group_trial_of_steady(data: dict[str, Any]) -> ExperimentTrial:
    return build_colored_image_trial(
        "steady", "steady", data, selection=FROZEN_DEFAULTS_NOTE, preset=""
    )


def _build_group_methods_row(
    name: str, title: str, trials: Sequence[ExperimentTrial]
) -> ExperimentRow:
    cells = build_unpublished_accuracy_cells([trial.label for trial in trials])
    return ExperimentRow(name, title, tuple(trials), cells)


def _build_experiment_beyond_paper(
    name: str, title: str, n_seeds: int, rows: Sequence[ExperimentRow]
) -> PaperExperiment:
    layout = build_layout_with_line_per_learner(
        rows, ("data", "learner"), lambda row, label: (row.title, label)
    )
    return build_colored_image_experiment(
        name, f"Beyond the paper: {title[0].lower()}{title[1:]}", n_seeds, rows, layout
    )
