"""Further measures of a learner after its last stage, in every environment.

For classification, after the last stage, for each training and each unseen environment:

- balanced accuracy: the mean recall of the classes, in percent;
- F1: the harmonic mean of precision and recall, in percent;
- average precision: the area under the precision-recall curve;
- Brier score: the mean squared distance of the probabilities from the classes;
- worst class: the lowest accuracy within a class, in percent. Class and environment are
  the groups that are given.

`cirm.evaluation.metrics` defines them. They are recorded under the split "measures".
The scores of the state before any training, from which forward transfer is counted, are
recorded under the split "untrained", and which features a learner found to change
their meaning under the split "unstable".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from cirm.evaluation.metrics import (
    compute_balanced_accuracy,
    compute_brier_score,
    compute_f1_score,
    compute_mean_average_precision,
    compute_worst_group_accuracy,
)
from cirm.learners.base import Learner
from cirm.records import ScoreRecord

UNSTABLE = "unstable"  # split of the records of unstable features
TOTAL = "all"  # the record of how many there are, also if there are none


def compute_classification_metrics(
    probabilities: Tensor, targets: Tensor
) -> dict[str, float]:
    """Return the measures of probabilities [n, k] for targets [n], by name.

    Example:
        >>> import torch
        >>> p = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])
        >>> found = compute_classification_metrics(p, torch.tensor([0, 0, 1]))
        >>> found["balanced accuracy"], round(found["Brier score"], 3)
        (75.0, 0.163)
    """
    decided, count = probabilities.argmax(-1), probabilities.shape[1]
    return {
        "balanced accuracy": compute_balanced_accuracy(decided, targets),
        "F1": compute_f1_score(decided, targets, count),
        "average precision": compute_mean_average_precision(probabilities, targets),
        "Brier score": compute_brier_score(probabilities, targets),
        "worst class": compute_worst_group_accuracy(decided, targets, targets),
    }


def iterate_metrics_of_environments(
    predictions: Mapping[str, tuple[Tensor, Tensor]],
    stage: int,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[ScoreRecord]:
    """Yield the measures of predictions and targets by environment.

    Predictions are [replica, n, k]; those of a regression, with k = 1, have none.
    """
    for environment, (probabilities, targets) in predictions.items():
        if probabilities.shape[-1] == 1:
            continue
        for seed, p, y in zip(seeds, probabilities, targets, strict=True):
            for name, value in compute_classification_metrics(p, y).items():
                where = label, order, seed, stage, environment
                yield ScoreRecord(*where, "measures", name, value)


def iterate_unstable_feature_counts_and_flags_by_replica(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    stage: int,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[ScoreRecord]:
    """Yield how many features each replica found, and 1 or 0 for each of them."""
    found = learner.list_unstable_features(state)
    if found is None:
        return
    names = sorted({name for own in found for name in own})
    for seed, own in zip(seeds, found, strict=True):
        numbers = {TOTAL: len(own)} | {name: int(name in own) for name in names}
        for name, number in numbers.items():
            where = label, order, seed, stage, name, UNSTABLE, "found"
            yield ScoreRecord(*where, float(number))
