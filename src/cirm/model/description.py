"""Everything a model's file says of it, in plain values that JSON can hold."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cirm.learners import summarize_learner
from cirm.memory import count_memory
from cirm.model.model import Model
from cirm.model.reliance import turned_away


def describe_model(model: Model) -> dict[str, Any]:
    """Where it has been, how it learns, what it keeps, and what it relies on."""
    schema, plan = model.schema, model.plan
    kept = kept_of_the_past(model)
    first, last = model.visits[0].reliance, model.visits[-1].reliance
    return {
        "created": model.created,
        "task": model.task.kind,
        "classes": list(model.task.classes),
        "target": schema.target.name,
        "learner": plan.learner,
        "method": summarize_learner(plan.learner),
        "settings": {k: plan.settings[k] for k in sorted(plan.settings)},
        "network": plan.network,
        "seed": plan.seed,
        "held_out": plan.held_out,
        "environments": [_visit(asdict(visit)) for visit in model.visits],
        "kept": kept,
        "raw_examples": sum(entry["examples"] for entry in kept.values()),
        "bytes": sum(entry["bytes"] for entry in kept.values()),
        "inputs": list(schema.treatment.shape),
        "columns": columns(model),
        "environment_column": schema.environment,
        "relies_on": dict(sorted(last.items(), key=lambda item: -item[1])),
        "turned_away_from": turned_away(first, last) if len(model.visits) > 1 else {},
        "shortcut": model.explain(),
    }


def kept_of_the_past(model: Model) -> dict[str, dict[str, int]]:
    """The ledger of what is kept of past data: examples, parameters and bytes.

    Besides the learner's state, these are the figures of the columns (means,
    deviations, medians, names of categories) and the scores of each environment.
    """
    kept = dict(count_memory(model.state))
    encoding = model.schema.treatment.encoding
    if encoding is not None:
        text = json.dumps(encoding.as_dict())
        numbers = sum(
            3 * (c.kind in ("number", "date")) + len(c.categories)
            for c in encoding.columns
        )
        kept["columns"] = {"examples": 0, "parameters": numbers, "bytes": len(text)}
    visits = [asdict(visit) for visit in model.visits]
    numbers = sum(
        len(visit[part])
        for visit in visits
        for part in ("before", "after", "reliance", "diagnostics")
    )
    kept["visits"] = {
        "examples": 0,
        "parameters": numbers,
        "bytes": len(json.dumps(visits)),
    }
    return kept


def columns(model: Model) -> list[dict[str, Any]]:
    """Each column of a table with its treatment in words."""
    schema = model.schema
    found = []
    if schema.treatment.encoding is not None:
        for column in schema.treatment.encoding.columns:
            words = column.describe().removeprefix(f"{column.name}: ")
            found.append({"name": column.name, "kind": column.kind, "treatment": words})
    for names, words in (
        (schema.ids, "kept as an id"),
        (schema.ignored, "left out as asked"),
    ):
        found += [{"name": name, "kind": "apart", "treatment": words} for name in names]
    return found


def _visit(visit: dict[str, Any]) -> dict[str, Any]:
    return {**visit, "notes": list(visit["notes"])}
