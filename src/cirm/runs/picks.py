"""What a search has found: the scores of its trials, and what each rule picks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cirm.evaluation.selection import RULES
from cirm.records import Score, read_records
from cirm.runs.runner import get_record_path
from cirm.runs.search import DIVERGED, Search
from cirm.runs.search_space import spelled_space


def summarise_search(search: Search, folder: Path) -> dict[str, Any]:
    """All trials with their scores, and what each rule picks, as plain values."""
    trials = [
        {
            "trial": trial,
            "settings": search.chosen(trial),
            **_judged(search, trial, folder),
        }
        for trial in range(search.trials)
    ]
    return {
        "learner": search.learner,
        "dataset": {"name": search.on.dataset, **search.on.data},
        "order": search.order,
        "seeds": list(search.seeds),
        "preset": search.preset,
        "held": search.held,
        "metric": "accuracy" if search.on.problem.train[0].task.classes else "error",
        "rules": {rule: RULES[rule] for rule in search.rules},
        "space": spelled_space(search.space),
        "trials": trials,
        "picks": {
            rule: best
            for rule in search.rules
            if (best := _best(trials, rule)) is not None
        },
    }


def _judged(search: Search, trial: int, folder: Path) -> dict[str, Any]:
    """A trial's state, and its mean and standard deviation over seeds by rule."""
    jobs = search.jobs(trial)
    paths = [path for job in jobs if (path := get_record_path(job, folder)).exists()]
    rows = [
        row for path in paths for row in read_records(path) if isinstance(row, Score)
    ]
    state = "done" if len(paths) == len(jobs) else "failed"
    if any(row.metric == DIVERGED for row in rows):
        state = DIVERGED
    scores = {}
    for rule in search.rules if state == "done" else ():
        found: dict[int, list[float]] = {}
        for row in rows:
            if row.metric == rule and math.isfinite(row.value):
                found.setdefault(row.seed, []).append(row.value)
        means = [fmean(values) for values in found.values()]
        if len(means) == len(search.seeds):
            std = stdev(means) if len(means) > 1 else None
            scores[rule] = {"mean": fmean(means), "std": std, "seeds": len(means)}
    return {"state": state, "scores": scores}


def _best(trials: Sequence[Mapping[str, Any]], rule: str) -> dict[str, Any] | None:
    """The trial with the highest score by a rule, the first of several."""
    judged = [trial for trial in trials if rule in trial["scores"]]
    if not judged:
        return None
    best = max(judged, key=lambda trial: trial["scores"][rule]["mean"])
    named = {"trial": best["trial"], "settings": best["settings"]}
    return {**named, "score": best["scores"][rule]}


def format_command(search: Search, settings: Mapping[str, Any]) -> str:
    """The command that runs the learner with these settings."""
    words = ["cirm", "run", "--dataset", search.on.dataset]
    for name, value in search.on.data.items():
        words += [f"--{name.replace('_', '-')}", format_setting(value)]
    words += ["--learner", search.learner, "--order", search.order]
    words += ["--seeds", str(len(search.seeds))]
    words += ["--preset", search.preset] if search.preset else []
    for name, value in settings.items():
        words += ["--set", f"{name}={format_setting(value)}"]
    return shlex.join(words)


def format_setting(value: object) -> str:
    """A setting's value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(format_setting, value))
    return str(value).lower() if isinstance(value, bool | None) else str(value)
