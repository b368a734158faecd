"""What other readings of the paper give, on table 1's data.

The paper leaves open how the divergence is scaled, what the step of rho is, which
environment comes first, where dropout acts, what `w` is and how many outputs there are.
Each reading changes one of these in a learner's preset, or two where one alone says
little. The 100 epochs are the paper's; what fewer give shows how much is memory.
"""

from __future__ import annotations

from typing import Any

from cirm.paper.numbers import table
from cirm.paper.sequences import (
    LEARNERS,
    MNIST,
    SPLITS,
    accuracies,
    listed,
    of_images,
)
from cirm.paper.trials import Experiment, Row, Trial
from cirm.runs.jobs import PAPER_SELECTION

REVERSED = {**MNIST, "flips": (0.1, 0.2)}
AS_IN_TABLE_1 = "as in table 1"
ONE_OUTPUT = {"one output": {"outputs": 1}}
PER_EXAMPLE = {"kl_scale": "per-example"}
SHORTER = {f"{count} epochs": {"epochs": count} for count in (60, 40)}
READINGS: dict[str, dict[str, dict[str, Any]]] = {
    "c-bvirm": {
        "KL per example": PER_EXAMPLE,
        "KL per example, rounds of 20 epochs": {**PER_EXAMPLE, "inner": 20},
        "rounds of one step": {"rounds": 1, "inner": 1},
        "no dropout": {"dropout": 0.0},
        "dropout 0.75": {"dropout": 0.75},
        "rho grows by a factor": {"growth_kind": "factor"},
        "w is the last layer": {"constraint": "head"},
        **ONE_OUTPUT,
        **SHORTER,
    },
    "c-virmg": {
        "KL per example": PER_EXAMPLE,
        "KL per example, beta 30": {**PER_EXAMPLE, "beta": 30.0},
        "KL per example, beta 300": {**PER_EXAMPLE, "beta": 300.0},
        "beta 0.5": {"beta": 0.5},
        "beta 0.7": {"beta": 0.7},
        "dropout 0.75": {"dropout": 0.75},
        "w on learned features": {"representation": "variable"},
        **ONE_OUTPUT,
        **SHORTER,
    },
    "c-virmv1": {
        "KL per example": PER_EXAMPLE,
        "KL per example, penalty 10,000": {**PER_EXAMPLE, "penalty": 10_000.0},
        "penalty 10,000": {"penalty": 10_000.0},
        "1 draw to predict": {"evaluations": 1},
        "20 draws to predict": {"evaluations": 20},
        "20 draws, dropout 0.25": {"evaluations": 20, "dropout": 0.25},
        "20 draws, dropout 0.5": {"evaluations": 20, "dropout": 0.5},
        "20 draws, dropout 0.75": {"evaluations": 20, "dropout": 0.75},
        "spreads start at 0.2": {"initial_std": 0.2},
        "spreads start at the prior's": {"initial_std": 1.0},
        "no weight decay": {"decay": 0.0},
        **ONE_OUTPUT,
        **SHORTER,
    },
    "erm": {
        "no dropout": {"dropout": 0.0},
        "no weight decay": {"decay": 0.0},
        **ONE_OUTPUT,
    },
    "ewc": {
        "strength 0": {"strength": 0.0},
        "strength 1,000": {"strength": 1000.0},
        "dropout 0.75": {"dropout": 0.75},
        **ONE_OUTPUT,
    },
    "gem": {"margin 0.5": {"margin": 0.5}, "dropout 0.75": {"dropout": 0.75}},
    "irmg": {
        "the game with past players": {"past": True},
        "no dropout": {"dropout": 0.0},
    },
    "irmv1": {
        "dropout 0.75": {"dropout": 0.75},
        "penalty from the start": {"anneal": 0.0},
        **ONE_OUTPUT,
    },
    "mer": {"within-batch rate 0.3": {"beta": 0.3}},
    "vcl": {
        "KL summed": {"kl_scale": "sum"},
        "starts anew at each environment": {"restart": True},
        "dropout 0.5": {"dropout": 0.5},
        "spreads start at the prior's": {"initial_std": 1.0},
        **ONE_OUTPUT,
    },
    "vclc": {"KL summed": {"kl_scale": "sum"}, "coreset 400": {"coreset": 400}},
}
"""By learner and name: what a reading sets over the preset."""


def readings() -> Experiment:
    """Every reading of each learner, under the one that table 1 has."""
    rows = [_row(key) for key in LEARNERS]
    corner = "learner (the paper's train, test): reading"
    layout = listed(rows, (corner,), _heads)
    title = "Readings of what the paper leaves open, on table 1's data"
    return of_images("readings", title, 3, rows, layout)


def _row(key: str) -> Row:
    others = {**READINGS[key], "20 epochs": {"epochs": 20}}
    trials = [_trial(key, key, {})]
    trials += [_trial(f"{key}: {name}", key, own) for name, own in others.items()]
    trials.append(_trial(f"{key}: colour flip 0.1 first", key, {}, REVERSED))
    wanted = accuracies(trial.label for trial in trials)
    return Row(key, f"Readings of {LEARNERS[key]}", tuple(trials), wanted)


def _trial(
    label: str, key: str, settings: dict[str, Any], data: dict[str, Any] = MNIST
) -> Trial:
    return Trial(
        label, key, "colored", data, "sequential", PAPER_SELECTION,
        preset="paper", settings=settings,
    )  # fmt: skip


def _heads(row: Row, label: str) -> tuple[str]:
    reading = label.partition(": ")[2] or AS_IN_TABLE_1
    return (f"{_heading(row.name)}: {reading}",)


def _heading(key: str) -> str:
    means = [table("table1")[split][key]["mean"] for split in SPLITS]
    return f"{LEARNERS[key]} ({means[0]}, {means[1]})"
