"""Runs on several data sets taken as one sample, as the paper seems to have done.

In the paper's table 1, and in the rows n = 2 and d = MNIST of its table 2, the spreads
of the reference methods are those of its rows c = b01 and c = b11 taken together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def pool_means_and_deviations(
    means_deviations_and_sizes: Sequence[tuple[float, float, int]],
) -> tuple[float, float]:
    """Return mean and standard deviation of several samples taken together.

    Example:
        >>> pool_means_and_deviations([(1.0, 0.0, 2), (3.0, 0.0, 2)])
        (2.0, 1.1547005383792515)
    """
    total = sum(size for _, _, size in means_deviations_and_sizes)
    mean = sum(size * mean for mean, _, size in means_deviations_and_sizes) / total
    squares = sum(
        (n - 1) * std**2 + n * (m - mean) ** 2
        for m, std, n in means_deviations_and_sizes
    )
    return mean, math.sqrt(squares / (total - 1))


def pool_test_scores_by_learner(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the test numbers, by learner, of rows taken together.

    A learner is left out unless each row has at least two seeds of it.
    """
    numbers = {}
    for learner in rows[0]:
        entries = [row[learner] for row in rows if learner in row]
        parts = [
            (entry["test"]["mean"], entry["test"]["std"], entry["test"]["seeds"])
            for entry in entries
            if entry["test"]["std"] is not None
        ]
        if len(parts) == len(rows):
            mean, std = pool_means_and_deviations(parts)
            seeds = sum(size for *_, size in parts)
            test = {"mean": mean, "std": std, "seeds": seeds}
            seconds = sum(entry["seconds"] for entry in entries)
            numbers[learner] = {**entries[0], "test": test, "seconds": seconds}
    return numbers
