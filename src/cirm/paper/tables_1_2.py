"""Tables 1 and 2: coloured images, one environment after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cirm.paper.experiment import (
    CHANCE_ACCURACY,
    CellPosition,
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableCell,
    PaperTableLayout,
    PaperTableLineLayout,
    parse_published_mean_and_std,
    read_published_table,
)
from cirm.runs.jobs import PAPER_SELECTION

LEARNERS = {
    "c-bvirm": "C-BVIRM",
    "c-virmg": "C-VIRMG",
    "c-virmv1": "C-VIRMv1",
    "erm": "ERM",
    "ewc": "EWC",
    "gem": "GEM",
    "irmg": "IRMG",
    "irmv1": "IRMv1",
    "mer": "MER",
    "vcl": "VCL",
    "vclc": "VCLC",
}
"""The paper's name of each learner, in the order of its columns."""

GRAY = "erm on gray"
JOINT = {"erm, all data kept": "erm", "irmv1, all data kept": "irmv1"}
REFERENCES = {
    GRAY: "ERM on gray",
    "erm, all data kept": "ERM, all data kept",
    "irmv1, all data kept": "IRMv1, all data kept",
    CHANCE_ACCURACY: "chance",
}
"""References for the reader, which the paper does not print."""

MNIST: dict[str, Any] = {
    "source": "mnist",
    "scheme": "b01",
    "environments": 2,
    "examples": 1000,
}
DATA: dict[tuple[str, str], dict[str, Any]] = {
    ("n", "2"): MNIST,
    ("n", "6"): {**MNIST, "environments": 6},
    ("n", "10"): {**MNIST, "environments": 10},
    ("d", "mnist"): MNIST,
    ("d", "fashion-mnist"): {**MNIST, "source": "fashion-mnist"},
    ("d", "kmnist"): {**MNIST, "source": "kmnist"},
    ("d", "emnist-letters"): {**MNIST, "source": "emnist-letters"},
    ("c", "b01"): MNIST,
    ("c", "b11"): {**MNIST, "scheme": "b11"},
}
"""Data by group and value of table 2's rows; colour flips fall from 0.2 to 0.1."""

SOURCES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "emnist-letters": "EMNIST Letters",
    "kmnist-part": "a part of KMNIST",
    "emnist-letters-part": "a part of EMNIST Letters",
}
AXIS = "colour flip of the unseen environment"
SPLITS = ("train", "test")


def build_table1_experiment() -> PaperExperiment:
    """Return table 1: train and test accuracy on two environments of MNIST."""
    printed = read_published_table("table1")
    numbers = {split: printed[split] for split in SPLITS}
    row = build_colored_image_row("mnist", MNIST, numbers)
    columns = {**LEARNERS, **REFERENCES}
    lines = [
        PaperTableLineLayout(
            (split,), tuple((row.name, label, split) for label in columns)
        )
        for split in numbers
    ]
    title = "Table 1: two consecutive environments of coloured MNIST"
    return build_colored_image_experiment(
        "table1",
        title,
        5,
        [row],
        _build_layout_with_column_per_learner("Accuracy, %", ("",), lines),
    )


def build_table2_experiment() -> PaperExperiment:
    """Return table 2: test accuracy by environments, data set and colour scheme."""
    rows, lines = [], []
    for printed in read_published_table("table2")["rows"]:
        group, value = printed["group"], printed["value"]
        row = build_colored_image_row(
            f"{group}={value}", DATA[group, value], {"test": printed["cells"]}
        )
        rows.append(row)
        places: list[CellPosition] = [
            (row.name, c, "test") for c in (*LEARNERS, *REFERENCES)
        ]
        lines.append(
            PaperTableLineLayout((group, SOURCES.get(value, value)), tuple(places))
        )
    title = "Table 2: by number of environments (n), data set (d) and colours (c)"
    layout = _build_layout_with_column_per_learner("Test accuracy, %", ("", ""), lines)
    return build_colored_image_experiment("table2", title, 5, rows, layout)


def build_colored_image_experiment(
    name: str,
    title: str,
    n_seeds: int,
    rows: Sequence[ExperimentRow],
    layout: PaperTableLayout,
) -> PaperExperiment:
    """Return an experiment on coloured images of two classes."""
    return PaperExperiment(name, title, n_seeds, tuple(rows), (layout,), 50.0, AXIS)


def build_colored_image_trial(
    label: str,
    learner: str,
    data: dict[str, Any],
    order: str = "sequential",
    selection: str = PAPER_SELECTION,
    preset: str = "paper",
    **rest: Any,  # noqa: ANN401  further fields of Trial
) -> ExperimentTrial:
    """Return a trial on coloured images, with the paper's settings unless given."""
    return ExperimentTrial(
        label, learner, "colored", data, order, selection, preset, **rest
    )


def build_paper_accuracy_cell(
    label: str, split: str, published: Mapping[str, float] | None = None
) -> PaperTableCell:
    """Return the cell of an accuracy, with the paper's number if it prints one."""
    return PaperTableCell(
        label, split, "accuracy", parse_published_mean_and_std(published)
    )


def build_unpublished_accuracy_cells(
    labels: Iterable[str],
) -> tuple[PaperTableCell, ...]:
    """List accuracies that the paper does not print."""
    return tuple(
        build_paper_accuracy_cell(label, split) for label in labels for split in SPLITS
    )


def build_layout_with_line_per_learner(
    rows: Iterable[ExperimentRow],
    corner: tuple[str, ...],
    heads: Callable[[ExperimentRow, str], tuple[str, ...]],
) -> PaperTableLayout:
    """Return a layout with a line for each learner of each row."""
    lines = [
        PaperTableLineLayout(
            heads(row, label), tuple((row.name, label, split) for split in SPLITS)
        )
        for row in rows
        for label in row.labels
    ]
    columns = tuple((split,) for split in SPLITS)
    return PaperTableLayout("Accuracy, %", corner, columns, tuple(lines))


def _build_layout_with_column_per_learner(
    title: str, corner: tuple[str, ...], lines: list[PaperTableLineLayout]
) -> PaperTableLayout:
    names = (*LEARNERS.values(), *REFERENCES.values())
    return PaperTableLayout(
        title, corner, tuple((name,) for name in names), tuple(lines)
    )


def build_colored_image_row(
    name: str,
    data: dict[str, Any],
    published: Mapping[str, Mapping[str, Any]],
    with_references: bool = True,
) -> ExperimentRow:
    """Return all learners on one data set, with or without references.

    `published` has the paper's numbers by split and learner.
    """
    trials = [build_colored_image_trial(key, key, data) for key in LEARNERS]
    if with_references:
        trials.append(
            build_colored_image_trial(GRAY, "erm", {**data, "scheme": "gray"})
        )
        trials += [
            build_colored_image_trial(label, key, data, order="joint")
            for label, key in JOINT.items()
        ]
    cells = [
        build_paper_accuracy_cell(trial.label, split, values.get(trial.label))
        for split, values in published.items()
        for trial in trials
    ]
    if with_references:
        cells += [
            build_paper_accuracy_cell(CHANCE_ACCURACY, split) for split in published
        ]
    title = (
        f"{SOURCES[data['source']]}, {data['scheme']}, "
        f"{data['environments']} environments"
    )
    return ExperimentRow(name, title, tuple(trials), tuple(cells))
