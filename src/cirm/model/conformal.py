"""Prediction sets and intervals for a place never seen: conformal prediction by place.

Each place is a unit. When a labelled place arrives, and before the model learns from
it, a nonconformity score is computed for each of its rows: how far the prediction was
from the target. Only quantiles of the scores are kept. A set or an interval for a new
place holds everything whose score is below a threshold.

With many arrivals the threshold is the quantile of the scores, all places weighted
alike, with one more place that is infinitely bad: Lee, Barber and Willett,
"Distribution-free inference with hierarchical data", 2023. The coverage at a new place,
averaged over places, is then at least the level, whatever the distributions, if places
come in no particular order. With K arrivals that is impossible for a level above
K / (K + 1). With fewer arrivals the quantiles of places are therefore taken for draws
from a normal distribution (see `new_place`), and the threshold is the quantile of a
new place's scores under that model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cirm.data.values import Flags, Numbers
from cirm.model.facts import ModelMetadata, NonconformitySummary, TrainingHistoryEntry
from cirm.model.new_place import predict_quantity_at_new_place

if TYPE_CHECKING:
    from torch import Tensor

    from cirm.model.metrics import PredictionsWithDeviation

Indices = NDArray[np.int64]
QUANTILES = 50  # of the scores of a class at a place: up to 99 %, and few numbers
LEVELS = (np.arange(QUANTILES) + 0.5) / QUANTILES
MOST_CLASSES = 20  # with a threshold of their own; more classes share one
FEWEST_ROWS = 5  # of a class at a place, for it to count
ENOUGH_ROWS = 200  # from which on a place says all about the shape of the distribution
LEAST_ERROR = 0.02  # standard error of a quantile, which is known to two digits
FARTHEST = 20.0  # scores beyond are cut: probabilities of 2e-9, and exact predictions
CONFIDENCES = (
    *(0.0, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9),
    *(0.925, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999),
)
"""Least confidences for which it is counted how many predictions are wrong."""


class ConformalThresholds(NamedTuple):
    """What decides which classes or values belong to a prediction.

    Attributes:
        level: The wanted coverage, a fraction.
        thresholds: The largest score of each class, [classes], or of values, [1].
        places: Number of arrivals at new places behind it.
        guarantee: What can be said about the coverage at a new place, in words.
    """

    level: float
    thresholds: Numbers
    places: int
    guarantee: str

    @property
    def half_width(self) -> float:
        """Half the width of an interval, in standard deviations of the target."""
        return float(np.exp(self.thresholds[0]))

    def choose_prediction_sets(
        self, probabilities: Numbers, predicted: Indices
    ) -> Flags:
        """Return which classes belong to the set of each row, [n, classes].

        The predicted class [n] always does, so that no set is empty.
        """
        chosen: Flags = (
            _compute_class_nonconformity_scores(probabilities) <= self.thresholds
        )
        chosen[np.arange(len(chosen)), predicted] = True
        return chosen


def measure_nonconformity(
    model: ModelMetadata, predictions: PredictionsWithDeviation, true_targets: Tensor
) -> NonconformitySummary:
    """Summarise how far predictions of n rows are from their targets [n]."""
    mean, targets = predictions.mean.double().numpy(), true_targets.numpy()
    classes = model.task.classes
    if not classes:
        scores = _compute_value_nonconformity_scores(mean[:, 0], targets)
        return NonconformitySummary(
            {"": len(scores)}, {"": _compute_nonconformity_quantiles(scores)}
        )
    rows = np.arange(len(mean))
    scores = _compute_class_nonconformity_scores(mean)[rows, targets]
    parts = {"": scores}
    if len(classes) <= MOST_CLASSES:
        parts |= {name: scores[targets == k] for k, name in enumerate(classes)}
    return NonconformitySummary(
        {name: len(part) for name, part in parts.items()},
        {
            name: _compute_nonconformity_quantiles(part)
            for name, part in parts.items()
            if len(part)
        },
        count_rows_by_confidence(mean),
        count_rows_by_confidence(mean[mean.argmax(1) != targets]),
    )


def count_rows_by_confidence(probabilities: Numbers) -> tuple[int, ...]:
    """Return how many of n rows have at least each of the confidences."""
    confidence = probabilities.max(1, initial=0.0)
    return tuple(int((confidence >= least).sum()) for least in CONFIDENCES)


def compute_conformal_thresholds(
    model: ModelMetadata, level: float
) -> ConformalThresholds:
    """Return the thresholds of a model for a level of coverage at a new place."""
    if not 0.5 <= level <= 0.99:
        raise ValueError(
            f"--level: {level:g} is not from 0.5 to 0.99. Give the wanted coverage of "
            "sets and intervals, for example 0.9."
        )
    places, is_arrival = collect_nonconformity_scores(model)
    pooled, is_guaranteed = _find_conformal_threshold_of_class(places, "", level)
    thresholds = []
    for name in model.task.classes or ("",):
        threshold, is_certain = _find_conformal_threshold_of_class(places, name, level)
        is_guaranteed &= is_certain
        thresholds.append(threshold)
    # A class that no place had enough rows of is taken for the hardest one.
    known = [value for value in (pooled, *thresholds) if not np.isnan(value)]
    hardest = max(known, default=np.inf)
    thresholds = [hardest if np.isnan(value) else value for value in thresholds]
    for index in _list_classes_without_scores(model):
        thresholds[index] = np.inf
    count = len(places) if is_arrival else 0
    text = _describe_coverage_guarantee(level, count, is_guaranteed and is_arrival)
    if np.isinf(hardest):
        text = (
            f"Fewer than {FEWEST_ROWS} rows were held out, which is too few to tell "
            "how far predictions are off, so prediction sets contain all classes and "
            "intervals have no limits; fit the model to more rows"
        )
    return ConformalThresholds(level, np.array(thresholds), count, text)


def _list_classes_without_scores(model: ModelMetadata) -> list[int]:
    """Return declared classes of which no place had a row, so that nothing is known.

    With more than `MOST_CLASSES` classes this was not counted, and none is returned.
    """
    known = [one.nonconformity for one in model.history if one.nonconformity]
    if not known or len(model.task.classes) > MOST_CLASSES:
        return []
    return [
        index
        for index, name in enumerate(model.task.classes)
        if not any(one.rows.get(name, 0) for one in known)
    ]


def collect_nonconformity_scores(
    model: ModelMetadata,
) -> tuple[list[NonconformitySummary], bool]:
    """Return the scores on arrival at new places, or else those of held-out rows."""
    arrivals = [
        _choose_scores_before_or_after_training(model, entry)
        for entry in model.history
        if entry.metrics_before and entry.nonconformity
    ]
    arrivals = [one for one in arrivals if one.rows[""] >= FEWEST_ROWS]
    if arrivals:
        return arrivals, True
    others = [
        entry.nonconformity or _restore_scores_of_earlier_version(model, entry)
        for entry in model.history
    ]
    if not (known := [one for one in others if one is not None]):
        raise ValueError(
            "The model was trained by an earlier version of cirm, which did not "
            "store the scores that prediction sets and abstention need. Update the "
            "model with rows of a new place, or fit it again."
        )
    return known, False


def _choose_scores_before_or_after_training(
    model: ModelMetadata, entry: TrainingHistoryEntry
) -> NonconformitySummary:
    """Return the scores on arrival, for an adapted model those after adapting.

    Where adapting changed nothing then, since no column was known to be unstable, the
    residuals of a regression are expected to be smaller by the learner's own factor.
    """
    plain, adapted = entry.nonconformity, entry.nonconformity_adapted
    assert plain is not None
    if model.adaptation is None:
        return plain
    if adapted is not None and adapted != plain:
        return adapted
    if model.task.classes:
        return plain
    shift = np.log(model.get_residual_ratio_after_adapting())
    quantiles = tuple((np.array(plain.quantiles[""]) + shift).tolist())
    return replace(plain, quantiles={"": quantiles})


def _restore_scores_of_earlier_version(
    model: ModelMetadata, entry: TrainingHistoryEntry
) -> NonconformitySummary | None:
    """Return scores of a file of an earlier version, as if errors were normal.

    It has a 90 % quantile of the residuals, in units of their root mean square.
    """
    metrics = entry.metrics_after
    if model.task.classes or not metrics.get("rmse"):
        return None
    from scipy.special import ndtri

    usual = ndtri(0.95)  # the quantile 0.9 of absolute values
    error = metrics["rmse"] / model.schema.target.scale
    error *= metrics.get("residual_quantile", usual) / usual
    quantiles = np.log(np.maximum(error * ndtri((1 + LEVELS) / 2), 1e-6))
    rows = entry.held_out or entry.rows
    return NonconformitySummary({"": rows}, {"": tuple(quantiles.tolist())})


def _compute_class_nonconformity_scores(probabilities: Numbers) -> Numbers:
    """Return the log odds against each class, [n, classes]."""
    with np.errstate(divide="ignore"):
        odds: Numbers = np.log1p(-probabilities) - np.log(probabilities)
    return odds.clip(-FARTHEST, FARTHEST)


def _compute_value_nonconformity_scores(values: Numbers, targets: Numbers) -> Numbers:
    """Return logarithms of absolute residuals, in standard deviations, [n]."""
    with np.errstate(divide="ignore"):
        scores: Numbers = np.log(np.abs(values - targets))
    return scores.clip(-FARTHEST, FARTHEST)


def _compute_nonconformity_quantiles(scores: Numbers) -> tuple[float, ...]:
    # Rounded, since more digits would only make the file larger.
    return tuple(np.quantile(scores, LEVELS).round(4).tolist())


def _find_conformal_threshold_of_class(
    scores_by_place: Sequence[NonconformitySummary], class_name: str, level: float
) -> tuple[float, bool]:
    """Return the threshold of a class, and whether its coverage is guaranteed.

    It is NaN if no place has enough rows of the class.
    """
    known = [
        (one.rows[class_name], np.array(one.quantiles[class_name]))
        for one in scores_by_place
        if one.rows.get(class_name, 0) >= FEWEST_ROWS
    ]
    if not known:
        return np.nan, False
    count = len(known)
    if count >= 2 * level / (1 - level):
        # The place that is infinitely bad then takes at most half of what may miss.
        scores = np.concatenate([quantiles for _, quantiles in known])
        share = level * (count + 1) / count
        return float(np.quantile(scores, share, method="higher")), True
    return _find_threshold_by_random_effects(known, level), False


def _find_threshold_by_random_effects(
    scores_by_place: Sequence[tuple[int, Numbers]], level: float
) -> float:
    """Return the quantile of a score at a new place under the random-effects model.

    Its parts are the place's own quantile, and how scores lie around that quantile
    at the places seen.
    """
    from scipy import optimize

    effects = [
        _estimate_quantile_of_scores(rows, own, level) for rows, own in scores_by_place
    ]
    centres, variances = np.array(effects).T
    new = predict_quantity_at_new_place(centres, variances)
    around = np.concatenate(
        [
            own - centre
            for (_, own), centre in zip(scores_by_place, centres, strict=True)
        ]
    )
    weights = np.array([min(rows, ENOUGH_ROWS) for rows, _ in scores_by_place], float)
    weights = np.repeat(weights / weights.sum() / QUANTILES, QUANTILES)

    def compute_coverage_minus_level(threshold: float) -> float:
        return (
            float(new.compute_cumulative_probability(threshold - around) @ weights)
            - level
        )

    return float(
        optimize.brentq(compute_coverage_minus_level, -100.0, 100.0, xtol=1e-4)
    )


def _estimate_quantile_of_scores(
    n_rows: int, quantiles: Numbers, level: float
) -> tuple[float, float]:
    """Return a place's quantile of the scores, and its sampling variance.

    The rank is that of split conformal prediction. The standard error is half the
    distance of the quantiles one standard error of the rank away.
    """
    rank = level * (1 + 1 / n_rows)
    error = np.sqrt(level * (1 - level) / n_rows)
    low, centre, high = np.interp((rank - error, rank, rank + error), LEVELS, quantiles)
    half = (high - low) / 2
    if rank + error > LEVELS[-1]:  # where the upper end is not known
        half = max(half, centre - low)
    return float(centre), float(max(half, LEAST_ERROR)) ** 2


def _describe_coverage_guarantee(
    level: float, n_places: int, is_guaranteed: bool
) -> str:
    percent = f"{100 * level:.3g} %"
    needed = int(np.ceil(2 * level / (1 - level) - 1e-9))
    if not n_places:
        return (
            f"The {percent} were estimated from held-out rows, with a margin for "
            "usual differences between places, because the model was never scored at "
            "a place before it was trained on it. This is not a guarantee; update "
            "the model with rows of another place to measure the differences"
        )
    seen = f"{n_places} place{'s' * (n_places > 1)} before training there"
    if is_guaranteed:
        return (
            f"At least {percent} on average over new places, whatever their "
            "distributions, provided that they come in no particular order "
            f"(conformal prediction, from the scores at {seen})"
        )
    return (
        f"About {percent} on average over new places, provided that these differ no "
        f"more than those seen so far (random-effects model of the scores at {seen}). "
        f"Once {needed} places have been scored in this way, this assumption is no "
        "longer needed"
    )
