"""Statistics of a whole image, as further entries beside its pixels.

A shortcut such as a colour, a brightness or a texture is the same at every pixel, and
hardly shows in any single one. Statistics over all pixels show it, and no shapes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_search import compute_means_by_group

SHARE = 0.1  # of the variance of all pixels for each statistic: about what the leading
# axis of natural images has, so that statistics are among the axes that are tested


class ImageStatisticsScale(NamedTuple):
    """Shift [s] and factor [s] of statistics."""

    shift: Tensor
    factor: Tensor


def count_image_channels(shape: tuple[int, ...]) -> int:
    """Return the number of channels of inputs: that of images, else one."""
    return shape[0] if len(shape) == 3 else 1


def count_image_statistics(shape: tuple[int, ...]) -> int:
    """Return the number of statistics of inputs of a shape: none for vectors."""
    return 2 * shape[0] + 4 if len(shape) == 3 else 0


def compute_image_statistics(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return statistics [n, s] of images, given as rows [n, d].

    These are each channel's share of the brightness and of the contrast, the brightness
    and the logarithm of the contrast of the image, and the correlation of pixels with
    their neighbours, below and to the right.
    """
    if len(shape) != 3:
        return rows[:, :0]
    pixels = rows.unflatten(1, shape)
    means = pixels.mean((2, 3))
    spread = pixels - means[:, :, None, None]
    variances = spread.square().mean((2, 3))
    total = variances.sum(1, keepdim=True).clamp(min=1e-6)
    parts = [
        _compute_color_channel_fractions(means.abs()),
        _compute_color_channel_fractions(variances.sqrt()),
        means.sum(1, keepdim=True),
    ]
    parts.append(total.log() / 2)
    for axis in (2, 3):
        size = spread.shape[axis] - 1
        near = spread.narrow(axis, 0, size) * spread.narrow(axis, 1, size)
        # Pixels of an image with a single row or column have no such neighbours.
        parts.append(near.mean((2, 3)).nan_to_num().sum(1, keepdim=True) / total)
    return torch.cat(parts, 1)


def fit_image_statistics_scale(
    rows: Tensor, targets: Tensor, shape: tuple[int, ...]
) -> ImageStatisticsScale:
    """Return the scale that gives statistics a share of the variance of pixels."""
    k = int(targets.max()) + 1
    statistics = compute_image_statistics(rows, shape)
    residuals = rows - compute_means_by_group(rows, targets, k)[targets]
    spread = statistics - compute_means_by_group(statistics, targets, k)[targets]
    wanted = (SHARE * residuals.square().mean(0).sum()).sqrt()
    factor = wanted / spread.square().mean(0).sqrt().clamp(min=1e-4)
    return ImageStatisticsScale(statistics.mean(0), factor)


def append_image_statistics(
    rows: Tensor, shape: tuple[int, ...], scale: ImageStatisticsScale
) -> Tensor:
    """Return rows [n, d + s]: images [n, d] and their statistics, to scale."""
    statistics = compute_image_statistics(rows, shape) - scale.shift.to(rows)
    return torch.cat([rows, statistics * scale.factor.to(rows)], 1)


def _compute_color_channel_fractions(levels: Tensor) -> Tensor:
    """Return the part of each channel in the sum of levels [n, c]."""
    return levels / levels.sum(1, keepdim=True).clamp(min=1e-6)
