"""Other readings of table 1.

The paper leaves open how the divergence is scaled, what the step of rho is,
which environment comes first, where dropout acts, what `w` is and how many outputs
there are. Each reading changes one of these in a preset, or two where one alone says
little. The KL as the paper prints it lacks the factor 1/2, which is a beta of 2. The
100 epochs are the paper's; what fewer give shows how much is memory.
"""

from __future__ import annotations

from typing import Any

from cirm.paper.experiment import (
    ExperimentRow,
    PaperExperiment,
    read_published_table,
)
from cirm.paper.tables_1_2 import (
    LEARNERS,
    MNIST,
    SPLITS,
    build_colored_image_experiment,
    build_colored_image_trial,
    build_layout_with_line_per_learner,
    build_unpublished_accuracy_cells,
)

REVERSED = {**MNIST, "flips": (0.1, 0.2)}
AS_IN_TABLE_1 = "as in table 1"
ONE_OUTPUT = {"one output": {"outputs": 1}}
PER_EXAMPLE = {"kl_scale": "per-example"}
SHORTER = {f"{count} epochs": {"epochs": count} for count in (60, 40)}
NO_DROPOUT: dict[str, dict[str, Any]] = {"no dropout": {"dropout": 0.0}}
PRINTED_KL: dict[str, Any] = {"beta": 2.0}
GAME_ENDS = {
    f"ends below an accuracy of 0.6, from step {start} on": {
        "stop_accuracy": 0.6,
        "warm_start": start,
    }
    for start in (100, 300)
}
AS_IN_ITS_CODE: dict[str, Any] = {
    "mean_std": 0.1, "activation": "relu", "restart": True,
}  # fmt: skip
READINGS: dict[str, dict[str, dict[str, Any]]] = {
    "c-bvirm": {
        "KL per example": PER_EXAMPLE,
        "KL per example, rounds of 20 epochs": {**PER_EXAMPLE, "inner": 20},
        "rounds of one step": {"rounds": 1, "inner": 1},
        **NO_DROPOUT,
        "dropout 0.75": {"dropout": 0.75},
        "KL as printed": PRINTED_KL,
        "KL as printed, dropout 0.75": {**PRINTED_KL, "dropout": 0.75},
        "a past at zero": {"past_at_zero": True},
        "KL as printed, a past at zero": {**PRINTED_KL, "past_at_zero": True},
        "KL as printed, a past at zero, dropout 0.75": {
            **PRINTED_KL,
            "past_at_zero": True,
            "dropout": 0.75,
        },
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
        "KL as printed": PRINTED_KL,
        "20 draws to predict": {"evaluations": 20},
        **GAME_ENDS,
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
        **NO_DROPOUT,
        "no weight decay": {"decay": 0.0},
        **ONE_OUTPUT,
    },
    "ewc": {
        "strength 0": {"strength": 0.0},
        "strength 1,000": {"strength": 1000.0},
        **NO_DROPOUT,
        **ONE_OUTPUT,
    },
    "gem": {"margin 0.5": {"margin": 0.5}, **NO_DROPOUT},
    "irmg": {
        "the game with past players": {"past": True},
        **NO_DROPOUT,
    },
    "irmv1": {
        **NO_DROPOUT,
        "penalty from the start": {"anneal": 0.0},
        **ONE_OUTPUT,
    },
    "mer": {"within-batch rate 0.3": {"beta": 0.3}, **NO_DROPOUT},
    "vcl": {
        "KL summed": {"kl_scale": "sum"},
        "starts anew at each environment": {"restart": True},
        "dropout 0.5": {"dropout": 0.5},
        "spreads start at the prior's": {"initial_std": 1.0},
        "starts from a trained network": {"start": "trained"},
        "starts anew from small means, ReLU": AS_IN_ITS_CODE,
        **ONE_OUTPUT,
    },
    "vclc": {"KL summed": {"kl_scale": "sum"}, "coreset 400": {"coreset": 400}},
}
"""By learner and name: what a reading sets over the preset."""

FIRST_ONLY: dict[str, Any] = {
    "data": {**MNIST, "environments": 1, "flips": (0.2,)},
}
DATA_READINGS: dict[str, dict[str, dict[str, Any]]] = {
    "irmv1": {
        "all data at once, no dropout": {
            "data": MNIST,
            "order": "joint",
            "settings": NO_DROPOUT["no dropout"],
        },
    },
    "vcl": {
        "all data at once": {"data": MNIST, "order": "joint"},
        "the first environment only": FIRST_ONLY,
        "the first environment only, from small means, ReLU": {
            **FIRST_ONLY,
            "settings": AS_IN_ITS_CODE,
        },
    },
    "vclc": {"the first environment only": FIRST_ONLY},
}
"""By learner and name: what a reading changes in the trial of table 1."""

PHRASES = {
    "KL per example": "KL divergence divided by the number of examples",
    "KL as printed": "KL divergence as printed, without the factor 1/2",
    "KL summed": "KL divergence not divided by the number of examples",
    "no divergence": "without the KL divergence",
    "spreads start at the prior's": "initial standard deviations those of the prior",
    "spreads start at": "initial standard deviations",
    "1 draw to predict": "1 weight sample per prediction",
    "20 draws, ": "20 weight samples per prediction, ",
    "draws to predict": "weight samples per prediction",
    "1 draw a step": "1 weight sample per training step",
    "a past at zero": "a past posterior of zeros in the first consensus",
    "rounds of": "ADMM rounds of",
    "rho grows by a factor": "the penalty rho of ADMM is multiplied, not increased",
    "w is the last layer": "the classifier w is the last layer",
    "w on learned features": "the classifiers w act on learned features",
    "one output": "one output unit instead of two",
    "the game with past players": "players of the last stage take part in the game",
    "starts anew at": "restarts from random weights at",
    "starts anew from small means": "restarts from small random weights",
    "from small means": "from small random weights",
    "ends below an accuracy": "the game ends when it falls below an accuracy",
    "within-batch rate": "learning rate within a batch",
    "coreset 400": "coreset of 400 examples",
    "reference of": "reference model trained for",
    "two given": "two, as given",
    "one split": "one, split by EIIL",
    "two pooled and split": "two, pooled and split by EIIL",
}
"""What tables say for words in the names of readings, which records contain."""


def describe_reading_of_paper(name: str) -> str:
    """Return the name of a reading in plain words.

    Example:
        >>> describe_reading_of_paper("KL per example, beta 30")
        'KL divergence divided by the number of examples, beta 30'
    """
    for short, plain in PHRASES.items():
        if short in name:
            name = name.replace(short, plain, 1)
    return name


def build_experiment_of_other_readings_of_table1() -> PaperExperiment:
    """Return every reading of each learner, below the one that table 1 has."""
    rows = [_build_row_of_readings_of_learner(key) for key in LEARNERS]
    corner = "learner (the paper's train, test): reading"
    layout = build_layout_with_line_per_learner(
        rows, (corner,), _format_heading_of_learner_row
    )
    title = "Alternative readings of what the paper leaves open, on the data of table 1"
    return build_colored_image_experiment("readings", title, 3, rows, layout)


def _build_row_of_readings_of_learner(key: str) -> ExperimentRow:
    others = {**READINGS[key], "20 epochs": {"epochs": 20}}
    trials = [build_colored_image_trial(key, key, MNIST)]
    trials += [
        build_colored_image_trial(f"{key}: {name}", key, MNIST, settings=settings)
        for name, settings in others.items()
    ]
    trials.append(
        build_colored_image_trial(f"{key}: colour flip 0.1 first", key, REVERSED)
    )
    trials += [
        build_colored_image_trial(
            **{"label": f"{key}: {name}", "learner": key, **changes}
        )
        for name, changes in DATA_READINGS.get(key, {}).items()
    ]
    cells = build_unpublished_accuracy_cells(trial.label for trial in trials)
    return ExperimentRow(key, f"Readings of {LEARNERS[key]}", tuple(trials), cells)


def _format_heading_of_learner_row(row: ExperimentRow, label: str) -> tuple[str]:
    """Return a learner with the paper's train and test accuracy, and the reading."""
    reading = describe_reading_of_paper(label.partition(": ")[2]) or AS_IN_TABLE_1
    printed = read_published_table("table1")
    means = ", ".join(str(printed[split][row.name]["mean"]) for split in SPLITS)
    return (f"{LEARNERS[row.name]} ({means}): {reading}",)
