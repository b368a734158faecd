"""Learn from the labelled environments of a stage, for one replica."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import (
    HingeFeatureBasis,
    choose_products_of_features,
    fit_feature_basis,
    group_features_by_column,
)
from cirm.learners.steady.columns_blocks import group_correlated_columns_into_clusters
from cirm.learners.steady.columns_effects import (
    compute_standardised_ranks,
    find_features_needing_no_adjustment,
)
from cirm.learners.steady.columns_glm import (
    CoefficientPosterior,
    choose_ridge_penalties,
    compute_class_probabilities,
    fit_classifier,
    fit_regression_to_moments,
)
from cirm.learners.steady.columns_predict import (
    draw_coefficients,
    draw_intercept_differences,
    measure_intercept_spread,
    predict_calibration_slope,
)
from cirm.learners.steady.columns_scores import learn_weights_of_block_scores
from cirm.learners.steady.columns_search import (
    EnvironmentStateUpdate,
    append_environment_summary_to_state,
    refit_stable_and_full_regressions,
    remove_features_from_stable_model,
)
from cirm.learners.steady.columns_state import (
    CoefficientSamples,
    ModelsWithoutOneColumn,
    SteadyTableState,
    compute_mean_targets_of_past,
    create_empty_columns_state,
    find_basis_functions_of_features,
    list_ridge_group_of_basis_functions,
)
from cirm.learners.steady.meta_analysis import (
    EffectMetaAnalysis,
    combine_effects_of_environments,
)

PAIR_ROWS = 20_000  # rows that choose products and ridge
KEPT = 8  # units without which a model is kept: those that matter most
KEPT_ROWS = 5_000  # rows that such a model is fitted to: a start, if it is ever needed


def create_state_from_first_environment(
    inputs: Tensor, targets: Tensor, widths: tuple[int, ...], is_regression: bool
) -> SteadyTableState:
    """Return the state whose basis, units and ridge fit the first environment."""
    classes = targets.shape[1]
    outputs = 1 if classes == 2 else classes
    basis = fit_feature_basis(inputs, outputs)
    features = basis.standardise(inputs)
    column, unit, needed = group_features_by_column(features, widths)
    cluster = group_correlated_columns_into_clusters(features, targets, unit)
    simple = find_features_needing_no_adjustment(
        features, select_target_columns_of_model(targets), unit
    )
    d, p = len(unit), len(basis.active)
    kept = 0 if is_regression else min(KEPT, d)
    state = create_empty_columns_state(
        d, p, outputs, classes, kept, len(basis.knots), len(basis.pairs)
    )
    state = state._replace(
        basis=basis,
        column=column,
        unit=unit,
        cluster=cluster,
        simple=simple,
        needed=needed,
    )
    if outputs == 1:
        aim = select_target_columns_of_model(targets)[:, 0]
        aim = compute_standardised_ranks(aim) if is_regression else aim
        state = _learn_weights_of_block_scores(state, inputs, aim)
    ridge = torch.ones(p, dtype=torch.float64)
    if is_regression or has_more_than_one_class(targets):
        rows = slice(None, None, -(-len(inputs) // PAIR_ROWS))
        state, ridge = _add_products_to_basis(
            state, inputs[rows], targets[rows], is_regression
        )
    prior = CoefficientPosterior(
        state.whole.mean, torch.diag(ridge).repeat(outputs, 1, 1)
    )
    return state._replace(ridge=ridge, whole=prior, stable=prior)


def _learn_weights_of_block_scores(
    state: SteadyTableState, inputs: Tensor, target: Tensor
) -> SteadyTableState:
    """Return the state with the weights of the scores of units and clusters."""
    units = clusters = learn_weights_of_block_scores(
        state.basis, inputs, target, state.unit
    )
    if not torch.equal(state.cluster, state.unit):
        clusters = learn_weights_of_block_scores(
            state.basis, inputs, target, state.cluster
        )
    return state._replace(weights=torch.stack([units, clusters]))


def _add_products_to_basis(
    state: SteadyTableState, inputs: Tensor, targets: Tensor, is_regression: bool
) -> tuple[SteadyTableState, Tensor]:
    """Return the state with products of features, and the ridge [p]."""
    model, ridge = _fit_first_environment(state, inputs, targets, is_regression)
    outputs = state.basis.expand(inputs) @ model.T
    residuals = targets - outputs
    if not is_regression:
        aims = select_target_columns_of_model(targets)
        residuals = aims - compute_class_probabilities(outputs)
    features = state.basis.standardise(inputs)
    basis = choose_products_of_features(state.basis, state.unit, features, residuals)
    if not bool((basis.factors > 0).any()):
        return state, ridge
    state = state._replace(basis=basis)
    return state, _fit_first_environment(state, inputs, targets, is_regression)[1]


def _fit_first_environment(
    state: SteadyTableState, inputs: Tensor, targets: Tensor, is_regression: bool
) -> tuple[Tensor, Tensor]:
    """Return the coefficients [k, p] and the ridge [p] of the first environment."""
    basis, active = state.basis.expand(inputs), state.basis.active
    groups, ridge = (
        list_ridge_group_of_basis_functions(state),
        torch.ones_like(state.ridge),
    )
    if is_regression:
        joint = torch.cat([basis, targets], 1)
        model, _ = fit_regression_to_moments(
            joint.T @ joint, active, groups, len(inputs)
        )
        return model.mean, ridge
    targets = select_target_columns_of_model(targets)
    ridge[active] = choose_ridge_penalties(basis[:, active], targets, groups[active])
    zero = torch.zeros_like(state.whole.mean)
    prior = CoefficientPosterior(zero, torch.diag(ridge).expand(len(zero), -1, -1))
    model = _update_posterior(prior, state.basis, inputs, targets, active)
    return model.mean, ridge


def has_more_than_one_class(targets: Tensor) -> bool:
    """Return whether more than one class occurs in targets [n, classes]."""
    return int((targets.sum(0) > 0).sum()) > 1


def select_target_columns_of_model(targets: Tensor) -> Tensor:
    """Return the columns of targets that the model has outputs for."""
    return targets[:, 1:] if targets.shape[1] == 2 else targets


def summarise_effects_over_environments(state: SteadyTableState) -> EffectMetaAnalysis:
    """Summarise the effects [d, k] over the environments seen."""
    return combine_effects_of_environments(
        *state.places.contrasts.compute_effects_and_variances()
    )


def update_state_with_environment(
    state: SteadyTableState,
    inputs: Tensor,
    targets: Tensor,
    summary: EnvironmentStateUpdate,
    is_regression: bool,
) -> SteadyTableState:
    """Return the state after learning from one environment."""
    if not is_regression and has_more_than_one_class(targets):
        state = _update_classification_state(
            state, inputs, select_target_columns_of_model(targets)
        )
    state = append_environment_summary_to_state(state, summary)
    return refit_stable_and_full_regressions(state) if is_regression else state


def _update_classification_state(
    state: SteadyTableState, inputs: Tensor, targets: Tensor
) -> SteadyTableState:
    active = state.basis.active
    whole = _update_posterior(state.whole, state.basis, inputs, targets, active)
    rest = active & ~find_basis_functions_of_features(state, state.unstable)
    stable = whole
    if bool(state.unstable.any()):
        stable = _update_posterior(state.stable, state.basis, inputs, targets, rest)
    without = state.without
    if not bool((without.ratio > 0).any()) and not len(state.places.rows):
        without = _choose_columns_to_leave_out(state, stable)
    stride = -(-len(inputs) // KEPT_ROWS)
    inputs, targets = inputs[::stride], targets[::stride]
    means, ratios = without.mean.clone(), without.ratio.clone()
    for position, unit in enumerate(without.unit.tolist()):
        if float(ratios[position]) == 0:
            continue
        used = rest & ~find_basis_functions_of_features(state, state.unit == unit)
        prior = CoefficientPosterior(means[position], state.stable.precision)
        left = _update_posterior(prior, state.basis, inputs, targets, used, stable.mean)
        gained = [
            (model.precision - state.stable.precision).diagonal(dim1=1, dim2=2)[:, used]
            for model in (left, stable)
        ]
        means[position] = left.mean
        ratio = stride * gained[0].sum() / gained[1].sum().clamp(min=1e-9)
        ratios[position] = ratio.clamp(1.0, 10.0)
    return state._replace(
        whole=whole, stable=stable, without=without._replace(mean=means, ratio=ratios)
    )


def _choose_columns_to_leave_out(
    state: SteadyTableState, model: CoefficientPosterior
) -> ModelsWithoutOneColumn:
    """Choose the units whose removal changes the model of the first place most."""
    impacts = {}
    for unit in state.unit[state.needed & ~state.unstable].unique().tolist():
        own = (
            find_basis_functions_of_features(state, state.unit == unit)
            & state.basis.active
        )
        mean = model.mean[:, own]
        precision = model.precision[:, own][:, :, own]
        impacts[unit] = float((mean * (precision @ mean[..., None])[..., 0]).sum())
    best = sorted(impacts, key=lambda unit: -impacts[unit])[: len(state.without.unit)]
    unit, ratio = state.without.unit.clone(), state.without.ratio.clone()
    unit[: len(best)] = torch.tensor(best, dtype=torch.int64)
    ratio[: len(best)] = 1.0
    return ModelsWithoutOneColumn(unit, torch.zeros_like(state.without.mean), ratio)


def _update_posterior(
    prior: CoefficientPosterior,
    basis: HingeFeatureBasis,
    inputs: Tensor,
    targets: Tensor,
    is_used: Tensor,
    initial_coefficients: Tensor | None = None,
) -> CoefficientPosterior:
    """Return the posterior after an environment, of the basis functions used."""
    index = is_used.nonzero()[:, 0]
    small = CoefficientPosterior(
        prior.mean[:, index], prior.precision[:, index[:, None], index]
    )
    near = None if initial_coefficients is None else initial_coefficients[:, index]
    found, information = fit_classifier(
        basis.expand(inputs, index), targets, small, near
    )
    mean, precision = torch.zeros_like(prior.mean), prior.precision.clone()
    mean[:, index] = found
    precision[:, index[:, None], index] = small.precision + information
    return CoefficientPosterior(mean, precision)


def draw_coefficients_of_stable_model(
    state: SteadyTableState, normal_draws: Tensor
) -> CoefficientSamples:
    """Draw samples of the stable model for a new environment."""
    used = state.basis.active & ~find_basis_functions_of_features(state, state.unstable)
    return _draw_coefficients_of_model(
        state, state.stable, used, float(state.noise[1]), normal_draws
    )


def draw_coefficients_of_trusted_model(
    state: SteadyTableState, trust: str, normal_draws: Tensor
) -> CoefficientSamples:
    """Draw samples of the model that a kind of trust asks for.

    Under "interval" a unit is used if the prediction interval of its effect in a new
    environment, for one of its features and outputs, excludes zero.
    """
    aside = torch.zeros_like(state.unstable)
    if trust == "invariant":
        aside = state.unstable
    elif trust == "interval":
        summary = summarise_effects_over_environments(state)
        low, high = summary.compute_prediction_interval()
        clear = ((low > 0) | (high < 0)) & (summary.environments > 1)
        clear = state.needed & clear.any(1)
        aside = state.unstable & ~torch.isin(state.unit, state.unit[clear])
    if bool((aside == state.unstable).all()):
        return draw_coefficients_of_stable_model(state, normal_draws)
    if not bool(aside.any()):
        noise = float(state.noise[0])
        return _draw_coefficients_of_model(
            state, state.whole, state.basis.active, noise, normal_draws
        )
    partly = state._replace(unstable=aside, stable=state.whole)
    is_regression = float(state.noise[0]) > 0
    partly = (
        refit_stable_and_full_regressions(partly)
        if is_regression
        else remove_features_from_stable_model(partly, aside)
    )
    return draw_coefficients_of_stable_model(partly, normal_draws)


def _draw_coefficients_of_model(
    state: SteadyTableState,
    model: CoefficientPosterior,
    is_used: Tensor,
    noise: float,
    normal_draws: Tensor,
) -> CoefficientSamples:
    """Draw samples of a model; for a regression, half of them straight.

    Outside of the range of the inputs seen so far, curved and straight regressions can
    differ by any amount, and either may be right. Their average is safer than both.
    """
    half = len(normal_draws) // 2
    groups = list_ridge_group_of_basis_functions(state)
    if noise > 0 and len(state.basis.knots):
        straight = is_used & ((groups == 0) | (groups == 3))
        rows = int(state.places.rows.sum())
        plain, _ = fit_regression_to_moments(state.moments, straight, groups, rows)
        pieces = [
            draw_coefficients(model, is_used, normal_draws[:half]),
            draw_coefficients(plain, straight, normal_draws[half:]),
        ]
    else:
        pieces = [draw_coefficients(model, is_used, normal_draws)]
    levels = draw_intercept_differences(measure_intercept_spread(state.arrivals, noise))
    slope = predict_calibration_slope(state.arrivals)
    centre = _compute_intercept_only_outputs(state, noise > 0)
    return CoefficientSamples(slope * torch.cat(pieces), levels + (1 - slope) * centre)


def _compute_intercept_only_outputs(
    state: SteadyTableState, is_regression: bool
) -> Tensor:
    """Return the outputs [k] of a model that knows no more than the targets' means."""
    means = compute_mean_targets_of_past(state)
    if is_regression:
        return means
    logs = means.clamp(min=1e-3).log()
    return logs[1:] - logs[:1] if len(logs) == 2 else logs - logs.mean()
