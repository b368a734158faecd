"""Fit the views in which the stable model sees the rows of a stage.

What views can hide also tells features from mixtures of features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cirm.learners.steady.directions_features import (
    FeatureWithValues,
    measure_separation_by_kernel,
)
from cirm.learners.steady.directions_statistics import ImageStatisticsScale
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

READABLE = 1.0  # standard deviations between values in a view: a correlation of 0.3
# with a value that contradicts 12 % of the classes, the limit of discriminants, too
MOST_ROWS_OF_CHOICE = 2000  # that are looked at; more take long, and tell no more
# Of rows as all members see them (a gigabyte): a pattern of more has little noise.
MOST_ENTRIES = 2**28
HIDDEN_ALIKE = 0.2  # correlation: three times what chance shows among 300 rows


@dataclass(frozen=True)
class FeatureHider:
    """Fits views to the rows of one replica's stage.

    Args:
        targets: Classes [n] of the rows.
        classes: Number of classes.
        shape: Shape of one input.
        scale: Of statistics of images.
    """

    targets: Tensor
    classes: int
    shape: tuple[int, ...]
    scale: ImageStatisticsScale

    def fit_views_that_hide_features(
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
            total = sum(self.measure_visibility(shown, v) for v in values)
            if total < best[0] or not best[1]:
                best = total, [views[j] for j in orders[0]], shown
        return best[1], best[2]

    def show_rows_to_members(
        self,
        rows: Tensor,
        values: list[Tensor],
        views: list[FeatureHidingView],
        folds: Tensor,
    ) -> Tensor | None:
        """Return rows [member, n, d] in views without the rows that each leaves out.

        A pattern is the difference of means of few rows, if few contradict the feature,
        and holds a part of the noise of each of them. So a member would recognise the
        rows left out by what the view did to all others. A mark in an image is in few
        entries, and what all pixels share is precise. So only vectors matter.
        """
        n_members = int(folds.max()) + 1
        if (
            len(self.shape) != 1
            or not any(view.pattern.any() for view in views)
            or n_members == len(rows)  # there may be members without a fold
            or n_members * rows.numel() > MOST_ENTRIES
        ):
            return None
        order = sorted(range(len(views)), key=lambda j: float(views[j].turn))
        shown = []
        for fold in range(n_members):
            known, seen = folds != fold, rows
            for j in (j for j in order if views[j].pattern.any()):
                own = add_mean_pattern_to_hiding_view(
                    views[j],
                    seen[known],
                    values[j][known],
                    self.targets[known],
                    self.classes,
                    int(values[j].bincount().argmax()),
                )
                seen = hide_feature_in_rows(own, seen, values[j])
            shown.append(seen.float())
        return torch.stack(shown)

    def choose_feature_that_views_hide(
        self, rows: Tensor, candidates: list[FeatureWithValues]
    ) -> FeatureWithValues | None:
        """Return the candidate that a view hides best, if several are equally clear.

        A colour or a mark can be taken out of images by itself, a combination of both
        cannot. Candidates that are hidden alike keep their order.
        """
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        count = min(len(rows), MOST_ROWS_OF_CHOICE)
        few = torch.linspace(0, len(rows) - 1, count).long()  # rows may be sorted
        hider = replace(self, targets=self.targets[few])
        left = []
        for candidate in candidates:
            values = candidate.values[few]
            views = hider.list_views_of_feature(rows[few], values)
            shown = [hide_feature_in_rows(view, rows[few], values) for view in views]
            parts = [rows[few], *shown[not views[0].does_view_change_rows() :]]
            left.append(min(hider.measure_visibility(part, values) for part in parts))
        least = min(left)
        return next(
            candidate
            for candidate, visibility in zip(candidates, left, strict=True)
            if visibility < least + HIDDEN_ALIKE
        )

    def list_views_of_feature(
        self, rows: Tensor, values: Tensor
    ) -> list[FeatureHidingView]:
        """List views that may hide a feature that rows show, the simplest first."""
        targets, k = self.targets, self.classes
        channels = fit_feature_hiding_view(rows, values, targets, k, self.shape)
        none = build_view_that_hides_nothing(rows, k, self.shape)
        views = [
            channels,
            add_mean_pattern_to_hiding_view(none, rows, values, targets, k),
        ]
        if channels.does_view_change_rows():
            mixed = hide_feature_in_rows(channels, rows, values)
            views.append(
                add_mean_pattern_to_hiding_view(channels, mixed, values, targets, k)
            )
        return views

    def _fit_view_that_hides_feature(
        self, rows: Tensor, values: Tensor, is_read_by_network: bool
    ) -> tuple[FeatureHidingView, Tensor]:
        """Return the simplest view that hides a feature, and rows as seen in it.

        If none does, it is the view in which rows look as they are. A feature that only
        a network reads is neither a colour nor a pattern, but may be in one place.
        """
        targets, k = self.targets, self.classes
        none = build_view_that_hides_nothing(rows, k, self.shape)
        views = [] if is_read_by_network else self.list_views_of_feature(rows, values)
        if len(self.shape) == 3:  # single entries of a vector are no place
            views.append(erase_changed_entries(none, rows, values, targets, k))
        for view in filter(FeatureHidingView.does_view_change_rows, views):
            apart = hide_feature_in_rows(view, rows, values)
            if self.measure_visibility(apart, values) < HIDDEN and not (
                is_read_by_network and self._can_kernel_read_feature(apart, values)
            ):
                return view, apart
        return none, rows

    def _can_kernel_read_feature(self, shown_rows: Tensor, values: Tensor) -> bool:
        """Whether a kernel reads values [n], as networks could, from rows [n, d]."""
        (gap,) = measure_separation_by_kernel(
            shown_rows, [values], self.targets, self.classes
        )
        return gap > READABLE

    def measure_visibility(self, shown_rows: Tensor, values: Tensor) -> float:
        """Return how well rows still show the values [n] of a feature."""
        pair = values, self.targets
        return measure_feature_visibility(
            shown_rows, *pair, self.classes, self.shape, self.scale
        )
