"""Other readings of table 2: its presets, its colours, and parts of two data sets.

The text of the paper colours the background of Fashion-MNIST (b11), while its tables
name one colouring, b01. The reference methods' spreads of table 1 are those of both
colourings taken together. KMNIST and EMNIST are run on the parts that could be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cirm.paper.experiment import (
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableLayout,
    PaperTableLineLayout,
    read_published_table,
)
from cirm.paper.readings import (
    GAME_ENDS,
    NO_DROPOUT,
    PRINTED_KL,
    describe_reading_of_paper,
)
from cirm.paper.tables_1_2 import (
    DATA,
    JOINT,
    LEARNERS,
    MNIST,
    REFERENCES,
    build_colored_image_experiment,
    build_colored_image_row,
    build_colored_image_trial,
    build_layout_with_line_per_learner,
    build_paper_accuracy_cell,
)

B11 = {**MNIST, "scheme": "b11"}
FASHION = {**MNIST, "source": "fashion-mnist"}
PARTS = {
    "d=kmnist": {**MNIST, "source": "kmnist-part"},
    "d=emnist-letters": {**MNIST, "source": "emnist-letters-part"},
}
WITH_DROPOUT_NOW = ("irmv1", "ewc", "gem", "mer")
"""Learners that had no dropout in the first version of the presets."""

MORE: dict[str, dict[str, dict[str, Any]]] = {
    "n=6": {
        "c-bvirm: KL as printed, dropout 0.75": {
            "settings": {**PRINTED_KL, "dropout": 0.75}
        },
        **{f"c-virmg: {n}": {"settings": s} for n, s in GAME_ENDS.items()},
    },
    "c=b11": {
        f"{key}: inputs standardised": {"data": {**B11, "standardise": True}}
        for key in ("c-bvirm", "c-virmg", "c-virmv1", "vcl")
    },
}
"""By row and label: what a reading changes in the trial of table 2."""


def build_experiment_of_other_readings_of_table2() -> PaperExperiment:
    """Return readings on the data of table 2's rows, beside its test accuracies."""
    printed = _read_table2_rows()
    rows = [
        _build_row_of_table2_readings(name, DATA[group, value], printed[name])
        for group, value in (("n", "6"), ("n", "10"), ("d", "fashion-mnist"),
                             ("c", "b11"))
        for name in [f"{group}={value}"]
    ]  # fmt: skip
    layout = build_layout_with_line_per_learner(
        rows,
        ("row", "learner: reading"),
        lambda row, label: (row.name, describe_reading_of_paper(label)),
    )
    title = "Alternative readings on the data of table 2"
    return _build_experiment_repeating_table2_rows(
        "readings-table2", title, 3, rows, layout
    )


def build_both_colourings_experiment() -> PaperExperiment:
    """Return MNIST and Fashion-MNIST in both colourings, and both taken together."""
    printed = _read_table2_rows()
    table1 = read_published_table("table1")["test"]
    fashion = printed["d=fashion-mnist"]
    sets = {
        "MNIST": (MNIST, printed["c=b01"], printed["c=b11"], table1),
        "Fashion-MNIST": (FASHION, fashion, fashion, fashion),
    }
    rows = []
    for name, (data, *numbers) in sets.items():
        names = [f"{name} {scheme}" for scheme in ("b01", "b11")]
        rows += [
            build_colored_image_row(
                each,
                {**data, "scheme": each[-3:]},
                {"test": cells},
                with_references=False,
            )
            for each, cells in zip(names, numbers[:2], strict=True)
        ]
        cells = tuple(
            build_paper_accuracy_cell(key, "test", numbers[2][key]) for key in LEARNERS
        )
        both = f"{name} b01 and b11"
        rows.append(ExperimentRow(both, both, (), cells, pools=tuple(names)))
    layout = _build_learner_columns_layout(rows, LEARNERS)
    title = "Both colourings: b01, b11, and the runs of both taken together"
    return _build_experiment_repeating_table2_rows("colourings", title, 5, rows, layout)


def build_partial_datasets_experiment() -> PaperExperiment:
    """Return the rows of table 2 whose data could be had in part only."""
    printed = _read_table2_rows()
    rows = [
        build_colored_image_row(f"{name}, a part", data, {"test": printed[name]})
        for name, data in PARTS.items()
    ]
    layout = _build_learner_columns_layout(rows, {**LEARNERS, **REFERENCES})
    title = (
        "Table 2 on parts of KMNIST and EMNIST Letters: 4,000 images to train on and "
        "6,000 to test on, of EMNIST the letters A to M"
    )
    return _build_experiment_repeating_table2_rows("parts", title, 5, rows, layout)


def _read_table2_rows() -> dict[str, dict[str, Any]]:
    """Return the paper's numbers by row and learner."""
    rows = read_published_table("table2")["rows"]
    return {f"{row['group']}={row['value']}": row["cells"] for row in rows}


def _build_experiment_repeating_table2_rows(
    name: str,
    title: str,
    n_seeds: int,
    rows: list[ExperimentRow],
    layout: PaperTableLayout,
) -> PaperExperiment:
    experiment = build_colored_image_experiment(name, title, n_seeds, rows, layout)
    return replace(experiment, repeats=True)


def _build_row_of_table2_readings(
    name: str, data: dict[str, Any], published: Mapping[str, Any]
) -> ExperimentRow:
    """Return what the first presets gave on a row's data, and further readings."""
    trials = [
        build_colored_image_trial(f"{key}: {reading}", key, data, settings=settings)
        for key in WITH_DROPOUT_NOW
        for reading, settings in NO_DROPOUT.items()
    ]
    trials += [
        build_colored_image_trial(
            f"{label}: {reading}", key, data, "joint", settings=settings
        )
        for label, key in JOINT.items()
        if key in WITH_DROPOUT_NOW
        for reading, settings in NO_DROPOUT.items()
    ]
    trials.append(
        build_colored_image_trial(
            "c-virmg: 20 draws to predict",
            "c-virmg",
            data,
            settings={"evaluations": 20},
        )
    )
    trials += [
        build_colored_image_trial(
            **{"label": label, "learner": label.partition(":")[0], "data": data, **way}
        )
        for label, way in MORE.get(name, {}).items()
    ]
    cells = [
        build_paper_accuracy_cell(
            trial.label, split, _get_published_cell_of_learner(trial, split, published)
        )
        for trial in trials
        for split in ("train", "test")
    ]
    return ExperimentRow(name, f"Readings: {name}", tuple(trials), tuple(cells))


def _get_published_cell_of_learner(
    trial: ExperimentTrial, split: str, published: Mapping[str, Any]
) -> Mapping[str, float] | None:
    """Return the paper's number of a learner on a sequence; it prints the test only."""
    is_printed = split == "test" and trial.order == "sequential"
    return published[trial.learner] if is_printed else None


def _build_learner_columns_layout(
    rows: list[ExperimentRow], columns: Mapping[str, str]
) -> PaperTableLayout:
    lines = [
        PaperTableLineLayout(
            (row.name,), tuple((row.name, key, "test") for key in columns)
        )
        for row in rows
    ]
    names = tuple((name,) for name in columns.values())
    return PaperTableLayout("Test accuracy, %", ("",), names, tuple(lines))
