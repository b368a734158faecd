"""What the board's runs say: scores by row and column, and ranks with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

from cirm.board.columns import ACCURACY
from cirm.board.plan import CHOICES, ORACLE, LeaderboardPlan, LeaderboardTask
from cirm.data import create_dataset
from cirm.records import AdaptedScoreRecord, ScoreRecord
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import list_unfinished_jobs, read_records_of_finished_jobs
from cirm.runs.plans import DrawnDataset

Values = dict[str, float]
Scores = Mapping[str, Mapping[str, Values]]
METRICS = (ACCURACY, "error")
RESAMPLES, LEVEL = 2000, 0.95  # of the bootstrap, enough for two digits


def summarise_leaderboard(plan: LeaderboardPlan, folder: Path) -> dict[str, Any]:
    """Return the scores of all cells whose runs have finished, as plain values.

    Scores are accuracies or what else the column's `measure` says, in percent; in a
    regression, by how many percent the squared error is lower than that of predicting
    the mean of all training examples.

    Returns:
        `rows` and `columns` with their names; `cells` by row and column, each with the
        statistics `unseen`, `seen`, `oracle` and `adapted` (None if there are none) and
        the `settings` that were chosen; `ranks` by row; `absent` columns with the
        reason.
    """
    values: dict[str, dict[str, dict[str, Any]]] = {}
    for task in plan.tasks:
        cells = values.setdefault(task.row.name, {})
        cell = cells.setdefault(task.column.name, {"settings": [], "scores": {}})
        _add_scores_of_leaderboard_task(cell, task, folder)
    for cells in values.values():
        for cell in cells.values():
            if cell.get("is_open"):
                cell["scores"] = {}
            elif cell.get("is_oracle_open"):
                cell["scores"][ORACLE] = {}
    unseen = {
        row: {c: cell["scores"]["unseen"] for c, cell in own.items() if cell["scores"]}
        for row, own in values.items()
    }
    return {
        "rows": [{"name": row.name, "family": row.family} for row in plan.rows],
        "columns": [
            {
                "name": prepared.column.name,
                "title": prepared.column.title,
                "group": prepared.column.group,
                "task": prepared.task,
                "rule": prepared.column.rule,
                "measure": prepared.column.measure,
                "orders": len(prepared.column.variants),
                "part": prepared.missing_part,
            }
            for prepared in plan.columns
        ],
        "seeds": list(plan.effort.seeds),
        "trials": plan.effort.trials,
        "cells": {
            row: {
                c: _summarise_scores_of_leaderboard_cell(cell)
                for c, cell in own.items()
                if cell["scores"]
            }
            for row, own in values.items()
        },
        "ranks": compute_percentage_of_learners_ahead(unseen),
        "absent": dict(plan.absent),
    }


def compute_percentage_of_learners_ahead(
    scores: Scores, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return the share of other rows that do better, in percent, with an interval.

    A column counts once, and within it each seed: ties count half. The interval is a
    bootstrap over columns and, within them, seeds; rows are compared where both ran.

    Args:
        scores: The unseen score by row, column and seed; higher is better.
        seed: Seed of the bootstrap.

    Example:
        >>> one, two = {"c": {"0": 90.0}}, {"c": {"0": 80.0}}
        >>> ranks = compute_percentage_of_learners_ahead({"a": one, "b": two})
        >>> ranks["a"]["mean"], ranks["b"]["mean"]
        (0.0, 100.0)
    """
    columns = list(dict.fromkeys(c for own in scores.values() for c in own))
    shares = {
        row: {
            c: _compute_percentage_of_better_learners(row, c, scores)
            for c in columns
            if c in own
        }
        for row, own in scores.items()
    }
    draws = np.random.default_rng(seed)
    return {
        row: _compute_mean_and_bootstrap_interval(list(own.values()), draws)
        for row, own in shares.items()
        if own
    }


def compute_errors_of_training_mean(
    data: DrawnDataset, seeds: tuple[int, ...]
) -> dict[tuple[str, int], float]:
    """Return the squared error of the training mean by environment and seed.

    This is what can be predicted at a new place without any input. The variance there
    would be a reference that knows the mean of the new place, as no learner does.

    Args:
        data: The data set.
        seeds: The seeds that are drawn.

    Returns:
        The errors, none for a classification.
    """
    if data.problem.train[0].task.classes:
        return {}
    problem = create_dataset(data.dataset, data.data).draw_problem(seeds)
    shape = len(seeds), -1
    targets = {
        e.name: e.targets.expand(*shape) for e in (*problem.train, *problem.test)
    }
    means = torch.cat([targets[e.name] for e in problem.train], 1).mean(1, keepdim=True)
    return {
        (name, seed): error
        for name, own in targets.items()
        for seed, error in zip(
            seeds, (own - means).square().mean(1).tolist(), strict=True
        )
    }


def find_best_learner_of_dataset(summary: Mapping[str, Any], column: str) -> str:
    """Return the row with the highest mean unseen score of a column; "" without any."""
    cells = summary["cells"]
    known = {row: own[column] for row, own in cells.items() if column in own}
    return max(known, key=lambda row: known[row]["unseen"]["mean"]) if known else ""


def list_best_learners_of_datasets(
    summary: Mapping[str, Any], count: int
) -> dict[str, list[tuple[str, float]]]:
    """Return the learners with the highest mean unseen scores by title of column."""
    best = {}
    for column in summary["columns"]:
        scores = [
            (row, own[column["name"]]["unseen"]["mean"])
            for row, own in summary["cells"].items()
            if column["name"] in own
        ]
        if scores:
            scores.sort(key=lambda pair: -pair[1])
            best[column["title"]] = scores[:count]
    return best


def _compute_percentage_of_better_learners(
    row: str, column: str, scores: Scores
) -> list[float]:
    """Return in percent how many other rows do better, for each seed."""
    shares = []
    for seed, value in scores[row][column].items():
        others = [
            own[column][seed]
            for name, own in scores.items()
            if name != row and seed in own.get(column, {})
        ]
        better = sum((other > value) + 0.5 * (other == value) for other in others)
        shares.append(100 * better / len(others) if others else 0.0)
    return shares


def _compute_mean_and_bootstrap_interval(
    shares: Sequence[Sequence[float]], draws: np.random.Generator
) -> dict[str, float]:
    """Return the mean over columns and its bootstrap interval."""
    means = []
    for _ in range(RESAMPLES):
        columns = draws.integers(len(shares), size=len(shares))
        drawn = [draws.choice(shares[c], len(shares[c])).mean() for c in columns]
        means.append(fmean(map(float, drawn)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, (tail, 1 - tail)).tolist()
    return {"mean": fmean(map(fmean, shares)), "low": low, "high": high}


def _add_scores_of_leaderboard_task(
    cell: dict[str, Any], task: LeaderboardTask, folder: Path
) -> None:
    """Add the scores of one variant to a cell, under names of order and seed."""
    planned = task.plan_runs_of_chosen_settings(folder)
    jobs, oracle = (planned.get(name, []) for name in CHOICES)
    if not jobs or list_unfinished_jobs(jobs, folder):
        cell["is_open"] = True
        return
    if not oracle or list_unfinished_jobs(oracle, folder):
        cell["is_oracle_open"] = True
    reference = compute_errors_of_training_mean(task.data, task.effort.seeds)
    found = {
        name: _collect_scores_by_seed(own, folder, task.column.measure, reference)
        for name, own in zip(CHOICES, (jobs, oracle), strict=True)
    }
    cell["settings"].append(planned["honest"][0].settings)
    place = len(cell["settings"])
    parts = {name: found["honest"][name] for name in ("unseen", "seen", "adapted")}
    parts[ORACLE] = found[ORACLE]["unseen"]
    for name, by_seed in parts.items():
        scores = cell["scores"].setdefault(name, {})
        scores |= {f"{place}.{seed}": value for seed, value in by_seed.items()}


def _collect_scores_by_seed(
    jobs: Sequence[TrainingJob],
    folder: Path,
    measure: str,
    reference: Mapping[tuple[str, int], float],
) -> dict[str, dict[int, float]]:
    """Return seen, unseen and adapted scores after the last stage, by seed.

    `reference` has the errors that those of a regression are compared with.
    """
    records = read_records_of_finished_jobs(jobs, folder)
    scores = [r for r in records if isinstance(r, ScoreRecord) and r.metric in METRICS]
    last = max((score.stage for score in scores), default=0)
    ends = [score for score in scores if score.stage == last]
    parts: dict[str, Sequence[ScoreRecord | AdaptedScoreRecord]] = {
        "unseen": [r for r in ends if r.split == "test"],
        "seen": [r for r in ends if r.split == "train"],
    }
    if measure != ACCURACY:  # of the same environments; none after adapting
        measures = {
            (r.environment, r.seed): replace(r, value=100 * r.value)
            for r in records
            if isinstance(r, ScoreRecord) and r.metric == measure
        }
        parts = {
            name: [measures[r.environment, r.seed] for r in own]
            for name, own in parts.items()
        }
        means = {n: _average_scores_by_seed(own, {}) for n, own in parts.items()}
        return means | {"adapted": {}}
    adapted = [r for r in records if isinstance(r, AdaptedScoreRecord)]
    parts["adapted"] = [r for r in adapted if r.split == "test"]
    return {n: _average_scores_by_seed(own, reference) for n, own in parts.items()}


def _average_scores_by_seed(
    records: Sequence[ScoreRecord | AdaptedScoreRecord],
    reference: Mapping[tuple[str, int], float],
) -> dict[int, float]:
    """Return the mean over environments for each seed; errors relative to others."""
    values: dict[int, list[float]] = {}
    for record in records:
        value = record.value
        if record.metric == "error":
            value = 100 * (1 - value / reference[record.environment, record.seed])
        values.setdefault(record.seed, []).append(value)
    return {seed: fmean(own) for seed, own in values.items()}


def _summarise_scores_of_leaderboard_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and standard deviation of each kind of score."""
    described: dict[str, Any] = {"settings": cell["settings"]}
    for name, values in cell["scores"].items():
        own, described[name] = list(values.values()), None
        if own:
            spread = stdev(own) if len(own) > 1 else None
            described[name] = {"mean": fmean(own), "std": spread, "seeds": len(own)}
    return described
