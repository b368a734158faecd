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
WEIGHTS = 0.225, 0.1, 0.225, 0.225, 0.225  # of the tests: discriminant, axes,
# discriminant of a kernel, easiest predictor, entries that tell most
MOST_P_VALUE = 0.99  # so that one test in which nothing changes outvotes no other
ROWS_OF_POOLED_VARIANCE = 10.0  # that the variance of all rows counts for: more than
# a class of few rows has, much less than one of many
TELLING_ENTRIES = 5  # a mark has at least as many pixels
RIDGE_OF_ENTRIES = 0.1  # of their discriminant, in mean variances: they are few
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


class RowsWithClasses(NamedTuple):
    """Rows [n, d] and their classes [n]."""

    rows: Tensor
    targets: Tensor


class PrincipalAxes(NamedTuple):
    """Axes [d, a] of the inputs, and the variance [a] within classes along each."""

    vectors: Tensor
    variances: Tensor

    def whiten_rows(self, rows: Tensor, ridge: float = 0.0) -> Tensor:
        """Return coordinates [n, a] of rows [n, d], in (ridged) standard deviations."""
        variances = self.variances + ridge * self.variances.mean()
        return rows @ self.vectors / variances.sqrt()


class ChangeTestResult(NamedTuple):
    """A change: z along the discriminant, and the p-value of each axis [a].

    z is positive if classes differ more than before.

    `size` estimates the squared length of the change along these axes, in standard
    errors: the sum of squares less what chance contributes.
    """

    discriminant_z: float
    axes: Tensor
    size: float

    @property
    def discriminant(self) -> float:
        """The p-value of a change along the discriminant."""
        return convert_z_to_p_value(self.discriminant_z)

    @property
    def corrected_p_value_of_axes(self) -> float:
        """The p-value of a change along any axis; axes are independent (Sidak)."""
        least = min(float(self.axes.min()), MOST_P_VALUE)
        return -math.expm1(len(self.axes) * math.log1p(-least))

    @property
    def p_value(self) -> float:
        """The p-value of any change, from both tests together."""
        return combine_p_values_of_tests(
            (self.discriminant, self.corrected_p_value_of_axes, None, None, None)
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
    new_rows: RowsWithClasses | None = None,
) -> ChangeTestResult:
    """Test whether the differences between class means changed."""
    weights = compute_precision_of_class_means(past_moments, new_moments)
    z = compute_z_along_discriminant(past_moments, new_moments, axes, RIDGE, new_rows)
    n_rows = past_moments.count_rows() + new_moments.count_rows()
    count = min(AXES, max(1, int(n_rows / ROWS_OF_AXIS)))
    few = PrincipalAxes(axes.vectors[:, :count], axes.variances[:count])
    change = (new_moments.means - past_moments.means) @ few.vectors
    change = change - weights @ change / weights.sum()
    squares = weights @ change.square() / few.variances
    freedom = max(1, int((weights > 0).sum()) - 1)
    p_values = torch.tensor(chdtrc(freedom, squares.cpu().numpy()))
    size = float(squares.sum()) - freedom * len(squares)
    return ChangeTestResult(z, p_values, size)


def convert_z_to_p_value(z: float) -> float:
    """Return the two-sided p-value of a standard normal number."""
    return float(2 * ndtr(-abs(z)))


def compute_z_along_discriminant(
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
    ridge: float,
    new_rows: RowsWithClasses | None = None,
) -> float:
    """Return z of a change of class means along their discriminant.

    It is the direction in which pooled class means differ most, in units of the scatter
    with a ridge in mean variances. Since the rows that it is tested on determine the
    scatter, z is multiplied by 1 - degrees of freedom / rows, as residuals are in
    generalised cross-validation. If the new rows are at hand, they tell how much each
    class varies. Otherwise all are taken to vary alike.
    """
    pooled = compute_pooled_class_means(past_moments, new_moments)
    ridged = axes.variances + ridge * axes.variances.mean()
    pattern = (pooled @ axes.vectors / ridged) @ axes.vectors.T
    z = measure_change_of_means_along_pattern(
        pattern, past_moments, new_moments, axes, new_rows
    )
    freedom = float((axes.variances / ridged).sum())
    rows = past_moments.count_rows() + new_moments.count_rows()
    return z * max(0.0, 1 - freedom / rows)


def compute_z_of_telling_entries(
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    new_rows: RowsWithClasses,
) -> float:
    """Return z of a change of the few entries that tell the classes best.

    A mark is in few pixels, and a colour in few statistics. Which entries tell classes
    in all rows together does not depend on the change. All are standardised.
    """
    precision = compute_precision_of_class_means(past_moments, new_moments)
    means = compute_pooled_class_means(past_moments, new_moments)
    centred = new_rows.rows - new_moments.means[new_rows.targets]
    variances = centred.square().mean(0)
    entries = find_telling_entries(means, variances, precision)
    scale = variances[entries].clamp(min=1e-12).sqrt()

    def keep_entries(rows: Tensor) -> Tensor:
        return rows[:, entries] / scale

    past, new = (
        ClassMeansAndScatter(m.counts, keep_entries(m.means), keep_entries(m.factor))
        for m in (past_moments, new_moments)
    )
    axes = find_principal_axes_within_classes(
        pool_class_moments_of_environments(past, new)
    )
    rows = new_rows._replace(rows=keep_entries(new_rows.rows))
    return compute_z_along_discriminant(past, new, axes, RIDGE_OF_ENTRIES, rows)


def find_telling_entries(
    class_means: Tensor, variances: Tensor, weights: Tensor
) -> Tensor:
    """Return the few entries whose means [k, d] tell the classes best.

    In units of their variance within classes [d], with a weight [k] for each class.
    Entries that hardly vary are compared as if they varied a thousandth of the mean.
    """
    shares = weights.to(class_means) / weights.sum().clamp(min=1e-12)
    between = shares @ (class_means - shares @ class_means).square()
    told = between / (variances + 1e-3 * variances.mean()).clamp(min=1e-12)
    return told.argsort(descending=True)[:TELLING_ENTRIES]


def measure_change_of_means_along_pattern(
    pattern: Tensor,
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
    new_rows: RowsWithClasses | None = None,
) -> float:
    """Return z of a change of the sum of a pattern [k, d] times means.

    The pattern must not depend on the change itself; means pooled over all rows do not.
    Without rows it is projected onto the axes, and classes are taken to vary alike
    along them. With the new rows, these tell how much each class varies.
    """
    weights = compute_precision_of_class_means(past_moments, new_moments)
    known = weights > 0
    if known.sum() < 2:
        return 0.0
    pattern = (pattern - pattern[known].mean(0)) * known[:, None]
    if new_rows is None:
        pattern = pattern @ axes.vectors @ axes.vectors.T
        variances = (pattern @ axes.vectors).square() @ axes.variances
    else:
        before, here = (
            (moments.factor @ pattern.T).square().sum(0)
            for moments in (past_moments, new_moments)
        )
        rows = past_moments.count_rows() + new_moments.count_rows()
        variances = (before + here) / max(1.0, rows - int(known.sum()))
        variances = variances * _estimate_variance_ratios(pattern, new_rows, here)
    change = ((new_moments.means - past_moments.means) * pattern).sum()
    spread = variances[known] / weights[known]
    return float(change / spread.sum().sqrt().clamp(min=1e-12))


def _estimate_variance_ratios(
    pattern: Tensor, rows_with_classes: RowsWithClasses, scatter: Tensor
) -> Tensor:
    """Return by which factors [k] the variance of classes exceeds what moments tell.

    A class mostly varies along its own pattern [k, d], in which it differs from others:
    ten digits have three times the variance there that all rows have. This factor is
    shrunk towards 1, as if ten more rows varied as all do. The other one is what the
    `scatter` [k] of the rows along the patterns lacks, since its rank is bounded.
    """
    rows, targets = rows_with_classes
    scores = rows @ pattern.T
    scores = scores - compute_means_by_group(scores, targets, len(pattern))[targets]
    own = scores.gather(1, targets[:, None])[:, 0].square()
    counts = torch.bincount(targets, minlength=len(pattern))
    freedom = max(1, len(targets) - int((counts > 0).sum()))
    whole = scores.square().sum(0)
    pooled = whole / freedom
    is_constant = pooled <= 1e-9 * pooled.max()
    sums = torch.zeros_like(pooled).index_add_(0, targets, own)
    rows_of_class = (counts - 1).clamp(min=0) + ROWS_OF_POOLED_VARIANCE
    ratios = sums / pooled.clamp(min=1e-300) + ROWS_OF_POOLED_VARIANCE
    missing = (whole / scatter.clamp(min=1e-300)).clamp(min=1)
    return torch.where(is_constant, 1.0, missing * ratios / rows_of_class)


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
