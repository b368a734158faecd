"""What other readings of the paper give, on table 1's data and on less than table 3's.

The paper leaves open how the divergence is scaled, what the step of rho is, which
environment comes first, where dropout acts, what `w` is and how many outputs there are.
Each reading changes one of these in a learner's preset, or two where one alone says
little. The 100 epochs are the paper's; what fewer give shows how much is memory. For
tables 3 and 4 it says neither what the spreads of the posterior start from nor how long
the model that environments are inferred from is trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cirm.experiments.paper.inferred import ONE, TWO, trial_of
from cirm.experiments.paper.numbers import table
from cirm.experiments.paper.sequences import (
    LEARNERS,
    MNIST,
    SPLITS,
    accuracies,
    of_images,
)
from cirm.experiments.trials import PAPERS, Experiment, Layout, Line, Row, Trial

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

SIZE = 10_000
NARROW = {"spreads start at 0.0067": {"initial_std": 0.0067}}
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "irmv1": {"penalty 91,257": {"penalty": 91257.18613115903}},
    "c-virmv1": {
        **NARROW,
        "no divergence": {"beta": 0.0},
        "1 draw a step": {"samples": 1},
        "100 draws to predict": {"evaluations": 100},
    },
}
"""Likewise over the settings of table 3, with two environments at once."""
INFERRED: dict[str, dict[str, dict[str, Any]]] = {"irmv1": {}, "c-virmv1": NARROW}
"""Likewise over those of table 4, with one environment that is split."""
REFERENCES = {
    f"reference of {count} steps": {"epochs": count} for count in (50, 100, 200)
}


def readings() -> Experiment:
    """Every reading of each learner, under the one that table 1 has."""
    rows = [_row(key) for key in LEARNERS]
    lines = [
        Line(
            (f"{_heading(row.name)}: {label.partition(': ')[2] or AS_IN_TABLE_1}",),
            tuple((row.name, label, split) for split in SPLITS),
        )
        for row in rows
        for label in row.labels
    ]
    columns = tuple((split,) for split in SPLITS)
    corner = "learner (the paper's train, test): reading"
    layout = Layout("Accuracy, %", (corner,), columns, tuple(lines))
    title = "Readings of what the paper leaves open, on table 1's data"
    return of_images("readings", title, 3, rows, layout)


def readings_inferred() -> Experiment:
    """Readings of tables 3 and 4, with a fifth of the examples."""
    two, one = [], []
    for key, others in GIVEN.items():
        trial = trial_of(key, {**TWO, "examples": SIZE // 2}, "")
        two += _read(trial, others)
    for key, others in INFERRED.items():
        trial = trial_of(key, {**ONE, "examples": SIZE}, "eiil")
        one += _read(trial, others, REFERENCES)
    rows = [
        _of("two given", f"{SIZE:,} examples of two environments", two),
        _of("one split", f"{SIZE:,} examples of one environment, split", one),
    ]
    lines = [
        Line((row.name, label), tuple((row.name, label, split) for split in SPLITS))
        for row in rows
        for label in row.labels
    ]
    columns = tuple((split,) for split in SPLITS)
    corner = ("environments", "learner: reading")
    layout = Layout("Accuracy, %", corner, columns, tuple(lines))
    title = "Readings of tables 3 and 4, with a fifth of the examples"
    return of_images("readings-inferred", title, 3, rows, layout)


def _read(
    trial: Trial,
    settings: dict[str, dict[str, Any]],
    inference: dict[str, dict[str, Any]] | None = None,
) -> list[Trial]:
    """A trial as it is, then with each of the settings, then of its inference."""
    own = [
        replace(trial, label=f"{trial.label}: {name}", settings=trial.settings | new)
        for name, new in settings.items()
    ]
    others = [
        replace(trial, label=f"{trial.label}: {name}", inference=new)
        for name, new in (inference or {}).items()
    ]
    return [trial, *own, *others]


def _of(name: str, title: str, trials: list[Trial]) -> Row:
    return Row(name, title, tuple(trials), accuracies(t.label for t in trials))


def _row(key: str) -> Row:
    others = {**READINGS[key], "20 epochs": {"epochs": 20}}
    trials = [_trial(key, key, {})]
    trials += [_trial(f"{key}: {name}", key, own) for name, own in others.items()]
    trials.append(_trial(f"{key}: colour flip 0.1 first", key, {}, REVERSED))
    return _of(key, f"Readings of {LEARNERS[key]}", trials)


def _trial(
    label: str, key: str, settings: dict[str, Any], data: dict[str, Any] = MNIST
) -> Trial:
    return Trial(
        label, key, "colored", data, "sequential", PAPERS,
        preset="paper", settings=settings,
    )  # fmt: skip


def _heading(key: str) -> str:
    means = [table("table1")[split][key]["mean"] for split in SPLITS]
    return f"{LEARNERS[key]} ({means[0]}, {means[1]})"
