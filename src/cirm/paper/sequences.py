"""Tables 1 and 2: coloured images, one environment after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cirm.paper.numbers import figure, table
from cirm.paper.trials import (
    CHANCE,
    Experiment,
    Layout,
    Line,
    Place,
    Row,
    TableCell,
    Trial,
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
KEPT = {"erm, all data kept": "erm", "irmv1, all data kept": "irmv1"}
REFERENCES = {
    GRAY: "ERM on gray",
    "erm, all data kept": "ERM, all data kept",
    "irmv1, all data kept": "IRMv1, all data kept",
    CHANCE: "chance",
}
"""What a reader needs to judge the others; the paper does not print them."""

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
"""Group and value of table 2's rows; the environments are from 0.2 down to 0.1."""

SOURCES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "emnist-letters": "EMNIST Letters",
}
AXIS = "colour flip of the unseen environment"
SPLITS = ("train", "test")


def table1() -> Experiment:
    """Two environments of MNIST: train and test accuracy."""
    printed = table("table1")
    numbers = {split: printed[split] for split in SPLITS}
    row = _row("mnist", MNIST, numbers)
    columns = {**LEARNERS, **REFERENCES}
    lines = [
        Line((split,), tuple((row.name, label, split) for label in columns))
        for split in numbers
    ]
    title = "Table 1: two consecutive environments of coloured MNIST"
    return of_images("table1", title, 5, [row], _layout("Accuracy, %", ("",), lines))


def table2() -> Experiment:
    """Test accuracy by number of environments, data set and colour scheme."""
    rows, lines = [], []
    for printed in table("table2")["rows"]:
        group, value = printed["group"], printed["value"]
        row = _row(f"{group}={value}", DATA[group, value], {"test": printed["cells"]})
        rows.append(row)
        places: list[Place] = [(row.name, c, "test") for c in (*LEARNERS, *REFERENCES)]
        lines.append(Line((group, SOURCES.get(value, value)), tuple(places)))
    title = "Table 2: by number of environments (n), data set (d) and colours (c)"
    layout = _layout("Test accuracy, %", ("", ""), lines)
    return of_images("table2", title, 5, rows, layout)


def of_images(
    name: str, title: str, seeds: int, rows: Sequence[Row], layout: Layout
) -> Experiment:
    """A table of accuracies on coloured images of two classes."""
    return Experiment(name, title, seeds, tuple(rows), (layout,), 50.0, AXIS)


def accuracies(labels: Iterable[str]) -> tuple[TableCell, ...]:
    """Accuracies of learners of which the paper prints nothing."""
    return tuple(
        TableCell(label, split, "accuracy") for label in labels for split in SPLITS
    )


def listed(
    rows: Iterable[Row],
    corner: tuple[str, ...],
    heads: Callable[[Row, str], tuple[str, ...]],
) -> Layout:
    """A line per learner of each row, with its accuracies."""
    lines = [
        Line(heads(row, label), tuple((row.name, label, split) for split in SPLITS))
        for row in rows
        for label in row.labels
    ]
    columns = tuple((split,) for split in SPLITS)
    return Layout("Accuracy, %", corner, columns, tuple(lines))


def _layout(title: str, corner: tuple[str, ...], lines: list[Line]) -> Layout:
    names = (*LEARNERS.values(), *REFERENCES.values())
    return Layout(title, corner, tuple((name,) for name in names), tuple(lines))


def _row(
    name: str, data: dict[str, Any], printed: Mapping[str, Mapping[str, Any]]
) -> Row:
    """All learners and references on one data set; `printed` by split and learner."""
    trials = [_trial(key, key, data, "sequential") for key in LEARNERS]
    trials.append(_trial(GRAY, "erm", {**data, "scheme": "gray"}, "sequential"))
    trials += [_trial(label, key, data, "joint") for label, key in KEPT.items()]
    wanted = [
        TableCell(trial.label, split, "accuracy", figure(cells.get(trial.label)))
        for split, cells in printed.items()
        for trial in trials
    ]
    wanted += [TableCell(CHANCE, split, "accuracy") for split in printed]
    title = (
        f"{SOURCES[data['source']]}, {data['scheme']}, "
        f"{data['environments']} environments"
    )
    return Row(name, title, tuple(trials), tuple(wanted))


def _trial(label: str, learner: str, data: dict[str, Any], order: str) -> Trial:
    return Trial(
        label, learner, "colored", data, order, PAPER_SELECTION, preset="paper"
    )
