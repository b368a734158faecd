"""Search one replica's stage for unstable features, until nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_features import (
    SEPARATE,
    FeatureWithValues,
    InitialFeature,
    NearestCentreFeature,
    build_first_feature_guesses,
    build_network_feature,
    compute_feature_values,
    compute_values_given_class,
    do_values_tell_more_about_class,
    find_clearest_changed_feature,
    find_directions_of_feature,
    measure_separation_by_kernel,
)
from cirm.learners.steady.directions_kernel import (
    DISCRIMINANT_RIDGE,
    compute_kernel_features,
)
from cirm.learners.steady.directions_reference import (
    EasiestFeaturePredictions,
    compute_p_value_of_correct_counts,
)
from cirm.learners.steady.directions_search import ClassMeansAndScatter, PrincipalAxes
from cirm.learners.steady.directions_state import MOST_FEATURES, KnownUnstableFeature
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    append_image_statistics,
    count_image_statistics,
)
from cirm.learners.steady.directions_views import (
    HIDDEN,
    FeatureHidingView,
    add_mean_pattern_to_hiding_view,
    build_view_that_hides_nothing,
    erase_changed_entries,
    fit_feature_hiding_view,
    hide_feature_in_rows,
    measure_feature_visibility,
)

FIRST_LOOK = (
    0.7  # of the level is spent on the first comparison, where most is at stake
)
READABLE = 1.0  # standard deviations between values in a view: a correlation of 0.3
# with a value that contradicts 12 % of the classes, the limit of discriminants, too
CLEAR = 10.0  # standard deviations between values, from which on discriminants read all
CONTRADICTED = 0.08  # of the classes at least; a reader that is right more often
# goes by stable features as well, so that its answers are no shortcut
EXPLAINED = 0.25  # of a change at least, by what is read unclearly; if most of it
# remains, it is not a shortcut that changed, but what examples of the classes look like
GONE = 0.1  # of the variance before: what varies less cannot be read any more


ReaderTraining = Callable[[], tuple[Tensor, Tensor]]
"""Trains networks to read the class: their parameters, and held-out answers [n]."""


class FoundUnstableFeature(NamedTuple):
    """A feature that was found, its p-value, and its table [class, value] before."""

    known: KnownUnstableFeature
    p_value: float
    past: Tensor


class LabelledStageRows(NamedTuple):
    """Rows [n, d] of a stage, classes [n], and the environment [n] of each row."""

    rows: Tensor
    targets: Tensor
    places: Tensor


class FeatureSearchOutcome(NamedTuple):
    """What a search gives: new features, rows in the view, values, moments to carry.

    `values` [feature, n] are those of labelled rows, `read` those that rows without
    labels would have.
    `is_hidden` tells for each feature whether the view hides it, and
    `is_changed_axis_constant` whether something changed that can no longer be seen in
    the rows. `is_unexplained` tells whether something changed that no feature explains.
    `taught` [member, p] is a network for a feature, if there is one.
    """

    found: list[FoundUnstableFeature]
    rows: Tensor
    values: Tensor
    read: Tensor
    is_hidden: list[bool]
    is_changed_axis_constant: bool
    is_unexplained: bool
    taught: Tensor | None
    moments: ClassMeansAndScatter
    kernel: ClassMeansAndScatter
    looks: int


class EnvironmentComparison(NamedTuple):
    """The p-value of a change, moments before and here, and their common axes."""

    p_value: float
    before: ClassMeansAndScatter
    here: ClassMeansAndScatter
    axes: PrincipalAxes

    def is_changed_axis_constant(self) -> bool:
        """Whether the axis that changed most varied before, and no longer does."""
        change = search.measure_change_of_class_means(self.before, self.here, self.axes)
        axis = self.axes.vectors[:, int(change.axes.argmin())]
        before, here = (
            float((moments.factor @ axis).square().sum()) / moments.count_rows()
            for moments in (self.before, self.here)
        )
        return here < GONE * before


@dataclass(frozen=True)
class UnstableFeatureSearch:
    """A search of one replica's stage for features whose meaning changed.

    Args:
        stage: The rows of the stage.
        past: Moments of earlier environments, if there are any.
        kernel: Moments of the random features of earlier environments, if comparable.
        width: Of the kernel.
        hypothesis: The easiest predictor, if there is something to compare.
        level: Probability of any false alarm in a sequence.
        looks: Number of comparisons so far.
        shape: Shape of one input.
        scale: Of statistics of images.
        classes: Number of classes.
        train_reader: Trains networks to read a feature that no discriminant
            reads.
    """

    stage: LabelledStageRows
    past: ClassMeansAndScatter | None
    kernel: ClassMeansAndScatter | None
    width: Tensor
    hypothesis: EasiestFeaturePredictions | None
    level: float
    looks: int
    shape: tuple[int, ...]
    scale: ImageStatisticsScale
    classes: int
    train_reader: ReaderTraining

    def run(
        self, known_features: list[KnownUnstableFeature], network_answers: Tensor
    ) -> FeatureSearchOutcome:
        """Find features one after another, until nothing that changed is left.

        `network_answers` [n] are those of a network that was taught a known feature.
        """
        rows = self.stage.rows.double()
        parts = self.shape, self.scale, network_answers
        seen, rows, values = remove_features_from_rows(rows, known_features, *parts)
        read = values
        found: list[tuple[NearestCentreFeature, Tensor]] = []
        past: list[tuple[float, Tensor]] = []
        is_changed_axis_constant, is_unexplained, taught = False, False, None
        comparisons = int(self.stage.places.max()) + (self.past is not None)
        alpha = compute_significance_level(self.level, self.looks, comparisons)
        series = _measure_moments_by_environment(
            rows, self.stage, self.past, self.classes
        )
        kernels = self._measure_kernel_moments(seen, self.kernel)
        while len(values) < MOST_FEATURES and comparisons:
            tested = None if found else self.hypothesis
            compared = find_most_changed_environment(
                series, tested, [] if found else kernels
            )
            if compared.p_value >= alpha:
                break
            finding, network = self._find_feature_behind_change(
                rows, compared, tested, not values
            )
            if finding is None:
                is_changed_axis_constant = compared.is_changed_axis_constant()
                is_unexplained = True
                break
            own, targets = finding.values, self.stage.targets
            is_clear = finding.separation > SEPARATE
            if is_clear:
                own = compute_values_given_class(finding.feature, rows, targets)
            traces = find_directions_of_feature(rows, own, targets, self.classes)
            remainder = [
                _remove_feature_traces_from_moments(moments, traces)
                for moments in series
            ]
            if not is_clear and not _does_feature_explain_change(
                compared, find_most_changed_environment(remainder, None, []), alpha
            ):
                is_unexplained = True
                break
            taught = network if network is not None else taught
            table = self._infer_past_value_counts(
                rows, series, finding._replace(values=own)
            )
            found.append((finding.feature, traces))
            past.append((compared.p_value, table))
            values, read = [*values, own], [*read, finding.values]
            rows, series = remove_directions_from_rows(rows, traces), remainder
        moments = reduce(search.pool_class_moments_of_environments, series)
        taught_ones = [bool(feature.is_taught) for feature, _ in found]
        views, seen = self._fit_views_that_hide_features(
            seen, read[len(known_features) :], taught_ones, len(known_features)
        )
        hidden = [known.view.does_view_change_rows() for known in known_features]
        hidden += [view.does_view_change_rows() for view in views]
        if found:  # what was kept of earlier environments still shows the feature
            kernels = self._measure_kernel_moments(seen, None)
        kernel = reduce(search.pool_class_moments_of_environments, kernels)
        if not all(hidden):
            kernel = kernel._replace(counts=0 * kernel.counts)
        new = [
            FoundUnstableFeature(
                KnownUnstableFeature(feature, view, traces), p_value, table
            )
            for (feature, traces), view, (p_value, table) in zip(
                found, views, past, strict=True
            )
        ]
        none = torch.zeros(0, len(rows)).long()
        stacked, as_read = (torch.stack(v) if v else none for v in (values, read))
        looks = self.looks + comparisons
        ends = is_changed_axis_constant, is_unexplained
        known = stacked, as_read, hidden
        return FeatureSearchOutcome(
            new, seen, *known, *ends, taught, moments, kernel, looks
        )

    def _measure_kernel_moments(
        self, shown_rows: Tensor, past: ClassMeansAndScatter | None
    ) -> list[ClassMeansAndScatter]:
        """Return the moments of random features, of the past, if any, and of rows."""
        rows = compute_kernel_features(shown_rows, self.width)
        return _measure_moments_by_environment(rows, self.stage, past, self.classes)

    def _find_feature_behind_change(
        self,
        rows: Tensor,
        comparison: EnvironmentComparison,
        easiest_predictions: EasiestFeaturePredictions | None,
        is_first_feature: bool,
    ) -> tuple[FeatureWithValues | None, Tensor | None]:
        """Return the feature behind a change, and a network if it was taught one.

        The first feature of all may be one that inputs do not show clearly.
        """
        targets, axes = self.stage.targets, comparison.axes
        change = search.measure_change_of_class_means(
            comparison.before, comparison.here, axes
        )
        count = count_image_statistics(self.shape)
        guesses = build_first_feature_guesses(rows, count, targets, change, axes)
        if easiest_predictions is not None:
            guesses.append(InitialFeature(easiest_predictions.answers, axes))
        parts = comparison.before, comparison.here, axes
        finding = find_clearest_changed_feature(rows, targets, guesses, *parts)
        separation = 0.0 if finding is None else finding.separation
        if not is_first_feature or separation > CLEAR:
            return (finding if separation > SEPARATE else None), None
        is_clear = separation > SEPARATE
        network, answers = self.train_reader()
        if float((answers != targets).double().mean()) < CONTRADICTED:
            return (finding if is_clear else None), None
        known = [answers] if finding is None else [answers, finding.values]
        gaps = measure_separation_by_kernel(
            self.stage.rows.double(), known, targets, self.classes
        )
        # Beside a clear feature, answers that are a mixture of features are less far
        # apart. Otherwise it is the same feature, and the better reading tells more.
        if finding is not None and (
            gaps[1] > gaps[0]
            if is_clear
            else do_values_tell_more_about_class(
                finding.values, answers, targets, self.classes
            )
        ):
            return finding, None
        return build_network_feature(answers, rows, self.classes, gaps[0]), network

    def _fit_views_that_hide_features(
        self, rows: Tensor, values: list[Tensor], by_network: list[bool], n_known: int
    ) -> tuple[list[FeatureHidingView], Tensor]:
        """Return views that hide features with values [n], and rows as seen in them.

        The order matters: a mark on a coloured picture must be taken out before the
        colour, a mark that was coloured with it afterwards. The order in which features
        were found and its reverse are tried; the one that hides them better is taken.
        """
        best: tuple[float, list[FeatureHidingView], Tensor] = (torch.inf, [], rows)
        orders = [list(range(len(values)))]
        orders += [orders[0][::-1]] if len(values) > 1 else []
        for order in orders:
            views: dict[int, FeatureHidingView] = {}
            shown = rows
            for turn, j in enumerate(order, n_known):
                view, shown = self._fit_view_that_hides_feature(
                    shown, values[j], by_network[j]
                )
                views[j] = view._replace(turn=torch.tensor(float(turn)))
            if len(orders) == 1:  # there is nothing to compare
                return [views[j] for j in order], shown
            total = sum(self._measure_feature_visibility(shown, v) for v in values)
            if total < best[0] or not best[1]:
                best = total, [views[j] for j in orders[0]], shown
        return best[1], best[2]

    def _fit_view_that_hides_feature(
        self, rows: Tensor, values: Tensor, is_read_by_network: bool
    ) -> tuple[FeatureHidingView, Tensor]:
        """Return the simplest view that hides a feature, and rows as seen in it.

        If none does, it is the view in which rows look as they are. A feature that only
        a network reads is neither a colour nor a pattern, but may be in one place.
        """
        targets, k = self.stage.targets, self.classes
        channels = fit_feature_hiding_view(rows, values, targets, k, self.shape)
        none = build_view_that_hides_nothing(channels)
        views = []
        if not is_read_by_network:
            mixed = hide_feature_in_rows(channels, rows, values)
            views = [
                channels,
                add_mean_pattern_to_hiding_view(none, rows, values, targets, k),
            ]
            if channels.does_view_change_rows():
                views.append(
                    add_mean_pattern_to_hiding_view(channels, mixed, values, targets, k)
                )
        if len(self.shape) == 3:  # single entries of a vector are no place
            views.append(erase_changed_entries(none, rows, values, targets, k))
        for view in filter(FeatureHidingView.does_view_change_rows, views):
            apart = hide_feature_in_rows(view, rows, values)
            if self._measure_feature_visibility(apart, values) < HIDDEN and not (
                is_read_by_network and self._can_kernel_read_feature(apart, values)
            ):
                return view, apart
        return none, rows

    def _can_kernel_read_feature(self, shown_rows: Tensor, values: Tensor) -> bool:
        """Whether a kernel reads values [n], as networks could, from rows [n, d]."""
        (gap,) = measure_separation_by_kernel(
            shown_rows, [values], self.stage.targets, self.classes
        )
        return gap > READABLE

    def _measure_feature_visibility(self, shown_rows: Tensor, values: Tensor) -> float:
        """Return how well rows still show the values [n] of a feature."""
        pair = values, self.stage.targets
        return measure_feature_visibility(
            shown_rows, *pair, self.classes, self.shape, self.scale
        )

    def _infer_past_value_counts(
        self,
        rows: Tensor,
        moments_in_order: list[ClassMeansAndScatter],
        feature: FeatureWithValues,
    ) -> Tensor:
        """Return counts [class, value] of earlier environments, zero if unknown."""
        if self.past is None or feature.feature.is_taught:
            return torch.zeros(self.classes, self.classes).double()
        scores, past = feature.feature.scores.to(rows), moments_in_order[0]
        pair = feature.values, self.stage.targets
        table = tables.infer_value_table_of_past_rows(
            rows @ scores, past.means @ scores, *pair
        )
        return table * past.counts[:, None]


def remove_features_from_rows(
    rows: Tensor,
    features: list[KnownUnstableFeature],
    shape: tuple[int, ...],
    scale: ImageStatisticsScale,
    answers: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return rows [n, d] without the features, and the values [n] of each.

    The first are as the stable model sees them, the second as the search does.
    """
    seen, values = rows, []
    rows = append_image_statistics(rows, shape, scale)
    for feature, _, traces in features:
        is_taught = bool(feature.is_taught)
        values.append(answers if is_taught else compute_feature_values(feature, rows))
        rows = remove_directions_from_rows(rows, traces)
    for j in sorted(range(len(features)), key=lambda j: float(features[j].view.turn)):
        seen = hide_feature_in_rows(features[j].view, seen, values[j])
    return seen, rows, values


def remove_directions_from_rows(rows: Tensor, traces: Tensor) -> Tensor:
    """Return rows [n, d] without what they have along orthonormal traces [k, d]."""
    traces = traces.to(rows)
    return rows - rows @ traces.T @ traces


def compute_significance_level(level: float, n_looks: int, n_comparisons: int) -> float:
    """Return the level of the next comparisons, after so many earlier ones.

    All levels of a sequence, however long, add up to `level`.
    """
    total = 0.0
    for look in range(n_looks, n_looks + n_comparisons):
        rest = (1 - FIRST_LOOK) * 6 / torch.pi**2 / max(1, look) ** 2
        total += level * (FIRST_LOOK if look == 0 else rest)
    return total


def _remove_feature_traces_from_moments(
    moments: ClassMeansAndScatter, traces: Tensor
) -> ClassMeansAndScatter:
    """Return the moments of rows without what they have along traces [k, d]."""
    parts = (remove_directions_from_rows(part, traces) for part in moments[1:])
    return ClassMeansAndScatter(moments.counts, *parts)


def _does_feature_explain_change(
    before: EnvironmentComparison, after: EnvironmentComparison, level: float
) -> bool:
    """Whether a change is gone, or much smaller, after a feature was removed."""
    if after.p_value >= level:
        return True
    sizes = [
        search.measure_change_of_class_means(one.before, one.here, one.axes).size
        for one in (before, after)
    ]
    return sizes[1] < (1 - EXPLAINED) * sizes[0]


def _measure_moments_by_environment(
    rows: Tensor,
    stage_rows: LabelledStageRows,
    past_moments: ClassMeansAndScatter | None,
    n_classes: int,
) -> list[ClassMeansAndScatter]:
    """Return the moments of the past, if any, and of each environment."""
    series = [] if past_moments is None else [past_moments]
    for place in range(int(stage_rows.places.max()) + 1):
        here = stage_rows.places == place
        series.append(
            search.compute_class_moments(
                rows[here].double(), stage_rows.targets[here], n_classes
            )
        )
    return series


def find_most_changed_environment(
    moments_in_order: list[ClassMeansAndScatter],
    hypothesis: EasiestFeaturePredictions | None,
    kernel_moments: list[ClassMeansAndScatter],
) -> EnvironmentComparison:
    """Compare each environment with all before, and return the clearest change.

    Besides the moments of each environment there may be those of random features.
    """
    results = []
    before = moments_in_order[0]
    by_kernel: list[float | None] = [None] * len(moments_in_order)
    if len(kernel_moments) == len(moments_in_order):
        by_kernel = _compare_kernel_moments_of_environments(kernel_moments)
    for i, here in enumerate(moments_in_order[1:]):
        pooled = search.pool_class_moments_of_environments(before, here)
        axes = search.find_principal_axes_within_classes(pooled)
        change = search.measure_change_of_class_means(before, here, axes)
        answers = None
        if hypothesis is not None:
            past = torch.stack(hypothesis.tallies[: i + 1]).sum(0)
            answers = compute_p_value_of_correct_counts(past, hypothesis.tallies[i + 1])
        p_value = search.combine_p_values_of_tests(
            (
                change.discriminant,
                change.corrected_p_value_of_axes,
                by_kernel[i],
                answers,
            )
        )
        results.append(EnvironmentComparison(p_value, before, here, axes))
        before = pooled
    best = min(results, key=lambda result: result.p_value)
    return best._replace(p_value=min(1.0, best.p_value * len(results)))


def _compare_kernel_moments_of_environments(
    kernel_moments: list[ClassMeansAndScatter],
) -> list[float | None]:
    """Compare random features of each environment with all before: p-values."""
    results: list[float | None] = []
    before = kernel_moments[0]
    for here in kernel_moments[1:]:
        pooled = search.pool_class_moments_of_environments(before, here)
        axes = search.find_principal_axes_within_classes(pooled)
        results.append(
            search.compute_p_value_along_discriminant(
                before, here, axes, DISCRIMINANT_RIDGE
            )
        )
        before = pooled
    return results
