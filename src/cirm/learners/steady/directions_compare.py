"""Compare the environments of a stage with each other and with those before.

All functions treat one replica.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady.directions_kernel import DISCRIMINANT_RIDGE
from cirm.learners.steady.directions_reference import (
    EasiestFeaturePredictions,
    compute_z_of_correct_counts,
)
from cirm.learners.steady.directions_search import (
    ClassMeansAndScatter,
    PrincipalAxes,
    RowsWithClasses,
)
from cirm.p_values import combine_p_values

GONE = 0.1  # of the variance before: what varies less cannot be read any more


class LabelledStageRows(NamedTuple):
    """Rows [n, d] of a stage, classes [n], and the environment [n] of each row."""

    rows: Tensor
    targets: Tensor
    places: Tensor


class ObservedEnvironment(NamedTuple):
    """The moments of an environment, and its rows if they are at hand.

    Of the environments before this stage only their moments together are left.
    """

    moments: ClassMeansAndScatter
    rows: RowsWithClasses | None = None


class Trend(NamedTuple):
    """Changes so far, in standard errors: their weighted sum, and how many they are.

    A change is positive if classes differ more than before, as they do if a shortcut
    is contradicted less and less. If something changes in even steps, the k-th
    environment differs from the mean of all before by k / 2 of them, so that is its
    weight.
    """

    total: float = 0.0
    n_changes: int = 0

    def add(self, p_value: float, direction: float) -> Trend:
        """Return the trend with one more change, of which a p-value is known."""
        size = -float(ndtri(max(p_value, 1e-300) / 2))
        weight = self.n_changes + 2
        total = self.total + weight * math.copysign(size, direction)
        return Trend(total, self.n_changes + 1)

    def combine_with_last_p_value(self, p_value: float) -> float:
        """Return the p-value of the last change or of all of them together."""
        if self.n_changes < 2:
            return p_value
        n = self.n_changes
        squares = (n + 1) * (n + 2) * (2 * n + 3) / 6 - 1  # 2 * 2 + ... + (n + 1)**2
        whole = search.convert_z_to_p_value(self.total / squares**0.5)
        return combine_p_values((p_value, whole), (0.5, 0.5), search.MOST_P_VALUE)


class EnvironmentComparison(NamedTuple):
    """The p-value of a change, moments before and here, and their common axes.

    Rows are those of the environment here, if they are at hand. `trend` is that of all
    comparisons of the stage and before.
    """

    p_value: float
    before: ClassMeansAndScatter
    here: ClassMeansAndScatter
    axes: PrincipalAxes
    rows: RowsWithClasses | None = None
    trend: Trend | None = None

    def is_changed_axis_constant(self) -> bool:
        """Whether the axis that changed most varied before, and no longer does."""
        change = search.measure_change_of_class_means(self.before, self.here, self.axes)
        axis = self.axes.vectors[:, int(change.axes.argmin())]
        before, here = (
            float((moments.factor @ axis).square().sum()) / moments.count_rows()
            for moments in (self.before, self.here)
        )
        return here < GONE * before


def observe_environments(
    rows: Tensor,
    stage: LabelledStageRows,
    past_moments: ClassMeansAndScatter | None,
    n_classes: int,
) -> list[ObservedEnvironment]:
    """Return the past, if any, and each environment of a stage, as shown in `rows`."""
    observed = [] if past_moments is None else [ObservedEnvironment(past_moments)]
    for place in range(int(stage.places.max()) + 1):
        here = stage.places == place
        own = RowsWithClasses(rows[here].double(), stage.targets[here])
        moments = search.compute_class_moments(*own, n_classes)
        observed.append(ObservedEnvironment(moments, own))
    return observed


def pool_moments_of_environments(
    environments: Sequence[ObservedEnvironment],
) -> ClassMeansAndScatter:
    """Return the moments of all environments together."""
    moments = [environment.moments for environment in environments]
    return reduce(search.pool_class_moments_of_environments, moments)


def find_most_changed_environment(
    environments: Sequence[ObservedEnvironment],
    by_kernel: Sequence[ObservedEnvironment],
    hypothesis: EasiestFeaturePredictions | None = None,
    trend: Trend | None = None,
) -> EnvironmentComparison:
    """Compare each environment with all before, and return the clearest change.

    Besides the inputs there may be random features of the same environments,
    `by_kernel`. With the `trend` of earlier comparisons a change counts that goes on in
    small steps.
    """
    results = []
    before = environments[0].moments
    kernel_z: list[float | None] = [None] * len(environments)
    if len(by_kernel) == len(environments):
        kernel_z = _compare_environments_by_kernel(by_kernel)
    for i, here in enumerate(environments[1:]):
        pooled = search.pool_class_moments_of_environments(before, here.moments)
        axes = search.find_principal_axes_within_classes(pooled)
        change = search.measure_change_of_class_means(
            before, here.moments, axes, here.rows
        )
        answers = entries = None
        if hypothesis is not None:
            past = torch.stack(hypothesis.tallies[: i + 1]).sum(0)
            answers = compute_z_of_correct_counts(past, hypothesis.tallies[i + 1])
        if here.rows is not None:
            entries = search.compute_z_of_telling_entries(
                before, here.moments, here.rows
            )
        signed = change.discriminant_z, kernel_z[i], answers, entries
        p_values = [z if z is None else search.convert_z_to_p_value(z) for z in signed]
        p_values.insert(1, change.corrected_p_value_of_axes)
        p_value = search.combine_p_values_of_tests(p_values)
        if trend is not None:
            trend = trend.add(p_value, sum(z for z in signed if z is not None))
            p_value = trend.combine_with_last_p_value(p_value)
        parts = before, here.moments, axes, here.rows
        results.append(EnvironmentComparison(p_value, *parts))
        before = pooled
    best = min(results, key=lambda result: result.p_value)
    p_value = min(1.0, best.p_value * len(results))
    return best._replace(p_value=p_value, trend=trend)


def _compare_environments_by_kernel(
    environments: Sequence[ObservedEnvironment],
) -> list[float | None]:
    """Compare random features of each environment with all before: z."""
    results: list[float | None] = []
    before = environments[0].moments
    for here in environments[1:]:
        pooled = search.pool_class_moments_of_environments(before, here.moments)
        axes = search.find_principal_axes_within_classes(pooled)
        results.append(
            search.compute_z_along_discriminant(
                before, here.moments, axes, DISCRIMINANT_RIDGE, here.rows
            )
        )
        before = pooled
    return results
