"""Other readings of tables 3 and 4, mostly with fewer examples.

The paper says neither what the spreads of the posterior start from, nor how long the
model is trained by which environments are inferred, nor whether the accuracy on the
training environment is that of all examples or the mean over the inferred groups. It
says that table 4 is about one environment; the authors of the inference pool two and
split the pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cirm.paper.experiment import (
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableLayout,
    PaperTableLineLayout,
)
from cirm.paper.readings import describe_reading_of_paper
from cirm.paper.tables_1_2 import (
    SPLITS,
    build_colored_image_experiment,
    build_layout_with_line_per_learner,
    build_paper_accuracy_cell,
    build_unpublished_accuracy_cells,
)
from cirm.paper.tables_3_4 import ONE, TWO, build_environment_inference_trial

SettingsByReading = dict[str, dict[str, dict[str, Any]]]
"""By name: the settings that a reading changes, by the part of the trial."""

SIZE = 10_000
ALL = 50_000
POOLED = (2_000, 5_000, SIZE, 20_000)
SCORED_BY_GROUP = (1_000, 2_000, 5_000, 20_000, ALL)
"""Sizes at which train accuracies of table 4 differ from the paper's."""

INFERRED = "inferred"
"""The split of the inferred groups; its accuracy is the mean over them."""

AS_IT_IS: SettingsByReading = {"": {}}
NARROW: SettingsByReading = {
    "spreads start at 0.0067": {"settings": {"initial_std": 0.0067}}
}
GIVEN: dict[str, SettingsByReading] = {
    "irmv1": {
        **AS_IT_IS,
        "penalty 91,257": {"settings": {"penalty": 91257.18613115903}},
    },
    "c-virmv1": {
        **AS_IT_IS,
        **NARROW,
        "no divergence": {"settings": {"beta": 0.0}},
        "1 draw a step": {"settings": {"samples": 1}},
        "100 draws to predict": {"settings": {"evaluations": 100}},
    },
}
SPLIT: dict[str, SettingsByReading] = {
    "irmv1": {
        **AS_IT_IS,
        "reference of 50 steps": {"inference": {"epochs": 50}},
        "reference of 100 steps": {"inference": {"epochs": 100}},
        "reference of 200 steps": {"inference": {"epochs": 200}},
    },
    "c-virmv1": {
        **AS_IT_IS,
        **NARROW,
        "1 draw a step": {"settings": {"samples": 1}},
    },
}
BY_GROUP: dict[str, SettingsByReading] = {
    key: {"scored by inferred group": {}} for key in ("irmv1", "c-virmv1")
}


def build_experiment_of_other_readings_of_tables3_and_4() -> PaperExperiment:
    """Return readings on two given environments, on one split, and on a split pool."""
    one = {**ONE, "examples": SIZE}
    two = {size: {**TWO, "examples": size // 2} for size in POOLED}
    rows = [
        _build_row_of_inference_readings("two given", two[SIZE], "", GIVEN),
        _build_row_of_inference_readings("one split", one, "eiil", SPLIT),
    ]
    pooled = {"irmv1": AS_IT_IS, "c-virmv1": NARROW}
    rows += [
        _build_row_of_inference_readings(
            f"two pooled and split, {size:,} examples", data, "eiil", pooled
        )
        for size, data in two.items()
    ]
    narrow = {"c-virmv1": NARROW}
    rows += [
        _build_row_of_inference_readings(
            f"{name}, {ALL:,} examples", data, infer, narrow
        )
        for name, data, infer in (
            ("two given", TWO, ""),
            ("two pooled and split", TWO, "eiil"),
            ("one split", {**ONE, "examples": ALL}, "eiil"),
        )
    ]
    groups = [
        _build_group_scores_row(f"one split, {size:,}", {**ONE, "examples": size})
        for size in SCORED_BY_GROUP
    ]
    layout = build_layout_with_line_per_learner(
        rows,
        ("environments", "learner: reading"),
        _describe_table_line_of_reading,
    )
    title = (
        f"Readings of tables 3 and 4, with {SIZE:,} examples unless stated otherwise"
    )
    whole = [*rows, *groups]
    experiment = build_colored_image_experiment(
        "readings-inferred", title, 3, whole, layout
    )
    return replace(experiment, layouts=(layout, _build_group_scores_layout(groups)))


def _describe_table_line_of_reading(row: ExperimentRow, label: str) -> tuple[str, str]:
    return describe_reading_of_paper(row.name), describe_reading_of_paper(label)


def _build_group_scores_row(name: str, data: dict[str, Any]) -> ExperimentRow:
    """Return a row whose learners are also scored on each inferred group."""
    row = _build_row_of_inference_readings(name, data, "eiil", BY_GROUP)
    more = tuple(build_paper_accuracy_cell(label, INFERRED) for label in row.labels)
    return replace(row, cells=(*row.cells, *more))


def _build_group_scores_layout(rows: list[ExperimentRow]) -> PaperTableLayout:
    columns = {**{s: s for s in SPLITS}, INFERRED: "train, mean of inferred groups"}
    lines = [
        PaperTableLineLayout(
            _describe_table_line_of_reading(row, label),
            tuple((row.name, label, split) for split in columns),
        )
        for row in rows
        for label in row.labels
    ]
    return PaperTableLayout(
        "Accuracy, %, with the examples scored by inferred group",
        ("environments", "learner: reading"),
        tuple((name,) for name in columns.values()),
        tuple(lines),
    )


def _build_row_of_inference_readings(
    name: str, data: dict[str, Any], infer: str, readings: dict[str, SettingsByReading]
) -> ExperimentRow:
    trials = [
        _apply_reading_to_trial(
            build_environment_inference_trial(key, data, infer), reading, changes
        )
        for key, changes_by_reading in readings.items()
        for reading, changes in changes_by_reading.items()
    ]
    cells = build_unpublished_accuracy_cells(trial.label for trial in trials)
    return ExperimentRow(name, f"Readings: {name}", tuple(trials), cells)


def _apply_reading_to_trial(
    trial: ExperimentTrial, reading: str, changes: dict[str, dict[str, Any]]
) -> ExperimentTrial:
    """Return a trial of a table with the changes of a reading."""
    return replace(
        trial,
        label=f"{trial.label}: {reading}" if reading else trial.label,
        settings={**trial.settings, **changes.get("settings", {})},
        inference={**trial.inference, **changes.get("inference", {})},
    )
