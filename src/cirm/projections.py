"""Information projections of discrete distributions, which the theory speaks of.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization": theorem 3
(information projection), the lemma on its sequence, and equation irm_ip. A family of
distributions is given by its support and by expectations that its members have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, rel_entr, softmax

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """All distributions on a support, [n], whose statistics have given expectations.

    `statistics` are [k, n] and `expectations` [k]; without them, every distribution on
    the support.
    """

    support: NDArray[np.bool_]
    statistics: Floats
    expectations: Floats

    @classmethod
    def on(
        cls,
        support: ArrayLike,
        statistics: ArrayLike = (),
        expectations: ArrayLike = (),
    ) -> Family:
        """A family from plain lists."""
        places = np.asarray(support, bool)
        rows = np.asarray(statistics, float).reshape(-1, len(places))
        return cls(places, rows, np.asarray(expectations, float).reshape(-1))

    def __post_init__(self) -> None:
        if not self.support.any() or len(self.statistics) != len(self.expectations):
            raise ValueError(
                "family: the support must not be empty and each statistic needs an "
                f"expectation; got {int(self.support.sum())} places, "
                f"{len(self.statistics)} statistics and {len(self.expectations)}"
            )


def divergence(p: ArrayLike, q: ArrayLike) -> float:
    """KL(p || q); infinite where p is possible and q is not."""
    return float(rel_entr(np.asarray(p, float), np.asarray(q, float)).sum())


def projection(family: Family, q: ArrayLike) -> Floats:
    """The member of the family nearest to q, [n]: argmin of KL(p || q).

    It is q on the common support, tilted by a factor exp(multipliers . statistics).
    """
    q = np.asarray(q, float)
    common = family.support & (q > 0)
    if not common.any():
        raise ValueError(
            "projection: the supports must overlap; got none in common of "
            f"{int(family.support.sum())} and {int((q > 0).sum())} places"
        )
    weights = np.log(q[common])
    statistics = family.statistics[:, common]
    result = np.zeros_like(q)
    multipliers = _multipliers(weights, statistics, family.expectations)
    result[common] = softmax(weights + multipliers @ statistics)
    missed = np.abs(family.statistics @ result - family.expectations)
    if missed.size and missed.max() > 1e-6:
        raise ValueError(
            "projection: a member of the family must exist on the common support; "
            f"got expectations missed by {missed.max():.3g}"
        )
    return result


def sequence(start: ArrayLike, families: Sequence[Family]) -> list[Floats]:
    """The start, and its projection onto one family after another."""
    steps = [np.asarray(start, float)]
    for family in families:
        steps.append(projection(family, steps[-1]))
    return steps


def meeting(before: ArrayLike, best: ArrayLike) -> Floats:
    """argmin over p of KL(p || before) + KL(p || best): their geometric mean, [n]."""
    product = np.sqrt(np.asarray(before, float) * np.asarray(best, float))
    if not product.any():
        raise ValueError("meeting: the supports must overlap; got none in common")
    result: Floats = product / product.sum()
    return result


def _multipliers(weights: Floats, statistics: Floats, expectations: Floats) -> Floats:
    """Minimum of the convex dual, [k], of statistics [k, places] by Newton's method."""

    def dual(multipliers: Floats) -> tuple[float, Floats]:
        exponents = weights + multipliers @ statistics
        mean = statistics @ softmax(exponents)
        value = logsumexp(exponents) - multipliers @ expectations
        return float(value), mean - expectations

    def curvature(multipliers: Floats) -> Floats:
        p = softmax(weights + multipliers @ statistics)
        mean = statistics @ p
        result: Floats = (statistics * p) @ statistics.T - np.outer(mean, mean)
        return result

    start = np.zeros(len(statistics))
    if not len(start):
        return start
    options = {"gtol": 1e-12}
    found = minimize(
        dual, start, jac=True, hess=curvature, method="trust-exact", options=options
    )
    return np.asarray(found.x)
