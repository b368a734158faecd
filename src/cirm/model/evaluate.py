"""Evaluate a model on rows with known targets, compared with its training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cirm.data.encoded_chunks import (
    check_file_names_its_place_alone,
    check_some_row_has_weight,
    encode_targets,
    find_missing_numeric_cells,
    iterate_encoded_rows_of_source,
    read_environment_names,
)
from cirm.data.open_sources import open_sources_for_model
from cirm.data.periods import divide_new_sources_into_time_periods
from cirm.data.rows import (
    concatenate_row_weights,
    group_rows_by_environment,
    hash_inputs_and_targets,
)
from cirm.data.schema import SCHEMA_ROWS
from cirm.data.sources import (
    Data,
    DataSource,
    Progress,
    ignore_progress_message,
    report_progress_of_reading_rows,
)
from cirm.data.values import Numbers, convert_values_to_text
from cirm.environments import Environment, Stage
from cirm.evaluation.diagnostics import (
    PredictionsWithTargets,
    iterate_diagnostic_metrics,
    predict_and_group_examples,
    take_evenly_spaced_examples,
)
from cirm.evaluation.groups import GroupReferenceModel
from cirm.model.abstention import choose_abstention_threshold
from cirm.model.class_metrics import compute_class_metrics, describe_confusion_matrix
from cirm.model.compute import join_predictions_of_chunks, predict_inputs_in_chunks
from cirm.model.conformal import ConformalThresholds, compute_conformal_thresholds
from cirm.model.coverage import (
    measure_coverage_of_intervals,
    measure_error_of_answered_rows,
)
from cirm.model.estimates import count_effective_rows
from cirm.model.facts import describe_decision_threshold, set_decision_threshold
from cirm.model.metrics import (
    PredictionsWithDeviation,
    assign_confidence_bins,
    compute_metrics,
    compute_weighted_mean,
)
from cirm.model.model import Model
from cirm.model.outputs import check_predictions_are_finite
from cirm.model.threshold import predict_classes_by_threshold
from cirm.model.verdict import compare_predictions_with_expected_scores
from cirm.model.warnings import list_input_warnings
from cirm.randomness import Randomness

MOST_KEPT_BYTES = 1 << 26  # of inputs that are kept to recognise training rows
MOST_VALUES = 20  # of a grouping column; the most frequent ones are shown
FEWEST_OF_GROUP = 20  # rows; with fewer, nearly any score may be chance

FLAT_VALUES = (
    "the model predicts nearly the same value for every row, though the target can be "
    "predicted better. Fit it with another learner, for example --learner erm."
)


def evaluate(
    model: Model,
    data: Data,
    *,
    environment: str = "",
    groups: Sequence[str] = (),
    level: float = 0.9,
    abstain: float | None = None,
    threshold: str = "",
    weight: str = "",
    fill_missing: bool = False,
    progress: Progress = ignore_progress_message,
) -> dict[str, Any]:
    """Evaluate a model on data whose targets are known.

    Args:
        model: A trained model.
        data: The rows: a path to a CSV, TSV, Parquet or NPZ file or to a folder of
            images, a table of pandas, polars or pyarrow, or a list of these.
        environment: Column that names the environment of each row. By default the
            column that was used for training, or one environment per file.
        groups: Columns by whose values the rows are also scored.
        level: Coverage that the prediction sets or intervals are meant to have, a
            fraction from 0.5 to 0.99.
        abstain: Also report the error if the model abstains from the least certain
            rows, so that at most this fraction of the others is expected to be wrong.
        threshold: Of two classes, from which probability of the positive one on it is
            predicted: a number, or a rule that chooses one on the rows that were held
            out in training ("recall=0.9", "precision=0.5", "rate=0.05", "cost=5:1").
            By default the model's own.
        weight: Column with the weight of each row. By default the column that was
            used for training, if the data have it.
        fill_missing: Whether to treat columns that the data lack as missing values.
            Otherwise they raise an error.
        progress: Called with a description and the number of rows so far.

    Returns:
        Plain values that JSON can hold: `rows`; the metrics `overall`, with the
        `standard_error` of the first one, and by `environments`, `groups` and (for
        classification) `classes`, these with precision, recall, the area under the
        precision-recall curve and 95 % intervals; `expected`, the same metric on
        training data; `worst_groups`, for each column of groups the group with the
        worst score, of those with 20 rows or more; `verdict`, whether the scores are
        worse than on arrival at other places, or the predictions constant;
        `comparisons`, each score with the 90 %
        interval of the difference and a `line` in words; and `notes`, warnings about
        the data.
        `coverage` says how many percent of the targets lie within the prediction sets
        or intervals, with 95 % intervals: overall (the mean over environments) and by
        environment and class; None for classification by a model of an earlier version.
        For classification also `confusion`, the confusion matrix with intervals,
        `reliability`, the accuracy by bins of confidence, and the `threshold`. With
        `abstain` also `abstention`: the answered rows and their error.

    Raises:
        ValueError: If the data cannot be read as the model reads them. The message
            names file, row and column.

    Example:
        >>> import pandas as pd
        >>> from cirm import evaluate, fit
        >>> table = pd.DataFrame({"age": range(40), "ill": ["no", "yes"] * 20})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table[:30], "ill", learner="erm", settings=settings)
        >>> report = evaluate(model, table[30:])
        >>> report["rows"], sorted(report["classes"])
        (10, ['no', 'yes'])
    """
    model = set_decision_threshold(model, threshold)
    schema = model.schema
    calibration = _compute_conformal_thresholds_if_possible(model, level)
    abstention = (
        None if abstain is None else choose_abstention_threshold(model, abstain)
    )
    predictions: list[PredictionsWithDeviation] = []
    targets: list[Tensor] = []
    weights: list[Numbers | None] = []
    kept: list[np.ndarray] = []
    notes = describe_environment_adapted_to(model)
    labels: dict[str, list[np.ndarray]] = {name: [] for name in ("", *groups)}
    needed = [schema.target.name, *groups, *filter(None, [weight])]
    sources = open_sources_for_model(data, schema)
    named: list[DataSource] = []
    report_progress_of_reading_rows(progress, "predicting", sources, 0)
    for source in divide_new_sources_into_time_periods(sources, schema, environment):
        for chunk in iterate_encoded_rows_of_source(
            source, schema, fill_missing, environment, needed
        ):
            if not chunk.environment:
                check_file_names_its_place_alone(source, named)
            column = weight or schema.weight
            chunk, own_weights = chunk.select_rows_with_nonzero_weight(column)
            frame, inputs = chunk.frame, chunk.inputs
            if frame.empty:
                continue
            weights.append(own_weights)
            notes += chunk.notes
            if not predictions:
                notes += list_input_warnings(
                    schema, inputs, find_missing_numeric_cells(frame, schema)
                )
            own = predict_inputs_in_chunks(model, inputs)
            check_predictions_are_finite(own.mean.numpy(), source.where)
            predictions.append(own)
            if sum(part.nbytes for part in kept) < MOST_KEPT_BYTES:
                kept.append(inputs)
            own_targets = encode_targets(frame[schema.target.name], schema)
            targets.append(torch.from_numpy(own_targets))
            names = read_environment_names(frame, chunk.environment, source.name)
            labels[""].append(names)
            for name in groups:
                text = convert_values_to_text(frame[name]).fillna("")
                labels[name].append(text.to_numpy(dtype=object))
            report_progress_of_reading_rows(
                progress, "predicting", sources, sum(map(len, targets))
            )
    check_some_row_has_weight(len(targets), weight or schema.weight)
    progress("scoring", 1)
    joined = {name: np.concatenate(parts) for name, parts in labels.items()}
    notes += _warn_of_rows_used_in_training(model, kept, torch.cat(targets), joined[""])
    whole, aims = join_predictions_of_chunks(predictions), torch.cat(targets)
    places = {
        name: rows.numpy()
        for name, rows in group_rows_by_environment(joined[""]).items()
    }
    report = _build_evaluation_report(
        model,
        whole,
        aims,
        joined,
        list(dict.fromkeys(notes)),
        concatenate_row_weights(weights, list(map(len, targets))),
    )
    report["coverage"] = calibration and measure_coverage_of_intervals(
        model, whole, aims.numpy(), places, calibration
    )
    if abstention is not None:
        report["abstention"] = measure_error_of_answered_rows(
            whole, aims.numpy(), places, abstention
        )
    return report


def _compute_conformal_thresholds_if_possible(
    model: Model, level: float
) -> ConformalThresholds | None:
    """Return the calibration of a model; None for classes in a file without scores."""
    if model.task.classes and not any(e.nonconformity for e in model.history):
        return None
    return compute_conformal_thresholds(model, level)


def describe_environment_adapted_to(model: Model) -> list[str]:
    """Return a note on the environment that a model was adapted to, if any."""
    if model.adaptation is None:
        return []
    return [
        f"the model was adapted to {model.adaptation.name!r}, so its predictions are "
        "meant for rows from there. For rows of another place, use the model before "
        "it was adapted, or adapt it to that place."
    ]


def _warn_of_rows_used_in_training(
    model: Model,
    kept_inputs: list[np.ndarray],
    targets: Tensor,
    environment_of_row: np.ndarray,
) -> list[str]:
    """Warn of environments that the model was trained on, if all inputs were kept."""
    if not SCHEMA_ROWS >= sum(map(len, kept_inputs)) == len(targets):
        return []
    inputs = np.concatenate(kept_inputs)
    history = {entry.fingerprint: entry for entry in model.history}
    notes = []
    for name in dict.fromkeys(environment_of_row):
        rows = np.flatnonzero(environment_of_row == name)
        digest = hash_inputs_and_targets([(inputs[rows], targets.numpy()[rows])])
        if entry := history.get(digest):
            notes.append(
                f"place {name!r}: the model was already trained on these rows on "
                f"{entry.time[:10]}, so these scores are too optimistic for new "
                "places. Evaluate it on rows that it was not trained on."
            )
    return notes


def _build_evaluation_report(
    model: Model,
    predictions: PredictionsWithDeviation,
    targets: Tensor,
    label_columns: dict[str, np.ndarray],
    notes: list[str],
    weights: Tensor | None = None,
) -> dict[str, Any]:
    def score_predictions(values: np.ndarray) -> dict[str, dict[str, float]]:
        return _score_rows_by_group_label(model, predictions, targets, values, weights)

    mean = predictions.mean
    report: dict[str, Any] = {
        "rows": len(targets),
        "overall": compute_metrics(model, predictions, targets, weights),
        "standard_error": compute_standard_error_of_score(
            model, mean, targets, weights
        ),
        "environments": score_predictions(label_columns.pop("")),
        "groups": {
            name: score_predictions(values) for name, values in label_columns.items()
        },
        "expected": list_training_scores(model),
        "notes": notes,
    }
    report["worst_groups"] = {
        name: worst
        for name, scores in report["groups"].items()
        if (worst := find_worst_group(model, scores))
    }
    metric = choose_main_metric_of_model(model)
    for name, worst in report["worst_groups"].items():
        unit = " %" if metric == "accuracy" else ""
        notes.append(
            f"the worst group of column {name!r} is {worst['group']!r}: {metric} "
            f"{worst[metric]:.4g}{unit} on {worst['rows']:,.0f} rows (groups of fewer "
            f"than {FEWEST_OF_GROUP} rows are not compared)."
        )
    if model.task.classes:
        report |= _describe_scores_by_class(model, mean, targets, weights)
        names = np.array(model.task.classes, dtype=object)
        known = score_predictions(names[targets.numpy()])
        for name, own in report["classes"].items():
            report["classes"][name] = known.get(name, {"rows": 0}) | own
        report["reliability"] = compute_reliability_bins(mean, targets)
        if weights is not None:
            notes.append(
                f"the rows have weights, which sum to {float(weights.sum()):,.0f}: "
                "counts of predictions and of the confusion matrix are sums of weights."
            )
    return report | compare_predictions_with_expected_scores(
        model, mean, targets, weights
    )


def _describe_scores_by_class(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None
) -> dict[str, Any]:
    """Return the scores of each class, the confusion matrix and the threshold."""
    classes = model.task.classes
    decided = predict_classes_by_threshold(mean, classes, model.threshold)
    return {
        "classes": compute_class_metrics(mean, decided, targets, classes, weights),
        "confusion": describe_confusion_matrix(decided, targets, classes, weights),
        "positive": model.positive,
        "threshold": describe_decision_threshold(model),
    }


def find_worst_group(
    model: Model, scores: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return the group with the worst score, of those with enough rows to tell.

    Args:
        model: The model.
        scores: The number of rows and the metrics of each group.

    Returns:
        The name of the `group`, its `rows` and its metrics; nothing if there are not
        two groups to compare.
    """
    metric = choose_main_metric_of_model(model)
    large = {
        name: own for name, own in scores.items() if own["rows"] >= FEWEST_OF_GROUP
    }
    if len(large) < 2:
        return {}
    choose = min if metric == "accuracy" else max
    name = choose(large, key=lambda name: large[name][metric])
    return {"group": name, **large[name]}


def choose_main_metric_of_model(model: Model) -> str:
    """Return the metric that a model is judged by first."""
    return "accuracy" if model.task.classes else "rmse"


def _score_rows_by_group_label(
    model: Model,
    predictions: PredictionsWithDeviation,
    targets: Tensor,
    labels: np.ndarray,
    weights: Tensor | None,
) -> dict[str, dict[str, float]]:
    """Return the metrics of the rows with each label, for the most frequent labels."""
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:MOST_VALUES])
    groups = {}
    for code in frequent.tolist():
        rows = torch.from_numpy(np.flatnonzero(codes == code))
        part = PredictionsWithDeviation(*(values[rows] for values in predictions))
        own = None if weights is None else weights[rows]
        metrics = compute_metrics(model, part, targets[rows], own)
        groups[str(names[code]) or "missing"] = {"rows": float(len(rows)), **metrics}
    return groups


def compute_standard_error_of_score(
    model: Model, mean: Tensor, targets: Tensor, weights: Tensor | None = None
) -> float:
    """Standard error of the accuracy or of the root mean squared error."""
    if model.task.classes:
        decided = predict_classes_by_threshold(
            mean, model.task.classes, model.threshold
        )
        values, factor = (decided == targets).double(), 100.0
    else:
        values = (mean[:, 0] - targets).double().square()
        # By the delta method; the bound guards against a perfect fit.
        root = max(compute_weighted_mean(values, weights) ** 0.5, 1e-12)
        factor = model.schema.target.scale / (2 * root)
    deviations = values - compute_weighted_mean(values, weights)
    spread = compute_weighted_mean(deviations.square(), weights) ** 0.5
    return factor * spread / count_effective_rows(values, weights) ** 0.5


def list_training_scores(model: Model) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of each training environment: held out, and on arrival."""
    metric = choose_main_metric_of_model(model)
    after = [(e, e.held_out or e.rows, e.metrics_after) for e in model.history]
    before = [(e, e.rows, e.metrics_before) for e in model.history if e.metrics_before]
    return {
        kind: [
            {"environment": entry.name, "rows": rows, metric: metrics[metric]}
            for entry, rows, metrics in scores
        ]
        for kind, scores in (("held_out", after), ("on_arrival", before))
    }


def compute_reliability_bins(mean: Tensor, targets: Tensor) -> list[dict[str, float]]:
    """Mean confidence and accuracy in percent, by bins of confidence."""
    confidence, guess = mean.double().max(-1)
    correct = (guess == targets).double()
    bins = assign_confidence_bins(confidence)
    return [
        {
            "confidence": 100 * float(confidence[bins == index].mean()),
            "accuracy": 100 * float(correct[bins == index].mean()),
            "rows": float((bins == index).sum()),
        }
        for index in bins.unique().tolist()
    ]


def compute_diagnostics_by_environment(
    model: Model, stage: Stage, held_out: Stage, randomness: Randomness
) -> dict[str, dict[str, float]]:
    """Return diagnostics of each environment of a stage, on its held-out rows.

    The reference model that infers the groups is trained on the stage and discarded.
    """
    predictions = {
        environment.name: _predict_held_out_rows(
            model, environment, take_evenly_spaced_examples(held, 1), randomness
        )
        for environment, held in zip(stage, held_out, strict=True)
    }
    diagnostics: dict[str, dict[str, float]] = {name: {} for name in predictions}
    shared = ("calibration spread", "constant")
    for where, metric, values in iterate_diagnostic_metrics(
        model.learner.likelihood, model.task, predictions, is_last_stage=False
    ):
        if metric == "calibration":  # among the metrics of all held-out rows already
            continue
        value = float(values[0])
        for name in diagnostics if where == "all" else [where]:
            # Of all environments together, only what a single one cannot have.
            if math.isfinite(value) and (where != "all" or len(predictions) == 1):
                diagnostics[name].setdefault(metric, value)
            elif math.isfinite(value) and metric in shared:
                diagnostics[name][metric] = value
    return diagnostics


def _predict_held_out_rows(
    model: Model,
    environment: Environment,
    held_out: Environment,
    randomness: Randomness,
) -> PredictionsWithTargets:
    source = randomness.at("diagnostics", environment.name)
    reference = GroupReferenceModel.fit(
        take_evenly_spaced_examples(environment, 1), source
    )
    return predict_and_group_examples(
        model.learner, model.state, held_out, reference, 1
    )


def warn_of_constant_values(model: Model, diagnostics: dict[str, float]) -> list[str]:
    """Warn if a regression predicts nearly the same value for every row."""
    is_flat = not model.task.classes and diagnostics.get("constant") == 1
    return [FLAT_VALUES] if is_flat else []


def score_model_on_past_environments(before: Model, after: Model) -> dict[str, float]:
    """Score an updated model on what the one before has stored of its environments."""
    with torch.no_grad():
        scores = before.learner.score_on_past_environments(before.state, after.state)
    if scores and not before.task.classes:
        scale = before.schema.target.scale
        for name in ("before", "after"):
            scores[name] = scale * math.sqrt(scores[name])
    return scores
