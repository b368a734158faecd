"""Whether our numbers are the paper's, and whether its claims hold for them.

A cell with both numbers is a *match* if they differ by at most twice the largest of
our standard deviation, the paper's, and a floor; otherwise *better* if ours is the
better test accuracy or the smaller error, else *differs*. The floor is 2 points for
accuracies. The errors of table 5 lie between 0 and 1, where 2 points mean nothing:
there it is 0.02, the same part of their range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cirm.paper.claims import judge_claims
from cirm.paper.trials import CHANCE, Experiment, Row, TableCell

ROUNDING = 1e-9  # a difference on the border of the band is within it
FLOORS = {"accuracy": 2.0, "coefficients": 0.02}
NO_DATA = "no-data"
Cell = dict[str, Any]
Measured = Mapping[str, Mapping[str, Any]]
"""By learner: its selection, seconds, and mean, std and seeds of each split."""


def verdict(
    mean: float, std: float | None, paper: Mapping[str, Any], metric: str, split: str
) -> str:
    """How a measured number stands to the paper's: match, better or differs."""
    spread = max(std or 0.0, paper["std"] or 0.0, FLOORS[metric])
    gap = mean - paper["mean"]
    if abs(gap) <= 2 * spread + ROUNDING:
        return "match"
    if metric == "accuracy":
        return "better" if gap > 0 and split == "test" else "differs"
    return "better" if gap < 0 else "differs"


def judge_cells(
    experiment: Experiment,
    measured: Mapping[str, Measured],
    notes: Mapping[tuple[str, str], str],
) -> list[Cell]:
    """The cells of the experiment's rows.

    `measured` holds what was found, by row; `notes` say, by row and learner, why
    there is nothing: cells with neither are left out.
    """
    return [
        cell
        for row in experiment.rows
        for wanted in row.wanted
        if (cell := _cell(experiment, row, wanted, measured, notes)) is not None
    ]


def _cell(
    experiment: Experiment,
    row: Row,
    wanted: TableCell,
    measured: Mapping[str, Measured],
    notes: Mapping[tuple[str, str], str],
) -> Cell | None:
    found = measured.get(row.name, {})
    cell: Cell = {
        "row": row.name,
        "learner": wanted.learner,
        "split": wanted.split,
        "metric": wanted.metric,
        "seeds": 0,
        "mean": None,
        "std": None,
        "paper": wanted.paper._asdict() if wanted.paper else None,
        "verdict": None,
        "selection": "",
        "seconds": None,
    }
    if wanted.elsewhere:
        cell["elsewhere"] = wanted.elsewhere._asdict()
    if wanted.learner == CHANCE:
        return {**cell, "mean": experiment.chance, "selection": "guessing"}
    if wanted.learner in found:
        return _filled(cell, found[wanted.learner])
    note = notes.get((row.name, wanted.learner))
    return None if note is None else {**cell, "verdict": NO_DATA, "note": note}


def _filled(cell: Cell, entry: Mapping[str, Any]) -> Cell:
    numbers = entry[cell["split"]]
    cell = {**cell, **numbers, "selection": entry["selection"]}
    cell["seconds"] = entry["seconds"]
    if numbers["mean"] is None:
        note = "a seed's number is not finite" if numbers["seeds"] else "not measured"
        return {**cell, "verdict": NO_DATA, "note": note}
    if cell["paper"]:
        cell["verdict"] = verdict(
            numbers["mean"], numbers["std"], cell["paper"], cell["metric"],
            cell["split"],
        )  # fmt: skip
    return cell


def count_verdicts(cells: Sequence[Cell]) -> dict[str, int]:
    """How many cells have each verdict."""
    names = ("match", "better", "differs", NO_DATA)
    return {name: sum(cell["verdict"] == name for cell in cells) for name in names}


def summarise_verdicts(
    experiment: Experiment, cells: Sequence[Cell], command: str, commits: Sequence[str]
) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "command": command,
        "commits": list(commits),
        "verdicts": count_verdicts(cells),
        "cells": list(cells),
        "claims": judge_claims(cells),
        "tables": [asdict(layout) for layout in experiment.layouts],
    }
