"""Invariant causal prediction: the features in every set whose residuals agree.

Peters, Bühlmann and Meinshausen, "Causal inference by using invariant prediction:
identification and confidence intervals", 2016, method II: a set of features is accepted
if, after pooled least squares on it, neither mean nor variance of the residuals of an
environment differ from those of the others. The parents of the target are, up to the
level, in every accepted set. The variances are compared by an F test, which assumes
normal residuals, and needs only second moments: so what is kept of an environment is
the matrix of its products, and a sequence gives exactly what all data at once give.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.likelihoods import CrossEntropy
from cirm.randomness import Randomness
from cirm.training import Watch, unwatched

MOST_FEATURES = 15  # every set of them is tried

Floats = NDArray[np.float64]


class State(NamedTuple):
    """Products of (features, 1, target) and the coefficients found.

    Products are summed over the examples of each environment so far,
    [replica, e, d + 2, d + 2]; the coefficients [replica, d + 1] end with a constant.
    """

    products: Tensor
    coefficients: Tensor


class Verdict(NamedTuple):
    """What the tests of all sets say; features are counted from 0.

    `accepted` are the sets, the largest p-value first; `parents` are in all of them;
    `p_values` [d] are the largest p-value of a set without that feature: small ones
    speak for a parent. `intervals` [d, 2] hold a feature's coefficient over all
    accepted sets; they are NaN if none is accepted, which says that the model is wrong.
    """

    parents: tuple[int, ...]
    accepted: tuple[tuple[int, ...], ...]
    p_values: Floats
    intervals: Floats


@dataclass(frozen=True)
class ICP(Learner[State]):
    """Least squares on the features that every accepted set contains.

    `level` is the probability with which a true parent's set may be refused. There is
    no network: settings of the network and of training have no effect.
    """

    level: float = 0.05

    presets = {"scm": {"level": 0.05}}

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"icp: level must be in (0, 1); got {self.level}")

    def init(self, randomness: Randomness) -> State:
        """No environments, and nothing found."""
        if isinstance(self.likelihood, CrossEntropy):
            raise ValueError("icp: the task must be regression; got classification")
        replicas = len(randomness.seeds)
        return State(
            torch.zeros(replicas, 0, 0, 0, dtype=torch.float64),
            torch.zeros(replicas, 0),
        )

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = unwatched,
    ) -> State:
        """Add the products of the stage's environments and test all sets again."""
        replicas = len(randomness.seeds)
        new = torch.stack([products(*e.all(replicas)) for e in stage], 1)
        if new.shape[-1] - 2 > MOST_FEATURES:
            raise ValueError(
                f"icp: there may be {MOST_FEATURES} features at most; "
                f"got {new.shape[-1] - 2}"
            )
        if state.products.shape[1]:
            new = torch.cat([state.products, new], 1)
        found = [self.fitted(each.numpy()) for each in new]
        watch(
            1, 1, {"parents": torch.tensor([float((f[:-1] != 0).sum()) for f in found])}
        )
        return State(new, torch.stack([torch.from_numpy(f).float() for f in found]))

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Linear predictions, [replica, 1, n, 1]."""
        weights, constant = state.coefficients.tensor_split((-1,), 1)
        values = inputs.flatten(2) @ weights.unsqueeze(-1) + constant.unsqueeze(-1)
        return values.unsqueeze(1)

    def fitted(self, products: Floats) -> Floats:
        """Coefficients [d + 1] of pooled least squares on the parents found."""
        parents = invariant_sets(products, self.level).parents
        chosen = np.zeros((1, products.shape[-1] - 2), bool)
        chosen[:, list(parents)] = True
        return least_squares(products.sum(0), chosen)[0]


def products(x: Tensor, y: Tensor) -> Tensor:
    """Summed products of (features, 1, target), [replica, d + 2, d + 2]."""
    columns = [x.flatten(2).double(), torch.ones_like(y)[..., None], y[..., None]]
    rows = torch.cat([column.double() for column in columns], -1)
    return rows.mT @ rows


def invariant_sets(products: Floats, level: float) -> Verdict:
    """Test every set of features on the products [e, d + 2, d + 2] of environments."""
    width = products.shape[-1] - 2
    sets = np.array(list(itertools.product((False, True), repeat=width)))
    fits = least_squares(products.sum(0), sets)
    p_values = agreement(products, fits)
    order = np.argsort(-p_values, kind="stable")
    accepted = [row for row in order if p_values[row] > level]
    inside = sets[accepted].all(0) if accepted else np.zeros(width, bool)
    without = np.where(sets, 0.0, p_values[:, None]).max(0)
    return Verdict(
        tuple(np.flatnonzero(inside).tolist()),
        tuple(tuple(np.flatnonzero(sets[row]).tolist()) for row in accepted),
        np.minimum(without, 1.0),
        _intervals(products.sum(0), sets[accepted], fits[accepted], level),
    )


def least_squares(pooled: Floats, sets: NDArray[np.bool_]) -> Floats:
    """Coefficients [set, d + 1] with a constant, zero outside each set [set, d]."""
    inside = np.hstack([sets, np.ones((len(sets), 1), bool)])
    both = inside[:, :, None] & inside[:, None, :]
    # Rows outside a set become those of the identity, so that all are solved at once.
    matrices = np.where(both, pooled[:-1, :-1], np.eye(inside.shape[1]))
    sides = np.where(inside, pooled[:-1, -1], 0.0)
    solved: Floats = np.linalg.solve(matrices, sides[..., None])[..., 0]
    return solved


def agreement(products: Floats, fits: Floats) -> Floats:
    """p-value [set] that residuals have one mean and variance in all environments.

    Each environment is compared with all others together; the smallest p-value is
    multiplied by the number of comparisons (Bonferroni).
    """
    if len(products) == 1:
        return np.ones(len(fits))
    away = np.hstack([-fits, np.ones((len(fits), 1))])  # residual = row @ away
    here = [_moments(each, away) for each in products]
    rest = [_moments(products.sum(0) - each, away) for each in products]
    smallest = [
        np.minimum(_mean_test(a, b), _variance_test(a, b))
        for a, b in zip(here, rest, strict=True)
    ]
    return np.minimum(np.min(smallest, 0) * 2 * len(products), 1.0)


class _Moments(NamedTuple):
    """Number, and mean and variance of the residuals of each set."""

    number: float
    mean: Floats
    variance: Floats


def _moments(products: Floats, away: Floats) -> _Moments:
    number = float(products[-2, -2])
    mean = away @ products[:, -2] / number
    squares = np.einsum("si,ij,sj->s", away, products, away)
    variance = (squares - number * mean**2) / (number - 1)
    return _Moments(number, mean, np.maximum(variance, 1e-12))


def _mean_test(a: _Moments, b: _Moments) -> Floats:
    """Welch's test of equal means."""
    parts = a.variance / a.number, b.variance / b.number
    spread = parts[0] + parts[1]
    freedom = spread**2 / (
        parts[0] ** 2 / (a.number - 1) + parts[1] ** 2 / (b.number - 1)
    )
    away = np.abs(a.mean - b.mean) / np.sqrt(spread)
    return np.asarray(2 * stats.t.sf(away, freedom))


def _variance_test(a: _Moments, b: _Moments) -> Floats:
    """F test of equal variances, to both sides."""
    below = stats.f.cdf(a.variance / b.variance, a.number - 1, b.number - 1)
    return np.asarray(2 * np.minimum(below, 1 - below))


def _intervals(
    pooled: Floats, sets: NDArray[np.bool_], fits: Floats, level: float
) -> Floats:
    """Union over the accepted sets of each coefficient's interval, [d, 2]."""
    width = pooled.shape[-1] - 2
    if not len(sets):
        return np.full((width, 2), np.nan)
    lows, highs = np.zeros((2, len(sets), width))
    for row, (chosen, fit) in enumerate(zip(sets, fits, strict=True)):
        inside = [*np.flatnonzero(chosen).tolist(), width]
        away = np.append(-fit, 1.0)
        freedom = pooled[-2, -2] - len(inside)
        noise = max(away @ pooled @ away, 0.0) / freedom
        inverse = np.linalg.inv(pooled[np.ix_(inside, inside)])
        spread = np.sqrt(noise * np.diag(inverse)[:-1])
        reach = stats.t.ppf(1 - level / 2, freedom) * spread
        lows[row, inside[:-1]] = fit[inside[:-1]] - reach
        highs[row, inside[:-1]] = fit[inside[:-1]] + reach
    return np.stack([lows.min(0), highs.max(0)], -1)
