"""Search for unstable features between environments, and set them aside."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import ROWS_AT_ONCE
from cirm.learners.steady.columns_changes import (
    compute_share_of_significance_level,
    find_unstable_features,
)
from cirm.learners.steady.columns_effects import (
    EffectEstimates,
    compute_standardised_ranks,
    measure_alignment_with_first_effects,
    measure_feature_effects,
    measure_partial_coefficients,
)
from cirm.learners.steady.columns_glm import (
    CoefficientPosterior,
    fit_regression_to_moments,
)
from cirm.learners.steady.columns_products import CentredMoments
from cirm.learners.steady.columns_scores import (
    build_matrix_of_score_weights,
    compute_block_scores,
    cross_fit_block_scores,
)
from cirm.learners.steady.columns_state import (
    EnvironmentSummaries,
    SteadyTableState,
    append_row_to_tensors,
    center_moments,
    find_basis_functions_of_features,
    list_ridge_group_of_basis_functions,
)
from cirm.learners.steady.meta_analysis import UNKNOWN

SCORE_TABLES = {"cluster_effects": 2, "coefficients": 2, "score_effects": 4}  # columns


class EnvironmentStateUpdate(NamedTuple):
    """What an environment adds to the state: a summary of it, and moments."""

    place: EnvironmentSummaries
    moments: Tensor


def summarise_environment(
    state: SteadyTableState, inputs: Tensor, targets: Tensor, is_regression: bool
) -> EnvironmentStateUpdate:
    """Return the means, effects and moments of an environment."""
    d, p = len(state.unit), len(state.ridge)
    moments, means = _sum_products_of_basis_and_targets(state, inputs, targets)
    features = state.basis.standardise(inputs)
    aims = targets[:, 1:] if targets.shape[1] == 2 else targets
    products = _list_products_to_adjust_for(state, aims.shape[1])
    given, past = features, features[:0]
    if len(products):
        given = torch.cat([features, state.basis.expand(inputs, products)], 1)
    if len(state.places.rows):
        used = torch.cat([torch.arange(d), products])
        past = center_moments(state)[used[:, None], used] / state.places.rows.sum()
    contrasts = _measure_effects_given_products(
        given, aims, state.unit, past, is_regression, _find_simple_features(state)
    )
    rows = torch.tensor(float(len(inputs)), dtype=torch.float64)
    alignment = contrasts.slope * 0.0, torch.full_like(contrasts.variance, UNKNOWN)
    # The second number is a variance.
    unknown = features.new_tensor([0.0, UNKNOWN, 1.0, 1.0])
    tables = {name: unknown[:n].repeat(d, 1) for name, n in SCORE_TABLES.items()}
    if aims.shape[1] > 1:
        all_contrasts = append_row_to_tensors(state.places.contrasts, contrasts)
        first = all_contrasts.slope[0] / all_contrasts.noise[0]
        alignment = measure_alignment_with_first_effects(
            features, aims, first, state.unit
        )
    elif state.weights.shape[1]:
        tables |= _measure_effects_of_scores(state, inputs, aims[:, 0], is_regression)
    tables = {
        name: tables[name][: getattr(state.places, name).shape[1]]
        for name in SCORE_TABLES
    }
    place = EnvironmentSummaries(
        rows, means[:p], means[p:], contrasts, *alignment, **tables
    )
    return EnvironmentStateUpdate(place, moments)


def _measure_effects_of_scores(
    state: SteadyTableState, inputs: Tensor, target: Tensor, is_regression: bool
) -> dict[str, Tensor]:
    """Return what the scores of units and clusters say in an environment, by name.

    In a regression they are compared with the ranks of the target.
    """
    aims = compute_standardised_ranks(target) if is_regression else target
    d, q = len(state.unit), state.weights.shape[1]
    is_first = not len(state.places.rows)
    found = {}
    blocks = {"score_effects": state.unit}
    if not torch.equal(state.cluster, state.unit):
        blocks["cluster_effects"] = state.cluster
    products = _list_products_to_adjust_for(state, 1)
    values = state.basis.expand(inputs, products)
    is_simple = _find_simple_features(state) | ~state.needed
    for (name, block), weights in zip(blocks.items(), state.weights, strict=False):
        if is_first:
            scores = cross_fit_block_scores(state.basis, inputs, aims, weights, block)
            past = inputs[:0, :d]
        else:
            scores = compute_block_scores(state.basis, inputs, weights, block)
            matrix = inputs.new_zeros(len(state.ridge), d + len(products))
            matrix[:q, :d] = build_matrix_of_score_weights(weights, block)
            matrix[products, torch.arange(d, d + len(products))] = 1.0
            moments = center_moments(state)[: len(matrix), : len(matrix)]
            past = matrix.T @ moments @ matrix / state.places.rows.sum()
        scores = torch.cat([scores, values], 1)
        simple = ~torch.isin(block, block[~is_simple]) & (name == "score_effects")
        contrasts = _measure_effects_given_products(
            scores, aims[:, None], block, past, is_regression, simple
        )
        if name == "cluster_effects":
            effect = contrasts.slope / contrasts.noise
            variance = contrasts.variance / contrasts.noise.square()
            variance = variance + effect.square() * contrasts.noise_variance
            found[name] = torch.cat([effect, variance.clamp(max=UNKNOWN)], 1)
            continue
        found[name] = torch.cat(list(contrasts), 1)
        if is_regression:
            found["coefficients"] = measure_partial_coefficients(
                scores, target, _give_products_units(block, len(products)), past
            )[:d]
    return found


def _list_products_to_adjust_for(state: SteadyTableState, outputs: int) -> Tensor:
    """Return the indices of products among the basis functions; none if many classes.

    If what a column says depends on another one, its effect moves with the mean of the
    other one from place to place. Given their product it is the effect at the mean of
    the first environment, everywhere.
    """
    used = (state.basis.factors > 0).nonzero()[:, 0] if outputs == 1 else state.unit[:0]
    return len(state.ridge) - 1 - len(state.basis.factors) + used


def _find_simple_features(state: SteadyTableState) -> Tensor:
    """Return which features [d] need no adjustment, as they are in no product."""
    simple = state.simple.clone()
    simple[state.basis.pairs[state.basis.factors > 0].flatten()] = False
    return simple


def _give_products_units(unit_of_feature: Tensor, count: int) -> Tensor:
    """Return the units of features [d], followed by one for each product."""
    return torch.cat([unit_of_feature, len(unit_of_feature) + torch.arange(count)])


def _measure_effects_given_products(
    features: Tensor,
    targets: Tensor,
    unit_of_feature: Tensor,
    past_covariance: Tensor,
    is_regression: bool,
    needs_no_adjustment: Tensor,
) -> EffectEstimates:
    """Measure the effects of features [n, d + m], the last of which are products."""
    d = len(unit_of_feature)
    m = features.shape[1] - d
    contrasts = measure_feature_effects(
        features,
        targets,
        _give_products_units(unit_of_feature, m),
        past_covariance,
        is_regression,
        torch.cat([needs_no_adjustment, needs_no_adjustment.new_zeros(m)]),
    )
    return EffectEstimates(*(part[:d] for part in contrasts))


def _sum_products_of_basis_and_targets(
    state: SteadyTableState, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sums of products, and means, of basis functions and targets."""
    q = len(state.ridge) + targets.shape[1]
    products, sums = inputs.new_zeros(q, q), inputs.new_zeros(q)
    for x, y in zip(
        inputs.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True
    ):
        joint = torch.cat([state.basis.expand(x), y], 1)
        products.addmm_(joint.T, joint)
        sums += joint.sum(0)
    return products, sums / len(inputs)


def append_environment_summary_to_state(
    state: SteadyTableState, summary: EnvironmentStateUpdate
) -> SteadyTableState:
    """Add the summary of an environment to the state."""
    return state._replace(
        moments=state.moments + summary.moments,
        places=append_row_to_tensors(state.places, summary.place),
    )


def center_environment_moments(summary: EnvironmentStateUpdate) -> CentredMoments:
    """Return the moments of an environment around its own means."""
    place = summary.place
    means = torch.cat([place.inputs, place.targets])
    rows = float(place.rows)
    return CentredMoments(summary.moments - rows * torch.outer(means, means), rows)


def find_and_set_aside_unstable_features(
    state: SteadyTableState,
    summaries: list[EnvironmentStateUpdate],
    level: float,
    is_named_unstable: Tensor,
    is_named_stable: Tensor,
    is_regression: bool,
) -> SteadyTableState:
    """Test features between environments, and set aside those that are unstable.

    Each look at the data spends its share of the level. A feature that changes but
    shares much with others, given the target, is only remembered as `entangled`:
    without it the others would take over its part, and its own effect could not be told
    from theirs.

    Args:
        state: The state before the stage.
        summaries: Summaries of the environments of the stage.
        level: Probability of any false alarm over all looks.
        is_named_unstable: Features that are unstable by the user's word, [d].
        is_named_stable: Features that are stable by the user's word, [d].
        is_regression: Whether this is a regression.
    """
    after = state
    for summary in summaries:
        after = append_environment_summary_to_state(after, summary)
    unstable, entangled = (
        (state.unstable | is_named_unstable) & ~is_named_stable,
        state.entangled,
    )
    looks, places = state.looks, after.places
    if len(places.rows) > 1:
        looks = looks + 1
        share = level * compute_share_of_significance_level(int(looks))
        noise = 0.0
        if is_regression:
            noise = _compute_unexplained_fraction(state, after, summaries)
        known = is_named_stable | unstable | entangled
        found, shared = find_unstable_features(after, known, share, noise)
        unstable, entangled = unstable | found, entangled | shared
    unstable = torch.isin(state.unit, state.unit[unstable]) & ~is_named_stable
    new = unstable & ~state.unstable
    state = state._replace(unstable=unstable & ~new, entangled=entangled, looks=looks)
    return set_features_aside(state, new, is_regression)


def set_features_aside(
    state: SteadyTableState, is_set_aside: Tensor, is_regression: bool
) -> SteadyTableState:
    """Return the state in which features [d] are unstable, too."""
    state = state._replace(unstable=state.unstable | is_set_aside)
    if not bool(is_set_aside.any()) or not len(state.places.rows):
        return state
    if is_regression:
        return refit_stable_and_full_regressions(state)
    return remove_features_from_stable_model(state, is_set_aside)


def _compute_unexplained_fraction(
    state: SteadyTableState,
    after: SteadyTableState,
    summaries: list[EnvironmentStateUpdate],
) -> float:
    """Return the noise of a regression over the variance of its target.

    The noise is that of the environments before the stage. In the first stage it is the
    mean of the noise in each of its environments, which a change between them does not
    raise.
    """
    noise = state.noise[0]
    if not len(state.places.rows):
        own = [append_environment_summary_to_state(state, one) for one in summaries]
        noises = [refit_stable_and_full_regressions(one).noise[0] for one in own]
        noise = torch.stack(noises) @ (after.places.rows / after.places.rows.sum())
    variance = center_moments(after)[-1, -1] / after.places.rows.sum()
    return float(noise / variance.clamp(min=1e-12)) or 1.0


def remove_features_from_stable_model(
    state: SteadyTableState, is_removed: Tensor
) -> SteadyTableState:
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
        if float(without.ratio[position]) > 0 and bool(
            is_removed[state.unit == unit].any()
        ):
            mean, ratio = without.mean[position], float(without.ratio[position])
            break
    dropped = find_basis_functions_of_features(state, is_removed) & active
    slopes = _regress_dropped_functions_on_kept(state, dropped, rest)
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
    gone = torch.isin(without.unit, state.unit[is_removed])
    return state._replace(
        stable=CoefficientPosterior(means[0], precision),
        without=without._replace(
            mean=means[1:], ratio=torch.where(gone, 0.0, without.ratio)
        ),
    )


def _regress_dropped_functions_on_kept(
    state: SteadyTableState, is_dropped: Tensor, is_kept: Tensor
) -> Tensor:
    """Return slopes of dropped basis functions on others given the targets."""
    p = len(state.ridge)
    moments = center_moments(state)
    others = torch.cat([is_kept.nonzero()[:, 0], torch.arange(p, len(moments))])
    gram = moments[others[:, None], others]
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-9)
    gram = gram + ridge * torch.eye(len(others), dtype=gram.dtype)
    cross = moments[others][:, is_dropped.nonzero()[:, 0]]
    slopes = torch.linalg.solve(gram, cross)[: int(is_kept.sum())].T
    slopes[:, -1] = 0.0  # of the constant, which does not vary
    return slopes


def refit_stable_and_full_regressions(state: SteadyTableState) -> SteadyTableState:
    """Fit the regressions with and without unstable features to the moments."""
    active, groups = state.basis.active, list_ridge_group_of_basis_functions(state)
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
