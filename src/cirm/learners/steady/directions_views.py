"""See every input as if a feature had its most frequent value.

A view replaces the trace that a feature leaves in the inputs, estimated from rows with
the same class: a mixing matrix of the channels that all pixels share (a colour), and a
shift of each pixel (a mark or a texture). All functions treat one replica.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_search import (
    Axes,
    Moments,
    compress_factor,
    find_axes,
)

COLOUR = 0.1  # distance of two channel covariances of unit trace: below 0.001 with and
# without a mark, 0.49 for neighbours among ten hues, 1.41 for pure red and green
SMALLEST = 1e-3  # of the largest variance: channels that vary less hold no picture


class View(NamedTuple):
    """Mixing [value, channel, channel] and shift [value, d], by value of a feature."""

    mixing: Tensor
    shift: Tensor


def count_channels(shape: tuple[int, ...]) -> int:
    """Return the number of channels of inputs: that of images, else one."""
    return shape[0] if len(shape) == 3 else 1


def apply_view(view: View, rows: Tensor, values: Tensor) -> Tensor:
    """Return rows [n, d] as if their feature, now at values [n], were at one value."""
    channels = view.mixing.shape[-1]
    mixed = torch.empty_like(rows)
    for value in values.unique().tolist():
        chosen = values == value
        pixels = rows[chosen].unflatten(1, (channels, -1))
        mixed[chosen] = (view.mixing[value].to(rows) @ pixels).flatten(1)
    return mixed + view.shift.to(rows)[values]


def fit_view(
    rows: Tensor,
    values: Tensor,
    targets: Tensor,
    classes: int,
    shape: tuple[int, ...],
) -> View:
    """Return the view that takes a feature out of rows [n, d], given their classes.

    The shape of the inputs, [channel, height, width] or [d], tells what they are. The
    channels are mixed only if they vary together differently: a mark is no colour.
    """
    k, channels = classes, count_channels(shape)
    cells = torch.nn.functional.one_hot(values * k + targets, k * k).to(rows)
    counts = cells.sum(0)
    means = (cells.T @ rows / counts.clamp(min=1)[:, None]).unflatten(0, (k, k))
    counts = counts.unflatten(0, (k, k))  # [value, class]
    common = int(counts.sum(1).argmax())
    shared = counts * counts[common] / (counts + counts[common]).clamp(min=1)
    mixing = torch.eye(channels).to(rows).repeat(k, 1, 1)
    residuals = (rows - means[values, targets]).unflatten(1, (channels, -1))
    if channels > 1 and _differ_in_channels(residuals, values, common):
        mixing = _fit_mixing(rows, means, values, targets, shared, common, channels)
    return _fit_shift(mixing, rows, means, values, targets, shared, common, shape)


def _differ_in_channels(residuals: Tensor, values: Tensor, common: int) -> bool:
    """Whether channels vary together otherwise than for the common value: a colour."""

    def measure(value: int) -> Tensor:
        flat = residuals[values == value].transpose(0, 1).flatten(1)
        square = flat @ flat.T
        return square / square.trace().clamp(min=1e-12)

    gaps = [measure(value) - measure(common) for value in values.unique().tolist()]
    return max(float(gap.norm()) for gap in gaps) > COLOUR


def _fit_shift(
    mixing: Tensor,
    rows: Tensor,
    means: Tensor,
    values: Tensor,
    targets: Tensor,
    shared: Tensor,
    common: int,
    shape: tuple[int, ...],
) -> View:
    """Return a mixing [value, channel, channel] with the shift that remains."""
    pixels = means.unflatten(2, (mixing.shape[-1], -1))
    mixed_means = (mixing[:, None] @ pixels).flatten(2)
    mixed = apply_view(View(mixing, torch.zeros_like(means[0])), rows, values)
    residuals = mixed - mixed_means[values, targets]
    counts = torch.bincount(targets, minlength=len(means)).to(rows)
    axes = find_axes(Moments(counts, means[0], compress_factor(residuals)))
    shift = torch.zeros_like(means[0])
    for value, weights in enumerate(shared):
        if value != common and weights.sum() > 0:
            gap = weights @ (means[common] - mixed_means[value]) / weights.sum()
            parts = weights.sum(), axes, residuals, shape
            shift[value] = _shrink_shift(gap, *parts)
    return View(mixing, shift)


def _fit_mixing(
    rows: Tensor,
    means: Tensor,
    values: Tensor,
    targets: Tensor,
    shared: Tensor,
    common: int,
    channels: int,
) -> Tensor:
    """Return the matrices that give each value the channels of the common one."""
    pixels = rows.unflatten(1, (channels, -1))
    means = means.unflatten(2, (channels, -1))
    gains = _compare_brightness(pixels, values, targets, shared, common)
    mixing = torch.eye(channels).to(rows).repeat(len(means), 1, 1)
    for value in range(len(means)):
        if value != common and shared[value].sum() > 0:
            mixing[value] = gains[value] * _match_channels(
                pixels[values == common],
                pixels[values == value],
                means[common],
                means[value],
                shared[value],
            )
    return mixing


class LinearView(NamedTuple):
    """A linear map of rows [n, d]: channels are mixed, and scores [d, k] leave traces.

    It maps rows x to mixing x + (x scores) traces.
    """

    mixing: Tensor
    scores: Tensor
    traces: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the image of rows [n, d]."""
        pixels = rows.unflatten(1, (len(self.mixing), -1))
        return (self.mixing @ pixels).flatten(1) + rows @ self.scores @ self.traces


def linearise_view(
    view: View, rows: Tensor, values: Tensor, targets: Tensor, axes: Axes
) -> LinearView:
    """Return the linear map that comes closest to the view on rows [n, d].

    It carries moments of rows that are no longer there into the view.
    """
    k, channels = view.mixing.shape[0], view.mixing.shape[-1]
    seen = apply_view(view, rows, values)
    before, after = (
        (r - r.mean(0)).unflatten(1, (channels, -1)).transpose(0, 1).flatten(1)
        for r in (rows, seen)
    )
    mixing = torch.eye(channels).to(rows)
    if (view.mixing != mixing).any():
        mixing = after @ before.T @ torch.linalg.pinv(before @ before.T, rtol=1e-6)
    rest = seen - (mixing @ rows.unflatten(1, (channels, -1))).flatten(1)
    member = torch.nn.functional.one_hot(values, k).to(rows)
    member = member - mean_by_group(member, targets, k)[targets]
    traces = torch.linalg.pinv(member.T @ member, rtol=1e-6) @ member.T @ rest
    scores = fit_discriminants(rows, values, targets, k, axes)
    return LinearView(mixing, scores, traces)


def fit_discriminants(
    rows: Tensor, values: Tensor, targets: Tensor, classes: int, axes: Axes
) -> Tensor:
    """Return linear scores [d, k] of the values of a feature, given the class."""
    member = torch.nn.functional.one_hot(values, classes).to(rows)
    member = member - mean_by_group(member, targets, classes)[targets]
    centred = rows - mean_by_group(rows, targets, classes)[targets]
    along = axes.whiten(centred, ridge=0.1)
    product = along.T @ along + len(rows) * 0.01 * torch.eye(along.shape[1]).to(along)
    solved = torch.linalg.solve(product, along.T @ member)
    spread = (axes.variances + 0.1 * axes.variances.mean()).sqrt()
    return axes.vectors @ (solved / spread[:, None])


def _match_channels(
    goal: Tensor, pixels: Tensor, goal_means: Tensor, means: Tensor, weights: Tensor
) -> Tensor:
    """Return the matrix that gives `pixels` [n, c, p] the channels of `goal`.

    Both are whitened over rows and pixels; the rotation in between is the one that
    brings their class means [k, c, p] closest together (orthogonal Procrustes), since
    a regression would be attenuated by the noise of small cells.
    """
    centre, root, _ = _whiten_channels(goal)
    own, _, inverse = _whiten_channels(pixels)
    far = torch.linalg.pinv(root) @ (goal_means - centre)
    near = inverse @ (means - own)
    cross = torch.einsum("k,kcp,kdp->cd", weights, far, near)
    left, _, right = torch.linalg.svd(cross)
    return root @ left @ right @ inverse


def _compare_brightness(
    pixels: Tensor, values: Tensor, targets: Tensor, shared: Tensor, common: int
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
    gains = parts[common] - parts[:k]
    squares = gains.square() * shared.sum(1) / noise.clamp(min=1e-12)
    kept = (1 - 2 * math.log(max(2, k)) / squares.clamp(min=1e-9)).clamp(min=0)
    return (kept * gains).exp()


def _whiten_channels(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean colour [c, 1], and root and inverse root of the covariance.

    Covariances are scaled to the same total; brightness is compared apart, since it
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


def _shrink_shift(
    shift: Tensor, rows: Tensor, axes: Axes, residuals: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """Return a shift [d] without what may be the noise of a mean over so many rows.

    Marks show in few pixels, textures in few waves, other traces along quiet axes: what
    exceeds the largest noise there is kept as it is. Pixels and waves are tried in both
    orders, and the one that explains more is used. What is left along axes is shrunk as
    a whole (James and Stein), to nothing if it looks like noise.
    """

    def keep(part: Tensor) -> Tensor:
        return _keep_clear(part, rows, residuals)

    def keep_waves(part: Tensor) -> Tensor:
        waves = _transform(torch.stack([part, *residuals]), shape)
        return _transform(_keep_clear(waves[0], rows, waves[1:])[None], shape)[0]

    steps = [keep, keep_waves] if len(shape) == 3 else [keep]
    results = []
    for order in (steps, steps[::-1]):
        kept = torch.zeros_like(shift)
        for step in order:
            kept = kept + step(shift - kept)
        along = axes.vectors.T @ (shift - kept)
        results.append((float((along.square() / axes.variances).sum()), kept, along))
    _, kept, along = min(results, key=lambda result: result[0])
    quiet = shift - kept - axes.vectors @ along  # hardly varies within cells
    squares = along.square() * rows / axes.variances
    clear = squares > _largest_noise(len(shift))
    count = int((~clear).sum())
    noise = count + 2 * (2 * count) ** 0.5  # two standard deviations above its mean
    factor = (1 - noise / squares[~clear].sum().clamp(min=1e-9)).clamp(min=0)
    shrunk = axes.vectors @ torch.where(clear, along, factor * along)
    return kept + quiet + shrunk


def _keep_clear(shift: Tensor, rows: Tensor, residuals: Tensor) -> Tensor:
    """Return the entries of a shift [d] that exceed the noise of a mean of rows."""
    variances = residuals.square().mean(0)
    clear = shift.square() * rows > _largest_noise(len(shift)) * variances
    return torch.where(clear, shift, 0.0)


def _largest_noise(count: int) -> float:
    """Return about the largest square among so many standard normal numbers."""
    return 2 * math.log(max(2, count))


def _transform(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the Hartley transform of pictures [n, d], which is its own inverse."""
    waves = torch.fft.fft2(rows.unflatten(1, shape), norm="ortho")
    return (waves.real - waves.imag).flatten(1)


def mean_by_group(rows: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the mean [count, d] of rows by group."""
    member = torch.nn.functional.one_hot(groups, count).to(rows)
    return member.T @ rows / member.sum(0).clamp(min=1)[:, None]
