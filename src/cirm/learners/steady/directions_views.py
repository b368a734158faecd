"""See every image as if a feature had its most frequent value, where that is possible.

A colour, a brightness or an inversion is an affine map of the channels that all pixels
share. Its matrix and offset are estimated from rows with the same class, over all
pixels, and hence precisely. All functions treat one replica.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_features import fit_value_discriminants
from cirm.learners.steady.directions_search import (
    AXES,
    compute_class_moments,
    compute_means_by_group,
    find_principal_axes_within_classes,
)
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    append_image_statistics,
    count_image_channels,
)

COLOUR = 0.1  # distance of two channel covariances of unit trace: below 0.001 with and
# without a mark, 0.49 for neighbours among ten hues, 1.41 for pure red and green; also
# the logarithm of a gain of contrast from which on a single channel is mapped
HIDDEN = 0.3  # correlation, given the class, with what a discriminant reads in the
# view on rows that it has not seen: 0.06 is chance among 300 rows, marks have over 0.5
CLEAR = 3.0  # standard errors of an offset of a channel that cannot be noise
MOST_ERASED = 0.5  # of the variance within classes: what is left must show the class
SMALLEST = 1e-3  # of the largest variance: channels that vary less hold no picture


class FeatureHidingView(NamedTuple):
    """How inputs are seen without a feature, for each of its values.

    Channels are mixed by `mixing` [value, channel, channel] and moved by `offset`
    [value, channel]; then `pattern` [value, d] is added. Entries that are `erased` [d]
    become zero, whatever the value. Views of several features are applied in the order
    of their `turn`.
    """

    mixing: Tensor
    offset: Tensor
    pattern: Tensor
    erased: Tensor
    turn: Tensor

    def does_view_change_rows(self) -> bool:
        """Whether rows look different in the view, so that it hides the feature."""
        even = torch.eye(self.mixing.shape[-1]).to(self.mixing)
        parts = self.mixing != even, self.pattern, self.erased
        return any(bool(part.any()) for part in parts)


def hide_feature_in_rows(
    view: FeatureHidingView, rows: Tensor, values: Tensor
) -> Tensor:
    """Return rows [n, d] as if their feature, now at values [n], were at one value."""
    if not view.does_view_change_rows():
        return rows
    seen = torch.empty_like(rows)
    for value in values.unique().tolist():
        pixels = rows[values == value].unflatten(1, (view.mixing.shape[-1], -1))
        mixed = view.mixing[value].to(rows) @ pixels
        mixed = mixed + view.offset[value].to(rows)[:, None]
        seen[values == value] = mixed.flatten(1) + view.pattern[value].to(rows)
    return seen * (1 - view.erased.to(rows))


def fit_feature_hiding_view(
    rows: Tensor,
    values: Tensor,
    targets: Tensor,
    n_classes: int,
    shape: tuple[int, ...],
) -> FeatureHidingView:
    """Return the view that takes a feature out of rows [n, d], given their classes.

    The shape of the inputs, [channel, height, width] or [d], tells what they are. Rows
    are left as they are if their channels do not depend on the feature.
    """
    k, channels = n_classes, count_image_channels(shape)
    none = build_view_that_hides_nothing(rows, n_classes, shape)
    if len(shape) != 3:
        return none
    cells = torch.nn.functional.one_hot(values * k + targets, k * k).to(rows)
    counts = cells.sum(0)
    means = (cells.T @ rows / counts.clamp(min=1)[:, None]).unflatten(0, (k, k))
    means = means.unflatten(2, (channels, -1))
    counts = counts.unflatten(0, (k, k))  # [value, class]
    common = int(counts.sum(1).argmax())
    shared = counts * counts[common] / (counts + counts[common]).clamp(min=1)
    pixels = rows.unflatten(1, (channels, -1))
    mixing = _fit_channel_mixing(pixels, means, values, targets, shared, common)
    if not _do_channels_depend_on_value(
        mixing, pixels - means[values, targets], values, common
    ):
        return none
    offset = _fit_channel_offset(
        mixing, pixels.mean(2), values, targets, shared, common
    )
    return none._replace(mixing=mixing, offset=offset)


def add_mean_pattern_to_hiding_view(
    view: FeatureHidingView,
    shown_rows: Tensor,
    values: Tensor,
    targets: Tensor,
    n_classes: int,
    common_value: int | None = None,
) -> FeatureHidingView:
    """Return a view that also gives each value the mean picture of the common one.

    A mark, a frame or a texture adds the same to every picture. Means are those of
    rows [n, d], as seen in the view so far, of the same class. The common value is the
    most frequent one, if it is not given.
    """
    return view._replace(
        pattern=_measure_clear_differences_of_means(
            shown_rows, values, targets, n_classes, common_value
        )
    )


def erase_changed_entries(
    view: FeatureHidingView,
    shown_rows: Tensor,
    values: Tensor,
    targets: Tensor,
    n_classes: int,
) -> FeatureHidingView:
    """Return a view without the entries whose mean or spread depends on the value.

    A part of the picture that is covered, cut out or painted over cannot be restored.
    Nothing is erased if this would take more than half of the variance within classes.
    """
    centred = (
        shown_rows - compute_means_by_group(shown_rows, targets, n_classes)[targets]
    )
    erased = torch.zeros(shown_rows.shape[1], dtype=torch.bool)
    for entries in (shown_rows, centred.square()):
        erased |= _measure_clear_differences_of_means(
            entries, values, targets, n_classes
        ).any(0)
    variances = centred.square().mean(0)
    if variances[erased].sum() > MOST_ERASED * variances.sum():
        return view
    return view._replace(erased=erased.to(shown_rows))


def _measure_clear_differences_of_means(
    shown_rows: Tensor,
    values: Tensor,
    targets: Tensor,
    n_classes: int,
    common_value: int | None = None,
) -> Tensor:
    """Return what the mean of each value lacks to the common one, given the class.

    Gaps [value, d] that may be noise are zero.
    """
    k = n_classes
    counts = torch.bincount(values * k + targets, minlength=k * k).to(shown_rows)
    counts = counts.unflatten(0, (k, k))  # [value, class]
    means = compute_means_by_group(shown_rows, values * k + targets, k * k).unflatten(
        0, (k, k)
    )
    common = int(counts.sum(1).argmax()) if common_value is None else common_value
    shared = counts * counts[common] / (counts + counts[common]).clamp(min=1)
    rows = shared.sum(1, keepdim=True).clamp(min=1e-9)
    gaps = torch.einsum("vk,vkd->vd", shared, means[common] - means) / rows
    noise = (shown_rows - means[values, targets]).square().mean(0).clamp(
        min=1e-12
    ) / rows
    clear = 2 * math.log(
        max(2, shown_rows.shape[1])
    )  # the largest square of so much noise
    return torch.where(gaps.square() > clear * noise, gaps, 0.0)


def build_view_that_hides_nothing(
    rows: Tensor, n_classes: int, shape: tuple[int, ...]
) -> FeatureHidingView:
    """Return the view in which rows [n, d] of inputs of a shape look as they are."""
    channels = count_image_channels(shape)
    nothing = torch.zeros(n_classes, rows.shape[1]).to(rows)
    return FeatureHidingView(
        mixing=torch.eye(channels).to(rows).expand(n_classes, -1, -1),
        offset=torch.zeros(n_classes, channels).to(rows),
        pattern=nothing,
        erased=nothing[0],
        turn=torch.tensor(0.0),
    )


def measure_feature_visibility(
    shown_rows: Tensor,
    values: Tensor,
    targets: Tensor,
    n_classes: int,
    shape: tuple[int, ...],
    scale: ImageStatisticsScale,
) -> float:
    """Return how well rows [n, d], as seen in a view, still show a feature's values.

    It is a correlation, given the class. A discriminant, learned from every second row,
    reads them from the others: from the rows, from their statistics, and from squares
    along the leading axes, since what moves no mean may still change a spread.
    """
    rows = append_image_statistics(shown_rows, shape, scale)
    known, new = slice(0, None, 2), slice(1, None, 2)
    rows = torch.cat(
        [rows, _compute_squared_norm_along_axes(rows, known, targets, n_classes)], 1
    )
    axes = find_principal_axes_within_classes(
        compute_class_moments(rows[known], targets[known], n_classes)
    )
    scores = rows @ fit_value_discriminants(
        rows[known], values[known], targets[known], n_classes, axes
    )
    member = torch.nn.functional.one_hot(values, n_classes).to(rows)
    parts = [
        p[new] - compute_means_by_group(p[new], targets[new], n_classes)[targets[new]]
        for p in (scores, member)
    ]
    read, true = (part / part.norm().clamp(min=1e-9) for part in parts)
    return float((read * true).sum())


def _compute_squared_norm_along_axes(
    rows: Tensor, fitting_rows: slice, targets: Tensor, n_classes: int
) -> Tensor:
    """Return squares [n, a] of centred rows along the leading axes of some rows."""
    moments = compute_class_moments(
        rows[fitting_rows], targets[fitting_rows], n_classes
    )
    axes = find_principal_axes_within_classes(moments)
    centred = (rows - moments.means[targets]) @ axes.vectors[:, :AXES]
    squares = centred.square() / axes.variances[:AXES]
    return squares * axes.variances[:AXES].mean().sqrt()


def _do_channels_depend_on_value(
    mixing: Tensor, residuals: Tensor, values: Tensor, common_value: int
) -> bool:
    """Whether the channels of some value vary unlike those of the common one.

    They do if the feature is a colour or a brightness, and do not if it is a mark.
    """

    def measure_channel_covariance(value: int) -> Tensor:
        flat = residuals[values == value].transpose(0, 1).flatten(1)
        square = flat @ flat.T
        return square / square.trace().clamp(min=1e-12)

    if mixing.shape[-1] == 1:
        gains = mixing.flatten()
        return bool((gains < 0).any()) or bool((gains.log().abs() > COLOUR).any())
    gaps = [
        measure_channel_covariance(value) - measure_channel_covariance(common_value)
        for value in values.unique().tolist()
    ]
    return max(float(gap.norm()) for gap in gaps) > COLOUR


def _fit_channel_mixing(
    pixels: Tensor,
    means: Tensor,
    values: Tensor,
    targets: Tensor,
    shared: Tensor,
    common_value: int,
) -> Tensor:
    """Return the matrices that give each value the channels of the common one."""
    gains = _compute_factors_of_equal_contrast(
        pixels, values, targets, shared, common_value
    )
    mixing = torch.eye(pixels.shape[1]).to(pixels).repeat(len(means), 1, 1)
    for value in range(len(means)):
        if value != common_value and shared[value].sum() > 0:
            mixing[value] = gains[value] * _fit_channel_matching_matrix(
                pixels[values == common_value],
                pixels[values == value],
                means[common_value],
                means[value],
                shared[value],
            )
    return mixing


def _fit_channel_offset(
    mixing: Tensor,
    levels: Tensor,
    values: Tensor,
    targets: Tensor,
    shared: Tensor,
    common_value: int,
) -> Tensor:
    """Return what mixed channels of each value lack, if that cannot be noise, [k, c].

    `levels` [n, c] are the means of the channels of each row.
    """
    k = len(shared)
    mixed = torch.einsum("nij,nj->ni", mixing[values], levels)
    means = compute_means_by_group(mixed, values * k + targets, k * k)
    noise = (mixed - means[values * k + targets]).square().mean(0)
    means = means.unflatten(0, (k, k))  # [value, class, channel]
    rows = shared.sum(1, keepdim=True).clamp(min=1e-9)
    gaps = torch.einsum("vk,vki->vi", shared, means[common_value] - means) / rows
    return torch.where(gaps.square() * rows > CLEAR**2 * noise, gaps, 0.0)


def _fit_channel_matching_matrix(
    goal: Tensor, pixels: Tensor, goal_means: Tensor, means: Tensor, weights: Tensor
) -> Tensor:
    """Return the matrix that gives `pixels` [n, c, p] the channels of `goal`.

    Both are whitened over rows and pixels; the rotation in between is the one that
    brings their class means [k, c, p] closest together (orthogonal Procrustes), since
    a regression would be attenuated by the noise of small cells.
    """
    centre, root, _ = _compute_channel_whitening(goal)
    own, _, inverse = _compute_channel_whitening(pixels)
    far = torch.linalg.pinv(root) @ (goal_means - centre)
    near = inverse @ (means - own)
    cross = torch.einsum("k,kcp,kdp->cd", weights, far, near)
    left, _, right = torch.linalg.svd(cross)
    return root @ left @ right @ inverse


def _compute_factors_of_equal_contrast(
    pixels: Tensor, values: Tensor, targets: Tensor, shared: Tensor, common_value: int
) -> Tensor:
    """Return the factors [k] that give each value the contrast of the common one.

    Contrast is the spread of a picture's pixels, in logarithms the sum of a part of the
    value and one of the class; differences that may be noise are shrunk.
    """
    k = len(shared)
    spread = pixels - pixels.mean(2, keepdim=True)
    contrast = spread.square().sum((1, 2)).clamp(min=1e-6).log() / 2
    design = torch.cat(
        [torch.nn.functional.one_hot(v, k) for v in (values, targets)], 1
    ).to(pixels)
    parts = torch.linalg.pinv(design.T @ design, rtol=1e-6) @ (design.T @ contrast)
    noise = (contrast - design @ parts).square().mean()
    gains = parts[common_value] - parts[:k]
    squares = gains.square() * shared.sum(1) / noise.clamp(min=1e-12)
    kept = (1 - 2 * math.log(max(2, k)) / squares.clamp(min=1e-9)).clamp(min=0)
    return (kept * gains).exp()


def _compute_channel_whitening(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean colour [c, 1], and root and inverse root of the covariance.

    Covariances are scaled to the same total; contrast is compared apart, since it
    depends on the class as well.
    """
    flat = pixels.transpose(0, 1).flatten(1)
    centre = flat.mean(1, keepdim=True)
    values, axes = torch.linalg.eigh(torch.cov(flat).reshape(len(flat), len(flat)))
    values = values / values.sum().clamp(min=1e-12)
    keep = values > SMALLEST * values[-1]
    root = torch.where(keep, values.clamp(min=1e-12).sqrt(), 0.0)
    inverse = torch.where(keep, values.clamp(min=1e-12).rsqrt(), 0.0)
    return centre, (axes * root) @ axes.T, (axes * inverse) @ axes.T
