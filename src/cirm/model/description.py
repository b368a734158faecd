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
from cirm.data.encoders import MOST_FEATURES, EncoderIdentity
from cirm.data.periods import EVERY
from cirm.data.schema import Schema
from cirm.data.values import is_valid_format_of_value_kind
from cirm.model.conformal import CONFIDENCES, QUANTILES
from cirm.model.facts import (
    ModelAdaptation,
    ModelTrainingPlan,
    NonconformitySummary,
    TrainingHistoryEntry,
)
from cirm.model.threshold import MOST_SCORES, DecisionThreshold, HeldOutProbabilities

# No honest description is larger: a hundred thousand columns, notes of a few pages,
# and settings that are lists of numbers in a dictionary.
MOST_ITEMS, MOST_TEXT, MOST_DEPTH = 100_000, 20_000, 8
MOST_SIDE = 10_000  # pixels of an image that an encoder gets
LARGEST = 2**63  # numbers that a tensor can hold
MOST_SCORE = 100.0  # of an area, a squared gap, or the logarithm of an error


@dataclass(config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
class ModelFileDescription:
    """Everything in a model file besides the tensors."""

    cirm: str
    created: str
    plan: ModelTrainingPlan
    schema: Schema
    history: tuple[TrainingHistoryEntry, ...]
    adaptation: ModelAdaptation | None = None
    threshold: DecisionThreshold | None = None
    held_out_scores: HeldOutProbabilities | None = None


def parse_model_file_description(data: Any) -> ModelFileDescription:  # noqa: ANN401  any JSON value
    """Return a description read from JSON after a check of every field."""
    _check_sizes_of_description_values(data)
    try:
        text = json.dumps(data)
        description = TypeAdapter(ModelFileDescription).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "description"
        raise ValueError(f"{place}: {first['msg']}") from None
    _check_schema_of_model_file(description.schema)
    _check_history_of_model_file(description.history, description.schema.task.classes)
    _check_thresholds_and_class_weights(description)
    return description


def _check_thresholds_and_class_weights(description: ModelFileDescription) -> None:
    """Refuse thresholds and class weights that do not fit the classes."""
    classes, plan = description.schema.task.classes, description.plan
    two = classes if len(classes) == 2 else ()
    _raise_error_for_invalid_field(
        plan.positive in ("", *two), "plan.positive", ("must be one of two classes")
    )
    known = set(plan.class_weight) in (set(), set(classes))
    _raise_error_for_invalid_field(
        known, "plan.class_weight", "must have a weight for every class"
    )
    smallest = min(plan.class_weight.values(), default=1.0)
    _raise_error_for_invalid_field(
        smallest > 0, "plan.class_weight", "weights must be positive"
    )
    if description.threshold is not None:
        value = description.threshold.value
        is_valid = 0 <= value <= 1 and description.threshold.positive in two
        _raise_error_for_invalid_field(
            is_valid, "threshold", "must be a probability of one of two classes"
        )
    if (scores := description.held_out_scores) is not None:
        is_count = min(scores.rows) >= 0 and max(scores.rows) < LARGEST
        _raise_error_for_invalid_field(
            is_count and bool(two),
            "held_out_scores",
            ("must count the rows of two classes"),
        )
        for part in (scores.positives, scores.others):
            is_valid = list(part) == sorted(part) and len(part) <= MOST_SCORES
            is_valid &= not part or 0 <= part[0] <= part[-1] <= 1
            _raise_error_for_invalid_field(
                is_valid,
                "held_out_scores",
                ("must be probabilities in increasing order"),
            )


def _check_sizes_of_description_values(data: Any) -> None:  # noqa: ANN401
    """Refuse text, lists and numbers that are too large, and too deep nesting."""
    level = [data]
    for _ in range(MOST_DEPTH + 1):
        by_type: dict[type, list[Any]] = {}
        for part in level:
            by_type.setdefault(type(part), []).append(part)
        lists, dicts = by_type.get(list, []), by_type.get(dict, [])
        is_small = (
            max(map(len, by_type.get(str, [])), default=0) <= MOST_TEXT
            and max(map(len, [*lists, *dicts]), default=0) <= MOST_ITEMS
            and max(map(abs, by_type.get(int, [])), default=0) < LARGEST
        )
        _raise_error_for_invalid_field(
            is_small,
            "description",
            ("a text, a list or a number in the description is too large"),
        )
        parts = [*lists, *dicts, *(part.values() for part in dicts)]
        level = list(itertools.chain.from_iterable(parts))
    _raise_error_for_invalid_field(
        not level, "description", "its lists are nested too deeply"
    )


def _check_schema_of_model_file(schema: Schema) -> None:
    """Refuse a schema whose parts do not agree."""
    target, treatment = schema.target, schema.treatment
    _raise_error_for_invalid_field(
        target.categories == schema.task.classes,
        "classes",
        "differ from those of the target",
    )
    is_number = target.kind == "number"
    _raise_error_for_invalid_field(
        bool(schema.task.classes) != is_number, "target", "does not match the task"
    )
    is_known = schema.every in ("", *EVERY) and bool(schema.every) <= bool(
        schema.environment
    )
    _raise_error_for_invalid_field(
        is_known, "every", "not the length of a period of a column of dates"
    )
    _raise_error_for_invalid_field(
        all(size > 0 for size in treatment.shape), "shape", "must be positive"
    )
    _raise_error_for_invalid_field(
        (treatment.kind == "table") == bool(treatment.encoding),
        "kind",
        "columns must be described for a table, and only for a table",
    )
    if (encoder := treatment.encoder) is not None:
        _check_encoder_of_model_file(encoder, "encoder")
        is_valid = treatment.kind == "images" and treatment.shape == (encoder.features,)
        _raise_error_for_invalid_field(
            is_valid and encoder.side > 0, "encoder", "does not match the inputs"
        )
    columns = treatment.encoding.columns if treatment.encoding else ()
    for column in (target, *columns):
        _check_column_of_model_file(column)
    names = [column.name for column in columns]
    _raise_error_for_invalid_field(
        len(set(names)) == len(names), "columns", ("two columns have the same name")
    )
    if treatment.encoding:
        features = len(treatment.encoding.features)
        _raise_error_for_invalid_field(
            treatment.shape == (features,), "shape", "does not match the columns"
        )


def _check_column_of_model_file(column: ColumnEncoding) -> None:
    place, categories = f"column {column.name!r}", column.categories
    _raise_error_for_invalid_field(
        column.scale > 0, place, "the scale must be positive"
    )
    _raise_error_for_invalid_field(
        len(set(categories)) == len(categories), place, "categories must be unique"
    )
    places = set(column.hashed) & set(range(len(categories)))
    _raise_error_for_invalid_field(
        len(places) == len(column.hashed), place, ("a hashed category does not exist")
    )
    _raise_error_for_invalid_field(
        is_valid_format_of_value_kind(column.kind, column.format),
        place,
        ("the format of its values is unknown"),
    )
    _raise_error_for_invalid_field(
        len(column.quartiles) in (0, 2), place, ("there must be two quartiles or none")
    )
    low, high = column.quartiles or (0.0, 0.0)
    _raise_error_for_invalid_field(
        low <= high, place, "quartiles must be in increasing order"
    )
    if column.encoder is not None:
        _check_encoder_of_model_file(column.encoder, place)
        is_text = column.kind == "text" and not column.encoder.side
        _raise_error_for_invalid_field(is_text, place, "only text has an encoder")
    largest = max(map(abs, (column.centre, column.scale, column.fill, low, high)))
    _raise_error_for_invalid_field(largest < math.inf, place, "numbers must be finite")


def _check_encoder_of_model_file(encoder: EncoderIdentity, place: str) -> None:
    is_valid = bool(encoder.name and encoder.checksum)
    is_valid &= 0 < encoder.features <= MOST_FEATURES and 0 <= encoder.side <= MOST_SIDE
    _raise_error_for_invalid_field(is_valid, place, "the encoder is invalid")


def _check_history_of_model_file(
    history: tuple[TrainingHistoryEntry, ...], classes: Sequence[str]
) -> None:
    _raise_error_for_invalid_field(bool(history), "history", "must not be empty")
    for index, entry in enumerate(history):
        place = f"history.{index}"
        counts = (entry.stage, entry.rows - 1, entry.held_out, entry.epochs)
        _raise_error_for_invalid_field(
            min(counts) >= 0, place, "counts must not be negative"
        )
        _raise_error_for_invalid_field(
            entry.held_out <= entry.rows,
            place,
            ("the number of held-out rows is larger than the number of rows"),
        )
        _check_scores_before_training(entry.arrival, f"{place}.arrival", classes)
        is_counted = len(entry.confident) in (0, len(CONFIDENCES))
        is_counted &= all(0 <= count < LARGEST for count in entry.confident)
        _raise_error_for_invalid_field(
            is_counted, f"{place}.confident", "must count every confidence level"
        )
        for one in (entry.nonconformity, entry.nonconformity_adapted):
            if one is not None:
                _check_nonconformity_of_model_file(
                    one, f"{place}.nonconformity", classes
                )
        try:
            datetime.fromisoformat(entry.time)
        except ValueError:
            raise ValueError(
                f"{place}.time: must be a date and time in ISO format"
            ) from None


def _check_scores_before_training(
    arrival: dict[str, dict[str, float]], place: str, classes: Sequence[str]
) -> None:
    """Refuse scores on arrival that `collect_score_statistics` does not return."""
    estimate = {"value", "variance"}
    spread = {"slope", "third", "third_slope"}
    known = {"ranking": estimate, "calibration": estimate | spread}
    given = ("probability", "probability_variance")  # absent from older files
    known |= {name: set(classes) for name in ("rows", "correct", *given)}
    needed = {"rows", "correct", "calibration"}
    if not classes:
        known, needed = {"error": estimate}, {"error"}
    names = set(arrival)
    is_complete = not names or needed <= names <= set(known)
    is_valid = is_complete and all(set(arrival[n]) == known[n] for n in names)
    is_valid &= len(names & set(given)) != 1
    _raise_error_for_invalid_field(
        is_valid, place, "a score is missing, or is not one that cirm stores"
    )
    for name in names & {"error", "ranking", "calibration"}:
        largest = max(map(abs, arrival[name].values()))
        _raise_error_for_invalid_field(
            largest < MOST_SCORE, place, "a score is too large"
        )
        _raise_error_for_invalid_field(
            arrival[name]["variance"] >= 0, place, "a variance must not be negative"
        )
    for label, rows in arrival.get("rows", {}).items():
        correct = arrival["correct"][label]
        is_count = 0 <= correct <= rows < LARGEST
        _raise_error_for_invalid_field(
            is_count, f"{place}.correct", "must be from 0 to the number of rows"
        )
    for name in names & set(given):
        is_valid = all(0 <= score <= 1 for score in arrival[name].values())
        _raise_error_for_invalid_field(
            is_valid, f"{place}.{name}", "must be from 0 to 1"
        )


def _check_nonconformity_of_model_file(
    summary: NonconformitySummary, place: str, classes: Sequence[str]
) -> None:
    """Refuse scores other than those that `measure_nonconformity` returns."""
    is_known = {""} <= set(summary.quantiles) <= set(summary.rows) <= {"", *classes}
    _raise_error_for_invalid_field(
        is_known, place, "classes differ from those of the target"
    )
    for label, rows in summary.rows.items():
        quantiles = summary.quantiles.get(label, ())
        is_complete = len(quantiles) == (QUANTILES if rows else 0)
        _raise_error_for_invalid_field(
            rows >= 0 and is_complete, place, "quantiles are missing"
        )
        is_valid = max(map(abs, quantiles), default=0.0) < MOST_SCORE
        is_valid &= all(a <= b for a, b in itertools.pairwise(quantiles))
        _raise_error_for_invalid_field(
            is_valid, place, "quantiles must be in increasing order"
        )
    counts = (len(summary.answered), len(summary.wrong))
    wanted = len(CONFIDENCES) if classes else 0
    _raise_error_for_invalid_field(
        counts == (wanted, wanted), place, "must count every confidence level"
    )
    for answered, wrong in zip(summary.answered, summary.wrong, strict=True):
        is_count = 0 <= wrong <= answered < LARGEST
        _raise_error_for_invalid_field(
            is_count,
            place,
            (
                "the number of wrong predictions must be from 0 to "
                "the number of predictions"
            ),
        )


def _raise_error_for_invalid_field(is_valid: bool, place: str, problem: str) -> None:
    if not is_valid:
        raise ValueError(f"{place}: {problem}")
