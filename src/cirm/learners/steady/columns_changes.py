"""Decide which features change their meaning between environments."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    DIFFERENT,
    LEAST_ALIGNMENT,
    LEAST_EFFECT,
    LEAST_VALUE_EFFECT,
)
from cirm.learners.steady.columns_refuse import MOST_LEAK
from cirm.learners.steady.columns_residual import (
    compute_explained_fractions,
    compute_residual_of_feature_on_others,
    has_most_information,
)
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.columns_unit_effects import (
    CONFIRMED,
    Effects,
    compute_alignments_with_last_effects,
    find_changes_of_ranks_alone,
    get_alignments_with_first_effects,
    get_effects_of_block_scores,
)
from cirm.learners.steady.meta_analysis import (
    UNKNOWN,
    EffectMetaAnalysis,
    combine_effects_of_environments,
)

MOST_OF_LEVEL = 0.9  # spent on blocks that are unrelated to all other features
RELATED = 0.05  # part of a feature that others explain given the target
POWER = 4  # of the size of an effect, that its share of the level is proportional to
DECISIVE = (
    6  # times the least effect that matters: one column alone nearly decides then
)
FOR_LATER_EFFECTS = 0.1  # part of the level, with many classes, for effects that a unit
# has in the last environment and may not have had in the first
USUAL_CHANGE = 0.05  # relative spread of effects that is expected of any table
USUAL_ALIGNMENT_CHANGE = 0.015  # the same of alignments, which follow probabilities: if
# log odds change by 5 %, they change by 1.5 % where values agree in 95 % of the rows
SHORTCUTS = 0.03  # prior probability that a unit is one
UNRELATED = 0.2  # part of the units of real tables that are unrelated to all others
SPREADS = 50  # steps of the grid of relative spreads
MOST_TOGETHER = 3  # units that change together; more are another kind of environment


def compute_share_of_significance_level(look_number: int) -> float:
    """Return the share of the level that a look at the data spends, from 1 on.

    All shares add up to 1.8. But looks have most of their data in common: with up to 40
    places, of equal or other sizes, any of them raises a false alarm with less than the
    level.
    """
    return 1 / (2 * look_number * (1 + look_number / 20))


def find_unstable_features(
    state: SteadyTableState, is_known: Tensor, level: float, noise: float
) -> tuple[Tensor, Tensor]:
    """Return which features are unstable, and which are unstable but entangled.

    What a place writes down according to the label is unrelated to all else given the
    label; that is assumption 3 of the model. Causes of the label are related to each
    other given the label. So most of the level is spent on blocks, units and clusters
    of them, that are unrelated to all other features, the rest on all units, as a group
    of them may be unrelated to the rest. In a regression, features that are related to
    others are only set aside if the rest keeps most of what is known of the target:
    otherwise they are no shortcut beside the causes, but the causes themselves.

    Args:
        state: The state after the stage.
        is_known: Features that are not tested, [d].
        level: Probability of any false alarm.
        noise: Unexplained fraction of the target of a regression; 0 for classes.
    """
    active = state.basis.scale.gt(0)
    tested = state.needed & ~is_known
    is_unrelated = find_features_unrelated_to_target(state, state.unit)
    prior = torch.full(tested.shape, SHORTCUTS, dtype=torch.float64)
    if noise == 0:
        prior = compute_prior_probability_of_shortcuts(is_unrelated)
    alone = tested & is_unrelated
    together = find_unrelated_clusters(state, tested, noise > 0)
    units = len(state.unit[alone].unique())
    clusters = len(state.cluster[together].unique()) if bool(together.any()) else 0
    part = MOST_OF_LEVEL * level / max(1, units + clusters)
    found = torch.zeros_like(tested)
    # In a regression none hides another, as they are not compared with one another.
    for _ in range(MOST_TOGETHER if noise == 0 else 1):
        # Holm's procedure: what was found gives its share of the level to the others,
        # and no longer shows which changes are usual.
        others = state._replace(unstable=state.unstable | found)
        new = _find_columns_with_changed_effect(
            others, alone & ~found, units * part, noise, prior, is_unrelated=True
        )
        if not bool(new.any()):
            break
        found = found | new
    if clusters:  # one unit that has changed by itself explains that its cluster has
        together &= ~torch.isin(state.cluster, state.cluster[found])
        found = found | _find_clusters_with_changed_effect(
            state, together, clusters * part, noise, prior
        )
    every = _find_columns_with_changed_effect(
        state, tested, (1 - MOST_OF_LEVEL) * level, noise, prior
    )
    barred = find_units_of_most_columns(state)
    rest = active & ~state.unstable & ~found
    if noise > 0 and not has_most_information(state, rest & ~every, rest):
        return found & ~barred, (every & ~found) | (found & barred)
    group = found | every
    if len(state.unit[group & ~found].unique()) > MOST_TOGETHER:
        group = found
    rest = active & ~group & ~state.unstable
    for feature in (group & ~found & state.needed).nonzero()[:, 0].tolist():
        if compute_residual_of_feature_on_others(state, feature, rest)[1] > MOST_LEAK:
            group = group & (state.unit != state.unit[feature])
    aside = (found | group) & ~barred
    return aside, (found | every) & ~aside


def compute_prior_probability_of_shortcuts(is_unrelated: Tensor) -> Tensor:
    """Return the probability that units are shortcuts, given how related they are, [d].

    By Bayes' rule. Most shortcuts are unrelated to all other features given the target,
    as the division of the level assumes, but few other units are.
    """
    own, other = (
        torch.where(is_unrelated, part, 1 - part).double()
        for part in (MOST_OF_LEVEL, UNRELATED)
    )
    return SHORTCUTS * own / (SHORTCUTS * own + (1 - SHORTCUTS) * other)


def find_features_unrelated_to_target(
    state: SteadyTableState, block_of_feature: Tensor
) -> Tensor:
    """Return which features [d] are of blocks [d] unrelated to all others given y."""
    related = state.needed & (
        compute_explained_fractions(state, block_of_feature) > RELATED
    )
    return ~torch.isin(block_of_feature, block_of_feature[related])


def find_unrelated_clusters(
    state: SteadyTableState, tested: Tensor, is_regression: bool
) -> Tensor:
    """Return which features [d] are of clusters of several units to be tested.

    A cluster must be the minor part of the table.
    """
    if not state.places.cluster_effects.shape[1] or state.places.alignment.shape[2] > 1:
        return torch.zeros_like(tested)
    excluded = state.cluster[state.needed & ~tested]
    free = find_features_unrelated_to_target(state, state.cluster)
    free &= tested & ~torch.isin(state.cluster, excluded)
    for leader in state.cluster[free].unique():
        own = state.cluster == leader
        is_single = len(state.unit[own & state.needed].unique()) < 2
        if is_single or not _is_minor_part_of_table(state, own, is_regression):
            free &= ~own
    return free


def find_units_of_most_columns(state: SteadyTableState) -> Tensor:
    """Return which features [d] are of units that are too much of the table.

    A few near copies are one column that was written down more than once. More of them
    are a part of the table, and must be a minor one, as a cluster must; with classes,
    too, they must not hold most of what is known.
    """
    found = torch.zeros_like(state.unstable)
    for leader in state.unit[state.needed].unique() if len(state.column) else ():
        own = state.unit == leader
        is_large = len(state.column[own & state.needed].unique()) > MOST_TOGETHER
        if is_large and not _is_minor_part_of_table(state, own):
            found |= own
    return found


def _is_minor_part_of_table(
    state: SteadyTableState, features: Tensor, must_leave_information: bool = True
) -> bool:
    """Return whether the table without features [d] is enough to judge them.

    Of most of a table nobody can tell that the rest is stable, neither of most of its
    columns nor of most of what is known of the target.
    """
    columns = state.column if len(state.column) else state.unit
    count, total = (
        len(columns[part & state.needed].unique())
        for part in (features, torch.ones_like(features))
    )
    if count > total / 2 or not must_leave_information:
        return count <= total / 2
    known = state.basis.scale.gt(0) & ~state.unstable
    return has_most_information(state, known & ~features, known)


def _find_columns_with_changed_effect(
    state: SteadyTableState,
    is_tested: Tensor,
    level: float,
    noise: float,
    prior: Tensor,
    is_unrelated: bool = False,
) -> Tensor:
    """Return which features [d] are of units that change enough to matter.

    With many classes the alignment of units is tested, otherwise the effects of their
    scores.

    Args:
        state: The state after the stage.
        is_tested: Which features are tested, [d].
        level: Probability of any false alarm.
        noise: Unexplained fraction of the target of a regression; 0 for classes.
        prior: Probability that the unit of a feature is a shortcut, [d].
        is_unrelated: Whether they are unrelated to all others given the target.
    """
    places = state.places
    leaders = torch.zeros_like(is_tested)
    leaders[state.unit[is_tested]] = True
    if places.alignment.shape[2] > 1:
        found = torch.zeros_like(leaders)[:, None]
        for alignments, share in (
            (get_alignments_with_first_effects(state), 1 - FOR_LATER_EFFECTS),
            (compute_alignments_with_last_effects(state), FOR_LATER_EFFECTS),
        ):
            summary = combine_effects_of_environments(*alignments)
            shares = _divide_significance_level(
                summary, leaders, share * level, LEAST_ALIGNMENT
            )
            p_values = _compute_p_values_given_spread(
                *alignments, torch.tensor(USUAL_ALIGNMENT_CHANGE)
            )
            found = found | ((p_values < shares) & (summary.spread > LEAST_ALIGNMENT))
    else:
        effects = places.contrasts.compute_effects_and_variances()
        if places.score_effects.shape[1]:
            effects, is_tested = get_effects_of_block_scores(state), leaders
        peers = state.needed & ~state.unstable
        found = _find_effects_that_change(
            effects,
            is_tested,
            peers,
            state.unit,
            level,
            noise,
            prior,
            places.coefficients,
            is_unrelated,
        )
        if noise > 0:
            found = found & ~find_changes_of_ranks_alone(state, effects)
    return torch.isin(state.unit, state.unit[found.any(1)])


def compute_p_value_of_change(
    state: SteadyTableState, feature: int, output: int
) -> float:
    """Return the p-value of equal effects of a feature or, if known, of its unit."""
    effects = state.places.contrasts.compute_effects_and_variances()
    if state.places.score_effects.shape[1]:
        effects, feature = get_effects_of_block_scores(state), int(state.unit[feature])
    return float(
        combine_effects_of_environments(
            *effects
        ).compute_p_value_against_spread_and_drift()[feature, output]
    )


def compute_p_values_of_blocks(state: SteadyTableState, is_cluster: bool) -> Tensor:
    """Return p-values of equal effects of units or clusters, at first features, [d]."""
    places = state.places
    if is_cluster:
        clusters = places.cluster_effects
        summary = combine_effects_of_environments(
            clusters[:, :, :1], clusters[:, :, 1:]
        )
    elif places.alignment.shape[2] > 1:
        summary = combine_effects_of_environments(
            *get_alignments_with_first_effects(state)
        )
    else:
        summary = combine_effects_of_environments(*get_effects_of_block_scores(state))
    return summary.compute_p_value_against_spread_and_drift()[:, 0]


def _find_clusters_with_changed_effect(
    state: SteadyTableState,
    is_tested: Tensor,
    level: float,
    noise: float,
    prior: Tensor,
) -> Tensor:
    """Return which features [d] are of clusters of units that change together."""
    clusters = state.places.cluster_effects
    effects = clusters[:, :, :1], clusters[:, :, 1:]
    leaders = torch.zeros_like(is_tested)
    leaders[state.cluster[is_tested]] = True
    peers = state.needed & ~state.unstable
    found = _find_effects_that_change(
        effects, leaders, peers, state.cluster, level, noise, prior
    )
    changed = torch.isin(state.cluster, state.cluster[found.any(1)])
    coefficients = state.places.coefficients
    if noise == 0 or not coefficients.shape[1]:
        return changed
    back = combine_effects_of_environments(
        coefficients[:, :, :1], coefficients[:, :, 1:]
    )
    limit = CONFIRMED / max(1, int(changed.sum()))
    confirmed = changed & (
        back.compute_p_value_against_spread_and_drift()[:, 0] < limit
    )
    return torch.isin(state.cluster, state.cluster[confirmed])


def _find_effects_that_change(
    effects: Effects,
    is_tested: Tensor,
    is_peer: Tensor,
    unit_of_feature: Tensor,
    level: float,
    noise: float,
    prior: Tensor,
    coefficients: Tensor | None = None,
    is_unrelated: bool = False,
) -> Tensor:
    """Return which effects [d, 1] change more than is usual, and enough to matter.

    If the target of a regression has more noise, the effects of its causes shrink, but
    not what they add to the target. So these coefficients must change, too: clearly if
    all effects change alike, and otherwise more likely than not. What marks the target
    does not depend on its noise.

    Args:
        effects: Effects [e, d, 1] and their variances.
        is_tested: Which of them are tested, [d].
        is_peer: Features whose units show which changes are usual, [d].
        unit_of_feature: Unit of each feature, [d].
        level: Probability of any false alarm.
        noise: Unexplained fraction of the target of a regression; 0 for classes.
        prior: Probability that the unit of a feature is a shortcut, [d].
        coefficients: Coefficients of a regression and their variances, [e, d, 2].
        is_unrelated: Whether they are unrelated to all others given the target.
    """
    summary = combine_effects_of_environments(*effects)
    least = LEAST_VALUE_EFFECT / noise**0.5 if noise > 0 else LEAST_EFFECT
    shares = _divide_significance_level(summary, is_tested, level, least)
    is_large = summary.mean.square() + summary.spread.square() > least**2

    def find_changes_against_peers(is_peer: Tensor) -> Tensor:
        p_values = compute_p_values_given_usual_spread(
            *effects, is_peer, unit_of_feature, prior
        )
        return is_large & (p_values < shares)

    found = find_changes_against_peers(is_peer)
    if noise == 0 or coefficients is None or not coefficients.shape[1]:
        return found
    back = combine_effects_of_environments(
        coefficients[:, :, :1], coefficients[:, :, 1:]
    )
    p_values = back.compute_p_value_against_spread_and_drift()
    alike = find_changes_against_peers(torch.zeros_like(is_peer))
    if is_unrelated:
        return alike & (
            (p_values < CONFIRMED)
            | _find_features_that_cannot_be_causes(*effects, noise)
        )
    is_clear = p_values < DIFFERENT / max(1, int(alike.sum()))
    return (found & (p_values < CONFIRMED)) | (alike & is_clear)


def _find_features_that_cannot_be_causes(
    effects: Tensor, variances: Tensor, noise: float
) -> Tensor:
    """Return which features that are unrelated to others cannot be causes, [d, 1].

    A feature whose squared correlation with the target is r has the effect
    r^0.5 / (1 - r). If it and the others, which explain s, were causes, they would
    explain r s / ((1 - r) (1 - s)) of it given the target: more than they do. What the
    others explain at least is what the feature leaves where its effect is largest:
    otherwise another noise of the target would look like it.
    """
    common = combine_effects_of_environments(effects, variances).common
    largest = torch.where(variances < UNKNOWN, effects.abs(), 0.0).amax(0)
    own, most = (_compute_squared_correlation(part) for part in (common, largest))
    rest = (1 - noise - most).clamp(min=0)
    return own * rest / ((1 - own) * (1 - rest)) > 4 * RELATED


def _compute_squared_correlation(effects: Tensor) -> Tensor:
    """Return r of effects r^0.5 / (1 - r)."""
    squares = effects.square().clamp(min=1e-9)
    return ((1 + 4 * squares).sqrt() - 1).square() / (4 * squares)


def compute_p_values_given_usual_spread(
    effects: Tensor,
    variances: Tensor,
    is_peer: Tensor,
    unit_of_feature: Tensor,
    prior: Tensor,
) -> Tensor:
    """Return p-values [d, 1] of effects that vary as those of other units do.

    No effect is exactly the same in two environments of a real table. So an effect is
    compared with the relative spread of the others: one that varies as all of them do
    is a sign of other environments, not of a shortcut.

    Args:
        effects: Effects, [e, d, 1].
        variances: Their sampling variances.
        is_peer: Features whose units show what is usual, [d].
        unit_of_feature: Unit of each feature, [d]; a feature is compared with other
            units.
        prior: Probability that the unit of a feature is a shortcut, [d].
    """
    usual = estimate_usual_spread_of_effects(
        effects, variances, is_peer, unit_of_feature, prior
    )
    return _compute_p_values_given_spread(effects, variances, usual)


def _compute_p_values_given_spread(
    effects: Tensor, variances: Tensor, relative_spread: Tensor
) -> Tensor:
    """Return p-values [d, 1] of effects [e, d, 1] that vary by part of their mean."""
    mean = combine_effects_of_environments(effects, variances).common
    total = variances + (relative_spread * mean).square()
    changes = combine_effects_of_environments(
        effects, torch.where(variances < UNKNOWN, total, UNKNOWN)
    )
    return changes.compute_p_value_against_spread_and_drift()


def estimate_usual_spread_of_effects(
    effects: Tensor,
    variances: Tensor,
    is_peer: Tensor,
    unit_of_feature: Tensor,
    prior: Tensor,
) -> Tensor:
    """Return the relative spread of effects of other units over environments, [d, 1].

    It is the posterior mean of its square, on a grid. A unit may also be a shortcut
    itself, whose effect varies by as much as its size.
    """
    mean = combine_effects_of_environments(effects, variances).common
    grid = torch.linspace(0, 1, SPREADS + 1, dtype=effects.dtype)
    known = variances < UNKNOWN
    total = variances + (grid[:, None, None, None] * mean).square()
    weights = torch.where(known, 1 / total, 0.0)  # [grid, e, d, 1]
    sums = weights.sum(1).clamp(min=1e-300)
    centre = (weights * effects).sum(1) / sums
    distances = weights * (effects - centre[:, None]).square()
    logs = torch.where(known, weights.clamp(min=1e-300).log() - distances, 0.0).sum(1)
    logs = torch.where(known.sum(0) > 1, logs - sums.log(), 0.0)[..., 0] / 2
    logs = torch.logaddexp(logs + (1 - prior).log(), logs[-1:] + prior.log())
    measured = (known.sum(0) > 1)[:, 0]
    is_peer = torch.isin(unit_of_feature, unit_of_feature[is_peer]) & measured
    sizes = (
        (is_peer & (unit_of_feature[:, None] == unit_of_feature)).sum(1).clamp(min=1)
    )
    others = (
        is_peer & (unit_of_feature[:, None] != unit_of_feature)
    ) / sizes  # each unit counts as one
    student = -2.5 * (1 + 0.5 * (grid / USUAL_CHANGE).square()).log()  # four degrees
    logs = logs @ others.to(logs).T + student[:, None]
    return (logs.softmax(0) * grid.square()[:, None]).sum(0).sqrt()[:, None]


def _divide_significance_level(
    summary: EffectMetaAnalysis, is_tested: Tensor, level: float, least_effect: float
) -> Tensor:
    """Return the p-values [d, k] below which effects differ between environments.

    The level is divided among the tests in proportion to `POWER` of the mean effect's
    size, to which the least size is added: a feature that says much does most harm if
    it changes. If a feature is stable, its mean effect says nothing about how much the
    environments differ, so that the probability of any false alarm stays below the
    level.

    Args:
        summary: Effects over the environments, [d, k].
        is_tested: Which features are tested, [d].
        level: Probability of any false alarm.
        least_effect: Smallest size of an effect that matters.
    """
    measured = is_tested[:, None] & (summary.environments > 1)
    sizes = (
        (summary.common.square() + least_effect**2)
        .sqrt()
        .clamp(max=DECISIVE * least_effect)
    )
    weights = torch.where(measured, sizes**POWER, 0.0)
    return level * weights / weights.sum().clamp(min=1e-300)
