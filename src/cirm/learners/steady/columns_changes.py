"""Decide which features change their meaning between environments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import LIMIT
from cirm.learners.steady.columns_effects import (
    DIFFERENT,
    LEAST_ALIGNMENT,
    LEAST_EFFECT,
    LEAST_VALUE_EFFECT,
    EffectContrasts,
    combine_alignments,
)
from cirm.learners.steady.columns_refuse import MOST_LEAK
from cirm.learners.steady.columns_residual import (
    compute_explained_fractions,
    compute_residual_direction,
)
from cirm.learners.steady.columns_state import ColumnsState
from cirm.learners.steady.meta_analysis import UNKNOWN, MetaAnalysis, combine_effects

MOST_OF_LEVEL = 0.8  # spent on features that can be separated from all others
DECISIVE = (
    6  # times the least effect that matters: one column alone nearly decides then
)
OF_CLUSTERS = 0.01  # part of the level: losing several columns costs more than one
USUAL_CHANGE = 0.05  # relative spread of effects that is expected of any table
USUAL_EFFECT_CHANGE = 0.03  # the same in regressions, in which two changes are needed
ONE_SIDED = 1.64  # standard errors of a one-sided interval of 95 %
FACTOR_ERROR = 0.15  # of a common factor of effects: planted columns change by more
SHORTCUTS = 0.03  # prior probability that a unit is one
SPREADS = 50  # steps of the grid of relative spreads
MOST_TOGETHER = 3  # units that change together; more are another kind of environment

Effects = tuple[Tensor, Tensor]


def find_unstable_features(
    state: ColumnsState, known: Tensor, level: float, noise: float
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
    small = (1 - MOST_OF_LEVEL - OF_CLUSTERS) * level
    found = _find_changed_units(state, alone, MOST_OF_LEVEL * level, noise, 4)
    found = found | _find_changed_clusters(state, known, OF_CLUSTERS * level, noise)
    every = _find_changed_units(state, tested, small, noise, 2)
    group = found | every
    if len(state.unit[group & ~found].unique()) > MOST_TOGETHER:
        group = found
    rest = active & ~group & ~state.unstable
    for feature in (group & ~found & state.needed).nonzero()[:, 0].tolist():
        if compute_residual_direction(state, feature, rest)[1] > MOST_LEAK:
            group = group & (state.unit != state.unit[feature])
    return found | group, every & ~group & ~found


def _find_changed_units(
    state: ColumnsState, tested: Tensor, level: float, noise: float, power: int
) -> Tensor:
    """Return which features [d] are of units that change enough to matter.

    With many classes the alignment of units is tested, otherwise the effects of their
    scores.

    Args:
        state: The state after the stage.
        tested: Which features are tested, [d].
        level: Probability of any false alarm.
        noise: Noise variance of a regression; 0 for classes.
        power: The power of an effect that its share of the level is proportional to.
    """
    places = state.places
    leaders = torch.zeros_like(tested)
    leaders[state.unit[tested]] = True
    if places.alignment.shape[2] > 1:
        alignment = combine_alignments(places.alignment, places.alignment_variance)
        shares = _divide_significance_level(
            alignment, leaders, level, LEAST_ALIGNMENT, power
        )
        found = alignment.compute_spread_or_drift_p_value() < shares
        found = found & (alignment.spread > LEAST_ALIGNMENT)
    else:
        effects = places.contrasts.compute_effects()
        if places.scores.shape[1]:
            effects, tested = _get_score_effects(state), leaders
        peers = state.needed & ~state.unstable
        found = _find_changed_effects(
            effects, tested, peers, state.unit, level, noise, power, places.coefficients
        )
    return torch.isin(state.unit, state.unit[found.any(1)])


def compute_p_value_of_change(state: ColumnsState, feature: int, output: int) -> float:
    """Return the p-value of equal effects of a feature or, if known, of its unit."""
    effects = state.places.contrasts.compute_effects()
    if state.places.scores.shape[1]:
        effects, feature = _get_score_effects(state), int(state.unit[feature])
    return float(
        combine_effects(*effects).compute_spread_or_drift_p_value()[feature, output]
    )


def _get_score_effects(state: ColumnsState) -> Effects:
    """Return the effects [e, d, 1] of scores, along curves for columns of two values.

    Of a number a line shows a change with fewer rows, even where its effect is curved.
    """
    places = state.places
    scores = EffectContrasts(*places.scores.split(1, 2))
    along = (places.alignment_variance < UNKNOWN).sum(0) > 1
    is_number = (state.basis.limit <= LIMIT) & (state.basis.scale > 0)
    along &= ~torch.isin(state.unit, state.unit[is_number])[:, None]
    curved = places.alignment, places.alignment_variance
    first, second = (
        torch.where(along, curve, line)
        for line, curve in zip(scores.compute_effects(), curved, strict=True)
    )
    return first, second


def _find_changed_clusters(
    state: ColumnsState, known: Tensor, level: float, noise: float
) -> Tensor:
    """Return which features [d] are of clusters of units that change together.

    To lose several columns costs more than one, so the evidence must be stronger, and
    show a little in one of the features.
    """
    clusters = state.places.clusters
    if state.places.alignment.shape[2] > 1 or not clusters.shape[1]:
        return torch.zeros_like(known)
    summary = combine_effects(*state.places.contrasts.compute_effects())
    changing = (summary.p_value() < DIFFERENT).any(1) & state.needed
    free = torch.isin(state.cluster, state.cluster[changing])
    free = free & ~torch.isin(state.cluster, state.cluster[known])
    effects = clusters[:, :, :1], clusters[:, :, 1:]
    own = effects, free, free, state.cluster, level, noise, 2
    found = _find_changed_effects(*own)
    return torch.isin(state.cluster, state.cluster[found.any(1)])


def _find_changed_effects(
    effects: Effects,
    tested: Tensor,
    peers: Tensor,
    unit: Tensor,
    level: float,
    noise: float,
    power: int,
    coefficients: Tensor | None = None,
) -> Tensor:
    """Return which effects [d, 1] change more than is usual, and enough to matter.

    What a cause of the target adds to it does not depend on the noise of the target,
    and how an effect of the target follows it does not either. A regression in which
    only one of the two changes has another noise; if a feature has changed its meaning,
    both change.

    Args:
        effects: Effects [e, d, 1] and their variances.
        tested: Which of them are tested, [d].
        peers: Features whose units show which changes are usual, [d].
        unit: Unit of each feature, [d].
        level: Probability of any false alarm.
        noise: Noise variance of a regression; 0 for classes.
        power: The power of an effect that its share of the level is proportional to.
        coefficients: Coefficients of a regression and their variances, [e, d, 2].
    """
    summary = combine_effects(*effects)
    least = LEAST_VALUE_EFFECT / noise**0.5 if noise > 0 else LEAST_EFFECT
    shares = _divide_significance_level(summary, tested, level, least, power)
    is_large = summary.mean.square() + summary.spread.square() > least**2
    if noise == 0:
        return is_large & (
            compute_p_values_given_usual_spread(*effects, peers, unit) < shares
        )
    # Another noise of the target changes all effects; it is no usual change of theirs.
    nobody = torch.zeros_like(peers)
    changes = compute_p_values_given_usual_spread(
        *effects, nobody, unit, USUAL_EFFECT_CHANGE
    )
    found = is_large & (changes < shares)
    share = DIFFERENT / max(1, int(found.sum()))
    is_confirmed = find_changes_beside_noise(*effects, peers, unit, share)
    if coefficients is not None and coefficients.shape[1]:
        # What others add depends on this column, too; so they show nothing usual.
        back = coefficients[:, :, :1], coefficients[:, :, 1:]
        is_confirmed |= combine_effects(*back).compute_spread_or_drift_p_value() < share
        is_confirmed &= ~find_equal_effects(*back)
    return found & is_confirmed


def find_equal_effects(effects: Tensor, variances: Tensor) -> Tensor:
    """Return which effects [d, 1] are known to differ by no more than is usual.

    The largest difference between environments, with its error, is compared with twice
    the usual change: whatever else has changed, to go on as before costs nothing.
    """
    known = variances < UNKNOWN
    high = torch.where(known, effects, -torch.inf).amax(0)
    low = torch.where(known, effects, torch.inf).amin(0)
    error = (2 * torch.where(known, variances, 0.0).amax(0)).sqrt()
    size = combine_effects(effects, variances).common.abs()
    is_same = high - low + ONE_SIDED * error < 2 * USUAL_CHANGE * size
    return is_same & (known.sum(0) > 1)


def find_changes_beside_noise(
    effects: Tensor, variances: Tensor, peers: Tensor, unit: Tensor, level: float
) -> Tensor:
    """Return which features [d, 1] change other than by the noise of the target.

    Where the target of a regression has more noise, the effects of its causes shrink by
    a common factor. That of a feature is estimated from all other units. It must be
    known well; and either it is equal everywhere, or the feature changes relative to
    it.

    Args:
        effects: Effects, [e, d, 1].
        variances: Their sampling variances.
        peers: Features whose units have the common factor, [d].
        unit: Unit of each feature, [d].
        level: Level of a change relative to the factor.
    """
    usual = combine_effects(effects, variances).common
    known = variances < UNKNOWN
    total = variances + (USUAL_CHANGE * usual).square()
    is_used = known & torch.isin(unit, unit[peers])[:, None]
    weights = torch.where(is_used, 1 / total, 0.0)
    others = (unit[:, None] != unit).to(effects)
    errors = 1 / (others @ (weights * usual.square())).clamp(min=1 / UNKNOWN)
    factors = (others @ (weights * effects * usual)) * errors
    is_equal = combine_effects(factors, errors).p_value() >= DIFFERENT
    factors = factors.clamp(min=0.1)
    is_known = (errors.sqrt() / factors).amax(0) < FACTOR_ERROR
    relative = effects / factors
    total = (variances + relative.square() * errors) / factors.square()
    total = torch.where(known, total, UNKNOWN)
    changes = compute_p_values_given_usual_spread(relative, total, peers, unit)
    return is_known & (is_equal | (changes < level))


def compute_p_values_given_usual_spread(
    effects: Tensor,
    variances: Tensor,
    peers: Tensor,
    unit: Tensor,
    expected: float = USUAL_CHANGE,
) -> Tensor:
    """Return p-values [d, 1] of effects that vary as those of other units do.

    No effect is exactly the same in two environments of a real table. So an effect is
    compared with the relative spread of the others: one that varies as all of them do
    is a sign of other environments, not of a shortcut.

    Args:
        effects: Effects, [e, d, 1].
        variances: Their sampling variances.
        peers: Features whose units show what is usual, [d].
        unit: Unit of each feature, [d]; a feature is compared with other units.
        expected: Relative spread that is expected of any table.
    """
    mean = combine_effects(effects, variances).common
    usual = estimate_usual_spread_of_effects(effects, variances, peers, unit, expected)
    total = variances + (usual * mean).square()
    changes = combine_effects(effects, torch.where(variances < UNKNOWN, total, UNKNOWN))
    return changes.compute_spread_or_drift_p_value()


def estimate_usual_spread_of_effects(
    effects: Tensor,
    variances: Tensor,
    peers: Tensor,
    unit: Tensor,
    expected: float = USUAL_CHANGE,
) -> Tensor:
    """Return the relative spread of effects of other units over environments, [d, 1].

    It is the posterior mean of its square, on a grid. A unit may also be a shortcut
    itself, whose effect varies by as much as its size.
    """
    mean = combine_effects(effects, variances).common
    grid = torch.linspace(0, 1, SPREADS + 1, dtype=effects.dtype)
    known = variances < UNKNOWN
    total = variances + (grid[:, None, None, None] * mean).square()
    weights = torch.where(known, 1 / total, 0.0)  # [grid, e, d, 1]
    sums = weights.sum(1).clamp(min=1e-300)
    centre = (weights * effects).sum(1) / sums
    distances = weights * (effects - centre[:, None]).square()
    logs = torch.where(known, weights.clamp(min=1e-300).log() - distances, 0.0).sum(1)
    logs = torch.where(known.sum(0) > 1, logs - sums.log(), 0.0)[..., 0] / 2
    logs = torch.logaddexp(
        logs + math.log(1 - SHORTCUTS), logs[-1:] + math.log(SHORTCUTS)
    )
    measured = (known.sum(0) > 1)[:, 0]
    peers = torch.isin(unit, unit[peers]) & measured
    sizes = (peers & (unit[:, None] == unit)).sum(1).clamp(min=1)
    others = (peers & (unit[:, None] != unit)) / sizes  # each unit counts as one
    prior = -2.5 * (1 + 0.5 * (grid / expected).square()).log()  # Student's, 4
    logs = logs @ others.to(logs).T + prior[:, None]
    return (logs.softmax(0) * grid.square()[:, None]).sum(0).sqrt()[:, None]


def _divide_significance_level(
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
    sizes = (summary.common.square() + least**2).sqrt().clamp(max=DECISIVE * least)
    weights = torch.where(measured, sizes**power, 0.0)
    return level * weights / weights.sum().clamp(min=1e-300)
