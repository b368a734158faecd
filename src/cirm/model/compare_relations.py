"""Compare two tables beyond single columns: all inputs together, and their meaning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from cirm.data.columns import TableEncoding
from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.base import TableNames
from cirm.learners.steady.columns_effects import FEWEST_CASES
from cirm.learners.steady.columns_effects import FEWEST_ROWS as FEWEST_OF_PLACE
from cirm.randomness import Randomness

FEWEST_ROWS = 100  # of each table, for a classifier to learn to tell them apart
MOST_ROWS = 4_000  # of each table, which are enough for two digits of the AUC
MOST_TESTED = 20_000  # rows of each table by which the meaning of columns is tested
MOST_FEATURES = 512  # of tables whose columns are compared one by one
LEAST_AUC = 0.55  # that is worth a word, even if significant
FIRST_LOOK = math.pi**2 / 6  # of the level that `steady` spends on its first comparison


def run_classifier_two_sample_test(
    first: Tensor, second: Tensor
) -> dict[str, float] | None:
    """Test whether a classifier can distinguish the rows of two tables [n, d].

    Lopez-Paz and Oquab, "Revisiting classifier two-sample tests", 2017. Each half of
    the rows is scored by gradient boosting that was trained on the other half.
    """
    if min(len(first), len(second)) < FEWEST_ROWS:
        return None
    from sklearn.ensemble import HistGradientBoostingClassifier

    draws = np.random.default_rng(0)
    parts = [
        part.numpy()[draws.permutation(len(part))[:MOST_ROWS]]
        for part in (first, second)
    ]
    rows = np.concatenate(parts)
    labels = np.repeat([0, 1], [len(part) for part in parts])
    halves = np.concatenate([np.arange(len(part)) % 2 for part in parts])
    areas, p_values = [], []
    for half in (0, 1):
        classifier = HistGradientBoostingClassifier(
            max_iter=50, max_leaf_nodes=8, random_state=0
        )
        classifier.fit(rows[halves != half], labels[halves != half])
        scores = classifier.predict_proba(rows[halves == half])[:, 1]
        own = labels[halves == half]
        test = stats.mannwhitneyu(
            scores[own == 1], scores[own == 0], alternative="greater"
        )
        areas.append(test.statistic / ((own == 1).sum() * (own == 0).sum()))
        p_values.append(test.pvalue)
    p_value = min(1.0, 2 * min(p_values))
    return {"auc": float(np.mean(areas)), "p_value": float(p_value)}


def compare_meaning_of_columns(
    inputs: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    task: Task,
    encoding: TableEncoding,
    level: float,
) -> dict[str, Any]:
    """Test whether columns mean the same for the target in both tables, as `steady`.

    Args:
        inputs: Encoded rows of both tables, [n, d] each.
        targets: Their targets, [n] each.
        task: The task.
        encoding: How rows were encoded.
        level: Probability of calling any column changed if none is.

    Returns:
        `columns`, each with its `effects` in both tables, the `p_value` adjusted for
        the number of columns and a `sentence`; `evidence`, sentences about what the
        rows can show; and `tested`, whether they can show anything.
    """
    if reason := _find_reason_not_to_test_meaning(
        targets, task, len(encoding.features)
    ):
        return {"columns": [], "evidence": [reason], "tested": False}
    explanation = _explain_meaning_changes_by_steady(
        inputs, targets, task, encoding, level
    )
    changed = explanation["unstable"]
    sentences = [one["sentence"] for one in changed]
    return {
        "columns": [
            {
                "column": one["feature"],
                "effects": one["effects"],
                "p_value": min(1.0, one["p_value"] * len(encoding.widths)),
                "sentence": one["sentence"].replace(
                    "at the places seen", "in the two tables"
                ),
            }
            for one in changed
        ],
        "evidence": [
            text
            for text in explanation["evidence"]
            if text not in sentences
            and "(trust=" not in text
            and not text.startswith("On arrival")
        ],
        "tested": True,
    }


def _explain_meaning_changes_by_steady(
    inputs: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    task: Task,
    encoding: TableEncoding,
    level: float,
) -> dict[str, Any]:
    """Return what `steady` says after it has seen one table and then the other."""
    widths = encoding.widths
    settings = {
        "view": "columns",
        "widths": tuple(widths.values()),
        "level": level * FIRST_LOOK,
    }
    places = []
    for name, rows, aims in zip(("first", "second"), inputs, targets, strict=True):
        step = -(-len(rows) // MOST_TESTED)
        places.append(Environment(name, rows[::step], aims[::step], task))
    learner = create("steady", places[0], settings)
    randomness = Randomness((0,))
    state = learner.init(randomness)
    for place in places:
        state = learner.observe(state, (place,), randomness.at(place.name))
    return learner.explain(
        state, widths, len(places), TableNames(encoding.features, task.classes)
    )


def _find_reason_not_to_test_meaning(
    targets: tuple[Tensor, Tensor], task: Task, n_features: int
) -> str:
    """Say why the meaning of columns cannot be tested; nothing if it can."""
    if n_features > MOST_FEATURES:
        return "There are too many columns to test whether any changed its meaning."
    fewest = min(map(len, targets))
    is_enough = True
    if task.classes:  # two of them must be in both tables
        counts = [aims.bincount(minlength=len(task.classes)) for aims in targets]
        second = torch.stack(counts).amin(0).topk(2).values[-1]
        is_enough = int(second) >= FEWEST_CASES
    if fewest < FEWEST_OF_PLACE or not is_enough:
        return (
            "There are too few rows, or too few of one class, to tell whether a "
            "column relates to the target differently in the two tables. Compare more "
            "rows."
        )
    return ""
