"""How many environments determine an invariant predictor, in the linear case.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", lemmas invariant1 and
invariant2, which carry theorem 9 of Arjovsky et al., "Invariant Risk Minimization",
2019, over to BIRM and BVIRM: with features of rank r in d dimensions and more than
d - r + d / r environments in general position, what is invariant in these environments
is invariant in every one.

Environments are as in that theorem: y = x1 . c + noise, where x1 are the causal
coordinates of x; the others are effects of y and of x1 that differ between
environments. Rank is 1. A linear predictor is v = w phi with features phi, and the
constraint of BIRM is phi . (S_e v - t_e) = 0 with S_e = E x x^T and t_e = E x y. For
BVIRM with beta = 0 and independent normal features of standard deviation s around phi,
E phi S_e phi^T = phi S_e phi^T + s^2 trace(S_e).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]

CAUSES, EFFECTS = 1, 2
DIMENSION = CAUSES + EFFECTS
BOUND = DIMENSION - 1 + DIMENSION  # d - r + d / r with rank r = 1
STARTS = 60  # from which solutions are searched
SOLVED = 1e-10  # sum of squared residuals below which the constraints hold
TRIVIAL = 1e-2  # a predictor shorter than this is zero
HOLDS = 1e-3  # of the violation in an environment that was not among the others


class InvariantPredictorCount(NamedTuple):
    """What is found with a number of environments.

    Attributes:
        environments: The number of environments.
        solutions: How many starts end in a predictor other than zero that satisfies
            the constraints of all of them.
        violations: How many of these violate the constraint of a new environment.
    """

    environments: int
    solutions: int
    violations: int


class EnvironmentMoments(NamedTuple):
    """E x x^T [e, d, d] and E x y [e, d] of environments."""

    inputs: Array
    targets: Array


def draw_environment_moments(n_environments: int, seed: int) -> EnvironmentMoments:
    """Draw environments with the same cause of y and different effects."""
    rng = np.random.default_rng(seed)
    inputs, targets = [], []
    for _ in range(n_environments):
        spread, noise = rng.uniform(0.5, 2, 2)
        to_effect = rng.normal(size=(EFFECTS, 2))  # of y, and of the cause
        # Columns: the independent sources cause, noise of y, noises of the effects.
        cause = np.concatenate([[spread], np.zeros(1 + EFFECTS)])
        y = cause + np.concatenate([[0, noise], np.zeros(EFFECTS)])
        own = np.diag(rng.uniform(0.5, 2, EFFECTS))
        effects = np.outer(to_effect[:, 0], y) + np.outer(to_effect[:, 1], cause)
        effects[:, 2:] += own
        x = np.concatenate([cause[None], effects])
        inputs.append(x @ x.T)
        targets.append(x @ y)
    return EnvironmentMoments(np.stack(inputs), np.stack(targets))


def compute_invariance_violations(
    predictor: Array, moments: EnvironmentMoments, feature_std: float = 0.0
) -> Array:
    """Return the constraint of each environment at a predictor v [d], [e].

    With w = 1 the features are v. `feature_std` is the standard deviation of the
    features, 0 for BIRM.
    """
    curved = np.einsum("i,eij,j->e", predictor, moments.inputs, predictor)
    traces = np.trace(moments.inputs, axis1=1, axis2=2)
    violations: Array = curved + feature_std**2 * traces - moments.targets @ predictor
    return violations


def count_invariant_predictors(
    n_environments: int, feature_std: float = 0.0, seed: int = 0, n_starts: int = STARTS
) -> InvariantPredictorCount:
    """Search predictors that are invariant in some environments, from many starts."""
    moments = draw_environment_moments(n_environments, seed)
    unseen = draw_environment_moments(BOUND, seed + 1000)
    rng = np.random.default_rng(seed + 1)
    solutions = violations = 0
    for _ in range(n_starts):
        found = least_squares(
            compute_invariance_violations,
            rng.normal(size=DIMENSION),
            args=(moments, feature_std),
            method="trf",
            xtol=1e-12,
            ftol=1e-12,
            gtol=1e-12,
        )
        if 2 * found.cost > SOLVED or np.linalg.norm(found.x) < TRIVIAL:
            continue
        solutions += 1
        off = np.abs(compute_invariance_violations(found.x, unseen, feature_std)).max()
        violations += bool(off > HOLDS)
    return InvariantPredictorCount(n_environments, solutions, violations)


def count_invariant_predictors_by_environment_count(
    feature_std: float = 0.0, seed: int = 0
) -> list[InvariantPredictorCount]:
    """Count for each number of environments up to one more than the theorem asks."""
    return [
        count_invariant_predictors(number, feature_std, seed)
        for number in range(1, BOUND + 2)
    ]
