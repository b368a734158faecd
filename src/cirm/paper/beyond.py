"""Beyond the paper: `cirm` in its protocol, and an ablation of the parts of `cirm`."""

from __future__ import annotations

from typing import Any

from cirm.paper.experiment import Experiment, Layout, Line, Row
from cirm.paper.tables_1_2 import (
    GRAY,
    MNIST,
    SPLITS,
    build_image_experiment,
    build_image_trial,
    list_accuracy_cells,
)

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
    "mnist b01 reversed": (
        "MNIST, b01, colour flips 0.1, then 0.2",
        {**MNIST, "flips": (0.1, 0.2)},
    ),
    "mnist b01 25,000": (
        "MNIST, b01, 2 environments of 25,000",
        {**MNIST, "examples": 25_000},
    ),
}
FROZEN = (
    "defaults, chosen on MNIST b01 by held-out training examples, then frozen (but for "
    "dropout with more than 1,000 examples)"
)
VARIANTS: dict[str, dict[str, Any]] = {
    "cirm": {},
    "without inference": {"shortcut": "keep"},
    "without balancing": {"cap": 1.0},
    "without hiding": {"hide": False},
    "without correction": {"correct": False},
    "without posterior": {"beta": 0.0},
    "without carried direction": {"carry": False},
    "with a memory of 10 %": {"memory": 0.1},
}
"""The method with one part switched off, or on."""

NAMES = {"cirm": "cirm", "erm": "ERM", GRAY: "ERM on gray"}


def build_beyond() -> Experiment:
    """Return our learner, plain training and the ceiling without colour."""
    rows = [_build_row(name, title, data) for name, (title, data) in ROWS.items()]
    places = [(name, split) for name in NAMES for split in SPLITS]
    lines = [
        Line((row.name,), tuple((row.name, label, split) for label, split in places))
        for row in rows
    ]
    columns = tuple((NAMES[label], split) for label, split in places)
    layout = Layout("Accuracy, %", ("",), columns, tuple(lines))
    title = "Beyond the paper: cirm in its protocol, near the colour-blind ceiling"
    return build_image_experiment("beyond", title, 10, rows, layout)


def build_ablation() -> Experiment:
    """Return our learner, and the same without each of its parts."""
    rows = [
        _build_ablation_row(name, *ROWS[name])
        for name in ("mnist b01 n=2", "mnist b11 n=2", "mnist b01 n=6")
    ]
    columns = [(row.name, split) for row in rows for split in SPLITS]
    lines = [
        Line((label,), tuple((name, label, split) for name, split in columns))
        for label in VARIANTS
    ]
    layout = Layout("Accuracy, %", ("",), tuple(columns), tuple(lines))
    return build_image_experiment(
        "ablation", "What each part of cirm gives", 5, rows, layout
    )


def _build_ablation_row(name: str, title: str, data: dict[str, Any]) -> Row:
    trials = tuple(
        build_image_trial(label, "cirm", data, selection=FROZEN, settings=settings)
        for label, settings in VARIANTS.items()
    )
    return Row(name, title, trials, list_accuracy_cells(VARIANTS))


def _build_row(name: str, title: str, data: dict[str, Any]) -> Row:
    trials = (
        build_image_trial("cirm", "cirm", data, selection=FROZEN),
        build_image_trial("erm", "erm", data),
        build_image_trial(GRAY, "erm", {**data, "scheme": "gray"}),
    )
    return Row(name, title, trials, list_accuracy_cells(NAMES))
