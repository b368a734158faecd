"""Products of two features whose meaning changes between environments.

A feature may say nothing alone and much together with another one. Products that were
chosen at the first environment are therefore tested as features are, and no longer used
if what they say about the target changes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import chdtri
from torch import Tensor

from cirm.learners.steady.columns_state import SteadyTableState, center_moments

PRODUCT_LEVEL = 0.01  # probability of dropping any product if all are stable
RIDGE = 1e-6  # of the mean variance, so that constant features do no harm


class CentredMoments(NamedTuple):
    """Centred sums of products of basis and targets [p + c, p + c] of some rows."""

    sums: Tensor
    rows: float


def drop_unstable_feature_products(
    state: SteadyTableState, place_moments: CentredMoments, level_share: float
) -> SteadyTableState:
    """Return the state without products that say something else at a new place.

    Args:
        state: The state before the place is learned.
        place_moments: Moments of the new place.
        level_share: Part of the level that this comparison may spend.
    """
    used = (state.basis.factors > 0).nonzero()[:, 0]
    if not len(used) or not len(state.places.rows):
        return state
    past = CentredMoments(center_moments(state), float(state.places.rows.sum()))
    slopes, variances = zip(
        *(
            _measure_slopes_of_products(state, part, used)
            for part in (past, place_moments)
        ),
        strict=True,
    )
    squares = (slopes[0] - slopes[1]).square() / (variances[0] + variances[1])
    limit = chdtri(1, PRODUCT_LEVEL * level_share / squares.numel())
    factors = state.basis.factors.clone()
    factors[used[(squares > limit).any(1)]] = 0.0
    return state._replace(basis=state.basis._replace(factors=factors))


def _measure_slopes_of_products(
    state: SteadyTableState, moments: CentredMoments, is_used: Tensor
) -> tuple[Tensor, Tensor]:
    """Return slopes of products on targets given all features, and variances, [m, k].

    With two classes, only the second one is a target.
    """
    sums, rows = moments
    d, p = len(state.unit), len(state.ridge)
    classes = len(sums) - p
    products = p - 1 - len(state.basis.factors) + is_used
    found = []
    for target in range(p + (classes == 2), len(sums)):
        given = torch.cat([torch.arange(d), torch.tensor([target])])
        gram = sums[given[:, None], given]
        ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-9)
        inverse = torch.linalg.inv(gram + ridge * torch.eye(d + 1, dtype=gram.dtype))
        cross = sums[given][:, products]
        coefficients = inverse @ cross
        left = sums.diagonal()[products] - (coefficients * cross).sum(0)
        variance = left.clamp(min=1e-9) / rows * inverse[-1, -1]
        found.append((coefficients[-1], variance))
    slopes, variances = zip(*found, strict=True)
    return torch.stack(slopes, 1), torch.stack(variances, 1)
