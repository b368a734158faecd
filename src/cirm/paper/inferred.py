"""Tables 3 and 4: environments inferred, from two given ones or from a single one.

The data are those of Arjovsky et al., "Invariant Risk Minimization", 2019: digits below
five are the label 1, every second pixel, and the last 10,000 images of the training
file for the test. The penalty is the one of Creager et al., "Environment Inference for
Invariant Learning", 2021, which differs from IRM's in one digit.
"""

from __future__ import annotations

from typing import Any

from cirm.paper.numbers import figure, table
from cirm.paper.sequences import GRAY, SPLITS, accuracies, of_images
from cirm.paper.trials import (
    CHANCE,
    Experiment,
    Layout,
    Line,
    Row,
    TableCell,
    Trial,
)

LEARNERS = {"irmv1": "IRMv1", "c-virmv1": "C-VIRMv1"}
REFERENCES = {"erm": "ERM", GRAY: "ERM on gray", CHANCE: "chance"}
"""What a reader needs to judge the others; the paper does not print them."""

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
SELECTIONS = {
    "irmv1": SELECTION,
    "c-virmv1": f"{SELECTION}; those of the posterior are the paper's where it gives "
    "any, else values of this project, not tuned",
    "erm": "the values of IRM's own ERM, which its authors did not tune",
}


def table3() -> Experiment:
    """Two environments at once, with and without inference."""
    printed = table("table3")
    rows = [_row(name, name, TWO, printed[name]) for name in INFERENCES]
    heads = ("No EIIL", "EIIL")
    lines = [
        Line((head,), (*_places(row), *_references(row)))
        for head, row in zip(heads, rows, strict=True)
    ]
    names = (*LEARNERS.values(), *REFERENCES.values())
    columns = [(name, split) for name in names for split in _heads()]
    layout = Layout("Accuracy, %", ("",), tuple(columns), tuple(lines))
    title = "Table 3: two environments at once, given and inferred"
    return of_images("table3", title, 10, rows, layout)


def table4() -> Experiment:
    """One environment of several sizes, with and without inference."""
    rows, lines = [], []
    for printed in table("table4")["rows"]:
        size = printed["examples"]
        data = {**ONE, "examples": size}
        pair = [
            _row(f"{size} {way}", way, data, printed[way], references=not infer)
            for way, infer in INFERENCES.items()
        ]
        rows += pair
        places = *_places(pair[0]), *_places(pair[1]), *_references(pair[0])
        lines.append(Line((f"{size:,}",), places))
    groups = {
        "Without inference": LEARNERS,
        "With EIIL": LEARNERS,
        "References": REFERENCES,
    }
    columns = [
        (group, name, split)
        for group, names in groups.items()
        for name in names.values()
        for split in _heads()
    ]
    layout = Layout("Accuracy, %", ("examples",), tuple(columns), tuple(lines))
    title = "Table 4: one environment, with and without inference"
    return of_images("table4", title, 5, rows, layout)


def trial_of(key: str, data: dict[str, Any], infer: str) -> Trial:
    """A learner with the published settings, on given or inferred environments."""
    preset, settings = PRESETS[key]
    label = f"{key} after {infer}" if infer else key
    return Trial(
        label, key, "colored", data, "joint", SELECTIONS[key],
        preset=preset, settings=settings, infer=infer, infer_preset=infer,
    )  # fmt: skip


def _heads() -> tuple[str, str]:
    return ("Train", "Test")


def _places(row: Row) -> tuple[tuple[str, str, str], ...]:
    labels = [trial.label for trial in row.trials if trial.label not in REFERENCES]
    return tuple((row.name, label, split) for label in labels for split in SPLITS)


def _references(row: Row) -> tuple[tuple[str, str, str], ...]:
    return tuple((row.name, label, split) for label in REFERENCES for split in SPLITS)


def _row(
    name: str,
    way: str,
    data: dict[str, Any],
    printed: dict[str, Any],
    references: bool = True,
) -> Row:
    """Both learners on one data set, and the references, if they are to be told."""
    infer = INFERENCES[way]
    trials, wanted = [], []
    for key in LEARNERS:
        trial = trial_of(key, data, infer)
        trials.append(trial)
        wanted += [
            TableCell(trial.label, split, "accuracy", figure(printed[key][split]))
            for split in SPLITS
        ]
    for label, own in (("erm", data), (GRAY, {**data, "scheme": "gray"})):
        trials.append(
            Trial(
                label, "erm", "colored", own, "joint", SELECTIONS["erm"], preset="irm"
            )
        )
    wanted += accuracies(REFERENCES if references else ())
    count = data["examples"] * data["environments"]
    title = f"{count:,} examples, environments {'inferred' if infer else 'as given'}"
    return Row(name, title, tuple(trials), tuple(wanted))
