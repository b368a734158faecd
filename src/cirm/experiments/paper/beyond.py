"""What the paper does not reach: `cirm` in its protocol, beside the ceiling."""

from __future__ import annotations

from typing import Any

from cirm.experiments.paper.sequences import AXIS, GRAY, MNIST
from cirm.experiments.trials import Experiment, Layout, Line, Row, Trial, Wanted

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
FROZEN = "defaults, chosen on MNIST b01 by held-out training examples, then frozen"
PUBLISHED = "the paper's values (the paper chose by test accuracy)"
NAMES = {"cirm": "cirm", "erm": "ERM", GRAY: "ERM on gray"}


def beyond() -> Experiment:
    """Our learner, plain training and the colour-blind ceiling, ten seeds each."""
    rows = [_row(name, title, data) for name, (title, data) in ROWS.items()]
    places = [(name, split) for name in NAMES for split in ("train", "test")]
    lines = [
        Line((row.name,), tuple((row.name, label, split) for label, split in places))
        for row in rows
    ]
    columns = tuple((NAMES[label], split) for label, split in places)
    layout = Layout("Accuracy, %", ("",), columns, tuple(lines))
    return Experiment(
        name="beyond",
        title="Beyond the paper: cirm in its protocol, near the colour-blind ceiling",
        seeds=10,
        rows=tuple(rows),
        layouts=(layout,),
        chance=50.0,
        axis=AXIS,
    )


def _row(name: str, title: str, data: dict[str, Any]) -> Row:
    gray = {**data, "scheme": "gray"}
    trials = (
        Trial("cirm", "cirm", "colored", data, "sequential", FROZEN, preset="paper"),
        Trial("erm", "erm", "colored", data, "sequential", PUBLISHED, preset="paper"),
        Trial(GRAY, "erm", "colored", gray, "sequential", PUBLISHED, preset="paper"),
    )
    wanted = tuple(
        Wanted(label, split, "accuracy")
        for label in NAMES
        for split in ("train", "test")
    )
    return Row(name, title, trials, wanted)
