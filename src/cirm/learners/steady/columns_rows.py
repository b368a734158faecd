"""Which rows of a large environment the columns engine learns from.

Time and memory of the engine are proportional to the rows times the basis functions,
while what a row adds falls with their number: with 200 basis functions, 100,000 rows
leave an expected excess loss of 0.001. So an environment with more of them is
represented by a part, drawn at random, in which every class still has enough rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.environments import Environment, Examples
from cirm.randomness import Randomness

MOST_ROWS = 100_000  # of an environment, if every class has enough of them
ENOUGH_ROWS = 5_000  # of each class


def take_rows_up_to_limit(
    environment: Environment, randomness: Randomness, n_classes: int
) -> Examples:
    """Return the examples of an environment, or a random part if they are many.

    Args:
        environment: The examples.
        randomness: Source of the choice, with one seed per replica.
        n_classes: Number of classes; 0 for regression.
    """
    replicas, rows = len(randomness.seeds), len(environment)
    wanted = count_rows_within_limit(environment.targets.reshape(-1, rows), n_classes)
    if wanted >= rows:
        return environment.take_all(replicas)
    source = randomness.at("rows", environment.name)
    return environment.take(source.permutation(rows)[:, :wanted].sort().values)


def count_rows_within_limit(targets: Tensor, n_classes: int) -> int:
    """Return how many rows, drawn from targets [replica, n], are enough."""
    rows = targets.shape[1]
    if not n_classes:
        return min(rows, MOST_ROWS)
    counts = torch.stack([own.bincount(minlength=n_classes) for own in targets])
    rarest = int(counts[counts > 0].min())
    return min(rows, max(MOST_ROWS, -(-rows * ENOUGH_ROWS // rarest)))
