"""Beyond the paper: `steady` in its protocol, without and with unlabelled rows."""

from __future__ import annotations

from typing import Any

from cirm.evaluation.adaptation import RowCount
from cirm.paper.experiment import (
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableLayout,
    PaperTableLineLayout,
)
from cirm.paper.tables_1_2 import (
    MNIST,
    build_colored_image_experiment,
    build_colored_image_trial,
    build_paper_accuracy_cell,
    build_unpublished_accuracy_cells,
)
from cirm.paper.verdicts import ADAPTED_SPLIT_PREFIX

FASHION = {**MNIST, "source": "fashion-mnist"}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist b01 n=2": ("MNIST, b01, 2 environments", MNIST),
    "mnist b01 n=6": ("MNIST, b01, 6 environments", {**MNIST, "environments": 6}),
    "mnist b01 n=10": ("MNIST, b01, 10 environments", {**MNIST, "environments": 10}),
    "mnist b11 n=2": ("MNIST, b11, 2 environments", {**MNIST, "scheme": "b11"}),
    "fashion b01 n=2": ("Fashion-MNIST, b01, 2 environments", FASHION),
    "fashion b11 n=2": (
        "Fashion-MNIST, b11, 2 environments",
        {**FASHION, "scheme": "b11"},
    ),
    "kmnist b01 n=2": (
        "A part of KMNIST, b01, 2 environments",
        {**MNIST, "source": "kmnist-part"},
    ),
    "mnist b01 reversed": (
        "MNIST, b01, colour flips 0.1, then 0.2",
        {**MNIST, "flips": (0.1, 0.2)},
    ),
    "mnist b01 25,000": (
        "MNIST, b01, 2 environments of 25,000",
        {**MNIST, "examples": 25_000},
    ),
}
FROZEN_DEFAULTS_NOTE = "defaults, chosen on other draws of MNIST and a seed of the demo"
ADAPTATION_ROW_COUNTS: tuple[RowCount, ...] = (30, 100, 300, "all")
GRAY_ORACLE_LABEL = "steady on gray"
ABLATION_SETTINGS: dict[str, dict[str, Any]] = {
    "steady": {},
    "without the search": {"level": 0.0},
    "trusting the mean effect": {"trust": "average"},
    "with two members": {"members": 2},
    "with a linear network": {"network": "linear"},
}
"""The method with one part switched off or changed."""

LEARNER_TITLES = {"steady": "steady", GRAY_ORACLE_LABEL: "steady on gray", "erm": "ERM"}


def build_steady_experiment() -> PaperExperiment:
    """Return our learner, the same without colour in its images, and ERM."""
    rows = [
        _build_experiment_row_of_steady(name, title, data)
        for name, (title, data) in ROWS.items()
    ]
    adapted = [
        (f"{ADAPTED_SPLIT_PREFIX}{count}", f"adapted, {count} rows")
        for count in ADAPTATION_ROW_COUNTS
    ]
    places = [("steady", "train", "train"), ("steady", "test", "unseen")]
    places += [("steady", split, title) for split, title in adapted]
    places += [(GRAY_ORACLE_LABEL, "test", "unseen"), ("erm", "train", "train")]
    places += [("erm", "test", "unseen")]
    lines = [
        PaperTableLineLayout(
            (row.name,), tuple((row.name, label, split) for label, split, _ in places)
        )
        for row in rows
    ]
    columns = tuple((LEARNER_TITLES[label], title) for label, _, title in places)
    layout = PaperTableLayout("Accuracy, %", ("",), columns, tuple(lines))
    title = (
        "Beyond the paper: steady in the paper's protocol, before and after adapting"
    )
    return build_colored_image_experiment("beyond", title, 10, rows, layout)


def build_steady_ablation_experiment() -> PaperExperiment:
    """Return our learner, and the same without some of its parts."""
    rows = [
        _build_experiment_row_of_ablation(name, *ROWS[name])
        for name in ("mnist b01 n=2", "mnist b11 n=2", "mnist b01 n=6")
    ]
    splits = {"test": "unseen", f"{ADAPTED_SPLIT_PREFIX}all": "adapted, all rows"}
    columns = [(row.name, split) for row in rows for split in splits]
    lines = [
        PaperTableLineLayout(
            (label,), tuple((name, label, split) for name, split in columns)
        )
        for label in ABLATION_SETTINGS
    ]
    headings = tuple((name, splits[split]) for name, split in columns)
    layout = PaperTableLayout("Accuracy, %", ("",), headings, tuple(lines))
    return build_colored_image_experiment(
        "ablation", "Ablation: steady without some of its parts", 5, rows, layout
    )


def _build_experiment_row_of_ablation(
    name: str, title: str, data: dict[str, Any]
) -> ExperimentRow:
    trials = tuple(
        _build_experiment_trial_of_steady(
            label, data, settings=settings, adapt=ADAPTATION_ROW_COUNTS[-1:]
        )
        for label, settings in ABLATION_SETTINGS.items()
    )
    cells = build_unpublished_accuracy_cells(ABLATION_SETTINGS)
    cells += tuple(
        build_paper_accuracy_cell(label, f"{ADAPTED_SPLIT_PREFIX}all")
        for label in ABLATION_SETTINGS
    )
    return ExperimentRow(name, title, trials, cells)


def _build_experiment_trial_of_steady(
    label: str,
    data: dict[str, Any],
    **rest: Any,  # noqa: ANN401
) -> ExperimentTrial:
    return build_colored_image_trial(
        label,
        "steady",
        data,
        selection=FROZEN_DEFAULTS_NOTE,
        preset="",
        block=10,
        **rest,
    )


def _build_experiment_row_of_steady(
    name: str, title: str, data: dict[str, Any]
) -> ExperimentRow:
    gray = {**data, "scheme": "gray"}
    trials = (
        _build_experiment_trial_of_steady("steady", data, adapt=ADAPTATION_ROW_COUNTS),
        _build_experiment_trial_of_steady(GRAY_ORACLE_LABEL, gray),
        build_colored_image_trial("erm", "erm", data),
    )
    cells = build_unpublished_accuracy_cells(LEARNER_TITLES)
    cells += tuple(
        build_paper_accuracy_cell("steady", f"{ADAPTED_SPLIT_PREFIX}{count}")
        for count in ADAPTATION_ROW_COUNTS
    )
    return ExperimentRow(name, title, trials, cells)
