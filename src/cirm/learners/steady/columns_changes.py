"""Decide which features change their meaning between environments."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    DIFFERENT,
    LEAST_ALIGNMENT,
    LEAST_EFFECT,
    LEAST_VALUE_EFFECT,
    combine_alignments,
)
from cirm.learners.steady.columns_refuse import MOST_LEAK
from cirm.learners.steady.columns_residual import (
    compute_explained_fractions,
    compute_residual_direction,
)
from cirm.learners.steady.columns_state import State
from cirm.learners.steady.meta_analysis import UNKNOWN, MetaAnalysis, combine_effects

MOST_OF_LEVEL = 0.8  # spent on features that can be separated from all others
DOUBT = 0.01  # part of the level at which a change is sure
FACTOR_ERROR = 0.15  # of a common factor of effects, with which a noise is known
LEAST_CHANGE = 0.1  # part of an effect that must change between environments
MOST_TOGETHER = 3  # units that change together; more are another kind of environment

Effects = tuple[Tensor, Tensor]


def find_unstable_features(
    state: State, known: Tensor, level: float, noise: float
) -> tuple[Tensor, Tensor]:
    """Return which features are unstable, and which are unstable but entangled.

    Most of the level is spent on features that can be separated from all others, the
    rest on all features, as a group of them may be separated from the rest, and a small
    part on clusters.

    Args:
        state: The state after the stage.
        known: Features that are not tested, [d].
        level: Probability of any false alarm.
        noise: Noise variance of a regression; 0 for classes.
    """
    active = state.basis.scale.gt(0)
    tested = state.needed & ~known
    entangled = tested & (compute_explained_fractions(state) > MOST_LEAK)
    alone = tested & ~torch.isin(state.unit, state.unit[entangled])
    small = (1 - MOST_OF_LEVEL - DOUBT) * level
    found = _find_changed_units(state, alone, MOST_OF_LEVEL * level, noise, True)
    if noise == 0:
        found = found | _find_changed_clusters(state, known, DOUBT * level)
    every = _find_changed_units(state, tested, small, noise, False)
    group = found | every
    if len(state.unit[group & ~found].unique()) > MOST_TOGETHER:
        group = found
    rest = active & ~group & ~state.unstable
    for feature in (group & ~found & state.needed).nonzero()[:, 0].tolist():
        if compute_residual_direction(state, feature, rest)[1] > MOST_LEAK:
            group = group & (state.unit != state.unit[feature])
    return found | group, every & ~group & ~found


def _find_changed_units(
    state: State, tested: Tensor, level: float, noise: float, has_blocks: bool
) -> Tensor:
    """Return which features [d] are of units that change enough to matter.

    With many classes the alignment of units is tested, otherwise effects.

    Args:
        state: The state after the stage.
        tested: Which features are tested, [d].
        level: Probability of any false alarm.
        noise: Noise variance of a regression; 0 for classes.
        has_blocks: Whether units of several features are tested by their scores, and
            most of the level is given to the units that say most.
    """
    places, power = state.places, 4 if has_blocks else 2
    second = places.alignment, places.alignment_variance
    if places.alignment.shape[2] > 1:
        leaders = torch.zeros_like(tested)
        leaders[state.unit[tested]] = True
        alignment = combine_alignments(*second)
        shares = _divide_level(alignment, leaders, level, LEAST_ALIGNMENT, power)
        found = alignment.p_value_of_change() < shares
        found = found & (alignment.spread > LEAST_ALIGNMENT)
    else:
        effects = places.contrasts.compute_effects()
        if has_blocks:
            effects, tested = _replace_by_blocks(state, effects, second, tested)
        found = _find_changed_effects(
            effects, tested, level, noise, power, places.coefficients
        )
    return torch.isin(state.unit, state.unit[found.any(1)])


def _find_changed_clusters(state: State, known: Tensor, level: float) -> Tensor:
    """Return which features [d] are of clusters of units that change together.

    To lose several columns costs more than one, so the evidence must be stronger, and
    show a little in one of the features. In a regression, a curved effect of related
    columns looks like one that changes.
    """
    clusters = state.places.clusters
    if state.places.alignment.shape[2] > 1 or not clusters.shape[1]:
        return torch.zeros_like(known)
    summary = combine_effects(*state.places.contrasts.compute_effects())
    changing = (summary.p_value() < DIFFERENT).any(1) & state.needed
    free = torch.isin(state.cluster, state.cluster[changing])
    free = free & ~torch.isin(state.cluster, state.cluster[known])
    effects = clusters[:, :, :1], clusters[:, :, 1:]
    found = _find_changed_effects(effects, free, level, 0.0, 2)
    return torch.isin(state.cluster, state.cluster[found.any(1)])


def _find_changed_effects(
    effects: Effects,
    tested: Tensor,
    level: float,
    noise: float,
    power: int,
    coefficients: Tensor | None = None,
) -> Tensor:
    """Return which effects [d, 1] change enough to matter.

    What a cause of the target adds to it does not depend on the noise of the target,
    and how an effect of the target follows it does not either. A regression in which
    only one of the two changes has another noise; if a feature has changed its meaning,
    both change.

    Args:
        effects: Effects [e, d, 1] and their variances.
        tested: Which of them are tested, [d].
        level: Probability of any false alarm.
        noise: Noise variance of a regression; 0 for classes.
        power: The power of an effect that its share of the level is proportional to.
        coefficients: Coefficients of a regression and their variances, [e, d, 2].
    """
    summary = combine_effects(*effects)
    least = LEAST_VALUE_EFFECT / noise**0.5 if noise > 0 else LEAST_EFFECT
    shares = _divide_level(summary, tested, level, least, power)
    found = (summary.p_value_of_change() < shares) & _find_large_effects(summary, least)
    if noise == 0:
        return found
    share = DIFFERENT / max(1, int(found.sum()))  # if the noise changes, all effects do
    is_confirmed = _find_changes_beside_noise(*effects, share)
    if coefficients is not None and coefficients.shape[1]:
        reverse = combine_effects(coefficients[:, :, :1], coefficients[:, :, 1:])
        is_confirmed = is_confirmed | (reverse.p_value_of_change() < share)
    return found & is_confirmed


def _find_changes_beside_noise(
    effects: Tensor, variances: Tensor, level: float
) -> Tensor:
    """Return which features [d, 1] change other than by the noise of the target.

    Where the target of a regression has more noise, the effects [e, d, 1] of its causes
    shrink by a common factor. That of a feature is estimated from all others. Either it
    is known well, and equal everywhere, or the feature must change relative to it.
    """
    known = variances < UNKNOWN
    weights = torch.where(known, 1 / variances, 0.0)
    usual = combine_effects(effects, variances).common
    cross, square = weights * effects * usual, weights * usual.square()
    cross = cross.sum(1, keepdim=True) - cross
    errors = 1 / (square.sum(1, keepdim=True) - square).clamp(min=1 / UNKNOWN)
    factors = cross * errors
    is_equal = combine_effects(factors, errors).p_value() >= DIFFERENT
    is_equal &= errors.amax(0) < FACTOR_ERROR**2
    factors = factors.clamp(min=0.1)
    relative = effects / factors
    total = variances / factors.square() + relative.square() * errors / factors.square()
    changes = combine_effects(relative, torch.where(known, total, UNKNOWN))
    return is_equal | (changes.p_value_of_change() < level)


def _replace_by_blocks(
    state: State, effects: Effects, blocks: Effects, tested: Tensor
) -> tuple[Effects, Tensor]:
    """Test categories of several features by their scores, if these were measured.

    A curved effect of a number and its copies looks like one that changes.

    Args:
        state: The state after the stage.
        effects: Effects of features [e, d, 1] and their variances.
        blocks: The same of the scores of blocks, at their first features.
        tested: Which features are tested, [d].

    Returns:
        Effects and variances with those of blocks, and which of them are tested.
    """
    is_known = ((blocks[1] < UNKNOWN).sum(0) > 1)[:, 0]
    numbers = state.unit[(state.basis.limit < 1e3) & (state.basis.scale > 0)]
    is_known = is_known & ~torch.isin(state.unit, numbers)
    covered = torch.isin(state.unit, state.unit[is_known])
    is_known = is_known & torch.isin(state.unit, state.unit[tested])
    merged = [
        torch.where(is_known[:, None], block, own)
        for own, block in zip(effects, blocks, strict=True)
    ]
    return (merged[0], merged[1]), (tested & ~covered) | is_known


def _divide_level(
    summary: MetaAnalysis, tested: Tensor, level: float, least: float, power: int
) -> Tensor:
    """Return the p-values [d, k] below which effects differ between environments.

    The level is divided among the tests in proportion to a power of the mean effect's
    size, to which the least size is added: a feature that says much does most harm if
    it changes. If a feature is stable, its mean effect says nothing about how much the
    environments differ, so that the probability of any false alarm stays below the
    level.

    Args:
        summary: Effects over the environments, [d, k].
        tested: Which features are tested, [d].
        level: Probability of any false alarm.
        least: Smallest size of an effect that matters.
        power: The power of the size that the level is divided by.
    """
    measured = tested[:, None] & (summary.environments > 1)
    sizes = (summary.common.square() + least**2).sqrt()
    weights = torch.where(measured, sizes**power, 0.0)
    return level * weights / weights.sum().clamp(min=1e-300)


def _find_large_effects(summary: MetaAnalysis, least: float) -> Tensor:
    """Return which effects [d, k] are large, and vary by much of their size."""
    size = (summary.mean.square() + summary.spread.square()).sqrt()
    return (size > least) & (summary.spread > LEAST_CHANGE * size)
