"""How inputs depend on the number to predict: slopes and residual scatter.

In a regression, slopes take the place of differences between class means. With targets
in units of two standard deviations, the line through the inputs has a value at -1/2 and
one at 1/2. These two are stored like the means of two classes, with as many rows as
give their difference the precision of the slope, so that all tests for classes apply.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_search import (
    ClassMeansAndScatter,
    compress_scatter_matrix_factor,
)

MOST = 1.5  # units of two standard deviations: beyond, single targets would decide


class SlopesOfHalves(NamedTuple):
    """Slopes [2, d] in two halves of the rows, and the precision [2] of each."""

    slopes: Tensor
    precision: Tensor


class SlopeFit(NamedTuple):
    """A fit of rows [n, d] by a line and a parabola in the target.

    `precision` is that of slopes, for residuals of variance one.
    """

    level: Tensor
    slope: Tensor
    residuals: Tensor
    precision: float


def build_target_design(targets: Tensor) -> Tensor:
    """Return [n, 3]: one, standardised targets in units of two, and their square.

    The square keeps a curved relation from looking like another slope where targets are
    larger.
    """
    line = (targets.double() / 2).clamp(-MOST, MOST)
    return torch.stack([torch.ones_like(line), line, line.square()], 1)


def remove_target_from_rows(rows: Tensor, targets: Tensor) -> Tensor:
    """Return the residuals of rows [n, d] given standardised targets [n]."""
    return fit_slopes_on_target(rows, targets).residuals


def fit_slopes_on_target(rows: Tensor, targets: Tensor) -> SlopeFit:
    """Fit rows [n, d] by standardised targets [n]; precision is zero if it fails."""
    design = build_target_design(targets)
    rows = rows.double()
    inverse = torch.linalg.pinv(design, rtol=1e-6)
    parts = inverse @ rows
    spread = float(inverse[1].square().sum())
    is_known = len(rows) > design.shape[1] and spread > 0
    precision = 1 / spread if is_known else 0.0
    return SlopeFit(parts[0], parts[1], rows - design @ parts, precision)


def compute_slope_moments(rows: Tensor, targets: Tensor) -> ClassMeansAndScatter:
    """Return the line through rows [n, d] as the means of two classes."""
    fit = fit_slopes_on_target(rows, targets)
    counts = torch.full((2,), 2 * fit.precision).double()
    means = torch.stack([fit.level - fit.slope / 2, fit.level + fit.slope / 2])
    freedom = max(1, len(rows) - 3)
    residuals = fit.residuals * (4 * fit.precision / freedom) ** 0.5
    return ClassMeansAndScatter(
        counts, means, compress_scatter_matrix_factor(residuals)
    )


def get_slope_of_moments(moments: ClassMeansAndScatter) -> Tensor:
    """Return the slope [d] of moments."""
    return moments.means[1] - moments.means[0]


def compute_slopes_of_halves(rows: Tensor, targets: Tensor) -> SlopesOfHalves:
    """Return the slopes of every second row, and of the others."""
    fits = [fit_slopes_on_target(rows[h::2], targets[h::2]) for h in (0, 1)]
    return SlopesOfHalves(
        torch.stack([fit.slope for fit in fits]),
        torch.tensor([fit.precision for fit in fits]).double(),
    )


def pool_slopes_of_halves(
    first: SlopesOfHalves, second: SlopesOfHalves
) -> SlopesOfHalves:
    """Return the slopes of the halves of two environments together."""
    precision = first.precision + second.precision
    weighted = [part.precision[:, None] * part.slopes for part in (first, second)]
    slopes = (weighted[0] + weighted[1]) / precision.clamp(min=1e-9)[:, None]
    return SlopesOfHalves(slopes, precision)
