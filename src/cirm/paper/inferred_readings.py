"""What other readings of tables 3 and 4 give, with fewer examples.

The paper says neither what the spreads of the posterior start from, nor how long the
model is trained by which environments are inferred. It says that table 4 is about one
environment; the authors of the inference pool two and split the pool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cirm.paper.inferred import ONE, TWO, trial_of
from cirm.paper.sequences import accuracies, listed, of_images
from cirm.paper.trials import Experiment, Row, Trial

Readings = dict[str, dict[str, dict[str, Any]]]
"""By name: what a reading sets, by the part of a trial that it belongs to."""

SIZE = 10_000
POOLED = (2_000, 5_000, SIZE, 20_000)
AS_IT_IS: Readings = {"": {}}
NARROW: Readings = {"spreads start at 0.0067": {"settings": {"initial_std": 0.0067}}}
GIVEN: dict[str, Readings] = {
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
SPLIT: dict[str, Readings] = {
    "irmv1": {
        **AS_IT_IS,
        "reference of 50 steps": {"inference": {"epochs": 50}},
        "reference of 100 steps": {"inference": {"epochs": 100}},
        "reference of 200 steps": {"inference": {"epochs": 200}},
    },
    "c-virmv1": {**AS_IT_IS, **NARROW},
}


def readings_inferred() -> Experiment:
    """Readings on two given environments, on one that is split, and on a split pool."""
    one = {**ONE, "examples": SIZE}
    two = {size: {**TWO, "examples": size // 2} for size in POOLED}
    rows = [
        _row("two given", two[SIZE], "", GIVEN),
        _row("one split", one, "eiil", SPLIT),
    ]
    pooled = {"irmv1": AS_IT_IS, "c-virmv1": NARROW}
    rows += [
        _row(f"two pooled and split, {size:,} examples", data, "eiil", pooled)
        for size, data in two.items()
    ]
    corner = ("environments", "learner: reading")
    layout = listed(rows, corner, lambda row, label: (row.name, label))
    title = f"Readings of tables 3 and 4, with {SIZE:,} examples or as said"
    return of_images("readings-inferred", title, 3, rows, layout)


def _row(
    name: str, data: dict[str, Any], infer: str, readings: dict[str, Readings]
) -> Row:
    trials = [
        _read(trial_of(key, data, infer), reading, changes)
        for key, own in readings.items()
        for reading, changes in own.items()
    ]
    wanted = accuracies(trial.label for trial in trials)
    return Row(name, f"Readings: {name}", tuple(trials), wanted)


def _read(trial: Trial, reading: str, changes: dict[str, dict[str, Any]]) -> Trial:
    """A trial of a table with the changes of a reading."""
    return replace(
        trial,
        label=f"{trial.label}: {reading}" if reading else trial.label,
        settings={**trial.settings, **changes.get("settings", {})},
        inference={**trial.inference, **changes.get("inference", {})},
    )
