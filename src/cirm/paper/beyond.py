"""What the paper does not reach: `cirm` in its protocol, and what each part gives."""

from __future__ import annotations

from typing import Any

from cirm.paper.sequences import (
    GRAY,
    MNIST,
    SPLITS,
    accuracies,
    of_images,
)
from cirm.paper.trials import (
    Experiment,
    Layout,
    Line,
    Row,
    Trial,
)
from cirm.runs.jobs import PAPER_SELECTION

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
WITHOUT: dict[str, dict[str, Any]] = {
    "cirm": {},
    "without inference": {"shortcut": "keep"},
    "without balancing": {"cap": 1.0},
    "without hiding": {"hide": False},
    "without correction": {"correct": False},
    "without posterior": {"beta": 0.0},
    "without carried direction": {"carry": False},
    "with a memory of 10 %": {"memory": 0.1},
}
"""Parts of the method, turned off one at a time, or on."""

NAMES = {"cirm": "cirm", "erm": "ERM", GRAY: "ERM on gray"}


def beyond() -> Experiment:
    """Our learner, plain training and the colour-blind ceiling, ten seeds each."""
    rows = [_row(name, title, data) for name, (title, data) in ROWS.items()]
    places = [(name, split) for name in NAMES for split in SPLITS]
    lines = [
        Line((row.name,), tuple((row.name, label, split) for label, split in places))
        for row in rows
    ]
    columns = tuple((NAMES[label], split) for label, split in places)
    layout = Layout("Accuracy, %", ("",), columns, tuple(lines))
    title = "Beyond the paper: cirm in its protocol, near the colour-blind ceiling"
    return of_images("beyond", title, 10, rows, layout)


def ablation() -> Experiment:
    """Our learner, and the same without each of its parts."""
    rows = [
        _parts(name, *ROWS[name])
        for name in ("mnist b01 n=2", "mnist b11 n=2", "mnist b01 n=6")
    ]
    columns = [(row.name, split) for row in rows for split in SPLITS]
    lines = [
        Line((label,), tuple((name, label, split) for name, split in columns))
        for label in WITHOUT
    ]
    layout = Layout("Accuracy, %", ("",), tuple(columns), tuple(lines))
    return of_images("ablation", "What each part of cirm gives", 5, rows, layout)


def _parts(name: str, title: str, data: dict[str, Any]) -> Row:
    trials = tuple(
        Trial(
            label,
            "cirm",
            "colored",
            data,
            "sequential",
            FROZEN,
            preset="paper",
            settings=settings,
        )
        for label, settings in WITHOUT.items()
    )
    return Row(name, title, trials, accuracies(WITHOUT))


def _row(name: str, title: str, data: dict[str, Any]) -> Row:
    gray = {**data, "scheme": "gray"}
    trials = (
        Trial("cirm", "cirm", "colored", data, "sequential", FROZEN, preset="paper"),
        Trial(
            "erm", "erm", "colored", data, "sequential", PAPER_SELECTION, preset="paper"
        ),
        Trial(
            GRAY, "erm", "colored", gray, "sequential", PAPER_SELECTION, preset="paper"
        ),
    )
    return Row(name, title, trials, accuracies(NAMES))
