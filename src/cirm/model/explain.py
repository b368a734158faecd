"""Describe a model: its history, what it stores, and which columns matter to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from cirm.data.columns import ColumnEncoding
from cirm.learners import REGISTRY, summarise_learner
from cirm.memory import measure_state_size
from cirm.model.compute import predict_inputs_in_one_batch
from cirm.model.facts import (
    count_features_of_each_column,
    describe_adaptation_of_model,
    describe_decision_threshold,
)
from cirm.model.file import compute_version_key, dump_dataclasses_as_json
from cirm.model.model import Model
from cirm.model.versions import EarlierModelVersion, list_earlier_model_versions
from cirm.randomness import RandomDraws, Randomness
from cirm.training import Descent

IMPORTANCE_ROWS = 1_000  # enough for two digits
MOST_COLUMNS = 500  # each costs a prediction of all those rows
RELEVANT = 0.05  # share of the importance below which a column is not followed


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model in plain values that JSON can hold.

    Args:
        model: A trained model.

    Returns:
        What `cirm inspect --json` prints: learner, settings, network and columns; the
        `encoder` of images with the checksum of its weights, or None; the
        `threshold` with what it gives on held-out rows, or None; `class_weight`;
        `history`, one entry per environment; `memory`, what is stored of past data;
        `importance`, the mean change of the predictions when a column is replaced by
        random values; `importance_drops`, the columns whose share of the importance
        (in percent) has fallen by half or more since the first environment;
        `explanation`, what the learner reports about its decisions; and `adaptation`,
        the environment that the model was adapted to with what was estimated anew
        there, or None; and `earlier_versions`, to which `rollback` can return.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit
        >>> from cirm.model.explain import describe_model
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings)
        >>> description = describe_model(model)
        >>> description["learner"], description["raw_examples"]
        ('erm', 0)
    """
    schema, plan = model.schema, model.plan
    versions = list_earlier_model_versions(model)
    memory = count_data_stored_in_model(model, versions)
    importance, encoder = model.history[-1].importance, schema.treatment.encoder
    explanation = model.explain()
    explanation.pop("adaptation", None)
    return {
        "version": compute_version_key(model),
        "created": model.created,
        "task": model.task.kind,
        "classes": list(model.task.classes),
        "target": schema.target.name,
        "learner": plan.learner,
        "method": _summarise_learner_of_model(model),
        "settings": _list_settings_in_use(model),
        "network": plan.network if model.learner.trains_network else None,
        "seed": plan.seed,
        "held_out": plan.held_out,
        "positive": model.positive,
        "class_weight": plan.class_weight,
        "weight_column": schema.weight,
        "threshold": describe_decision_threshold(model),
        "history": [
            {**asdict(entry), "notes": list(entry.notes)} for entry in model.history
        ],
        "memory": memory,
        "raw_examples": sum(part["examples"] for part in memory.values()),
        "category_names": sum(part.get("names", 0) for part in memory.values()),
        "bytes": sum(part["bytes"] for part in memory.values()),
        "input_shape": list(schema.treatment.shape),
        "encoder": asdict(encoder) if encoder else None,
        "columns": describe_encoding_of_columns(model),
        "environment_column": schema.environment,
        "importance": dict(sorted(importance.items(), key=lambda item: -item[1])),
        "importance_drops": find_columns_that_lost_importance(
            model.history[0].importance if model.stages > 1 else {}, importance
        ),
        "explanation": explanation,
        "adaptation": describe_adaptation_of_model(model),
        "earlier_versions": [
            describe_earlier_model_version(version) for version in versions
        ],
    }


def describe_earlier_model_version(version: EarlierModelVersion) -> dict[str, Any]:
    """Describe an earlier version of a model in plain values."""
    model = version.model
    return {
        "version": version.key,
        "environments": [entry.name for entry in model.history],
        "time": model.history[-1].time,
        "adapted_to": model.adaptation.name if model.adaptation else "",
        "bytes": len(version.content),
    }


def _list_settings_in_use(model: Model) -> dict[str, Any]:
    """Return the settings, without those of training if no network is trained."""
    settings = model.plan.settings
    unused: set[str] = set()
    if not model.learner.trains_network:
        unused = {field.name for field in fields(Descent)} | {"members"}
    return {name: settings[name] for name in sorted(settings) if name not in unused}


def _summarise_learner_of_model(model: Model) -> str:
    """Return a line about the learner; nothing that a file names is looked up."""
    if model.plan.learner in REGISTRY.list_keys():
        return summarise_learner(model.plan.learner)
    return (type(model.learner).__doc__ or "").partition("\n")[0]


def count_data_stored_in_model(
    model: Model, versions: Sequence[EarlierModelVersion] = ()
) -> dict[str, dict[str, int]]:
    """Count what the model stores of past data: examples, numbers, names and bytes.

    Besides the state of the learner, these are the statistics of the columns (means,
    standard deviations, quartiles, categories) and the history. `names` are the names
    of categories that the file contains in plain text. Earlier versions count as well.
    """
    memory = dict(measure_state_size(model.state))
    encoding = model.schema.treatment.encoding
    if encoding is not None:
        numbers = sum(
            (3 + len(c.quartiles)) * (c.kind in ("number", "date")) + len(c.categories)
            for c in encoding.columns
        )
        names = sum(len(c.categories) - len(c.hashed) for c in encoding.columns)
        size = len(dump_dataclasses_as_json(encoding))
        memory["columns"] = {"examples": 0, "parameters": numbers, "bytes": size}
        memory["columns"]["names"] = names
    history = [asdict(entry) for entry in model.history]
    numbers = sum(
        len(part) for entry in history for part in entry.values() if type(part) is dict
    )
    size = len(json.dumps(history))
    memory["history"] = {"examples": 0, "parameters": numbers, "bytes": size}
    if versions:
        parts = [
            part
            for v in versions
            for part in count_data_stored_in_model(v.model).values()
        ]
        counts = ("examples", "parameters", "names")
        total = {name: sum(part.get(name, 0) for part in parts) for name in counts}
        total["bytes"] = sum(len(version.content) for version in versions)
        memory["earlier versions"] = total
    return memory


def describe_encoding_of_columns(model: Model) -> list[dict[str, Any]]:
    """Return each column of a table with a description of its treatment."""
    schema, settings = model.schema, model.plan.settings
    inputs = list(count_features_of_each_column(schema))
    columns = []
    if schema.treatment.encoding is not None:
        for column in schema.treatment.encoding.columns:
            text = column.describe().removeprefix(f"{column.name}: ")
            for word in ("unstable", "stable"):
                if column.name in [inputs[index] for index in settings.get(word, ())]:
                    text += f"; {word}, as requested"
            columns.append(
                {"name": column.name, "kind": column.kind, "treatment": text}
            )
    for names, kind, text in (
        (
            schema.ids,
            "identifier",
            "identifier: not an input, but copied to the predictions",
        ),
        (schema.ignored, "ignored", "ignored, as requested"),
    ):
        columns += [{"name": name, "kind": kind, "treatment": text} for name in names]
    return columns


def compute_column_importance(model: Model, inputs: Tensor) -> dict[str, float]:
    """Return the importance of each column of inputs [n, d], largest first.

    One column at a time is replaced by values that do not depend on the environment
    (numbers and dates: standard normal; booleans and categories: uniform). The
    importance is the mean change of the prediction: half the summed absolute change of
    the class probabilities, or the absolute change in standard deviations of the
    target. As the replacement is the same everywhere, environments can be compared
    although their own columns vary to different degrees.
    """
    encoding = model.schema.treatment.encoding
    if encoding is None or len(encoding.columns) > MOST_COLUMNS:
        return {}
    inputs = inputs[:IMPORTANCE_ROWS]
    original = predict_inputs_in_one_batch(model, inputs).mean
    draws = Randomness((0,), ("reliance",)).start_draws()
    importance, start = {}, 0
    for column in encoding.columns:
        end = start + len(column.features)
        if end > start:
            changed = inputs.clone()
            changed[:, start:end] = _draw_random_features_of_column(
                column, len(inputs), draws
            )
            change = (
                (predict_inputs_in_one_batch(model, changed).mean - original)
                .abs()
                .sum(-1)
            )
            factor = 0.5 if model.task.classes else 1.0
            importance[column.name] = factor * float(change.mean())
        start = end
    return dict(sorted(importance.items(), key=lambda item: -item[1]))


def _draw_random_features_of_column(
    column: ColumnEncoding, n_rows: int, draws: RandomDraws
) -> Tensor:
    """Draw features [n_rows, k] of a column that do not depend on an environment."""
    features = torch.zeros(n_rows, len(column.features))
    if column.kind == "category":
        chosen = draws.integers(len(column.categories), n_rows)[0]
        features[torch.arange(n_rows), chosen] = 1
    elif column.kind in ("number", "date"):
        features[:, 0] = draws.normal(n_rows)[0]
    elif column.kind == "text":
        width = len(column.features) - column.missing
        features[:, :width] = draws.normal(n_rows, width)[0]
    else:  # a boolean, or a constant whose missing values are marked
        features[:, 0] = draws.integers(2, n_rows)[0].float()
    return features


def find_columns_that_lost_importance(
    first_importance: dict[str, float], last_importance: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Return columns whose share of the importance fell by half or more, in percent.

    Columns that never had a twentieth of the importance are left out.
    """
    before, now = (
        {name: value / (sum(part.values()) or 1) for name, value in part.items()}
        for part in (first_importance, last_importance)
    )
    return {
        name: {"first": 100 * share, "last": 100 * now.get(name, 0.0)}
        for name, share in before.items()
        if share >= RELEVANT and now.get(name, 0.0) <= share / 2
    }
