"""Search one replica's stage for unstable features, until nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_compare import (
    EnvironmentComparison,
    LabelledStageRows,
    ObservedEnvironment,
    Trend,
    find_most_changed_environment,
    observe_environments,
    pool_moments_of_environments,
)
from cirm.learners.steady.directions_features import (
    CLEAR_WITHOUT_NETWORK,
    SEPARATE,
    FeatureWithValues,
    InitialFeature,
    NearestCentreFeature,
    build_first_feature_guesses,
    build_network_feature,
    compute_feature_values,
    compute_values_given_class,
    do_values_tell_more_about_class,
    find_directions_of_feature,
    list_clearest_changed_features,
    measure_separation_by_kernel,
)
from cirm.learners.steady.directions_hiding import FeatureHider
from cirm.learners.steady.directions_kernel import compute_kernel_features
from cirm.learners.steady.directions_reference import EasiestFeaturePredictions
from cirm.learners.steady.directions_search import ClassMeansAndScatter
from cirm.learners.steady.directions_state import MOST_FEATURES, KnownUnstableFeature
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    append_image_statistics,
    count_image_statistics,
)
from cirm.learners.steady.directions_views import hide_feature_in_rows

FIRST_LOOK = 0.7  # of the level: at the first comparison most is at stake
LATER_LOOKS = 0.18  # of the level, over k (1 + k / 20) at the k-th comparison
MAY_HAVE_CHANGED = 2.0  # standard errors: the usual limit
CONTRADICTED = 0.08  # of the classes at least; a reader that is right more often
# goes by stable features as well, so that its answers are no shortcut
EXPLAINED = 2 / 3  # of a change at least, by what is not read perfectly; if more of it
# remains, it is not a shortcut that changed, but what examples of the classes look like


ReaderTraining = Callable[[], tuple[Tensor, Tensor]]
"""Trains networks to read the class: their parameters, and held-out answers [n]."""


class FoundUnstableFeature(NamedTuple):
    """A feature that was found, its p-value, and its table [class, value] before."""

    known: KnownUnstableFeature
    p_value: float
    past: Tensor


class FeatureSearchOutcome(NamedTuple):
    """What a search gives: new features, rows in the view, values, moments to carry.

    `rows_of_members` [member, n, d] are in views that do not know the rows which the
    member leaves out, if that makes a difference.
    `values` [feature, n] are those of labelled rows, `read` those that rows without
    labels would have.
    `is_hidden` tells for each feature whether the view hides it, and
    `is_changed_axis_constant` whether something changed that can no longer be seen in
    the rows. `is_unexplained` tells whether something changed that no feature explains.
    `taught` [member, p] is a network for a feature, if there is one.
    """

    found: list[FoundUnstableFeature]
    rows: Tensor
    rows_of_members: Tensor | None
    values: Tensor
    read: Tensor
    is_hidden: list[bool]
    is_changed_axis_constant: bool
    is_unexplained: bool
    taught: Tensor | None
    moments: ClassMeansAndScatter
    kernel: ClassMeansAndScatter
    looks: int
    trend: Trend


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
        trend: Changes since a feature was found, each too small to be noticed.
        shape: Shape of one input.
        scale: Of statistics of images.
        classes: Number of classes.
        folds: Member of the ensemble that leaves each row out, [n].
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
    trend: Trend
    shape: tuple[int, ...]
    scale: ImageStatisticsScale
    classes: int
    folds: Tensor
    train_reader: ReaderTraining

    def run(
        self,
        known_features: list[KnownUnstableFeature],
        network_answers: Tensor,
        can_be_explained: bool = True,
    ) -> FeatureSearchOutcome:
        """Find features one after another, until nothing that changed is left.

        `network_answers` [n] are those of a network that was taught a known feature.
        If a change cannot be explained by features, none is looked for.
        """
        rows = self.stage.rows.double()
        parts = self.shape, self.scale, network_answers
        seen, rows, values = remove_features_from_rows(rows, known_features, *parts)
        read = values
        found: list[tuple[NearestCentreFeature, Tensor]] = []
        past: list[tuple[float, Tensor]] = []
        whole: EnvironmentComparison | None = None
        is_read_perfectly = False
        is_changed_axis_constant, is_unexplained, taught = False, False, None
        trend = self.trend
        comparisons = int(self.stage.places.max()) + (self.past is not None)
        alpha = compute_significance_level(self.level, self.looks, comparisons)
        series = observe_environments(rows, self.stage, self.past, self.classes)
        kernels = self._observe_kernel_features(seen, self.kernel)
        before_search = rows, series, values, read
        while len(values) < MOST_FEATURES and comparisons:
            tested = None if found else self.hypothesis
            compared = find_most_changed_environment(
                series,
                [] if found else kernels,
                tested,
                None if found else self.trend,
            )
            trend = compared.trend or trend
            if compared.p_value >= alpha:
                break
            if not can_be_explained:
                is_unexplained = True
                break
            whole = whole or compared
            finding, network = self._find_feature_behind_change(
                rows, seen, compared, alpha, tested, not values
            )
            if finding is None:
                is_changed_axis_constant = compared.is_changed_axis_constant()
                is_unexplained = True
                break
            own, targets = finding.values, self.stage.targets
            is_clear = finding.separation > SEPARATE
            if not found:
                is_read_perfectly = finding.separation > CLEAR_WITHOUT_NETWORK
            if is_clear:
                own = compute_values_given_class(finding.feature, rows, targets)
            traces = find_directions_of_feature(rows, own, targets, self.classes)
            remainder = [
                _remove_feature_traces_from_environment(environment, traces)
                for environment in series
            ]
            is_sure = is_clear and finding.change > MAY_HAVE_CHANGED
            if not is_sure and not _does_feature_explain_change(
                compared, find_most_changed_environment(remainder, []), alpha
            ):
                is_unexplained = True
                break
            taught = network if network is not None else taught
            table = self._infer_past_value_counts(
                rows, series[0].moments, finding._replace(values=own)
            )
            found.append((finding.feature, traces))
            past.append((compared.p_value, table))
            values, read = [*values, own], [*read, finding.values]
            rows, series = remove_directions_from_rows(rows, traces), remainder
        # If most of the change remains, and nothing explains it, then what was read
        # with errors is rather what the classes look like.
        if (
            (found and whole is not None and is_unexplained)
            and not is_read_perfectly
            and not _does_feature_explain_change(whole, compared, alpha)
        ):
            rows, series, values, read = before_search
            found, past, taught = [], [], None
        taught_ones = [bool(feature.is_taught) for feature, _ in found]
        shown, new_values = seen, read[len(known_features) :]
        views, seen = self.hider.fit_views_that_hide_features(
            shown, new_values, taught_ones, len(known_features)
        )
        by_member = self.hider.show_rows_to_members(
            shown, new_values, views, self.folds
        )
        hidden = [known.view.does_view_change_rows() for known in known_features]
        hidden += [view.does_view_change_rows() for view in views]
        if found:  # what was kept of earlier environments still shows the feature
            kernels = self._observe_kernel_features(seen, None)
        kernel = pool_moments_of_environments(kernels)
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
        moments = pool_moments_of_environments(series)
        return FeatureSearchOutcome(
            new,
            seen,
            by_member,
            *known,
            *ends,
            taught,
            moments,
            kernel,
            looks,
            Trend() if found else trend,
        )

    @property
    def hider(self) -> FeatureHider:
        """What fits views to the rows of this stage."""
        return FeatureHider(self.stage.targets, self.classes, self.shape, self.scale)

    def _observe_kernel_features(
        self, shown_rows: Tensor, past: ClassMeansAndScatter | None
    ) -> list[ObservedEnvironment]:
        """Return the environments as random features of rows show them."""
        rows = compute_kernel_features(shown_rows, self.width)
        return observe_environments(rows, self.stage, past, self.classes)

    def _find_feature_behind_change(
        self,
        rows: Tensor,
        shown_rows: Tensor,
        comparison: EnvironmentComparison,
        level: float,
        easiest_predictions: EasiestFeaturePredictions | None,
        is_first_feature: bool,
    ) -> tuple[FeatureWithValues | None, Tensor | None]:
        """Return the feature behind a change, and a network if it was taught one.

        The first feature of all may be one that inputs do not show clearly. `rows` are
        without all features found so far, `shown_rows` without those of earlier stages.
        """
        targets, axes = self.stage.targets, comparison.axes
        change = search.measure_change_of_class_means(
            comparison.before, comparison.here, axes
        )
        count = count_image_statistics(self.shape)
        guesses = build_first_feature_guesses(rows, count, targets, change, axes)
        if easiest_predictions is not None:
            guesses.append(InitialFeature(easiest_predictions.answers, axes))
        parts = comparison.before, comparison.here, axes, comparison.rows
        candidates = list_clearest_changed_features(rows, targets, guesses, *parts)
        finding = self.hider.choose_feature_that_views_hide(shown_rows, candidates)
        separation = 0.0 if finding is None else finding.separation
        if not is_first_feature or separation > CLEAR_WITHOUT_NETWORK:
            return (finding if separation > SEPARATE else None), None
        is_clear = separation > SEPARATE
        # A network may read the classes themselves. To set these aside costs the more,
        # the more classes there are, so that the change must be clearer.
        if comparison.p_value >= level / max(1, self.classes - 1):
            return (finding if is_clear else None), None
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

    def _infer_past_value_counts(
        self,
        rows: Tensor,
        past: ClassMeansAndScatter,
        feature: FeatureWithValues,
    ) -> Tensor:
        """Return counts [class, value] of earlier environments, zero if unknown."""
        if self.past is None or feature.feature.is_taught:
            return torch.zeros(self.classes, self.classes).double()
        scores = feature.feature.scores.to(rows)
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

    Comparisons depend on each other through the trend, so that the levels may fall
    slowly: in simulated sequences of up to 40, any false alarm has a probability of at
    most `level`.
    """
    total = 0.0
    for k in range(n_looks + 1, n_looks + n_comparisons + 1):
        share = FIRST_LOOK if k == 1 else LATER_LOOKS / (k * (1 + k / 20))
        total += level * share
    return total


def _remove_feature_traces_from_environment(
    environment: ObservedEnvironment, traces: Tensor
) -> ObservedEnvironment:
    """Return an environment without what its rows have along traces [k, d]."""
    moments, own = environment
    parts = (remove_directions_from_rows(part, traces) for part in moments[1:])
    if own is not None:
        own = own._replace(rows=remove_directions_from_rows(own.rows, traces))
    return ObservedEnvironment(ClassMeansAndScatter(moments.counts, *parts), own)


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
