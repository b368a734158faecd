"""How many targets lie in their sets or intervals, place by place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cirm.data.values import Flags, Numbers
from cirm.intervals import compute_wilson_interval
from cirm.model.abstention import (
    AbstentionThreshold,
    choose_abstention_threshold,
    describe_abstention,
)
from cirm.model.conformal import ConformalThresholds, compute_conformal_thresholds
from cirm.model.facts import ModelMetadata
from cirm.model.threshold import predict_classes_by_threshold

if TYPE_CHECKING:
    from cirm.model.metrics import PredictionsWithDeviation

Rows = Mapping[str, np.ndarray]
"""The positions of the rows of each environment."""


def measure_coverage_of_intervals(
    model: ModelMetadata,
    predictions: PredictionsWithDeviation,
    targets: np.ndarray,
    rows: Rows,
    calibration: ConformalThresholds,
) -> dict[str, Any]:
    """Measure how many percent of the targets lie in their sets or intervals.

    Args:
        model: The model that made the predictions.
        predictions: Predictions for n rows.
        targets: Class indices or standardised values, [n].
        rows: The rows of each environment.
        calibration: The thresholds of the sets or intervals.

    Returns:
        `level` in percent, `places`, `guarantee`, and the coverage `overall`, by
        `environments` and, for classification, by `classes`. Each has its 95 %
        interval from `low` to `high`, and the mean `size` of the sets or `width` of
        the intervals.
    """
    mean = predictions.mean.double().numpy()
    if model.task.classes:
        decided = predict_classes_by_threshold(
            predictions.mean, model.task.classes, model.threshold
        )
        chosen = calibration.choose_prediction_sets(mean, decided.numpy())
        inside: Flags = chosen[np.arange(len(mean)), targets]
        name, sizes = "size", chosen.sum(1).astype(float)
    else:
        width = 2 * model.schema.target.scale * calibration.half_width
        inside = np.abs(mean[:, 0] - targets) <= calibration.half_width
        name, sizes = "width", np.full(len(mean), width)
    found = _measure_coverage_by_environment(inside, {name: sizes}, rows, "coverage")
    if model.task.classes:
        members = {
            label: np.flatnonzero(targets == index)
            for index, label in enumerate(model.task.classes)
        }
        found["classes"] = {
            label: _measure_covered_percentage(
                inside[own], {name: sizes[own]}, "coverage"
            )
            for label, own in members.items()
            if len(own)
        }
    facts = {"level": 100 * calibration.level, "places": calibration.places}
    return {**facts, "guarantee": calibration.guarantee, **found}


def measure_error_of_answered_rows(
    predictions: PredictionsWithDeviation,
    targets: np.ndarray,
    rows: Rows,
    abstention: AbstentionThreshold,
) -> dict[str, Any]:
    """Measure how many percent of the answered rows are wrong, place by place.

    Returns:
        `rate` and `expected` in percent, the least `confidence`, and the `error` of
        the answered rows with its 95 % interval, `overall` and by `environments`, with
        the share that is `answered`; all in percent. Where no row is answered, there
        is no error.
    """
    mean = predictions.mean.double().numpy()
    answered = mean.max(1) >= abstention.confidence
    wrong = mean.argmax(1) != targets
    kept = {name: own[answered[own]] for name, own in rows.items()}
    found = _measure_coverage_by_environment(wrong, {}, kept, "error")
    shares = {name: 100 * float(answered[own].mean()) for name, own in rows.items()}
    places = {
        name: {"rows": len(rows[name]), "answered": share}
        | {k: v for k, v in found["environments"].get(name, {}).items() if k != "rows"}
        for name, share in shares.items()
    }
    whole = {"rows": len(targets), "answered": 100 * float(answered.mean())}
    rest = {k: v for k, v in found["overall"].items() if k != "rows"}
    is_possible = math.isfinite(abstention.confidence)
    return {
        "rate": 100 * abstention.rate,
        "confidence": abstention.confidence if is_possible else None,
        "expected": 100 * abstention.expected if is_possible else None,
        "overall": whole | rest,
        "environments": places,
    }


def describe_prediction_uncertainty(
    model: ModelMetadata,
    sets: bool,
    level: float,
    abstain: float | None,
    n_rows: int,
    n_abstained: int,
) -> dict[str, Any]:
    """Describe the sets, intervals and abstention of predictions for some rows.

    Returns:
        `level` in percent, if there are sets or intervals, `abstained`, the number of
        rows without a prediction, and `uncertainty`, sentences about both.
    """
    found: dict[str, Any] = {"abstained": n_abstained, "uncertainty": []}
    if sets or not model.task.classes:
        calibration = compute_conformal_thresholds(model, level)
        found["level"] = 100 * level
        kind = "sets" if sets else "intervals"
        found["uncertainty"].append(
            f"Coverage of the {kind}: {calibration.guarantee[0].lower()}"
            f"{calibration.guarantee[1:]}."
        )
    if abstain is not None:
        abstention = choose_abstention_threshold(model, abstain)
        text = describe_abstention(abstention, n_abstained, n_rows)
        found["uncertainty"].append(f"{text}.")
    return found


def _measure_coverage_by_environment(
    hits: Flags, sizes: Mapping[str, Numbers], rows: Rows, name: str
) -> dict[str, Any]:
    """Return the percentage of hits of each environment, and their mean."""
    from scipy import special

    places = {
        place: _measure_covered_percentage(
            hits[own], {key: values[own] for key, values in sizes.items()}, name
        )
        for place, own in rows.items()
        if len(own)
    }
    if len(places) < 2:
        return {"overall": next(iter(places.values()), {}), "environments": places}
    shares = np.array([place[name] for place in places.values()])
    error = shares.std(ddof=1) / np.sqrt(len(shares))
    half = float(special.stdtrit(len(shares) - 1, 0.975) * error)
    mean = float(shares.mean())
    overall = {"rows": sum(place["rows"] for place in places.values()), name: mean}
    overall |= {"low": max(0.0, mean - half), "high": min(100.0, mean + half)}
    for key in sizes:
        overall[key] = float(np.mean([place[key] for place in places.values()]))
    return {"overall": overall, "environments": places}


def _measure_covered_percentage(
    hits: Flags, sizes: Mapping[str, Numbers], name: str
) -> dict[str, Any]:
    """Return the percentage of hits among rows with its interval, and mean sizes."""
    low, high = compute_wilson_interval(int(hits.sum()), len(hits))
    share = {name: 100 * float(hits.mean()), "low": 100 * low, "high": 100 * high}
    means = {key: float(values.mean()) for key, values in sizes.items()}
    return {"rows": len(hits)} | share | means
