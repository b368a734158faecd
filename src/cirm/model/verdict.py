"""The verdict of an evaluation: is the model worse than it was at other new places?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.intervals import compute_interval_on_logit_scale
from cirm.model.class_metrics import find_always_predicted_class
from cirm.model.comparison import (
    Measured,
    ScoreComparisonWithPast,
    compare_scores_with_past_environments,
)
from cirm.model.estimates import compute_hanley_mcneil_variance
from cirm.model.facts import TrainingHistoryEntry
from cirm.model.metrics import compute_delong_variance, compute_roc_auc
from cirm.model.model import Model
from cirm.model.threshold import HeldOutProbabilities, predict_classes_by_threshold
from cirm.wording import capitalise_first_letter, join_words

FEWEST_COMPARED = 20  # rows; with fewer, nearly any accuracy may be chance
FEWEST_RANKED = 5  # rows of each class, for a ROC AUC
CLEARLY_RANKED = 3.0  # standard errors above 0.5; with 2, two of twelve models that
# knew nothing were said to rank (docs/warnings.md)
MOST_NAMES = 3  # of environments in a sentence


class ScoresExpectedOfModel(NamedTuple):
    """What a model is compared with.

    Attributes:
        past: The measured scores of each environment.
        where: Where they were measured, in words.
        how: For some scores, how they differ from the others, in words.
        caution: What the comparison cannot know.
    """

    past: list[Measured]
    where: str
    how: dict[str, str] = {}
    caution: str = ""

    def describe_where_score_was_measured(self, score: str) -> str:
        """Return where a score was measured, in words."""
        return self.where + self.how.get(score, self.how.get("", ""))


def compare_predictions_with_expected_scores(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None = None
) -> dict[str, Any]:
    """Return the verdict, with a line for each comparison.

    Args:
        model: The model that made the predictions.
        mean: Class probabilities [n, classes] or standardised values [n, 1].
        targets: Class indices or standardised values [n].
        weights: Weights of the rows [n].

    Returns:
        `verdict`, a sentence or two; and `comparisons`, a dictionary for each score
        with its values, the 90 % interval of the difference and a `line` in words;
        `arrivals_without_columns`, the accuracies on arrival without columns that the
        model has given up since, if these explain a fall.
    """
    positives = float((targets == 1).double().mean()) if model.task.classes else 0.0
    if not _has_adapting_changed_model(model):
        model = replace(model, adaptation=None)
    expected = collect_expected_scores(model, positives)
    constant = describe_constant_predictions(model, mean, targets)
    constant = capitalise_first_letter(constant)
    if not expected.past:
        text = "The model file contains no earlier scores to compare these with."
        return _build_verdict_without_comparison(f"{constant}{text}")
    if len(targets) < FEWEST_COMPARED:
        text = (
            "There are too few rows to compare them with the scores "
            f"{expected.where}. Evaluate at least {FEWEST_COMPARED} rows."
        )
        return _build_verdict_without_comparison(f"{constant}{text}")
    found = compare_scores_with_past_environments(
        model, mean, targets, expected.past, weights
    )
    arrivals = []
    if any(one.is_worse for one in found):
        arrivals = _list_accuracies_without_dropped_columns(model)
    start = ""
    if arrivals:
        past = [
            _build_correct_and_row_counts(one["accuracy"], one["rows"])
            for one in arrivals
        ]
        (accuracy, *_) = compare_scores_with_past_environments(
            model, mean, targets, past, weights
        )
        if accuracy.is_worse:
            arrivals = []
        else:
            names = arrivals[0]["without"]
            without = {"accuracy": f", without {names}"}
            without[""] = f", when the model still relied on {names}"
            expected = expected._replace(how=without)
            found = [accuracy, *_ignore_drops_explained_by_dropped_columns(found)]
            start = (
                f"As accurate as expected without {names}, which the model no longer "
                "relies on. "
            )
    return {
        "verdict": f"{constant}{write_verdict_of_comparisons(found, expected, start)}",
        "comparisons": [
            one.as_dict(expected.describe_where_score_was_measured(one.score))
            for one in found
        ],
        "arrivals_without_columns": arrivals,
    }


def _has_adapting_changed_model(model: Model) -> bool:
    """Return whether anything was re-learned, as far as the learner tells."""
    if model.adaptation is None:
        return False
    told = model.explain().get("adaptation")
    parts = ("effects", "found", "frequencies")
    return not told or any(told.get(part) for part in parts)


def _build_verdict_without_comparison(verdict: str) -> dict[str, Any]:
    return {"verdict": verdict, "comparisons": [], "arrivals_without_columns": []}


def describe_constant_predictions(
    model: Model,
    mean: Tensor,
    targets: Tensor,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> str:
    """Return a sentence if rows of every class are predicted alike; else nothing.

    Args:
        model: The model that made the predictions.
        mean: Class probabilities, [n, classes].
        targets: Class indices, [n].
        held_out: Probabilities and targets by which the ranking is judged, if the model
            was trained on the rows.
    """
    classes = model.task.classes
    if not classes:
        return ""
    decided = predict_classes_by_threshold(mean, classes, model.threshold)
    constant = find_always_predicted_class(decided, targets)
    if constant is None:
        return ""
    others = decided[targets != constant]
    name, count = classes[constant], int((others != constant).sum())
    text = (
        f"the predictions are constant: the model predicts {name!r} for nearly every "
        f"row, and recognises only {count:,} of the {len(others):,} rows of other "
        "classes. "
    )
    if len(classes) != 2:
        return text
    return text + _describe_ranking_quality(*(held_out or (mean, targets)))


def _describe_ranking_quality(mean: Tensor, targets: Tensor) -> str:
    """Return a sentence on whether probabilities [n, 2] rank rows of two classes."""
    if min((targets == 0).sum(), (targets == 1).sum()) < FEWEST_RANKED:
        return (
            "Too few rows of one class are held out to tell whether --threshold "
            "would help (`cirm fit --held-out 0.3` holds out more). "
        )
    area = compute_roc_auc(mean[:, 1], targets)
    spread = compute_delong_variance(mean[:, 1], targets) ** 0.5
    if area - CLEARLY_RANKED * spread > 0.5:
        return (
            f"The probabilities do tell the two classes apart (ROC AUC {area:.2f}), "
            "so a threshold helps, for example --threshold recall=0.8 (in "
            'Python threshold="recall=0.8"; of an estimator, '
            "TunedThresholdClassifierCV of scikit-learn chooses one). "
        )
    low, high = compute_interval_on_logit_scale(area, spread**2)
    return (
        "It is not clear that the probabilities tell the two classes apart (ROC AUC "
        f"{area:.2f}, 95 % interval {low:.2f} to {high:.2f}), so a threshold may not "
        "help. "
    )


def write_verdict_of_comparisons(
    comparisons: Sequence[ScoreComparisonWithPast],
    expected: ScoresExpectedOfModel,
    first_sentence: str = "",
) -> str:
    """Return the result of all comparisons, and the line of the first one.

    Args:
        comparisons: What was compared.
        expected: What it was compared with.
        first_sentence: What is said first if nothing is worse.
    """
    worse = [one for one in comparisons if one.is_worse]
    if not comparisons:
        text = (
            f"No score of these rows can be compared with the scores {expected.where}"
        )
        return f"{text}{expected.caution}"
    if worse:
        titles = ", ".join(one.title for one in worse)
        text = f"Significantly worse than expected: {titles}. "
    else:
        text = f"No significant drop compared with the scores {expected.where}. "
        text = first_sentence or text
    first = (worse or comparisons)[0]
    line = first.describe_score_difference(
        expected.describe_where_score_was_measured(first.score)
    )
    spread = _describe_spread_between_places(comparisons[0])
    return f"{text}{capitalise_first_letter(line)}{spread}{expected.caution}"


def _describe_spread_between_places(comparison: ScoreComparisonWithPast) -> str:
    """Return how much places may differ in a score, if several arrivals show it."""
    if comparison.spread <= 0 or comparison.score not in ("accuracy", "rmse"):
        return ""
    unit = "points" if comparison.score == "accuracy" else "%"
    return (
        f". Judging by these scores, the {comparison.title} varies between "
        f"places with a standard deviation of up to {comparison.spread:.1f} {unit} "
        "(95 % limit), which the tests take into account"
    )


def _list_accuracies_without_dropped_columns(model: Model) -> list[dict[str, Any]]:
    """Return the accuracies on arrival without columns that were given up since.

    A learner may find on an arrival that a column changes its meaning. The scores there
    still had the help of that column, so they are not to be expected any more.

    Returns:
        For each arrival its `environment`, `rows` and `accuracy` in percent, and the
        names of the columns (`without`); nothing if no column was given up.
    """
    told = {} if model.adaptation is not None else model.explain()
    scores = told.get("costs", {}).get("invariant", ())
    arrivals = [entry for entry in model.history if entry.metrics_before]
    unstable = {f"`{one['feature']}`": None for one in told.get("unstable", ())}
    is_known = bool(unstable) and len(scores) == len(arrivals)
    if not (model.task.classes and is_known and told["trust"] == "invariant"):
        return []
    names = join_words([*unstable], MOST_NAMES)
    return [
        {"environment": e.name, "rows": e.rows, "accuracy": score, "without": names}
        for score, e in zip(scores, arrivals, strict=True)
    ]


def _build_correct_and_row_counts(percent: float, n_rows: float) -> Measured:
    return {"accuracy": {"correct": percent / 100 * n_rows, "rows": float(n_rows)}}


def _ignore_drops_explained_by_dropped_columns(
    comparisons: Sequence[ScoreComparisonWithPast],
) -> list[ScoreComparisonWithPast]:
    """Judge no fall of scores that had the help of columns given up since.

    Calibration does not need their help, so it is judged nevertheless.
    """
    return [
        replace(one, reason="not judged for this reason")
        if one.is_worse and one.score != "calibration_error"
        else one
        for one in comparisons
        if one.score != "accuracy"
    ]


def warn_of_score_drop(
    model: Model, name: str, mean: Tensor, targets: Tensor
) -> list[str]:
    """Warn if an environment is predicted worse than held-out rows of the last ones."""
    last = [e for e in model.history if e.stage == model.stages - 1 and e.held_out]
    if not last or len(targets) < FEWEST_COMPARED:
        return []
    positives = float((targets == 1).double().mean()) if model.task.classes else 0.0
    past, _ = _list_scores_of_held_out_rows(model, last, positives)
    where = f"on held-out rows of {_join_environment_names(last)}"
    return [
        f"before the model learned from {name!r}: "
        f"{one.describe_score_difference(where)}. "
        f"This place differs from {_join_environment_names(last)}, and other "
        "places may differ too: evaluate the model at each new place (cirm evaluate)."
        for one in compare_scores_with_past_environments(model, mean, targets, past)
        if one.is_worse and one.score in ("accuracy", "rmse")
    ]


def collect_expected_scores(
    model: Model, positive_fraction: float
) -> ScoresExpectedOfModel:
    """Return the scores on arrival at new places, or else those of held-out rows."""
    arrivals = [entry for entry in model.history if entry.metrics_before]
    if not arrivals:
        entries = [entry for entry in model.history if entry.metrics_after]
        past, caution = _list_scores_of_held_out_rows(model, entries, positive_fraction)
        where = f"on held-out rows of {_join_environment_names(entries)}"
        caution += (
            ". The model was never scored at a place before it was trained on it, and "
            "scores on held-out rows of known places are too optimistic"
        )
        return ScoresExpectedOfModel(past, where, caution=caution)
    past = [
        entry.arrival
        or _approximate_scores_from_metrics(model, entry, True, positive_fraction)
        for entry in arrivals
    ]
    past, caution = _drop_scores_at_other_thresholds(model, arrivals, past)
    pronoun = "it" if len(arrivals) == 1 else "them"
    names = _join_environment_names(arrivals)
    where = f"at {names} before the model was trained on {pronoun}"
    how = {}
    if model.adaptation is not None:
        how = {"": ", without adapting"}
        past, is_known = _replace_accuracies_by_adapted_ones(model, arrivals, past)
        if is_known:
            how["accuracy"] = ", with adapting"
    if len(past) == 1:
        caution += (
            ". From a single place it is unknown how much places usually differ, so "
            "a usual difference may count as significant"
        )
    return ScoresExpectedOfModel(past, where, how, caution)


def _drop_scores_at_other_thresholds(
    model: Model, entries: Sequence[TrainingHistoryEntry], past: Sequence[Measured]
) -> tuple[list[Measured], str]:
    """Drop accuracies and recalls that were measured with another threshold."""
    rule = model.threshold.rule if model.threshold else ""
    if all(entry.rule == rule for entry in entries):
        return list(past), ""
    counts = ("correct", "accuracy")
    kept = [
        one
        if entry.rule == rule
        else {name: values for name, values in one.items() if name not in counts}
        for entry, one in zip(entries, past, strict=True)
    ]
    text = ". Accuracy and recall measured with another threshold are not compared"
    return kept, text


def _list_scores_of_held_out_rows(
    model: Model, entries: Sequence[TrainingHistoryEntry], positive_fraction: float
) -> tuple[list[Measured], str]:
    """Return scores of held-out rows of the last stage, and what to say of them.

    Of two classes the model keeps the probabilities of these rows, and so the scores of
    each class at any threshold, by which another base rate can be told from a worse
    model. They are those of all its environments together.
    """
    kept = model.held_out_scores
    if kept is None or not all(entry.held_out for entry in entries):
        past = [
            _approximate_scores_from_metrics(model, entry, False, positive_fraction)
            for entry in entries
        ]
        return _drop_scores_at_other_thresholds(model, entries, past)
    classes = model.task.classes
    place = classes.index(model.positive)
    found: dict[str, dict[str, float]] = {"rows": {}, "correct": {}}
    parts = {place: kept.positives, 1 - place: kept.others}
    for index, rows in zip(parts, kept.rows, strict=True):
        likely = torch.tensor(parts[index], dtype=torch.float64)
        pair = torch.stack([1 - likely, likely], 1)
        decided = predict_classes_by_threshold(
            pair if place else pair.flip(1), classes, model.threshold
        )
        rate = float((decided == index).double().mean()) if len(likely) else 0.0
        found["rows"][classes[index]] = rows
        found["correct"][classes[index]] = rate * rows
    return [{**found, **_summarise_ranking_of_entries(entries, kept)}], ""


def _summarise_ranking_of_entries(
    entries: Sequence[TrainingHistoryEntry], kept: HeldOutProbabilities
) -> Measured:
    """Return the mean ROC AUC of held-out rows, by the rows of each environment."""
    known = [entry for entry in entries if "roc_auc" in entry.metrics_after]
    if not known or min(kept.rows) <= 0:
        return {}
    rows = sum(entry.held_out for entry in known)
    area = sum(e.metrics_after["roc_auc"] * e.held_out for e in known) / rows
    variance = compute_hanley_mcneil_variance(area, kept.rows[0], sum(kept.rows))
    return {"ranking": {"value": area, "variance": variance}}


def _approximate_scores_from_metrics(
    model: Model,
    entry: TrainingHistoryEntry,
    is_arrival: bool,
    positive_fraction: float,
) -> Measured:
    """Return the scores of an entry that holds only metrics, with usual variances."""
    metrics = entry.metrics_before if is_arrival else entry.metrics_after
    rows = entry.rows if is_arrival else entry.held_out or entry.rows
    if not model.task.classes:
        value = math.log(max(metrics["rmse"] / model.schema.target.scale, 1e-12))
        return {"error": {"value": value, "variance": 0.5 / rows}}
    correct = round(metrics["accuracy"] / 100 * rows)
    scores = {"accuracy": {"correct": float(correct), "rows": float(rows)}}
    if "roc_auc" in metrics:
        # The class frequencies were not stored; those here are the best guess.
        area = metrics["roc_auc"]
        variance = compute_hanley_mcneil_variance(area, positive_fraction * rows, rows)
        scores["ranking"] = {"value": area, "variance": variance}
    return scores


def _replace_accuracies_by_adapted_ones(
    model: Model, arrivals: Sequence[TrainingHistoryEntry], past: Sequence[Measured]
) -> tuple[list[Measured], bool]:
    """Replace accuracies by those that adapting would have given, where known."""
    reported = model.explain().get("adaptation", {}).get("arrivals", ())
    names = {one["environment"]: one["adapted"] for one in reported}
    indices = [model.history.index(entry) + 1 for entry in arrivals]
    if not model.task.classes or not all(index in names for index in indices):
        return list(past), False
    return [
        {**one, **_build_correct_and_row_counts(names[index], entry.rows)}
        for one, index, entry in zip(past, indices, arrivals, strict=True)
    ], True


def _join_environment_names(entries: Sequence[TrainingHistoryEntry]) -> str:
    return join_words([entry.name for entry in entries], MOST_NAMES)
