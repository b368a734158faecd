"""Whether our numbers match the paper's, and whether its four claims hold for them.

A cell with both numbers is a *match* if they differ by at most twice the largest of
our standard deviation, the paper's, and a floor. Otherwise it is *better* if ours is
the better test accuracy or the smaller error, else it *differs*. The floor is 2 points
for accuracies. The errors of table 5 lie between 0 and 1, where 2 points mean nothing:
there it is 0.02, the same part of their range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from cirm.paper.experiment import (
    CHANCE_ACCURACY,
    ExperimentRow,
    PaperExperiment,
    PaperTableCell,
)

ROUNDING = 1e-9  # a difference on the border of the band is within it
TOLERANCE_FLOORS = {"accuracy": 2.0, "coefficients": 0.02}
NO_DATA_VERDICT = "no-data"
ADAPTED_SPLIT_PREFIX = "adapted "
"""Before the number of unlabelled rows, in the split of an adapted learner's cell."""

Cell = dict[str, Any]
Measurements = Mapping[str, Mapping[str, Any]]
"""By learner: its selection, seconds, and mean, std and seeds of each split."""

Means = Mapping[tuple[str, str, str], float]
"""Means by row, learner and split."""

ClaimAnswer = tuple[bool | None, list[str]]
"""Whether a claim holds, None if that is not known, and the figures behind it."""

PROPOSED_LEARNERS = ("c-bvirm", "c-virmg", "c-virmv1")
OTHER_LEARNERS = ("erm", "ewc", "gem", "irmg", "irmv1", "mer", "vcl", "vclc")
MAX_OTHER_ACCURACY = 30.0  # percent; the first claim
GUESSING_ACCURACY = 50.0  # percent
TOLERATED_DROP = 2.0  # points by which a mean may fall and still be called no worse

CLAIMS = (
    "ERM, IRMv1, IRMG and all continual-learning references end below 30 % on the test "
    "environment",
    "the three proposed methods end above all of those",
    "environment inference lets one environment suffice, and improves with the number "
    "of examples",
    "BIRM beats IRM and ERM on the structural causal model",
)


def compare_with_published_value(
    mean: float,
    std: float | None,
    published: Mapping[str, Any],
    metric: str,
    split: str,
) -> str:
    """Compare a measured number with the paper's: "match", "better" or "differs"."""
    spread = max(std or 0.0, published["std"] or 0.0, TOLERANCE_FLOORS[metric])
    gap = mean - published["mean"]
    if abs(gap) <= 2 * spread + ROUNDING:
        return "match"
    if metric == "accuracy":
        return "better" if gap > 0 and split == "test" else "differs"
    return "better" if gap < 0 else "differs"


def is_verdict_unlikely_to_change(cell: Mapping[str, Any]) -> bool:
    """Return whether more seeds are unlikely to change the verdict of a cell.

    That is so if the mean is further than two standard errors from the nearer edge of
    the band in which it would match, or if the paper prints no number.
    """
    paper, mean, std = cell["paper"], cell["mean"], cell["std"]
    if not paper:
        return True
    if mean is None or std is None:
        return False
    spread = max(std, paper["std"] or 0.0, TOLERANCE_FLOORS[cell["metric"]])
    distance = abs(abs(mean - paper["mean"]) - 2 * spread)
    return bool(distance > 2 * std / math.sqrt(cell["seeds"]))


def compare_cells_with_paper(
    experiment: PaperExperiment,
    measurements: Mapping[str, Measurements],
    notes: Mapping[tuple[str, str], str],
) -> list[Cell]:
    """Return the cells of an experiment with their verdicts.

    `measurements` are by row. `notes` say, by row and learner, why there are none.
    Cells with neither are left out.
    """
    return [
        judged
        for row in experiment.rows
        for cell in row.cells
        if (
            judged := _compare_cell_with_paper(
                experiment, row, cell, measurements, notes
            )
        )
    ]


def _compare_cell_with_paper(
    experiment: PaperExperiment,
    row: ExperimentRow,
    cell: PaperTableCell,
    measurements: Mapping[str, Measurements],
    notes: Mapping[tuple[str, str], str],
) -> Cell | None:
    judged: Cell = {
        "row": row.name,
        "learner": cell.learner,
        "split": cell.split,
        "metric": cell.metric,
        "seeds": 0,
        "mean": None,
        "std": None,
        "paper": cell.paper._asdict() if cell.paper else None,
        "verdict": None,
        "selection": "",
        "seconds": None,
    }
    if cell.elsewhere:
        judged["elsewhere"] = cell.elsewhere._asdict()
    if cell.learner == CHANCE_ACCURACY:
        return {**judged, "mean": experiment.chance, "selection": "guessing"}
    entry = measurements.get(row.name, {}).get(cell.learner)
    if entry is None:
        note = notes.get((row.name, cell.learner))
        return (
            None
            if note is None
            else {**judged, "verdict": NO_DATA_VERDICT, "note": note}
        )
    split, _, rows = cell.split.partition(ADAPTED_SPLIT_PREFIX)
    value = entry["adapted"][rows] if rows else entry[split]
    judged |= {**value, "selection": entry["selection"], "seconds": entry["seconds"]}
    if value["mean"] is None:
        note = "a seed's number is not finite" if value["seeds"] else "not measured"
        return {**judged, "verdict": NO_DATA_VERDICT, "note": note}
    if paper := judged["paper"]:
        place = cell.metric, cell.split
        judged["verdict"] = compare_with_published_value(
            value["mean"], value["std"], paper, *place
        )
    return judged


def count_cells_by_verdict(cells: Sequence[Cell]) -> dict[str, int]:
    """Count the cells with each verdict."""
    names = ("match", "better", "differs", NO_DATA_VERDICT)
    return {name: sum(cell["verdict"] == name for cell in cells) for name in names}


def summarise_verdicts_of_experiment(
    experiment: PaperExperiment,
    cells: Sequence[Cell],
    command: str,
    commits: Sequence[str],
) -> dict[str, Any]:
    """Return the content of summary.json."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "command": command,
        "commits": list(commits),
        "verdicts": count_cells_by_verdict(cells),
        "cells": list(cells),
        "claims": check_claims_of_paper(cells),
        "tables": [asdict(layout) for layout in experiment.layouts],
        **({"repeats": True} if experiment.repeats else {}),
    }


def check_claims_of_paper(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each claim, whether it `holds` here and `in_paper`, and our figures.

    It is None where the cells do not decide it. Numbers that the paper does not print,
    as those of the references, do not count. Rows without a measurement are named.
    """
    printed_cells = [cell for cell in cells if cell["paper"]]
    ours = {
        _get_key_of_paper_cell(c): c["mean"]
        for c in printed_cells
        if c["mean"] is not None
    }
    printed = {_get_key_of_paper_cell(c): c["paper"]["mean"] for c in printed_cells}
    measured_rows = set(_list_rows_of_sequential_experiments(ours))
    missing = [
        r
        for r in _list_rows_of_sequential_experiments(printed)
        if r not in measured_rows
    ]
    answers = []
    for statement, check in zip(CLAIMS, CHECKS, strict=True):
        holds, figures = check(ours)
        if (
            figures
            and missing
            and check
            in (
                check_other_learners_stay_below_30_percent,
                check_proposed_learners_beat_others,
            )
        ):
            figures.append(f"not measured: {', '.join(missing)}")
        answers.append(
            {
                "claim": statement,
                "holds": holds,
                "in_paper": check(printed)[0],
                "figures": figures,
            }
        )
    return answers


def check_other_learners_stay_below_30_percent(means: Means) -> ClaimAnswer:
    """Check the first claim: in every row the highest of the others is below 30 %."""
    rows = _list_rows_of_sequential_experiments(means)
    highest = {
        row: best for row in rows if (best := _find_best_other_learner(means, row))
    }
    figures = [
        f"{row}: the highest is {name} with {value:.1f} %"
        for row, (name, value) in highest.items()
    ]
    complete = all(
        (row, name, "test") in means for row in highest for name in OTHER_LEARNERS
    )
    return _combine_answers_of_rows(
        [value < MAX_OTHER_ACCURACY for _, value in highest.values()], complete
    ), figures


def check_proposed_learners_beat_others(means: Means) -> ClaimAnswer:
    """Check the second: in every row the lowest proposed is above the highest other."""
    verdicts, figures, complete = [], [], True
    for row in _list_rows_of_sequential_experiments(means):
        highest = _find_best_other_learner(means, row)
        proposed = _select_test_accuracies(means, row, PROPOSED_LEARNERS)
        if not highest or not proposed:
            complete = False
            continue
        name = min(proposed, key=lambda n: proposed[n])
        others = _select_test_accuracies(means, row, OTHER_LEARNERS)
        complete = complete and len(proposed) == len(PROPOSED_LEARNERS)
        complete = complete and len(others) == len(OTHER_LEARNERS)
        verdicts.append(proposed[name] > highest[1])
        figures.append(
            f"{row}: {name} {proposed[name]:.1f} % is the lowest proposed, "
            f"{highest[0]} {highest[1]:.1f} % the highest other"
        )
    return _combine_answers_of_rows(verdicts, complete), figures


def check_inference_improves_with_examples(means: Means) -> ClaimAnswer:
    """Check the third: with inference accuracy rises with the examples.

    With the most examples it must be above guessing and above that without inference.
    """
    verdicts, figures, complete = [], [], True
    for learner in ("irmv1", "c-virmv1"):
        values = _list_accuracies_by_example_count(means, f"{learner} after eiil")
        plain = means.get((f"{max(values, default=0)} no-eiil", learner, "test"))
        if len(values) < 2 or plain is None:
            complete = False
            continue
        steps = list(values.values())
        rises = all(
            after >= before - TOLERATED_DROP for before, after in pairwise(steps)
        )
        enough = steps[-1] > max(GUESSING_ACCURACY, plain, steps[0])
        verdicts.append(rises and enough)
        listed = ", ".join(f"{value:.1f} % ({n:,})" for n, value in values.items())
        figures.append(
            f"{learner} with eiil, by number of examples: {listed}; without eiil "
            f"{plain:.1f} %"
        )
    return _combine_answers_of_rows(verdicts, complete), figures


def check_birm_recovers_causal_model(means: Means) -> ClaimAnswer:
    """Check the fourth: both errors of BIRM are below those of IRM and ERM."""
    kinds, names = ("causal", "noncausal"), ("birm", "irmv1", "erm")
    if not all(("table5", n, k) in means for n in names for k in kinds):
        return None, []
    errors = {n: [means["table5", n, k] for k in kinds] for n in names}
    holds = all(
        birm < other
        for name in names[1:]
        for birm, other in zip(errors["birm"], errors[name], strict=True)
    )
    listed = [f"{n} {a:.3f} and {b:.3f}" for n, (a, b) in errors.items()]
    return holds, [f"causal and noncausal error: {'; '.join(listed)}"]


CHECKS: tuple[Callable[[Means], ClaimAnswer], ...] = (
    check_other_learners_stay_below_30_percent,
    check_proposed_learners_beat_others,
    check_inference_improves_with_examples,
    check_birm_recovers_causal_model,
)


def _get_key_of_paper_cell(cell: Mapping[str, Any]) -> tuple[str, str, str]:
    return cell["row"], cell["learner"], cell["split"]


def _list_accuracies_by_example_count(means: Means, learner: str) -> dict[int, float]:
    """Return test accuracy by number of examples, for a learner after inference."""
    sizes = sorted(
        int(row.removesuffix(" eiil"))
        for row, name, split in means
        if (name, split) == (learner, "test") and row.endswith(" eiil")
    )
    return {size: means[f"{size} eiil", learner, "test"] for size in sizes}


def _list_rows_of_sequential_experiments(means: Means) -> list[str]:
    """List the rows in which environments arrive one after another."""
    # IRMv1 and C-VIRMv1 have rows of inferred environments too.
    names = {*PROPOSED_LEARNERS, *OTHER_LEARNERS} - {"irmv1", "c-virmv1"}
    rows = (row for row, name, split in means if name in names and split == "test")
    return list(dict.fromkeys(rows))


def _select_test_accuracies(
    means: Means, row: str, names: Sequence[str]
) -> dict[str, float]:
    """Return the test accuracies of a row by learner, of those that have one."""
    return {n: means[row, n, "test"] for n in names if (row, n, "test") in means}


def _find_best_other_learner(means: Means, row: str) -> tuple[str, float] | None:
    """Return the highest of the learners that are not proposed, and its accuracy."""
    scores = _select_test_accuracies(means, row, OTHER_LEARNERS)
    return max(scores.items(), key=lambda item: item[1], default=None)


def _combine_answers_of_rows(
    verdicts: Sequence[bool], is_complete: bool
) -> bool | None:
    """Return False if any is, True if all are and none is missing, else None."""
    if not all(verdicts):
        return False
    return True if verdicts and is_complete else None
