"""Search for unstable features between environments, and set them aside."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_effects import (
    LEAST_ALIGNMENT,
    LEAST_EFFECT,
    LEAST_VALUE_EFFECT,
    combine_alignments,
    divide_by_common_factors,
    find_changed_effects,
    find_large_effects,
    measure_alignment_with_first,
    measure_effects,
)
from cirm.learners.steady.columns_glm import Posterior, fit_regression_to_moments
from cirm.learners.steady.columns_refuse import LEAST_SKILL, MOST_LEAK
from cirm.learners.steady.columns_residual import (
    compute_explained_fractions,
    compute_residual_direction,
)
from cirm.learners.steady.columns_state import (
    EnvironmentSummaries,
    State,
    append_entry,
    center_moments,
    find_basis_functions_of_features,
    list_ridge_groups,
)
from cirm.learners.steady.meta_analysis import combine_effects

MOST_OF_LEVEL = 0.8  # spent on features that can be separated from all others
DOUBT = 0.01  # part of the level at which a change is sure
MOST_TOGETHER = 3  # units that change together; more are another kind of environment


class Summary(NamedTuple):
    """What an environment adds to the state: a summary of it, and moments."""

    place: EnvironmentSummaries
    moments: Tensor


def summarise_environment(
    state: State, inputs: Tensor, targets: Tensor, is_value: bool
) -> Summary:
    """Return the means, effects and moments of an environment."""
    basis = state.basis.expand(inputs)
    d, p = len(state.unit), basis.shape[1]
    joint = torch.cat([basis, targets], 1)
    past = basis[:0, :d]
    if len(state.places.rows):
        past = center_moments(state)[:d, :d] / state.places.rows.sum()
    aims = targets[:, 1:] if targets.shape[1] == 2 else targets
    contrasts = measure_effects(basis[:, :d], aims, state.unit, past, is_value)
    rows = torch.tensor(float(len(inputs)), dtype=torch.float64)
    means = joint.mean(0)
    all_contrasts = append_entry(state.places.contrasts, contrasts)
    first = all_contrasts.slope[0] / all_contrasts.noise[0]
    alignment = measure_alignment_with_first(basis[:, :d], aims, first, state.unit)
    place = EnvironmentSummaries(rows, means[:p], means[p:], contrasts, *alignment)
    return Summary(place, joint.T @ joint)


def add_environment_summary(state: State, summary: Summary) -> State:
    """Add the summary of an environment to the state."""
    return state._replace(
        moments=state.moments + summary.moments,
        places=append_entry(state.places, summary.place),
    )


def search_unstable_features(
    state: State,
    summaries: list[Summary],
    level: float,
    named: Tensor,
    protected: Tensor,
    is_value: bool,
) -> tuple[State, Tensor]:
    """Test features between environments, and set aside those that are unstable.

    The k-th look at the data spends 6 / (pi k)^2 of the level, so that all looks
    together spend no more than the level. A feature that changes but shares much with
    others, given the target, is only remembered as `entangled`: without it the others
    would take over its part, and its own effect could not be told from theirs.

    Args:
        state: The state before the stage.
        summaries: Summaries of the environments of the stage.
        level: Probability of any false alarm over all looks.
        named: Features that are unstable by the user's word, [d].
        protected: Features that are stable by the user's word, [d].
        is_value: Whether this is a regression.

    Returns:
        The state, and which features [d] are unstable for sure: those found before, and
        for classes those that would be set aside at a hundredth of the level, too. In a
        regression that little else predicts, another noise of the target looks like
        another meaning.
    """
    after = state
    for summary in summaries:
        after = add_environment_summary(after, summary)
    unstable, entangled = (state.unstable | named) & ~protected, state.entangled
    sure = unstable
    looks, places = state.looks, after.places
    if len(places.rows) > 1:
        looks = looks + 1
        share = level * 6 / (math.pi * float(looks)) ** 2
        noise = (float(state.noise[0]) or 1.0) if is_value else 0.0
        known = protected | unstable | entangled
        if not is_value:
            sure = unstable | _test_features(after, known, DOUBT * share, noise)[0]
        found, shared = _test_features(after, known, share, noise)
        unstable, entangled = unstable | found, entangled | shared
    unstable = torch.isin(state.unit, state.unit[unstable]) & ~protected
    new = unstable & ~state.unstable
    state = state._replace(unstable=unstable, entangled=entangled, looks=looks)
    if bool(new.any()) and len(state.places.rows):
        state = (
            refit_regressions(state)
            if is_value
            else remove_features_from_stable_model(state, new)
        )
    return state, sure


def restore_features(state: State, sure: Tensor, is_value: bool) -> State:
    """Take features back into the stable model if it predicts nothing without them.

    That is so if, for the last environment on its arrival, it was at chance and the
    model of all features was not. Features that are unstable for sure [d] stay aside.
    """
    stable, whole = state.arrivals.skill[-1].tolist()
    back = state.unstable & ~torch.isin(state.unit, state.unit[sure])
    if not stable < LEAST_SKILL <= whole or not bool(back.any()):
        return state
    state = state._replace(
        unstable=state.unstable & ~back,
        entangled=state.entangled | back,
        stable=state.whole,
    )
    if is_value:
        return refit_regressions(state)
    return (
        remove_features_from_stable_model(state, state.unstable)
        if bool(state.unstable.any())
        else state
    )


def _test_features(
    state: State, known: Tensor, level: float, noise: float
) -> tuple[Tensor, Tensor]:
    """Return which features are unstable, and which are unstable but entangled.

    Most of the level is spent on features that can be separated from all others, the
    rest on all features, as a group of them may be separated from the rest.

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
    found = _find_changed_units(state, alone, MOST_OF_LEVEL * level, noise)
    every = _find_changed_units(state, tested, (1 - MOST_OF_LEVEL) * level, noise)
    group = found | every
    if len(state.unit[group & ~found].unique()) > MOST_TOGETHER:
        group = found
    rest = active & ~group & ~state.unstable
    for feature in (group & ~found & state.needed).nonzero()[:, 0].tolist():
        if compute_residual_direction(state, feature, rest)[1] > MOST_LEAK:
            group = group & (state.unit != state.unit[feature])
    return found | group, every & ~group & ~found


def _find_changed_units(
    state: State, tested: Tensor, level: float, noise: float
) -> Tensor:
    """Return which features [d] are of units that change enough to matter.

    With many classes the alignment of units is tested, otherwise effects. In a
    regression these must change by more than those of all other features do.
    """
    places = state.places
    if places.alignment.shape[2] > 1:
        leaders = torch.zeros_like(tested)
        leaders[state.unit[tested]] = True
        alignment = combine_alignments(places.alignment, places.alignment_variance)
        found = find_changed_effects(alignment, leaders, level, LEAST_ALIGNMENT)
        found = found & (alignment.spread > LEAST_ALIGNMENT)
    else:
        effects = places.contrasts.compute_effects()
        summary = combine_effects(*effects)
        least = LEAST_VALUE_EFFECT / noise**0.5 if noise > 0 else LEAST_EFFECT
        found = find_changed_effects(summary, tested, level, least)
        found = found & find_large_effects(summary, least)
        if noise > 0:
            relative = combine_effects(*divide_by_common_factors(*effects))
            found = found & find_changed_effects(relative, tested, level, least)
    return torch.isin(state.unit, state.unit[found.any(1)])


def remove_features_from_stable_model(state: State, new: Tensor) -> State:
    """Remove features [d] from the stable model of classes.

    If a model without the unit was kept, it is used. Other features are removed by the
    rule that holds if they are independent of the stable ones given the class and a
    linear combination: coefficient times regression on the stable features is added.
    """
    stable, without = state.stable, state.without
    active = state.basis.active
    rest = active & ~find_basis_functions_of_features(state, state.unstable)
    mean, ratio = stable.mean, 1.0
    for position, unit in enumerate(without.unit.tolist()):
        if float(without.ratio[position]) > 0 and bool(new[state.unit == unit].any()):
            mean, ratio = without.mean[position], float(without.ratio[position])
            break
    dropped = find_basis_functions_of_features(state, new) & active
    slopes = _regress_dropped_on_kept(state, dropped, rest)
    precision = stable.precision.clone()
    data = (precision - torch.diag(state.ridge)) * ratio
    keep = rest[:, None] & rest
    precision = torch.where(keep, data, 0.0) + torch.diag(state.ridge)
    means = torch.cat([mean[None], without.mean])
    added = torch.zeros_like(means)
    added[..., rest] = means[..., dropped] @ slopes
    # The constant takes over what the dropped features contribute on average.
    centre = state.places.rows @ state.places.inputs / state.places.rows.sum()
    added[..., -1] = means[..., dropped] @ (centre[dropped] - slopes @ centre[rest])
    means = torch.where(rest, means + added, 0.0)
    gone = torch.isin(without.unit, state.unit[new])
    return state._replace(
        stable=Posterior(means[0], precision),
        without=without._replace(
            mean=means[1:], ratio=torch.where(gone, 0.0, without.ratio)
        ),
    )


def _regress_dropped_on_kept(state: State, dropped: Tensor, rest: Tensor) -> Tensor:
    """Return slopes of dropped basis functions on others given the targets."""
    p = len(state.ridge)
    moments = center_moments(state)
    others = torch.cat([rest.nonzero()[:, 0], torch.arange(p, len(moments))])
    gram = moments[others[:, None], others]
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-9)
    gram = gram + ridge * torch.eye(len(others), dtype=gram.dtype)
    cross = moments[others][:, dropped.nonzero()[:, 0]]
    slopes = torch.linalg.solve(gram, cross)[: int(rest.sum())].T
    slopes[:, -1] = 0.0  # of the constant, which does not vary
    return slopes


def refit_regressions(state: State) -> State:
    """Fit the regressions with and without unstable features to the moments."""
    active, groups = state.basis.active, list_ridge_groups(state)
    rows = int(state.places.rows.sum())
    if not rows:
        return state
    whole, noise = fit_regression_to_moments(state.moments, active, groups, rows)
    stable, rest = whole, noise
    if bool(state.unstable.any()):
        used = active & ~find_basis_functions_of_features(state, state.unstable)
        stable, rest = fit_regression_to_moments(state.moments, used, groups, rows)
    noises = torch.tensor([noise, rest], dtype=torch.float64)
    return state._replace(whole=whole, stable=stable, noise=noises)
