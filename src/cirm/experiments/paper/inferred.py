"""Tables 3 and 4: environments inferred, from two given ones or from a single one.

The data are those of Arjovsky et al., "Invariant Risk Minimization", 2019: digits below
five are the label 1, every second pixel, and the last 10,000 images of the training
file for the test. The penalty is the one of Creager et al., "Environment Inference for
Invariant Learning", 2021, which differs from IRM's in one digit.
"""

from __future__ import annotations

from typing import Any

from cirm.experiments.paper.numbers import figure, table
from cirm.experiments.paper.sequences import of_images
from cirm.experiments.trials import Experiment, Layout, Line, Row, Trial, Wanted

LEARNERS = {"irmv1": "IRMv1", "c-virmv1": "C-VIRMv1"}
INFERENCES = {"no-eiil": "", "eiil": "eiil"}
DATA: dict[str, Any] = {
    "source": "mnist",
    "scheme": "b01",
    "labels": "below-five",
    "side": 14,
    "test_from": "train-tail",
}
TWO: dict[str, Any] = {
    **DATA,
    "environments": 2,
    "flips": (0.2, 0.1),
    "examples": 25_000,
}
ONE: dict[str, Any] = {**DATA, "environments": 1, "flips": (0.1,)}
SIZES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
PENALTY = {"penalty": 191257.18613115902}
PRESETS = {"irmv1": ("irm", PENALTY), "c-virmv1": ("eiil", {})}
SELECTION = "the published values of IRM and EIIL (chosen there by test accuracy)"


def table3() -> Experiment:
    """Two environments at once, with and without inference."""
    printed = table("table3")
    rows = [_row(name, name, TWO, printed[name]) for name in INFERENCES]
    heads = ("No EIIL", "EIIL")
    lines = [Line((head,), _places(row)) for head, row in zip(heads, rows, strict=True)]
    columns = [(name, split) for name in LEARNERS.values() for split in _heads()]
    layout = Layout("Accuracy, %", ("",), tuple(columns), tuple(lines))
    title = "Table 3: two environments at once, given and inferred"
    return of_images("table3", title, 10, rows, layout)


def table4() -> Experiment:
    """One environment of several sizes, with and without inference."""
    rows, lines = [], []
    for printed in table("table4")["rows"]:
        size = printed["examples"]
        data = {**ONE, "examples": size}
        pair = [_row(f"{size} {n}", n, data, printed[n]) for n in INFERENCES]
        rows += pair
        lines.append(Line((f"{size:,}",), (*_places(pair[0]), *_places(pair[1]))))
    columns = [
        (way, name, split)
        for way in ("Without inference", "With EIIL")
        for name in LEARNERS.values()
        for split in _heads()
    ]
    layout = Layout("Accuracy, %", ("examples",), tuple(columns), tuple(lines))
    title = "Table 4: one environment, with and without inference"
    return of_images("table4", title, 5, rows, layout)


def _heads() -> tuple[str, str]:
    return ("Train", "Test")


def _places(row: Row) -> tuple[tuple[str, str, str], ...]:
    splits = ("train", "test")
    return tuple((row.name, label, split) for label in row.labels for split in splits)


def _row(name: str, way: str, data: dict[str, Any], printed: dict[str, Any]) -> Row:
    infer = INFERENCES[way]
    trials, wanted = [], []
    for key in LEARNERS:
        preset, settings = PRESETS[key]
        label = f"{key} after {infer}" if infer else key
        trial = Trial(
            label, key, "colored", data, "joint", SELECTION,
            preset=preset, settings=settings, infer=infer, infer_preset=infer,
        )  # fmt: skip
        trials.append(trial)
        wanted += [
            Wanted(label, split, "accuracy", figure(printed[key][split]))
            for split in ("train", "test")
        ]
    count = data["examples"] * data["environments"]
    title = f"{count:,} examples, environments {'inferred' if infer else 'as given'}"
    return Row(name, title, tuple(trials), tuple(wanted))
