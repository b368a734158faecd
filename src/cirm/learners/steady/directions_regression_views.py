"""See inputs as if an unstable number were at its mean, where that is possible.

What it adds to the inputs is a pattern times the number. If it changes the contrast of
channels, as a colour or a brightness does, each channel is divided by a gain, whose
logarithm is a polynomial in the number. All functions treat one replica.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_regression_slopes import (
    build_target_design,
    compute_slope_moments,
    remove_target_from_rows,
)
from cirm.learners.steady.directions_search import (
    AXES,
    find_principal_axes_within_classes,
)
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    append_image_statistics,
    count_image_channels,
)
from cirm.learners.steady.directions_views import COLOUR, HIDDEN

POWERS = 5  # of the number in the logarithm of a gain
FARTHEST = 3.0  # standard deviations, beyond which a polynomial is not continued


class NumberHidingView(NamedTuple):
    """How inputs are seen without a number.

    Channels are divided by exp(gains [channel, power] times powers of the number), then
    `pattern` [d] times the number is subtracted.
    """

    gains: Tensor
    pattern: Tensor


def hide_number_in_rows(
    view: NumberHidingView, rows: Tensor, numbers: Tensor
) -> Tensor:
    """Return rows [n, d] as if their number [n] were zero."""
    if view.gains.any():
        factor = (-_compute_powers(numbers) @ view.gains.T.double()).exp()
        pixels = rows.unflatten(1, (len(view.gains), -1))
        rows = (pixels * factor[:, :, None].to(rows)).flatten(1)
    return rows - numbers[:, None].to(rows) * view.pattern.to(rows)


def fit_number_hiding_view(
    rows: Tensor,
    numbers: Tensor,
    targets: Tensor,
    shape: tuple[int, ...],
    scale: ImageStatisticsScale,
    pattern: Tensor,
) -> tuple[NumberHidingView, Tensor, bool]:
    """Return the view that hides a number best, rows in it, and if it is hidden.

    `pattern` [d] is what the number adds to vectors, as known from all places.
    """
    channels = count_image_channels(shape)
    still = torch.zeros(channels, POWERS).to(rows)
    choices = [still]
    if len(shape) == 3:
        gains = _fit_gains_of_channels(
            rows.unflatten(1, (channels, -1)), numbers, targets
        )
        if gains.any():
            choices.append(gains)
    best: tuple[float, NumberHidingView, Tensor] | None = None
    for gains in choices:
        view = NumberHidingView(gains, torch.zeros_like(rows[0]))
        mixed = hide_number_in_rows(view, rows, numbers)
        if len(shape) == 3:
            pattern = _fit_pattern_of_number(mixed, numbers, targets)
        view = view._replace(pattern=pattern)
        seen = hide_number_in_rows(view, rows, numbers)
        visible = measure_visibility_of_number(seen, numbers, targets, shape, scale)
        if best is None or visible < best[0]:
            best = visible, view, seen
    assert best is not None
    return best[1], best[2], best[0] < HIDDEN


def measure_visibility_of_number(
    shown_rows: Tensor,
    numbers: Tensor,
    targets: Tensor,
    shape: tuple[int, ...],
    scale: ImageStatisticsScale,
) -> float:
    """Return the correlation, given the target, of a number with what rows show of it.

    It is read by a ridge regression, learned from every second row, from the others:
    from the rows, from statistics of images, and from squares along the leading axes.
    """
    rows = append_image_statistics(shown_rows, shape, scale).double()
    known, new = slice(0, None, 2), slice(1, None, 2)
    halves = [remove_target_from_rows(rows[h], targets[h]) for h in (known, new)]
    axes = find_principal_axes_within_classes(
        compute_slope_moments(rows[known], targets[known])
    )
    features = []
    for half, part in zip((known, new), halves, strict=True):
        along = axes.whiten_rows(part, ridge=0.1)
        squares = remove_target_from_rows(along[:, :AXES].square(), targets[half])
        features.append(torch.cat([along, squares], 1))
    goal = [remove_target_from_rows(numbers[h, None], targets[h]) for h in (known, new)]
    first, second = features
    gram = first.T @ first
    gram = gram + len(first) * 0.01 * torch.eye(len(gram)).to(gram)
    read = second @ torch.linalg.solve(gram, first.T @ goal[0])
    norm = (read.norm() * goal[1].norm()).clamp(min=1e-12)
    return float((read * goal[1]).sum() / norm)


def _compute_powers(numbers: Tensor) -> Tensor:
    """Return the powers [n, POWERS] of numbers."""
    inside = numbers.double().clamp(-FARTHEST, FARTHEST)
    return torch.stack([inside**power for power in range(1, POWERS + 1)], 1)


def _fit_gains_of_channels(pixels: Tensor, numbers: Tensor, targets: Tensor) -> Tensor:
    """Return how the log contrast of each channel depends on a number, [c, POWERS].

    It is zero if it hardly does. The contrast is the spread of a picture's pixels.
    """
    contrast = pixels.double().var(2).clamp(min=1e-6).log() / 2
    powers = _compute_powers(numbers)
    design = torch.cat([build_target_design(targets), powers], 1)
    gains = (torch.linalg.pinv(design, rtol=1e-6) @ contrast)[-POWERS:]
    size = float((powers @ gains).std(0).max())
    return gains.T if size > COLOUR else 0 * gains.T


def _fit_pattern_of_number(rows: Tensor, numbers: Tensor, targets: Tensor) -> Tensor:
    """Return the slopes [d] of rows on a number, given the target."""
    rest = remove_target_from_rows(numbers[:, None], targets)
    rows = remove_target_from_rows(rows, targets)
    return (rest.T @ rows)[0] / rest.square().sum().clamp(min=1e-12)
