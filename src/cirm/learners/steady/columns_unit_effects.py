"""Effects of units in the environments seen, as they are compared with one another."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    EffectEstimates,
    average_alignments_over_classes,
)
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.meta_analysis import (
    UNKNOWN,
    combine_effects_of_environments,
)

Effects = tuple[Tensor, Tensor]
"""Effects [e, d, k] and their variances."""

CONFIRMED = 0.05  # p-value of coefficients. With 0.2 stable columns of simulated tables
# whose noise differs between places were named in 16 of 48 runs


def get_alignments_with_first_effects(state: SteadyTableState) -> Effects:
    """Return the alignments [e, d, 1] of units, of many classes."""
    places = state.places
    cases = places.targets * places.rows[:, None]
    return average_alignments_over_classes(
        places.alignment, places.alignment_variance, cases
    )


def compute_alignments_with_last_effects(state: SteadyTableState) -> Effects:
    """Return the alignments [e, d, 1] of units with their effects in the last place.

    A unit that says nothing in the first environment has no effects there to be aligned
    with. The effects of the last one include the sampling errors of its own means,
    which therefore are aligned with them by chance. As the features of a unit may be
    related, the variance of their sum is taken to be as large as it can be.
    """
    places, unit = state.places, state.unit
    effects, variances = places.contrasts.compute_effects_and_variances()
    slope, errors = places.contrasts.slope, places.contrasts.variance
    is_known = (variances < UNKNOWN).all(0)
    own = torch.where(is_known, effects[-1], 0.0)
    means, noises = slope * own, errors * own.square()
    ratio = torch.where(slope[-1].abs() > 1e-9, own / slope[-1], 0.0)
    means[-1] -= errors[-1] * ratio  # what a mean shares with an effect made of it
    noises[-1] *= 4.0  # the variance of a square
    means, noises = (torch.where(is_known, part, 0.0) for part in (means, noises))
    same = (unit[:, None] == unit).to(means)
    counts = same @ is_known.to(means)
    noises = (same @ noises) * counts + 1e-9
    noises = torch.where((counts > 0).expand_as(noises), noises, UNKNOWN)
    cases = places.targets * places.rows[:, None]
    return average_alignments_over_classes(same @ means, noises, cases)


def find_changes_of_ranks_alone(state: SteadyTableState, effects: Effects) -> Tensor:
    """Return units whose effects change along the target's ranks alone, [d, 1].

    If the distribution of the target changes, so do effects along its ranks, while what
    follows the target need not. Then effects of features along the values are equal,
    and not in proportion to those along the ranks.

    Args:
        state: The state after the stage.
        effects: Effects [e, d, 1] of units along ranks, and their variances.
    """
    values, errors = (
        part[..., 0] for part in state.places.contrasts.compute_effects_and_variances()
    )
    ranks, rank_errors = (part[:, state.unit, 0] for part in effects)
    is_known = (errors < UNKNOWN) & (rank_errors < UNKNOWN)
    own = (state.unit[:, None] == state.unit) & state.needed
    summary = combine_effects_of_environments(values, errors)
    p_values = summary.compute_p_value_against_spread_and_drift()
    is_equal = torch.where(own, p_values, 1.0).amin(1) * own.sum(1) >= CONFIRMED
    # The values in proportion to the ranks, with the errors of both.
    weights = torch.where(is_known, 1 / errors, 0.0)
    squares = (weights * ranks.square()).sum(0).clamp(min=1e-300)
    factor = (weights * values * ranks).sum(0) / squares
    total = errors + factor.square() * rank_errors
    distances = torch.where(is_known, (values - factor * ranks).square() / total, 0.0)
    freedom = (is_known.sum(0) - 1).clamp(min=0).to(values)
    sums, degrees = (own.to(values) @ part for part in (distances.sum(0), freedom))
    p_values = torch.special.gammaincc(degrees.clamp(min=1) / 2, sums / 2)
    return (is_equal & (degrees > 0) & (p_values < CONFIRMED))[:, None]


def get_effects_of_block_scores(state: SteadyTableState) -> Effects:
    """Return the effects [e, d, 1] of the scores of units."""
    return EffectEstimates(
        *state.places.score_effects.split(1, 2)
    ).compute_effects_and_variances()
