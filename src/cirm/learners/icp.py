"""Invariant causal prediction: the features that every invariant regression needs.

Peters, Buehlmann and Meinshausen, "Causal Inference by Using Invariant Prediction:
Identification and Confidence Intervals", 2016, method II. A set of features is
accepted if the residuals of its pooled least squares have, in each environment, the
mean and the variance that they have in the others: Welch's t-test and the F-test,
corrected for the number of tests (Bonferroni). The intersection of the accepted sets
are the identified causes.

These tests need nothing of the data but second moments, so that is what is kept: on a
sequence the answer is exactly the joint one, without a past example in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from scipy import special
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.likelihoods import SquaredError
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_steps


class State(NamedTuple):
    """Second moments of each environment, and the regression that predicts.

    `moments` are sums of products of (1, inputs, target), [replica, e, d + 2, d + 2];
    `coefficients` the intercept and those of the inputs, [replica, d + 1]. Before any
    data both are empty.
    """

    moments: Tensor
    coefficients: Tensor


class Findings(NamedTuple):
    """What is known of each feature, [replica, d], and of each set, [replica, set].

    `parents` are the identified causes; `p_values` those of not being one; `lower` and
    `upper` bound the coefficient over all accepted sets (NaN: none was accepted).
    `sets` [replica, set, d] have the p-values `p_sets` and regressions `coefficients`
    [replica, set, d + 1].
    """

    parents: Tensor
    p_values: Tensor
    lower: Tensor
    upper: Tensor
    sets: Tensor
    p_sets: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class ICP(Learner[State]):
    """Least squares on the features that are causes at the level `level`.

    At most `most` features are searched, since each doubles the number of sets: of
    more, those that matter most in the least squares of all. The network is not used.
    """

    level: float = 0.05
    most: int = 10

    presets = {"scm": {"level": 0.05}}

    def __post_init__(self) -> None:
        bound = self.network is not None
        if bound and not isinstance(self.likelihood, SquaredError):
            raise ValueError("icp: the task must be regression; got classification")
        if not 0 < self.level < 1 or not 1 <= self.most <= 16:
            raise ValueError(
                "icp: level must be in (0, 1) and most from 1 to 16; "
                f"got {self.level} and {self.most}"
            )

    def init(self, randomness: Randomness) -> State:
        """Nothing known."""
        replicas = len(randomness.seeds)
        return State(
            torch.empty(replicas, 0, 0, 0, dtype=torch.float64),
            torch.empty(replicas, 0),
        )

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Add the stage's moments and search again."""
        for environment in stage:
            if len(environment) < 2:
                raise ValueError(
                    f"icp: environment {environment.name!r} must have two or more "
                    f"examples; got {len(environment)}"
                )
        replicas = len(randomness.seeds)
        found = [sum_products(*environment.take_all(replicas)) for environment in stage]
        moments = torch.stack(found, 1)
        if state.moments.shape[1]:
            moments = torch.cat([state.moments, moments], 1)
        findings = self.compute_findings(State(moments, state.coefficients))
        index = (findings.sets == findings.parents.unsqueeze(1)).all(-1).int().argmax(1)
        rows = torch.arange(replicas)
        watch(1, 1, {"parents": findings.parents.sum(-1).float()})
        return State(moments, findings.coefficients[rows, index].float())

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Predicted values, [replica, 1, n, 1]."""
        x = inputs.flatten(2)
        if not state.coefficients.shape[1]:
            return x.new_zeros(len(x), 1, x.shape[1], 1)
        intercept, slopes = state.coefficients.to(x).split([1, x.shape[2]], 1)
        values = torch.baddbmm(intercept.unsqueeze(-1), x, slopes.unsqueeze(-1))
        return values.unsqueeze(1)

    def compute_findings(self, state: State) -> Findings:
        """Every searched set's test, and what follows for the features."""
        pooled = state.moments.sum(1)
        sets = list_candidate_sets(pooled, self.most)
        coefficients, errors = fit_regressions(pooled, sets)
        p_sets = invariance_p_values(state.moments, coefficients)
        accepted = p_sets > self.level
        some = accepted.any(1, keepdim=True)
        parents = (sets | ~accepted.unsqueeze(-1)).all(1) & some
        without = p_sets.unsqueeze(-1).masked_fill(sets, 0.0).amax(1)
        half = errors * self._quantiles(pooled[:, 0, 0], sets)
        slopes, far = coefficients[..., 1:], ~accepted.unsqueeze(-1)
        lower = (slopes - half).masked_fill(far, torch.inf).amin(1)
        upper = (slopes + half).masked_fill(far, -torch.inf).amax(1)
        return Findings(
            parents,
            torch.where(some, without, 1.0),
            lower.masked_fill(~some, torch.nan),
            upper.masked_fill(~some, torch.nan),
            sets,
            p_sets,
            coefficients,
        )

    def _quantiles(self, examples: Tensor, sets: Tensor) -> Tensor:
        """Half widths of each set's intervals in standard errors, [replica, set, 1]."""
        sizes = sets.sum(-1, keepdim=True).double()
        free = (examples[:, None, None] - sizes - 1).clamp(min=1)
        tail = 1 - self.level / (2 * sizes.clamp(min=1))
        return torch.from_numpy(special.stdtrit(free.numpy(), tail.numpy()))


def sum_products(x: Tensor, y: Tensor) -> Tensor:
    """Sums of products of (1, inputs, target), [replica, d + 2, d + 2]."""
    x = x.flatten(2).double()
    whole = torch.cat([torch.ones_like(x[..., :1]), x, y.unsqueeze(-1).double()], -1)
    return whole.mT @ whole


def list_candidate_sets(pooled: Tensor, most: int) -> Tensor:
    """The sets to test, [replica, set, d]: all subsets of at most `most` features."""
    width = pooled.shape[-1] - 2
    every = torch.ones(len(pooled), 1, width, dtype=torch.bool)
    coefficients, errors = fit_regressions(pooled, every)
    weight = (coefficients[:, 0, 1:] / errors[:, 0].clamp(min=1e-300)).abs()
    chosen = weight.topk(min(most, width), dim=-1).indices.sort(-1).values
    kinds = torch.tensor(list(product([False, True], repeat=chosen.shape[1])))
    places = chosen.unsqueeze(1).expand(-1, len(kinds), -1)
    kinds = kinds.expand(len(pooled), -1, -1)
    return every.new_zeros(*kinds.shape[:2], width).scatter(-1, places, kinds)


def fit_regressions(pooled: Tensor, sets: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares on sets [replica, set, d] of features.

    Coefficients [replica, set, d + 1], the intercept first, and the standard errors of
    all but the intercept, [replica, set, d]; both are zero outside the set.
    """
    inside = torch.cat([torch.ones_like(sets[..., :1]), sets], -1).double()
    products, target = pooled[:, None, :-1, :-1], pooled[:, None, :-1, -1]
    scale = products.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()
    inside = inside / scale
    # Features outside the set have empty rows, which the pseudo-inverse leaves empty.
    inverse = torch.linalg.pinv(
        inside.unsqueeze(-1) * products * inside.unsqueeze(-2), hermitian=True
    )
    inverse = inside.unsqueeze(-1) * inverse * inside.unsqueeze(-2)
    coefficients = (inverse @ target.unsqueeze(-1)).squeeze(-1)
    rest = pooled[:, None, -1, -1] - (coefficients * target).sum(-1)
    free = (pooled[:, None, 0, 0] - sets.sum(-1) - 1).clamp(min=1)
    variance = (rest.clamp(min=0) / free).unsqueeze(-1)
    spread = inverse.diagonal(dim1=-2, dim2=-1)[..., 1:].clamp(min=0)
    return coefficients, (variance * spread).sqrt()


def invariance_p_values(moments: Tensor, coefficients: Tensor) -> Tensor:
    """p-value of each set's residuals being alike everywhere, [replica, set]."""
    environments = moments.shape[1]
    if environments == 1:
        return torch.ones_like(coefficients[..., 0])
    weights = torch.cat([-coefficients, torch.ones_like(coefficients[..., :1])], -1)
    size = moments[:, None, :, 0, 0].expand(-1, weights.shape[1], -1)
    total = torch.einsum("rsi,rei->rse", weights, moments[..., 0])
    square = torch.einsum("rsi,reij,rsj->rse", weights, moments, weights)
    # Rounding errors of a perfect fit must not look like a difference.
    floor = 1e-12 * moments[..., -1, -1].sum(1)[:, None, None] / size.sum(-1, True)
    sums = [size, total, square]
    own = summarize_residuals(sums, floor)
    rest = summarize_residuals(
        [part.sum(-1, keepdim=True) - part for part in sums], floor
    )
    least = torch.minimum(t_test(own, rest), f_test(own, rest)).amin(-1)
    # Of two environments each is the other's rest, so both make the same two tests.
    tests = 2 * (environments if environments > 2 else 1)
    return (tests * least).clamp(max=1.0)


class Summary(NamedTuple):
    """Size, mean and variance of samples, all of one shape."""

    size: Tensor
    mean: Tensor
    variance: Tensor


def summarize_residuals(sums: list[Tensor], floor: Tensor) -> Summary:
    """Samples by their sizes, sums and sums of squares; no variance below a floor."""
    size, total, square = sums
    mean = total / size
    variance = (square - total * mean) / (size - 1)
    return Summary(size, mean, torch.maximum(variance, floor))


def t_test(a: Summary, b: Summary) -> Tensor:
    """Two-sided p-value of equal means under unequal variances (Welch)."""
    spread_a, spread_b = a.variance / a.size, b.variance / b.size
    both = spread_a + spread_b
    free = both.square() / (
        spread_a.square() / (a.size - 1) + spread_b.square() / (b.size - 1)
    )
    distance = (a.mean - b.mean).abs() / both.sqrt()
    return 2 * torch.from_numpy(special.stdtr(free.numpy(), -distance.numpy()))


def f_test(a: Summary, b: Summary) -> Tensor:
    """Two-sided p-value of equal variances."""
    ratio = (a.variance / b.variance).numpy()
    free = (a.size - 1).numpy(), (b.size - 1).numpy()
    below, above = special.fdtr(*free, ratio), special.fdtrc(*free, ratio)
    return 2 * torch.minimum(torch.from_numpy(below), torch.from_numpy(above))
