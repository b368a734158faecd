"""How good a model is on rows whose targets are known, and what was to be expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cirm.data import cells
from cirm.data.columns import check_columns
from cirm.data.prefetch import prefetch
from cirm.data.rows import (
    SAMPLE,
    Progress,
    check_source_kinds,
    choose_environment_column,
    compute_fingerprint,
    describe_column_changes,
    encode_chunk,
    ignore_progress,
    list_numeric_columns,
    read_environment_names,
)
from cirm.data.sources import Data, open_sources
from cirm.data.targets import encode_targets
from cirm.model.metrics import BINS, Answers, compute_metrics, half_widths
from cirm.model.model import Model
from cirm.model.predict import oddities, predict_inputs

WHOLE = 1 << 26  # bytes of inputs up to which rows are compared with those learned
FEW = 20  # rows below which nothing is said about what was to be expected
MOST_VALUES = 20  # of a grouping column; the most frequent ones are shown


def evaluate(
    model: Model,
    data: Data,
    *,
    environment: str = "",
    groups: Sequence[str] = (),
    fill_missing: bool = False,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Scores on the data: overall, by environment, class and groups; what to expect.

    `groups` are columns by whose values the rows are grouped. All numbers are plain
    values that JSON can hold.
    """
    found = open_sources(data, model.schema.treatment.shape)
    answered: list[Answers] = []
    targets: list[Tensor] = []
    seen: list[np.ndarray] = []
    notes: list[str] = []
    labels: dict[str, list[np.ndarray]] = {name: [] for name in ("", *groups)}
    for source in found:
        check_source_kinds([source], model.schema.treatment.kind)
        column = choose_environment_column(source, model.schema, environment)
        for portion in prefetch(source.portions(list_numeric_columns(model.schema))):
            frame = portion.frame
            named = [environment] if environment else []
            check_columns(
                frame, [model.schema.target.name, *groups, *named], source.where
            )
            own = column if column in frame.columns else ""
            notes.extend(
                describe_column_changes(frame, model.schema, own, source.where)
            )
            inputs = encode_chunk(portion, model.schema, source.where, fill_missing)
            if not answered:
                notes += oddities(model, inputs)
            answered.append(predict_inputs(model, inputs))
            if sum(part.nbytes for part in seen) < WHOLE:
                seen.append(inputs)
            targets.append(
                encode_targets(frame[model.schema.target.name], model.schema)
            )
            labels[""].append(read_environment_names(portion, own, source.name))
            for name in groups:
                labels[name].append(cells.as_text(frame[name]).to_numpy(dtype=object))
            progress("predicting", sum(map(len, targets)))
    answer = Answers(*map(torch.cat, zip(*answered, strict=True)))
    joined = {name: np.concatenate(parts) for name, parts in labels.items()}
    known = _known(model, seen, torch.cat(targets), joined[""])
    notes = list(dict.fromkeys([*notes, *known]))
    return _judged(model, answer, torch.cat(targets), joined, notes)


def _known(
    model: Model, seen: list[np.ndarray], targets: Tensor, names: np.ndarray
) -> list[str]:
    """Which environments the model has learned from, if all their inputs were kept."""
    if not SAMPLE >= sum(map(len, seen)) == len(targets):
        return []
    inputs = np.concatenate(seen)
    marks = {visit.mark: visit for visit in model.visits}
    found = []
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(names == name)
        visit = marks.get(compute_fingerprint([(inputs[rows], targets.numpy()[rows])]))
        if visit:
            found.append(
                f"environment {name!r}: the model learned from these rows on "
                f"{visit.when[:10]}, so that they say little about places never seen"
            )
    return found


def _judged(
    model: Model,
    answer: Answers,
    targets: Tensor,
    labels: dict[str, np.ndarray],
    notes: list[str],
) -> dict[str, Any]:
    overall, mean = compute_metrics(model, answer, targets), answer.mean
    report = {
        "rows": len(targets),
        "overall": overall,
        "error": standard_error(model, mean, targets),
        "environments": _by(model, answer, targets, labels.pop("")),
        "groups": {n: _by(model, answer, targets, own) for n, own in labels.items()},
        "expected": expected(model),
        "notes": notes,
    }
    if model.task.classes:
        names = np.array(model.task.classes, dtype=object)
        report["classes"] = _by(model, answer, targets, names[targets.numpy()])
        report["reliability"] = reliability(mean, targets)
    else:
        half = half_widths(model, answer.spread[:, 0])
        inside = (mean[:, 0] - targets).abs() <= half
        report["within_interval"] = 100 * float(inside.double().mean())
    return report | {"verdict": verdict(report, metric(model))}


def metric(model: Model) -> str:
    """The number by which a model is judged first."""
    return "accuracy" if model.task.classes else "rmse"


def _by(
    model: Model, answer: Answers, targets: Tensor, labels: np.ndarray
) -> dict[str, dict[str, float]]:
    """Scores by label, the most frequent labels of all."""
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])
    found = {}
    for place in chosen.tolist():
        rows = torch.from_numpy(np.flatnonzero(codes == place))
        own = Answers(*(part[rows] for part in answer))
        scores = compute_metrics(model, own, targets[rows])
        found[str(names[place]) or "missing"] = {"rows": float(len(rows)), **scores}
    return found


def standard_error(model: Model, mean: Tensor, targets: Tensor) -> float:
    """How far chance alone moves the overall score."""
    if model.task.classes:
        right = (mean.argmax(-1) == targets).double()
        return float(100 * (right.var(correction=0) / len(right)).sqrt())
    squares = (mean[:, 0] - targets).double().square()
    root = squares.mean().sqrt().clamp(min=1e-12)
    spread = (squares.var(correction=0) / len(squares)).sqrt() / (2 * root)
    return float(model.schema.target.scale * spread)


def expected(model: Model) -> dict[str, list[dict[str, Any]]]:
    """What the training environments gave: on rows held out, and on arrival."""
    name = metric(model)
    return {
        "held_out": [
            {"environment": v.name, "rows": v.held_out or v.rows, name: v.after[name]}
            for v in model.visits
        ],
        "on_arrival": [
            {"environment": v.name, "rows": v.rows, name: v.before[name]}
            for v in model.visits
            if v.before
        ],
    }


def verdict(report: dict[str, Any], name: str) -> str:
    """The comparison with the training environments, in words."""
    here, error = report["overall"][name], report["error"]
    unit = " %" if name == "accuracy" else ""
    text = f"{name} {here:.4g}{unit} here (standard error {error:.2g})"
    parts = []
    for what, words in (
        ("held_out", "in the training environments"),
        ("on_arrival", "in new environments before they were learned"),
    ):
        values = [entry[name] for entry in report["expected"][what]]
        if values:
            low, high = min(values), max(values)
            span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
            parts.append(f"{span}{unit} {words}")
    text += f"; expected {' and '.join(parts)}" if parts else ""
    known = [entry for entries in report["expected"].values() for entry in entries]
    if not known:
        return text
    if report["rows"] < FEW:
        return f"{text}: too few rows to tell"
    sign = 1 if name == "accuracy" else -1
    worst = min(known, key=lambda entry: sign * entry[name])
    worse = sign * (worst[name] - here)
    if worse > 2 * math.hypot(error, _chance(worst[name], worst["rows"], name)):
        return f"{text}: worse than anywhere before, by more than chance"
    return f"{text}: within what was to be expected, or better"


def _chance(value: float, rows: int, name: str) -> float:
    """The standard error of a score of so many rows; of errors, if they are normal."""
    if name == "accuracy":
        return math.sqrt(value * (100 - value) / rows)
    return value / math.sqrt(2 * rows)


def reliability(mean: Tensor, targets: Tensor) -> list[dict[str, float]]:
    """How often predictions are right, by how sure they are."""
    confidence, guess = mean.double().max(-1)
    right = (guess == targets).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    return [
        {
            "sure": 100 * float(confidence[bins == place].mean()),
            "right": 100 * float(right[bins == place].mean()),
            "rows": float((bins == place).sum()),
        }
        for place in bins.unique().tolist()
    ]
