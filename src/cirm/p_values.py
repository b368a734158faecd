"""P-values of several tests together."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 1e-15  # smaller p-values have no tangent that can be told from zero


def combine_p_values(
    p_values: Sequence[float], weights: Sequence[float], largest: float = 0.99
) -> float:
    """Return the p-value of several tests together, by the Cauchy combination.

    The weighted mean of standard Cauchy variables is one again, and its tail hardly
    changes if the tests depend on each other (Liu and Xie, "Cauchy combination test",
    2020). Two tests that both point to a difference count for more than one of them,
    which is not so with Bonferroni's correction.

    Args:
        p_values: The p-values of the tests.
        weights: What each of them counts for; only their ratios matter.
        largest: P-values above it count as it does, so that a test whose p-value is
            nearly 1 does not hide the others.

    Example:
        >>> round(combine_p_values((0.02, 0.02), (0.5, 0.5)), 6)
        0.02
    """
    total = sum(
        weight / math.tan(math.pi * min(max(p, LEAST), largest))
        for p, weight in zip(p_values, weights, strict=True)
    )
    return 0.5 - math.atan(total / sum(weights)) / math.pi
