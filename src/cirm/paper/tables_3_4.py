"""Tables 3 and 4: environments inferred from two given ones or from a single one.

The data are those of Arjovsky et al., "Invariant Risk Minimization", 2019: digits below
five are the label 1, every second pixel, and the last 10,000 images of the training
file for the test. The penalty is the one of Creager et al., "Environment Inference for
Invariant Learning", 2021, which differs from IRM's in one digit.
"""

from __future__ import annotations

from typing import Any

from cirm.paper.experiment import (
    CHANCE_ACCURACY,
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableLayout,
    PaperTableLineLayout,
    read_published_table,
)
from cirm.paper.tables_1_2 import (
    GRAY,
    SPLITS,
    build_colored_image_experiment,
    build_colored_image_trial,
    build_paper_accuracy_cell,
    build_unpublished_accuracy_cells,
)

LEARNERS = {"irmv1": "IRMv1", "c-virmv1": "C-VIRMv1"}
REFERENCES = {"erm": "ERM", GRAY: "ERM on gray", CHANCE_ACCURACY: "chance"}
"""References for the reader, which the paper does not print."""

HEADINGS = ("Train", "Test")
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
PENALTY = {"penalty": 191257.18613115902}
PRESETS = {"irmv1": ("irm", PENALTY), "c-virmv1": ("eiil", {})}
SELECTION = "the published values of IRM and EIIL (chosen there by test accuracy)"
SELECTIONS = {
    "irmv1": SELECTION,
    "c-virmv1": f"{SELECTION}; the settings of the posterior are the paper's where it "
    "gives any, and otherwise this project's, not tuned",
    "erm": "the values of IRM's own ERM, which its authors did not tune",
}


def build_table3_experiment() -> PaperExperiment:
    """Return table 3: two environments at once, with and without inference."""
    printed = read_published_table("table3")
    rows = [
        _build_environment_inference_row(name, name, TWO, printed[name])
        for name in INFERENCES
    ]
    heads = ("No EIIL", "EIIL")
    lines = [
        PaperTableLineLayout(
            (head,),
            (
                *_list_table_positions_of_learner(row),
                *_list_table_positions_of_references(row),
            ),
        )
        for head, row in zip(heads, rows, strict=True)
    ]
    names = (*LEARNERS.values(), *REFERENCES.values())
    columns = [(name, split) for name in names for split in HEADINGS]
    layout = PaperTableLayout("Accuracy, %", ("",), tuple(columns), tuple(lines))
    title = "Table 3: two environments at once, given and inferred"
    return build_colored_image_experiment("table3", title, 10, rows, layout)


def build_table4_experiment() -> PaperExperiment:
    """Return table 4: one environment of several sizes, with and without inference."""
    rows, lines = [], []
    for printed in read_published_table("table4")["rows"]:
        size = printed["examples"]
        data = {**ONE, "examples": size}
        pair = [
            _build_environment_inference_row(
                f"{size} {way}", way, data, printed[way], with_references=not infer
            )
            for way, infer in INFERENCES.items()
        ]
        rows += pair
        places = (
            *_list_table_positions_of_learner(pair[0]),
            *_list_table_positions_of_learner(pair[1]),
            *_list_table_positions_of_references(pair[0]),
        )
        lines.append(PaperTableLineLayout((f"{size:,}",), places))
    groups = {
        "Without inference": LEARNERS,
        "With EIIL": LEARNERS,
        "References": REFERENCES,
    }
    columns = [
        (group, name, split)
        for group, names in groups.items()
        for name in names.values()
        for split in HEADINGS
    ]
    layout = PaperTableLayout(
        "Accuracy, %", ("examples",), tuple(columns), tuple(lines)
    )
    title = "Table 4: one environment, with and without inference"
    return build_colored_image_experiment("table4", title, 5, rows, layout)


def build_environment_inference_trial(
    key: str, data: dict[str, Any], infer: str
) -> ExperimentTrial:
    """Return a learner with published settings, on given or inferred environments."""
    preset, settings = PRESETS[key]
    label = f"{key} after {infer}" if infer else key
    return build_colored_image_trial(
        label, key, data, "joint", SELECTIONS[key], preset,
        settings=settings, infer=infer, infer_preset=infer,
    )  # fmt: skip


def _list_table_positions_of_learner(
    row: ExperimentRow,
) -> tuple[tuple[str, str, str], ...]:
    labels = [trial.label for trial in row.trials if trial.label not in REFERENCES]
    return tuple((row.name, label, split) for label in labels for split in SPLITS)


def _list_table_positions_of_references(
    row: ExperimentRow,
) -> tuple[tuple[str, str, str], ...]:
    return tuple((row.name, label, split) for label in REFERENCES for split in SPLITS)


def _build_environment_inference_row(
    name: str,
    kind: str,
    data: dict[str, Any],
    published: dict[str, Any],
    with_references: bool = True,
) -> ExperimentRow:
    """Return both learners on one data set, with or without cells of references."""
    infer = INFERENCES[kind]
    trials, cells = [], []
    for key in LEARNERS:
        trial = build_environment_inference_trial(key, data, infer)
        trials.append(trial)
        cells += [
            build_paper_accuracy_cell(trial.label, s, published[key][s]) for s in SPLITS
        ]
    for label, images in (("erm", data), (GRAY, {**data, "scheme": "gray"})):
        way = "joint", SELECTIONS["erm"], "irm"
        trials.append(build_colored_image_trial(label, "erm", images, *way))
    cells += build_unpublished_accuracy_cells(REFERENCES if with_references else ())
    count = data["examples"] * data["environments"]
    title = f"{count:,} examples, environments {'inferred' if infer else 'as given'}"
    return ExperimentRow(name, title, tuple(trials), tuple(cells))
