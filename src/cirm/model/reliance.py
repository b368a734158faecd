"""How much each column moves a model's predictions.

The rows are those of the environment that has just been learned. One column at a time
is replaced by values that do not depend on the environment (numbers and dates: normal
in deviations of the first environment; booleans and categories: all alike), and the
mean change of the prediction is taken: of the class probabilities half the summed
absolute change, of a value its absolute change in deviations of the target. Measured
so, environments can be compared although their own spreads differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.data.columns import Column
from cirm.model.metrics import answers
from cirm.model.model import Model
from cirm.randomness import Draws, Randomness

ROWS, MOST_COLUMNS = 1_000, 500


def reliance(model: Model, inputs: Tensor) -> dict[str, float]:
    """Mean change of the predictions of inputs [n, d] by column, the largest first."""
    encoding = model.schema.treatment.encoding
    if encoding is None or len(encoding.columns) > MOST_COLUMNS:
        return {}
    inputs = inputs[:ROWS]
    plain = answers(model, inputs).mean
    draws = Randomness((0,), ("reliance",)).start_draws()
    found, start = {}, 0
    for column in encoding.columns:
        end = start + len(column.features)
        if end > start:
            moved = inputs.clone()
            moved[:, start:end] = replaced(column, len(inputs), draws)
            change = (answers(model, moved).mean - plain).abs().sum(-1)
            found[column.name] = float(change.mean()) / (2 if model.task.classes else 1)
        start = end
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def replaced(column: Column, count: int, draws: Draws) -> Tensor:
    """Features [count, k] of a column that do not depend on an environment."""
    width = len(column.features)
    made = torch.zeros(count, width)
    if column.kind == "category":
        known = len(column.categories)
        made[torch.arange(count), draws.integers(known, count)[0]] = 1
    elif column.kind == "boolean":
        made[:, 0] = draws.integers(2, count)[0].float()
    elif column.kind in ("number", "date"):
        made[:, 0] = draws.normal(count)[0]
    else:  # only whether it is missing
        made[:, 0] = draws.integers(2, count)[0].float()
    return made


def turned_away(first: dict[str, float], last: dict[str, float]) -> dict[str, float]:
    """Columns whose part in all reliance fell by half or more, with what is left of it.

    Columns that never had a twentieth part are left out.
    """
    parts = [
        {name: value / (sum(each.values()) or 1) for name, value in each.items()}
        for each in (first, last)
    ]
    return {
        name: parts[1].get(name, 0.0) / part
        for name, part in parts[0].items()
        if part >= 0.05 and parts[1].get(name, 0.0) <= part / 2
    }
