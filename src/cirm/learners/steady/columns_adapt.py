"""Adapt the stable model to unlabelled rows of a new environment.

What unstable features say there is estimated by `columns_posterior`. The prior is the
distribution of the effect over the environments seen, with wide tails. Predictions are
averaged over the posterior. All evidence is linear in the basis, so that the adapted
model is again a predictor of single rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cirm.learners.steady.columns_frequencies import (
    compute_shifted_class_frequencies,
    estimate_confirmed_intercept_shifts,
)
from cirm.learners.steady.columns_posterior import (
    build_effect_prior,
    convert_effects_to_logits,
    estimate_category_frequencies_by_class,
    estimate_effect_on_log_odds,
    estimate_slope_on_numerical_target,
)
from cirm.learners.steady.columns_predict import (
    compute_outputs_of_predictor,
    compute_spread_beyond_noise,
)
from cirm.learners.steady.columns_residual import compute_residual_of_feature_on_others
from cirm.learners.steady.columns_state import (
    SAMPLES,
    CoefficientSamples,
    SteadyTableState,
    compute_class_frequencies_of_model,
)
from cirm.learners.steady.meta_analysis import UNKNOWN, EffectMetaAnalysis

LEAST_SUPPORT = 1.0  # gain of log likelihood that one more free number must have (AIC)
COPY = (
    0.1  # part of a feature that those adapted before leave, below which it is a copy
)
MOST_ROWS = 5_000  # rows used of a larger environment: enough for two digits


def sort_rows_and_limit_their_number(basis: Tensor, row_scores: Tensor) -> Tensor:
    """Return rows in an order that is theirs: at most `MOST_ROWS`, by a score [n]."""
    ties = basis @ torch.linspace(1, 2, basis.shape[1], dtype=basis.dtype)
    order = torch.from_numpy(np.lexsort((ties.numpy(), row_scores.numpy())))
    return order[:: -(-len(order) // MOST_ROWS)]


class ModelWithAddedEvidence(NamedTuple):
    """The model with the evidence added so far.

    Attributes:
        predictor: Samples of its coefficients and intercepts.
        outputs: Its mean logits or predictions for the rows, [n, k].
        variance: Remaining variance of the target; 0 for classes.
        effects: Median, 2.5 and 97.5 % points of the effects, [3, d, k].
        unclear: Features whose effect may as well be zero, and is not used, [d].
        frequencies: Class frequencies; 0 if they were not adapted, [c].
    """

    predictor: CoefficientSamples
    outputs: Tensor
    variance: float
    effects: Tensor
    unclear: Tensor
    frequencies: Tensor


def add_evidence_of_unstable_features(
    state: SteadyTableState,
    basis: Tensor,
    summary: EffectMetaAnalysis,
    adapted_features: list[int],
    trust: str,
    has_frequencies: bool = False,
    min_support: float = LEAST_SUPPORT,
) -> ModelWithAddedEvidence:
    """Add the evidence of unstable features, as the rows show it, to the stable model.

    Args:
        state: The state of one replica.
        basis: Basis functions of the unlabelled rows, [n, p].
        summary: Effects over the environments seen.
        adapted_features: The features to adapt.
        trust: The learner's setting, which decides the prior.
        has_frequencies: Whether to adapt the class frequencies.
        min_support: Gain of log likelihood below which a feature is not adapted.
    """
    outputs = compute_outputs_of_predictor(state.base, basis).mean(0)
    rows = sort_rows_and_limit_their_number(basis, outputs[:, 0])
    basis = basis[rows]
    given = state.basis.scale.gt(0) & ~state.unstable
    done = torch.zeros_like(given)
    adapted = ModelWithAddedEvidence(
        state.base,
        outputs[rows],
        float(state.noise[1]),
        torch.zeros(3, *summary.mean.shape, dtype=torch.float64),
        torch.zeros_like(given),
        torch.zeros(state.places.targets.shape[1], dtype=torch.float64),
    )
    if has_frequencies:
        adapted = _adapt_intercepts_to_class_frequencies(adapted, state)
    for turn, feature in enumerate(adapted_features):
        members = (state.unit == state.unit[feature]) & state.basis.scale.gt(0)
        if bool(done[feature]):
            continue
        before = adapted
        if adapted.variance == 0 and _are_categories_of_one_column(
            state, basis, members
        ):
            adapted = _add_log_odds_of_categories(adapted, state, basis, members)
            done = done | members
            continue
        direction, _ = compute_residual_of_feature_on_others(
            state, feature, given | done
        )
        values = basis @ direction
        done[feature] = True
        own = float(basis[:, feature].std(correction=0))
        if float(values.std(correction=0)) < max(1e-6, COPY * own):
            continue
        order = (torch.arange(SAMPLES) * (2 * turn + 1) + turn) % SAMPLES
        add = (
            _add_numeric_feature_to_regression
            if adapted.variance > 0
            else _add_numeric_feature_to_classifier
        )
        adapted, support = add(
            adapted, summary, feature, direction, values, order, trust
        )
        if support < min_support:
            unclear = before.unclear.clone()
            unclear[feature] = True
            adapted = before._replace(effects=adapted.effects, unclear=unclear)
    return adapted


def compute_relative_size_of_residuals(
    before: SteadyTableState, state: SteadyTableState, variance: float
) -> Tensor:
    """Return the size of residuals relative to those before an adaptation, [].

    By the model it follows from the remaining variance. If residuals were larger than
    the model expected on the arrival of earlier environments, they are here, too. If
    features were set aside because of the rows, residuals may be larger than before.

    Args:
        before: The state before the adaptation.
        state: The state in which further features may be set aside.
        variance: Remaining variance of the target; 0 for classes.
    """
    noise = float(state.noise[1])
    if noise > float(before.noise[1]):
        ratio = torch.tensor(variance / float(before.noise[1]), dtype=torch.float64)
        return ratio.clamp(min=1.0).sqrt()
    tried = state.arrivals.errors.isfinite().any(1)
    if not 0 < variance < noise or not bool(tried.any()):
        return torch.ones((), dtype=torch.float64)
    losses = state.arrivals.losses[tried]
    contrasts = state.places.contrasts
    chosen = state.unstable & state.needed
    evidence = contrasts.slope.square() / contrasts.noise
    evidence = torch.where(contrasts.variance < UNKNOWN, evidence, 0.0)
    # The place of the first arrival is the second one.
    expected = 1 / (1 + noise * evidence[1:][tried][:, chosen].sum((1, 2)))
    shortfall = losses[:, 3].sum() / (losses[:, 0] @ expected).clamp(min=1e-300)
    return (shortfall.clamp(min=1.0) * variance / noise).clamp(max=1.0).sqrt()


def _adapt_intercepts_to_class_frequencies(
    adapted: ModelWithAddedEvidence, state: SteadyTableState
) -> ModelWithAddedEvidence:
    """Replace the intercepts by those that the rows show."""
    usual = compute_class_frequencies_of_model(state)
    arrivals = state.arrivals
    misses, variances = arrivals.frequency_misses, arrivals.shift_variances
    shifts = estimate_confirmed_intercept_shifts(
        adapted.outputs,
        usual,
        compute_spread_beyond_noise(arrivals.shifts, variances),
        compute_spread_beyond_noise(misses, variances[len(variances) - len(misses) :]),
    )
    levels = adapted.predictor.levels.mean(0) + shifts.samples
    return adapted._replace(
        predictor=adapted.predictor._replace(levels=levels),
        outputs=adapted.outputs + shifts.mean,
        frequencies=compute_shifted_class_frequencies(shifts.mean, usual),
    )


def _add_numeric_feature_to_classifier(
    adapted: ModelWithAddedEvidence,
    summary: EffectMetaAnalysis,
    feature: int,
    direction: Tensor,
    feature_values: Tensor,
    row_order: Tensor,
    trust: str,
) -> tuple[ModelWithAddedEvidence, float]:
    """Add what a numeric feature says about the classes, one class at a time."""
    coefficients, levels = (part.clone() for part in adapted.predictor)
    effects, steps, support = adapted.effects.clone(), [], -math.inf
    soft = compute_clipped_probabilities(adapted.outputs)
    outputs = soft.shape[1]
    for output in range(outputs):
        own = soft[:, output]
        prior = build_effect_prior(summary, feature, output, trust)
        found = estimate_effect_on_log_odds(own, feature_values, prior)
        support = max(support, found.support)
        effects[:, feature, output] = torch.tensor(found[1:4])
        slope, level = convert_effects_to_logits(
            found.samples[row_order], feature_values, float(own.mean()), outputs
        )
        coefficients[:, output] += slope[:, None] * direction
        levels[:, output] += level
        steps.append(slope[:, None] * feature_values + level[:, None])
    logits = average_probabilities_over_samples(
        adapted.outputs + torch.stack(steps, -1)
    )
    predictor = CoefficientSamples(coefficients, levels)
    added = adapted._replace(predictor=predictor, outputs=logits, effects=effects)
    return added, support


def _add_numeric_feature_to_regression(
    adapted: ModelWithAddedEvidence,
    summary: EffectMetaAnalysis,
    feature: int,
    direction: Tensor,
    feature_values: Tensor,
    row_order: Tensor,
    trust: str,
) -> tuple[ModelWithAddedEvidence, float]:
    """Add the evidence of a number for the value of a regression.

    E[y | s, u] = f(s) + gain (u - slope f(s) - constant), with the gain that weighs
    both sources by their precisions.
    """
    prediction, variance = adapted.outputs[:, 0], adapted.variance
    prior = build_effect_prior(summary, feature, 0, trust)
    found, slopes, total = estimate_slope_on_numerical_target(
        prediction, feature_values, variance, prior
    )
    slopes = slopes[row_order]
    gains = slopes * variance / total
    kept = 1 - gains * slopes
    coefficients = kept[:, None, None] * adapted.predictor.coefficients
    coefficients = coefficients + gains[:, None, None] * direction
    centre = (1 - kept) * prediction.mean() - gains * feature_values.mean()
    levels = kept[:, None] * adapted.predictor.levels + centre[:, None]
    step = gains.mean() * (feature_values - feature_values.mean())
    step = step - (1 - kept.mean()) * (prediction - prediction.mean())
    effects = adapted.effects.clone()
    effects[:, feature, 0] = torch.tensor(found[1:4])
    added = adapted._replace(
        predictor=CoefficientSamples(coefficients, levels),
        outputs=adapted.outputs + step[:, None],
        variance=variance * float(kept.mean().clamp(0.05, 1.0)),
        effects=effects,
    )
    return added, found.support


def _extract_category_indicator_columns(
    state: SteadyTableState, basis: Tensor, category_features: Tensor
) -> Tensor:
    """Return zeros and ones [n, m] of two-valued features, whose values are 0 and 1."""
    index = category_features.nonzero()[:, 0]
    return basis[:, index] / state.basis.scale[index] + state.basis.centre[index]


def _are_categories_of_one_column(
    state: SteadyTableState, basis: Tensor, category_features: Tensor
) -> bool:
    """Return whether features are the categories, at least three, of one column."""
    two_valued = bool((state.basis.limit[category_features] > 1e3).all())
    if int(category_features.sum()) < 3 or not two_valued:
        return False
    marked = _extract_category_indicator_columns(
        state, basis, category_features
    ).round()
    return bool((marked.sum(1) <= 1).all()) and bool((marked >= 0).all())


def _add_log_odds_of_categories(
    adapted: ModelWithAddedEvidence,
    state: SteadyTableState,
    basis: Tensor,
    category_features: Tensor,
) -> ModelWithAddedEvidence:
    """Add the evidence of a column of categories."""
    coefficients, levels = (part.clone() for part in adapted.predictor)
    soft = compute_clipped_probabilities(adapted.outputs)
    is_binary = soft.shape[1] == 1
    if is_binary:
        soft = torch.cat([1 - soft, soft], 1)
    marked = _extract_category_indicator_columns(
        state, basis, category_features
    ).round()
    table = estimate_category_frequencies_by_class(soft, marked)
    evidence = table.draw_log_likelihood_ratios()
    if is_binary:
        evidence = evidence[..., 1:] - evidence[..., :1]
    index = category_features.nonzero()[:, 0]
    scale, centre = state.basis.scale[index], state.basis.centre[index]
    coefficients[..., index] += (evidence / scale[:, None]).mT
    levels += (evidence * centre[:, None]).sum(1)
    logits = average_probabilities_over_samples(adapted.outputs + marked @ evidence)
    effects = adapted.effects.clone()
    effects[:, index] = _summarise_category_effects(
        table.logs, table.errors, scale, is_binary
    )
    return adapted._replace(
        predictor=CoefficientSamples(coefficients, levels),
        outputs=logits,
        effects=effects,
    )


def _summarise_category_effects(
    logs: Tensor, errors: Tensor, scale: Tensor, is_binary: bool
) -> Tensor:
    """Return the effects of categories with their limits, [3, m, k]."""
    if is_binary:
        middle = logs[:, 1:] - logs[:, :1]
        error = errors.square().sum(1, keepdim=True).sqrt()
    else:
        middle, error = logs - logs.mean(1, keepdim=True), errors
    limits = [middle, middle - 1.96 * error, middle + 1.96 * error]
    return torch.stack(limits) / scale[:, None]


def compute_clipped_probabilities(outputs: Tensor) -> Tensor:
    """Return probabilities [n, k] away from 0 and 1, by which no row decides alone."""
    soft = outputs.sigmoid() if outputs.shape[1] == 1 else outputs.softmax(-1)
    return soft.clamp(1e-3, 1 - 1e-3)


def average_probabilities_over_samples(logits: Tensor) -> Tensor:
    """Return the logits [n, k] of probabilities averaged over samples [s, n, k]."""
    if logits.shape[-1] == 1:
        return logits.sigmoid().mean(0).clamp(1e-6, 1 - 1e-6).logit()
    return logits.softmax(-1).mean(0).clamp(min=1e-6).log()
