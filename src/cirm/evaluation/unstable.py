"""Record which features a learner found to change their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cirm.learners.base import Learner
from cirm.records import Score

SPLIT = "unstable"  # of these records
METRIC = "found"
TOTAL = "all"  # the record of how many there are, also if there are none


def count_unstable_features(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    stage: int,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[Score]:
    """Yield how many features each replica found, and 1 or 0 for each of them."""
    found = learner.list_unstable_features(state)
    if found is None:
        return
    names = sorted({name for own in found for name in own})
    for seed, own in zip(seeds, found, strict=True):
        numbers = {TOTAL: len(own)} | {name: int(name in own) for name in names}
        for name, number in numbers.items():
            where = label, order, seed, stage, name, SPLIT, METRIC
            yield Score(*where, float(number))
