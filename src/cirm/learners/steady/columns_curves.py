"""How two-valued features follow the target of a regression, as curves.

A straight line sees only a part of a feature that marks large values of the target: of
a threshold in the middle, 64 % of what the target explains. The curve is the mean of
the feature in each tenth of the target, as the first environment has it, shrunk by what
chance adds to it. Later environments are compared by the slope of the feature on this
curve: one number, which is large if the feature means what it did.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    FEWEST_CASES,
    FEWEST_ROWS,
    regress_each_feature,
)
from cirm.learners.steady.meta_analysis import UNKNOWN

MORE_THAN_LINE = 1.1  # of the variance that a straight line explains
BINS = 10  # of the target: a step anywhere is blurred by a tenth of the rows
MOST_ADJUSTED = 300  # features; given more of them each curve would take too long


class FeatureCurves(NamedTuple):
    """What two-valued features are on average, by the target.

    Attributes:
        cuts: Limits between the bins of the target, [bins - 1]; empty for classes.
        values: Curves on which the slope of a feature is its effect, as it is measured
            for other features, [d, bins]; 0 if there is none.
    """

    cuts: Tensor
    values: Tensor

    def evaluate(self, target: Tensor) -> Tensor:
        """Return the curves [n, d] at targets [n]."""
        return self.values.T[torch.searchsorted(self.cuts, target.contiguous())]


def fit_feature_curves(features: Tensor, target: Tensor) -> FeatureCurves:
    """Fit the curves of features to the first environment.

    Two-valued features have one, and others if a straight line describes them less.

    Args:
        features: Standardised features, or scores, [n, d].
        target: Values of the target, [n].
    """
    levels = torch.arange(1, BINS, dtype=target.dtype) / BINS
    cuts = torch.quantile(target, levels).unique()
    means, part, within = _average_features_within_target_bins(features, target, cuts)
    low, high = features.amin(0), features.amax(0)
    ups = (features == high).sum(0)
    is_binary = ((features == low) | (features == high)).all(0)
    has_curve = is_binary & (torch.minimum(ups, len(features) - ups) >= FEWEST_CASES)
    own, aim = features - features.mean(0), target - target.mean()
    line = (aim @ own).square() / aim.square().sum().clamp(min=1e-12)
    curve = part * len(features) * means.square().mean(1)
    has_curve |= ~is_binary & (curve > MORE_THAN_LINE * line)
    has_curve &= part > 0.5  # otherwise a straight line says as much
    if len(features) < 2 * FEWEST_ROWS:
        has_curve = torch.zeros_like(has_curve)
    spread = (
        FeatureCurves(cuts, means).evaluate(target).std(0, correction=0) * part.sqrt()
    )
    # A curve with the spread of the target, times the noise that an effect is over.
    factor = part * within * target.std(correction=0) / spread.clamp(min=1e-9)
    return FeatureCurves(cuts, torch.where(has_curve, factor, 0.0)[:, None] * means)


def _average_features_within_target_bins(
    features: Tensor, target: Tensor, cuts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return means of centred features [d, bins] and the part of their spread [d] that
    is not chance, and the variance [d] within bins.
    """
    n = len(features)
    bins = torch.searchsorted(cuts, target.contiguous())
    marks = torch.nn.functional.one_hot(bins, len(cuts) + 1).double()
    counts = marks.sum(0).clamp(min=1)
    own = features - features.mean(0)
    means = (marks.T @ own) / counts[:, None]
    within = (own - means[bins]).square().sum(0) / max(n - len(counts), 1)
    total = (counts[:, None] * means.square()).sum(0) / n
    part = 1 - len(cuts) * within / n / total.clamp(min=1e-12)
    return means.T, part.clamp(min=0), within


def measure_slopes_on_curves(
    features: Tensor,
    target: Tensor,
    curves: FeatureCurves,
    past: Tensor,
    simple: Tensor,
    is_first: bool,
) -> Tensor:
    """Measure how features follow their curves in one environment.

    Args:
        features: Standardised features, [n, d].
        target: Values of the target, [n].
        curves: The curves of the first environment.
        past: Covariance matrix of features within environments seen before, or empty.
        simple: Which features need no adjustment for others, [d].
        is_first: Whether the curves were fitted to these rows; then each half is
            compared with the curves of the other one.

    Returns:
        Effects and their variances, [d, 2]; `UNKNOWN` without a curve.
    """
    n, d = features.shape
    has_curve = (curves.values != 0).any(1)
    measured = torch.tensor([0.0, UNKNOWN], dtype=features.dtype).repeat(d, 1)
    lows, ups = ((features == end).sum(0) for end in torch.aminmax(features, dim=0))
    is_number = lows + ups < n
    is_usable = has_curve & (is_number | (torch.minimum(ups, lows) >= FEWEST_CASES))
    if n < FEWEST_ROWS or not bool(is_usable.any()):
        return measured
    heights = curves.evaluate(target)
    if is_first:
        heights = _cross_fit_feature_curves(features, target, curves, heights)
    own, heights = features - features.mean(0), heights - heights.mean(0)
    gram = own.T @ own
    prior = torch.diag(gram.diagonal() * d / n * 0.1 + 0.5)
    if len(past):
        prior = prior + min(n, d) * past
    for feature in is_usable.nonzero()[:, 0].tolist():
        pair = torch.stack([own[:, feature], heights[:, feature]], 1)
        lost = 1.0
        if d <= MOST_ADJUSTED and not (len(simple) and bool(simple[feature])):
            others = torch.arange(d) != feature
            given = (gram + prior)[others][:, others]
            slopes = torch.linalg.solve(given, own[:, others].T @ pair)
            pair = pair - own[:, others] @ slopes
            lost = n / max(n - d, n / 2)
        found = regress_each_feature(pair[:, :1], pair[:, 1:], lost)
        measured[feature] = torch.stack([found.slope[0], found.variance[0]])
    return measured


def _cross_fit_feature_curves(
    features: Tensor, target: Tensor, curves: FeatureCurves, heights: Tensor
) -> Tensor:
    """Return the curves [n, d] at each half of the rows, fitted to the other half."""
    means, part, _ = _average_features_within_target_bins(features, target, curves.cuts)
    whole = (part[:, None] * means).square().sum(1).sqrt()
    factor = curves.values.square().sum(1).sqrt() / whole.clamp(min=1e-9)
    heights = heights.clone()
    for start in (0, 1):
        own, other = slice(start, None, 2), slice(1 - start, None, 2)
        part_of_rows = features[other], target[other]
        means, part, _ = _average_features_within_target_bins(
            *part_of_rows, curves.cuts
        )
        fitted = FeatureCurves(curves.cuts, (factor * part)[:, None] * means)
        heights[own] = fitted.evaluate(target[own])
    return heights
