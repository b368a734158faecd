"""Test whether what inputs say of the classes changed since earlier environments.

Carried from environment to environment are the class means and the scatter within
classes, as a factor of bounded rank. All functions treat one replica. A change is a
change of the difference between class means: a shift common to all classes says nothing
about the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.special import chdtrc, ndtr
from torch import Tensor

from cirm.p_values import combine_p_values

RANK = 300  # rows of the factor of the scatter: all that 1,000 small images vary along
AXES = 50  # leading axes that are tested one by one
ROWS_OF_AXIS = 10  # that are needed for each: with 54 rows in 50 axes, whose variances
# come from the same rows, two of three null draws had a p-value below 0.05
WEIGHTS = 0.3, 0.1, 0.3, 0.3  # of the tests: discriminant, axes, discriminant of a
# kernel, easiest predictor
MOST_P_VALUE = 0.99  # so that one test in which nothing changes outvotes no other
RIDGE = 30.0  # of the discriminant, in mean variances; 10 to 100 find the same


class ClassMeansAndScatter(NamedTuple):
    """Class counts [k], class means [k, d], and a factor [r, d] of the scatter.

    The scatter within classes and environments is factor' factor.
    """

    counts: Tensor
    means: Tensor
    factor: Tensor

    def count_rows(self) -> float:
        """Return the number of rows, or one if there are none."""
        return max(1.0, float(self.counts.sum()))


class PrincipalAxes(NamedTuple):
    """Axes [d, a] of the inputs, and the variance [a] within classes along each."""

    vectors: Tensor
    variances: Tensor

    def whiten_rows(self, rows: Tensor, ridge: float = 0.0) -> Tensor:
        """Return coordinates [n, a] of rows [n, d], in (ridged) standard deviations."""
        variances = self.variances + ridge * self.variances.mean()
        return rows @ self.vectors / variances.sqrt()


class ChangeTestResult(NamedTuple):
    """The p-values of a change: along the discriminant, and of each axis [a].

    `size` estimates the squared length of the change along these axes, in standard
    errors: the sum of squares less what chance contributes.
    """

    discriminant: float
    axes: Tensor
    size: float

    @property
    def corrected_p_value_of_axes(self) -> float:
        """The p-value of a change along any axis; axes are independent (Sidak)."""
        least = min(float(self.axes.min()), MOST_P_VALUE)
        return -math.expm1(len(self.axes) * math.log1p(-least))

    @property
    def p_value(self) -> float:
        """The p-value of any change, from both tests together."""
        return combine_p_values_of_tests(
            (self.discriminant, self.corrected_p_value_of_axes, None, None)
        )


def combine_p_values_of_tests(p_values: Sequence[float | None]) -> float:
    """Return the p-value of the tests of `WEIGHTS` together, without missing ones."""
    known = [(p, w) for p, w in zip(p_values, WEIGHTS, strict=True) if p is not None]
    values, weights = zip(*known, strict=True)
    return combine_p_values(values, weights, MOST_P_VALUE)


def compute_class_moments(
    rows: Tensor, targets: Tensor, n_classes: int
) -> ClassMeansAndScatter:
    """Return the moments of rows [n, d] with classes [n]."""
    member = torch.nn.functional.one_hot(targets, n_classes).to(rows)
    counts = member.sum(0)
    means = compute_means_by_group(rows, targets, n_classes)
    return ClassMeansAndScatter(
        counts, means, compress_scatter_matrix_factor(rows - means[targets])
    )


def compute_means_by_group(rows: Tensor, group_of_row: Tensor, n_groups: int) -> Tensor:
    """Return the mean [n_groups, d] of rows by group."""
    member = torch.nn.functional.one_hot(group_of_row, n_groups).to(rows)
    return member.T @ rows / member.sum(0).clamp(min=1)[:, None]


def pool_class_moments_of_environments(
    first: ClassMeansAndScatter, second: ClassMeansAndScatter
) -> ClassMeansAndScatter:
    """Return the moments of two environments, scattered about their own class means."""
    counts = first.counts + second.counts
    sums = [m.counts[:, None] * m.means for m in (first, second)]
    means = (sums[0] + sums[1]) / counts.clamp(min=1)[:, None]
    factor = torch.cat([first.factor, second.factor])
    return ClassMeansAndScatter(counts, means, compress_scatter_matrix_factor(factor))


def compress_scatter_matrix_factor(factor: Tensor, max_rank: int = RANK) -> Tensor:
    """Return a factor [max_rank or d, d] with the same leading part of the scatter."""
    width = min(max_rank, factor.shape[1])
    values, axes = _compute_eigenvectors_of_scatter(factor)
    values, axes = values[:width], axes[:, :width]
    short = values.sqrt()[:, None] * axes.T
    return torch.nn.functional.pad(short, (0, 0, 0, width - len(short)))


def find_principal_axes_within_classes(moments: ClassMeansAndScatter) -> PrincipalAxes:
    """Return the axes with at least 1e-4 of the largest variance within classes."""
    values, axes = _compute_eigenvectors_of_scatter(moments.factor)
    freedom = max(1.0, moments.count_rows() - len(moments.counts))
    keep = values > 1e-4 * values[:1].clamp(min=1e-12)
    keep[0] = True
    return PrincipalAxes(axes[:, keep], (values[keep] / freedom).clamp(min=1e-12))


def measure_change_of_class_means(
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
) -> ChangeTestResult:
    """Test whether the differences between class means changed."""
    weights = compute_precision_of_class_means(past_moments, new_moments)
    p_value = compute_p_value_along_discriminant(past_moments, new_moments, axes, RIDGE)
    n_rows = past_moments.count_rows() + new_moments.count_rows()
    count = min(AXES, max(1, int(n_rows / ROWS_OF_AXIS)))
    few = PrincipalAxes(axes.vectors[:, :count], axes.variances[:count])
    change = (new_moments.means - past_moments.means) @ few.vectors
    change = change - weights @ change / weights.sum()
    squares = weights @ change.square() / few.variances
    freedom = max(1, int((weights > 0).sum()) - 1)
    p_values = torch.tensor(chdtrc(freedom, squares.cpu().numpy()))
    size = float(squares.sum()) - freedom * len(squares)
    return ChangeTestResult(p_value, p_values, size)


def compute_p_value_along_discriminant(
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
    ridge: float,
) -> float:
    """Return the p-value of a change of class means along their discriminant.

    It is the direction in which pooled class means differ most, in units of the scatter
    with a ridge in mean variances. Since the rows that it is tested on determine the
    scatter, z is multiplied by 1 - degrees of freedom / rows, as residuals are in
    generalised cross-validation.
    """
    pooled = compute_pooled_class_means(past_moments, new_moments)
    ridged = axes.variances + ridge * axes.variances.mean()
    pattern = (pooled @ axes.vectors / ridged) @ axes.vectors.T
    z, _ = measure_change_of_means_along_pattern(
        pattern, past_moments, new_moments, axes
    )
    freedom = float((axes.variances / ridged).sum())
    z = z * max(
        0.0, 1 - freedom / (past_moments.count_rows() + new_moments.count_rows())
    )
    return float(2 * ndtr(-abs(z)))


def measure_change_of_means_along_pattern(
    pattern: Tensor,
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
) -> tuple[float, float]:
    """Return z and the p-value of a change of the sum of pattern [k, d] times means.

    The pattern must not depend on the change itself; means pooled over all rows do not.
    """
    weights = compute_precision_of_class_means(past_moments, new_moments)
    known = weights > 0
    if known.sum() < 2:
        return 0.0, 1.0
    pattern = (pattern - pattern[known].mean(0)) * known[:, None]
    along = pattern @ axes.vectors
    change = ((new_moments.means - past_moments.means) @ axes.vectors * along).sum()
    spread = (along.square() @ axes.variances)[known] / weights[known]
    z = float(change / spread.sum().sqrt().clamp(min=1e-12))
    return z, float(2 * ndtr(-abs(z)))


def compute_precision_of_class_means(
    past_moments: ClassMeansAndScatter, new_moments: ClassMeansAndScatter
) -> Tensor:
    """Return the precision [k] of each class's change of means, for unit variance."""
    inverse = 1 / past_moments.counts.clamp(min=1e-9) + 1 / new_moments.counts.clamp(
        min=1e-9
    )
    known = (past_moments.counts > 1) & (new_moments.counts > 1)
    return torch.where(known, 1 / inverse, 0.0)


def compute_pooled_class_means(
    past_moments: ClassMeansAndScatter, new_moments: ClassMeansAndScatter
) -> Tensor:
    """Return class means [k, d] over all rows, less their own mean."""
    counts = (past_moments.counts + new_moments.counts).clamp(min=1)[:, None]
    means = (
        past_moments.counts[:, None] * past_moments.means
        + new_moments.counts[:, None] * new_moments.means
    )
    means = means / counts
    return means - means.mean(0)


def _compute_eigenvectors_of_scatter(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors [d, r] of the scatter, the largest first."""
    factor = factor.double()
    if len(factor) >= factor.shape[1]:
        values, axes = torch.linalg.eigh(factor.T @ factor)
    else:
        values, left = torch.linalg.eigh(factor @ factor.T)
        axes = factor.T @ left / values.clamp(min=1e-12).sqrt()
        axes = torch.where(values > 1e-9 * values[-1:].clamp(min=1e-12), axes, 0.0)
    return values.flip(0).clamp(min=0), axes.flip(1)
