"""Invariant causal prediction: use the features that every invariant regression needs.

Peters, Buehlmann and Meinshausen, "Causal Inference by Using Invariant Prediction:
Identification and Confidence Intervals", 2016, method II. A set of features is
accepted if the residuals of its pooled least squares have, in each environment, the
mean and the variance that they have in the others, by Welch's t-test and the F-test
with Bonferroni's correction. The features in all accepted sets are the identified
causes. The tests need only second moments of the data, which are kept: on a sequence
the result is exactly the joint one, without any past example in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from scipy import special
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class ICPState(NamedTuple):
    """Second moments of each environment, and the regression that predicts.

    `moments` are sums of products of (1, inputs, target), [replica, e, d + 2, d + 2].
    `coefficients` are the intercept and those of the inputs, [replica, d + 1]. Both
    are empty before any data.
    """

    moments: Tensor
    coefficients: Tensor


class InvarianceTestResults(NamedTuple):
    """Test results for each feature, [replica, d], and each set, [replica, set].

    `parents` are the identified causes, and `p_values` those of the hypothesis that a
    feature is none. `lower` and `upper` bound the coefficient over all accepted sets
    (NaN if none was accepted). `sets` [replica, set, d] have the p-values `p_sets` and
    the regressions `coefficients` [replica, set, d + 1].
    """

    parents: Tensor
    p_values: Tensor
    lower: Tensor
    upper: Tensor
    sets: Tensor
    p_sets: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class ICP(Learner[ICPState]):
    """Least squares on the features that are identified as causes; regression only.

    The network and the settings of training are not used.

    Args:
        level: Significance level of the tests.
        most: Largest number of features that are searched, from 1 to 16, since each
            doubles the number of sets. Of more, those with the largest t-values in the
            regression on all features are searched.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(ICP(), is_regression=True).shape
        torch.Size([1, 20, 1])
    """

    level: float = 0.05
    most: int = 10

    presets = {"scm": {"level": 0.05}}
    tasks = ("regression",)

    def __post_init__(self) -> None:
        self.check_setting("level", 0 < self.level < 1, "between 0 and 1")
        self.check_setting("most", 1 <= self.most <= 16, "from 1 to 16")

    def init(self, randomness: Randomness) -> ICPState:
        """Return a state without moments or coefficients."""
        replicas = len(randomness.seeds)
        return ICPState(
            torch.empty(replicas, 0, 0, 0, dtype=torch.float64),
            torch.empty(replicas, 0),
        )

    def check_state(self, state: ICPState, shape: tuple[int, ...]) -> None:
        """Raise an error unless there are moments of inputs of this shape."""
        side = math.prod(shape) + 2
        if state.moments.shape[1] and tuple(state.moments.shape[2:]) != (side, side):
            raise ValueError(
                f"the stored tensor moments has the shape {list(state.moments.shape)}, "
                f"but should end in {[side, side]}"
            )
        super().check_state(state, shape)

    def observe(
        self,
        state: ICPState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> ICPState:
        """Add the moments of the stage and repeat the search."""
        for environment in stage:
            if len(environment) < 2:
                raise ValueError(
                    f"icp: environment {environment.name!r} has a single example, but "
                    "two or more are needed. Leave out this environment, or combine "
                    "it with another one."
                )
        replicas = len(randomness.seeds)
        moments = torch.stack(
            [
                compute_second_moments_of_environments(*e.take_all(replicas))
                for e in stage
            ],
            1,
        )
        if state.moments.shape[1]:
            moments = torch.cat([state.moments, moments], 1)
        findings = self.compute_invariance_tests(ICPState(moments, state.coefficients))
        index = (findings.sets == findings.parents.unsqueeze(1)).all(-1).int().argmax(1)
        rows = torch.arange(replicas)
        watch(1, 1, {"parents": findings.parents.sum(-1).float()})
        return ICPState(moments, findings.coefficients[rows, index].float())

    def outputs(self, state: ICPState, inputs: Tensor) -> Tensor:
        """Return predicted values, [replica, 1, n, 1]."""
        x = inputs.flatten(2)
        if not state.coefficients.shape[1]:
            return x.new_zeros(len(x), 1, x.shape[1], 1)
        intercept, slopes = state.coefficients.to(x).split([1, x.shape[2]], 1)
        values = torch.baddbmm(intercept.unsqueeze(-1), x, slopes.unsqueeze(-1))
        return values.unsqueeze(1)

    def compute_invariance_tests(self, state: ICPState) -> InvarianceTestResults:
        """Test every candidate set and derive what follows for the features."""
        pooled = state.moments.sum(1)
        sets = list_candidate_feature_sets(pooled, self.most)
        coefficients, errors = fit_regression_for_each_feature_set(pooled, sets)
        p_sets = compute_p_values_of_invariance(state.moments, coefficients)
        accepted = p_sets > self.level
        some = accepted.any(1, keepdim=True)
        parents = (sets | ~accepted.unsqueeze(-1)).all(1) & some
        without = p_sets.unsqueeze(-1).masked_fill(sets, 0.0).amax(1)
        half = errors * self._compute_t_quantiles(pooled[:, 0, 0], sets)
        slopes, rejected = coefficients[..., 1:], ~accepted.unsqueeze(-1)
        lower = (slopes - half).masked_fill(rejected, torch.inf).amin(1)
        upper = (slopes + half).masked_fill(rejected, -torch.inf).amax(1)
        return InvarianceTestResults(
            parents,
            torch.where(some, without, 1.0),
            lower.masked_fill(~some, torch.nan),
            upper.masked_fill(~some, torch.nan),
            sets,
            p_sets,
            coefficients,
        )

    def _compute_t_quantiles(self, examples: Tensor, feature_sets: Tensor) -> Tensor:
        """Return half widths of intervals in standard errors, [replica, set, 1]."""
        sizes = feature_sets.sum(-1, keepdim=True).double()
        free = (examples[:, None, None] - sizes - 1).clamp(min=1)
        tail = 1 - self.level / (2 * sizes.clamp(min=1))
        return torch.from_numpy(special.stdtrit(free.numpy(), tail.numpy()))


def compute_second_moments_of_environments(x: Tensor, y: Tensor) -> Tensor:
    """Return sums of products of (1, inputs, target), [replica, d + 2, d + 2]."""
    x = x.flatten(2).double()
    whole = torch.cat([torch.ones_like(x[..., :1]), x, y.unsqueeze(-1).double()], -1)
    return whole.mT @ whole


def list_candidate_feature_sets(pooled_moments: Tensor, max_features: int) -> Tensor:
    """Return all subsets [replica, set, d] of the `max_features` strongest features."""
    width = pooled_moments.shape[-1] - 2
    every = torch.ones(len(pooled_moments), 1, width, dtype=torch.bool)
    coefficients, errors = fit_regression_for_each_feature_set(pooled_moments, every)
    weight = (coefficients[:, 0, 1:] / errors[:, 0].clamp(min=1e-300)).abs()
    chosen = weight.topk(min(max_features, width), dim=-1).indices.sort(-1).values
    kinds = torch.tensor(list(product([False, True], repeat=chosen.shape[1])))
    places = chosen.unsqueeze(1).expand(-1, len(kinds), -1)
    kinds = kinds.expand(len(pooled_moments), -1, -1)
    return every.new_zeros(*kinds.shape[:2], width).scatter(-1, places, kinds)


def fit_regression_for_each_feature_set(
    pooled_moments: Tensor, feature_sets: Tensor
) -> tuple[Tensor, Tensor]:
    """Fit least squares on sets [replica, set, d] of features.

    Returns coefficients [replica, set, d + 1] with the intercept first, and standard
    errors of all but the intercept, [replica, set, d]. Both are zero outside the set.
    """
    replicas, sets, features = feature_sets.shape
    # Only features of some set matter. Zero rows for all the others would make large
    # matrices whose repeated eigenvalues the decomposition may not resolve.
    width = int(feature_sets.any(1).sum(-1).max())
    places = feature_sets.any(1).int().topk(width, dim=-1).indices.sort(-1).values
    with_intercept = torch.cat([torch.zeros_like(places[:, :1]), places + 1], -1)
    rows = torch.arange(len(places)).unsqueeze(-1)
    products = pooled_moments[rows.unsqueeze(-1), with_intercept[:, :, None],
                              with_intercept[:, None, :]].unsqueeze(1)  # fmt: skip
    target = pooled_moments[rows, with_intercept, -1].unsqueeze(1)
    inside = feature_sets.gather(-1, places.unsqueeze(1).expand(-1, sets, -1))
    inside = torch.cat([torch.ones_like(inside[..., :1]), inside], -1).double()
    scale = products.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()
    inside = inside / scale
    # Features outside the set have zero rows, which the pseudo-inverse leaves zero.
    inverse = torch.linalg.pinv(
        inside.unsqueeze(-1) * products * inside.unsqueeze(-2), hermitian=True
    )
    inverse = inside.unsqueeze(-1) * inverse * inside.unsqueeze(-2)
    coefficients = (inverse @ target.unsqueeze(-1)).squeeze(-1)
    rest = pooled_moments[:, None, -1, -1] - (coefficients * target).sum(-1)
    free = (pooled_moments[:, None, 0, 0] - feature_sets.sum(-1) - 1).clamp(min=1)
    variance = (rest.clamp(min=0) / free).unsqueeze(-1)
    spread = inverse.diagonal(dim1=-2, dim2=-1)[..., 1:].clamp(min=0)
    errors = (variance * spread).sqrt()
    whole = coefficients.new_zeros(replicas, sets, features + 1)
    columns = with_intercept.unsqueeze(1).expand(-1, sets, -1)
    return (
        whole.scatter(-1, columns, coefficients),
        whole[..., 1:].scatter(-1, columns[..., 1:] - 1, errors),
    )


def compute_p_values_of_invariance(moments: Tensor, coefficients: Tensor) -> Tensor:
    """Return p-values [replica, set] of equal residuals in all environments."""
    environments = moments.shape[1]
    if environments == 1:
        return torch.ones_like(coefficients[..., 0])
    weights = torch.cat([-coefficients, torch.ones_like(coefficients[..., :1])], -1)
    size = moments[:, None, :, 0, 0].expand(-1, weights.shape[1], -1)
    total = torch.einsum("rsi,rei->rse", weights, moments[..., 0])
    square = torch.einsum("rsi,reij,rsj->rse", weights, moments, weights)
    # Otherwise rounding errors of a perfect fit would look like a difference.
    floor = 1e-12 * moments[..., -1, -1].sum(1)[:, None, None] / size.sum(-1, True)
    sums = [size, total, square]
    here = summarise_residuals(sums, floor)
    others = summarise_residuals(
        [part.sum(-1, keepdim=True) - part for part in sums], floor
    )
    least = torch.minimum(
        compute_t_test_p_value(here, others), compute_f_test_p_value(here, others)
    ).amin(-1)
    # With two environments, both are compared with each other by the same two tests.
    tests = 2 * (environments if environments > 2 else 1)
    return (tests * least).clamp(max=1.0)


class ResidualSummary(NamedTuple):
    """Number, mean and variance of residuals, all of one shape."""

    size: Tensor
    mean: Tensor
    variance: Tensor


def summarise_residuals(sums: list[Tensor], floor: Tensor) -> ResidualSummary:
    """Summarise residuals by [number, sum, sum of squares], with a least variance."""
    size, total, square = sums
    mean = total / size
    variance = (square - total * mean) / (size - 1)
    return ResidualSummary(size, mean, torch.maximum(variance, floor))


def compute_t_test_p_value(a: ResidualSummary, b: ResidualSummary) -> Tensor:
    """Return the two-sided p-value of equal means (Welch's test)."""
    spread_a, spread_b = a.variance / a.size, b.variance / b.size
    both = spread_a + spread_b
    free = both.square() / (
        spread_a.square() / (a.size - 1) + spread_b.square() / (b.size - 1)
    )
    distance = (a.mean - b.mean).abs() / both.sqrt()
    return 2 * torch.from_numpy(special.stdtr(free.numpy(), -distance.numpy()))


def compute_f_test_p_value(a: ResidualSummary, b: ResidualSummary) -> Tensor:
    """Return the two-sided p-value of equal variances."""
    ratio = (a.variance / b.variance).numpy()
    free = (a.size - 1).numpy(), (b.size - 1).numpy()
    below, above = special.fdtr(*free, ratio), special.fdtrc(*free, ratio)
    return 2 * torch.minimum(torch.from_numpy(below), torch.from_numpy(above))
