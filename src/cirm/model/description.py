"""The description of a model in its file: what it says, and the check that it is valid.

A file may come from anywhere. Every field of the description is checked for its type
by pydantic, which takes the types from the classes themselves; every size is bounded;
and parts that must agree are compared, before anything is computed from them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cirm.data.columns import ColumnEncoding
from cirm.data.schema import Schema
from cirm.model.conformal import CONFIDENCES, QUANTILES
from cirm.model.model import Adaptation, HistoryEntry, Nonconformity, TrainingPlan
from cirm.model.threshold import MOST_SCORES, HeldOutScores, Threshold

# No honest description is larger: a hundred thousand columns, notes of a few pages,
# and settings that are lists of numbers in a dictionary.
MOST_ITEMS, MOST_TEXT, MOST_DEPTH = 100_000, 20_000, 8
LARGEST = 2**63  # numbers that a tensor can hold
MOST_SCORE = 100.0  # of an area, a squared gap, or the logarithm of an error


@dataclass(config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class Description:
    """Everything in a model file besides the tensors."""

    cirm: str
    created: str
    plan: TrainingPlan
    schema: Schema
    history: tuple[HistoryEntry, ...]
    adaptation: Adaptation | None = None
    threshold: Threshold | None = None
    held_out_scores: HeldOutScores | None = None


def parse_description(data: Any) -> Description:  # noqa: ANN401  any JSON value
    """Return a description read from JSON after a check of every field.

    Raises:
        ValueError: If a field is missing, unknown, of another type or too large, or
            does not agree with the others.
    """
    _check_sizes(data)
    try:
        text = json.dumps(data)
        description = TypeAdapter(Description).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "description"
        raise ValueError(f"{place}: {first['msg']}") from None
    _check_schema(description.schema)
    _check_history(description.history, description.schema.task.classes)
    _check_decisions(description)
    return description


def _check_decisions(description: Description) -> None:
    """Refuse thresholds and class weights that do not fit the classes."""
    classes, plan = description.schema.task.classes, description.plan
    two = classes if len(classes) == 2 else ()
    _demand(plan.positive in ("", *two), "plan.positive", "not one of two classes")
    known = set(plan.class_weight) in (set(), set(classes))
    _demand(known, "plan.class_weight", "not of the classes")
    smallest = min(plan.class_weight.values(), default=1.0)
    _demand(smallest > 0, "plan.class_weight", "not positive")
    if description.threshold is not None:
        value = description.threshold.value
        is_valid = 0 <= value <= 1 and description.threshold.positive in two
        _demand(is_valid, "threshold", "not a probability of one of two classes")
    if (scores := description.held_out_scores) is not None:
        is_count = min(scores.rows) >= 0 and max(scores.rows) < LARGEST
        _demand(is_count and bool(two), "held_out_scores", "not of two classes")
        for part in (scores.positives, scores.others):
            is_valid = list(part) == sorted(part) and len(part) <= MOST_SCORES
            is_valid &= not part or 0 <= part[0] <= part[-1] <= 1
            _demand(is_valid, "held_out_scores", "not probabilities in order")


def _check_sizes(data: Any, depth: int = 0) -> None:  # noqa: ANN401
    """Refuse text, lists and numbers that are too large, and too deep nesting."""
    parts: list[Any] = []
    if isinstance(data, list | dict):
        is_small = len(data) <= MOST_ITEMS and depth < MOST_DEPTH
        parts = [*data, *data.values()] if isinstance(data, dict) else data
    elif isinstance(data, str):
        is_small = len(data) <= MOST_TEXT
    else:
        is_small = not isinstance(data, int) or abs(data) < LARGEST
    _demand(is_small, "description", "a text, list or number in it is too large")
    for part in parts:
        _check_sizes(part, depth + 1)


def _check_schema(schema: Schema) -> None:
    """Refuse a schema whose parts do not agree."""
    target, treatment = schema.target, schema.treatment
    _demand(target.categories == schema.task.classes, "classes", "not those of target")
    is_number = target.kind == "number"
    _demand(bool(schema.task.classes) != is_number, "target", "not of this task")
    _demand(all(size > 0 for size in treatment.shape), "shape", "not positive")
    _demand((treatment.kind == "table") == bool(treatment.encoding), "kind", "wrong")
    columns = treatment.encoding.columns if treatment.encoding else ()
    for column in (target, *columns):
        _check_column(column)
    names = [column.name for column in columns]
    _demand(len(set(names)) == len(names), "columns", "not unique")
    if treatment.encoding:
        features = len(treatment.encoding.features)
        _demand(treatment.shape == (features,), "shape", "not that of the columns")


def _check_column(column: ColumnEncoding) -> None:
    place, categories = f"column {column.name!r}", column.categories
    _demand(column.scale > 0, place, "not on a positive scale")
    _demand(len(set(categories)) == len(categories), place, "not of unique categories")
    places = set(column.hashed) & set(range(len(categories)))
    _demand(len(places) == len(column.hashed), place, "not of hashed categories")
    _demand(len(column.quartiles) in (0, 2), place, "not of two quartiles")
    low, high = column.quartiles or (0.0, 0.0)
    _demand(low <= high, place, "not of ordered quartiles")
    largest = max(map(abs, (column.centre, column.scale, column.fill, low, high)))
    _demand(largest < math.inf, place, "not finite")


def _check_history(history: tuple[HistoryEntry, ...], classes: Sequence[str]) -> None:
    _demand(bool(history), "history", "empty")
    for index, entry in enumerate(history):
        place = f"history.{index}"
        counts = (entry.stage, entry.rows - 1, entry.held_out, entry.epochs)
        _demand(min(counts) >= 0, place, "not of positive numbers")
        _demand(entry.held_out <= entry.rows, place, "of too few rows")
        _check_arrival(entry.arrival, f"{place}.arrival", classes)
        is_counted = len(entry.confident) in (0, len(CONFIDENCES))
        is_counted &= all(0 <= count < LARGEST for count in entry.confident)
        _demand(is_counted, f"{place}.confident", "not of all confidences")
        for one in (entry.nonconformity, entry.nonconformity_adapted):
            if one is not None:
                _check_nonconformity(one, f"{place}.nonconformity", classes)
        try:
            datetime.fromisoformat(entry.time)
        except ValueError:
            raise ValueError(f"{place}.time: not a time in ISO format") from None


def _check_arrival(
    arrival: dict[str, dict[str, float]], place: str, classes: Sequence[str]
) -> None:
    """Refuse scores on arrival other than those that `measure_scores` returns."""
    estimate = {"value", "variance"}
    spread = {"slope", "third", "third_slope"}
    known = {"ranking": estimate, "calibration": estimate | spread}
    known |= {name: set(classes) for name in ("rows", "correct")}
    needed = {"rows", "correct", "calibration"}
    if not classes:
        known, needed = {"error": estimate}, {"error"}
    names = set(arrival)
    is_complete = not names or needed <= names <= set(known)
    is_valid = is_complete and all(set(arrival[n]) == known[n] for n in names)
    _demand(is_valid, place, "not of the scores that are compared")
    for name in names & {"error", "ranking", "calibration"}:
        largest = max(map(abs, arrival[name].values()))
        _demand(largest < MOST_SCORE, place, "too large")
        _demand(arrival[name]["variance"] >= 0, place, "not of a positive variance")
    for label, rows in arrival.get("rows", {}).items():
        correct = arrival["correct"][label]
        is_count = 0 <= correct <= rows < LARGEST
        _demand(is_count, f"{place}.correct", "not a number of rows")


def _check_nonconformity(
    one: Nonconformity, place: str, classes: Sequence[str]
) -> None:
    """Refuse scores other than those that `measure_nonconformity` returns."""
    is_known = {""} <= set(one.quantiles) <= set(one.rows) <= {"", *classes}
    _demand(is_known, place, "not of these classes")
    for label, rows in one.rows.items():
        quantiles = one.quantiles.get(label, ())
        is_complete = len(quantiles) == (QUANTILES if rows else 0)
        _demand(rows >= 0 and is_complete, place, "not of all quantiles")
        is_valid = max(map(abs, quantiles), default=0.0) < MOST_SCORE
        is_valid &= all(a <= b for a, b in itertools.pairwise(quantiles))
        _demand(is_valid, place, "not of ordered quantiles")
    counts = (len(one.answered), len(one.wrong))
    wanted = len(CONFIDENCES) if classes else 0
    _demand(counts == (wanted, wanted), place, "not of all confidences")
    for answered, wrong in zip(one.answered, one.wrong, strict=True):
        _demand(0 <= wrong <= answered < LARGEST, place, "not a number of rows")


def _demand(is_valid: bool, place: str, problem: str) -> None:
    if not is_valid:
        raise ValueError(f"{place}: {problem}")
