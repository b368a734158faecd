"""What differs between two models, the answer first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cirm.memory import list_state_tensors
from cirm.model.evaluate import choose_main_metric_of_model
from cirm.model.explain import describe_model
from cirm.model.facts import TrainingHistoryEntry
from cirm.model.model import Model
from cirm.model.verdict import MOST_NAMES
from cirm.wording import join_names_in_backticks, join_words

# Parts of a description that are compared in their own way, or follow from others.
HANDLED = {
    *("version", "created", "method", "history", "memory", "raw_examples", "bytes"),
    *("category_names", "columns", "importance", "importance_drops", "explanation"),
    *("adaptation", "earlier_versions", "settings", "input_shape"),
}
RELEVANT = 5.0  # points of importance, of 100, below which a change is not named
MOST_NAMED = 3  # columns and environments in the answer; the lists have all

Content = Mapping[str, Any]
Pair = list[Any]


def describe_differences_of_models(
    first_model: Model, second_model: Model
) -> dict[str, Any]:
    """Describe what differs between two models.

    Args:
        first_model: A model.
        second_model: Another one.

    Returns:
        Plain values that JSON can hold, with pairs for the two models: a sentence
        `answer`; `relation`, one of "same", "continues", "is continued by", "branches
        from" and "unrelated to", as seen from the second; `environments` that both,
        only the `first` or only the `second` has learned from; `settings`,
        `columns` and `importance` (in percent of all) that differ; `unstable` columns
        of only one of them; `scores` of environments that both know; and `adaptation`.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit, update
        >>> from cirm.model.difference import describe_differences_of_models
        >>> table = pd.DataFrame({"age": range(40), "ill": ["no", "yes"] * 20})
        >>> first = fit([table[:20]], "ill")
        >>> describe_differences_of_models(first, update(first, table[20:]))["relation"]
        'continues'
    """
    contents = [describe_model(model) for model in (first_model, second_model)]
    differences = {
        "relation": find_relation_between_model_histories(first_model, second_model),
        "environments": _compare_environments_of_models(first_model, second_model),
        "settings": _list_settings_that_differ(
            *map(_list_learner_settings_of_model, contents)
        ),
        "columns": _list_settings_that_differ(*map(_list_column_encodings, contents)),
        "importance": _compare_column_importance_of_models(*contents),
        "unstable": _compare_unstable_columns_of_models(*contents),
        "scores": _compare_training_scores_of_models(first_model, second_model),
        "adaptation": [
            m.adaptation.name if m.adaptation else None
            for m in (first_model, second_model)
        ],
    }
    return {"answer": _summarise_main_model_differences(differences), **differences}


def find_relation_between_model_histories(
    first_model: Model, second_model: Model
) -> str:
    """Return how the second model came from the first, by their histories."""
    first, second = (
        list(map(_get_history_entry_identity, m.history))
        for m in (first_model, second_model)
    )
    shared = _count_shared_history_entries(first, second)
    if not shared:
        return "unrelated to"
    if len(first) == len(second) == shared:
        if _have_equal_trained_states(first_model, second_model):
            return "same"
        # Two fits to the same rows in the same second have the same entry.
        return "branches from" if shared > 1 else "unrelated to"
    if shared == len(first):
        return "continues"
    return "is continued by" if shared == len(second) else "branches from"


def _get_history_entry_identity(entry: TrainingHistoryEntry) -> tuple[str, ...]:
    return entry.name, entry.time, entry.fingerprint


def _count_shared_history_entries(first: list[Any], second: list[Any]) -> int:
    """Return the number of entries at the beginning of both lists."""
    pairs = list(zip(first, second, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _have_equal_trained_states(first_model: Model, second_model: Model) -> bool:
    """Return whether learners and states are the same, but for an adaptation."""
    if (
        first_model.plan != second_model.plan
        or first_model.schema != second_model.schema
    ):
        return False
    places = [
        model.adaptation and model.adaptation.name
        for model in (first_model, second_model)
    ]
    if places[0] != places[1]:
        return True
    first, second = (
        list_state_tensors(model.state) for model in (first_model, second_model)
    )
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _compare_environments_of_models(
    first_model: Model, second_model: Model
) -> dict[str, list[str]]:
    """Return which environments both have learned from, by the digest of their rows."""
    first, second = (
        {entry.fingerprint: entry.name for entry in model.history}
        for model in (first_model, second_model)
    )
    return {
        "both": [name for digest, name in first.items() if digest in second],
        "first": [name for digest, name in first.items() if digest not in second],
        "second": [name for digest, name in second.items() if digest not in first],
    }


def _list_learner_settings_of_model(content: Content) -> dict[str, Any]:
    """Return settings of the learner, and whatever else was chosen."""
    chosen = {name: value for name, value in content.items() if name not in HANDLED}
    return {**content["settings"], **chosen}


def _list_column_encodings(content: Content) -> dict[str, Any]:
    return {column["name"]: column["treatment"] for column in content["columns"]}


def _list_settings_that_differ(first: Content, second: Content) -> dict[str, Pair]:
    """Return the values of each name that differ; None if one model has none."""
    pairs = {name: [first.get(name), second.get(name)] for name in {**first, **second}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _compare_column_importance_of_models(
    first: Content, second: Content
) -> dict[str, Pair]:
    """Return shares of the importance in percent that differ, the largest first."""
    shares = []
    for content in (first, second):
        total = sum(content["importance"].values()) or 1.0
        shares.append({n: 100 * v / total for n, v in content["importance"].items()})
    pairs = {
        name: [share.get(name, 0.0) for share in shares]
        for name in {**shares[0], **shares[1]}
    }
    changed = {n: p for n, p in pairs.items() if abs(p[1] - p[0]) >= RELEVANT}
    return dict(sorted(changed.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def _compare_unstable_columns_of_models(
    first: Content, second: Content
) -> dict[str, list[str]]:
    """Return the columns that only one of the models found to be unstable."""
    names = [
        [entry["feature"] for entry in content["explanation"].get("unstable", ())]
        for content in (first, second)
    ]
    return {
        "first": [name for name in names[0] if name not in names[1]],
        "second": [name for name in names[1] if name not in names[0]],
    }


def _compare_training_scores_of_models(
    first_model: Model, second_model: Model
) -> list[dict[str, Any]]:
    """Return the scores after training of environments that both have learned from."""
    metric = choose_main_metric_of_model(first_model)
    if metric != choose_main_metric_of_model(second_model):
        return []
    known = {entry.fingerprint: entry for entry in second_model.history}
    pairs = [
        (entry, known[entry.fingerprint])
        for entry in first_model.history
        if entry.fingerprint in known
    ]
    return [
        {
            "environment": a.name,
            "metric": metric,
            "first": a.metrics_after[metric],
            "second": b.metrics_after[metric],
        }
        for a, b in pairs
        if a.metrics_after[metric] != b.metrics_after[metric]
    ]


def _summarise_main_model_differences(differences: Content) -> str:
    """Return the main differences in one sentence or two."""
    relation, environments = differences["relation"], differences["environments"]
    before, after = differences["adaptation"]
    if relation == "same" and before == after:
        return "The two models are the same."
    more, fewer = (
        join_words(environments[side], MOST_NAMES) for side in ("second", "first")
    )
    both = join_words(environments["both"], MOST_NAMES)
    repeated = "repeated training on the same rows"
    parts = {
        "same": f"The second model is the first, adapted to {after}."
        if after
        else (
            "The second model is the first model as it was before it was adapted to "
            f"{before}."
        ),
        "continues": f"The second model continues the first with {more or repeated}.",
        "is continued by": "The second model is an earlier version of the first, "
        f"without {fewer or repeated}.",
        "branches from": (
            "The two models were trained on the same places at first, and then on "
            "different places."
        ),
        "unrelated to": f"The two models were fitted separately, each on {both}."
        if both
        else "The two models were trained on different data from the start.",
    }
    sentences = [parts[relation]]
    if relation in ("branches from", "unrelated to"):
        for name, own in (("first", fewer), ("second", more)):
            if own:
                sentences.append(f"Only the {name} model has learned from {own}.")
    unstable = differences["unstable"]
    for name in ("first", "second"):
        if own := unstable[name]:
            columns = join_names_in_backticks(own, MOST_NAMES)
            sentences.append(f"Only the {name} model treats {columns} as unstable.")
    if changes := list(differences["importance"].items())[:MOST_NAMED]:
        shown = (f"`{n}` from {a:.0f} to {b:.0f} %" for n, (a, b) in changes)
        sentences.append(
            "From the first to the second model, the importance changed: "
            f"{', '.join(shown)}."
        )
    if names := list(differences["settings"]):
        sentences.append(f"Settings differ: {join_words(names, MOST_NAMES)}.")
    return " ".join(sentences)
