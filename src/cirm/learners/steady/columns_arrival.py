"""How well an environment is predicted before its labels are used."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_adapt import (
    add_evidence_of_unstable_features,
    sort_rows_and_limit_their_number,
)
from cirm.learners.steady.columns_frequencies import (
    estimate_intercept_shifts,
    fit_intercept_shifts_to_labels,
)
from cirm.learners.steady.columns_learn import (
    draw_coefficients_of_stable_model,
    draw_coefficients_of_trusted_model,
    select_target_columns_of_model,
    summarise_effects_over_environments,
)
from cirm.learners.steady.columns_predict import (
    WIDEST_SPREAD,
    compute_outputs_of_predictor,
    fit_calibration_slope,
    fit_logit_shifts_to_frequencies,
    measure_intercept_spread,
    predict_calibration_slope,
)
from cirm.learners.steady.columns_state import (
    CoefficientSamples,
    ScoresBeforeTraining,
    SteadyTableState,
    append_row_to_tensors,
    compute_class_frequencies_of_model,
)


def score_models_on_new_environment(
    state: SteadyTableState,
    inputs: Tensor,
    targets: Tensor,
    normal_draws: Tensor,
    trust: str,
    is_regression: bool,
) -> SteadyTableState:
    """Record how well each kind of model predicts an environment that arrives.

    The rows are treated as unlabelled first: the stable model is adapted to them, and
    compared with the labels.
    """
    base = draw_coefficients_of_stable_model(state, normal_draws)
    state = state._replace(base=base)
    basis = state.basis.expand(inputs)
    noise = float(state.noise[1])
    chosen = (state.unstable & state.needed).nonzero()[:, 0].tolist()
    summary = summarise_effects_over_environments(state)
    predictors = [base]
    predictors += [
        draw_coefficients_of_trusted_model(state, t, normal_draws)
        for t in ("interval", "average")
    ]
    predictors.append(
        add_evidence_of_unstable_features(
            state, basis, summary, chosen, trust, min_support=0.0
        ).predictor
    )
    losses, scores = zip(
        *(
            _compute_loss_and_score_of_rows(p, basis, targets, noise)
            for p in predictors
        ),
        strict=True,
    )
    d = len(state.unit)
    gains = torch.zeros(d, dtype=torch.float64)
    errors = torch.full((d,), torch.inf, dtype=torch.float64)

    def measure_gain_over_stable_model(
        predictor: CoefficientSamples,
    ) -> tuple[Tensor, Tensor]:
        loss, _ = _compute_loss_and_score_of_rows(predictor, basis, targets, noise)
        gain = losses[0] - loss
        return gain.mean(), compute_variance_of_mean(gain).sqrt() + 1e-9

    for unit in state.unit[chosen].unique().tolist():
        own = [j for j in chosen if int(state.unit[j]) == unit]
        gains[state.unit == unit], errors[state.unit == unit] = (
            measure_gain_over_stable_model(
                add_evidence_of_unstable_features(
                    state, basis, summary, own, trust, min_support=0.0
                ).predictor
            )
        )
    frequency_gain = gains.new_zeros(()), gains.new_zeros(())
    outputs = compute_outputs_of_predictor(base, basis).mean(0)
    aims = targets if is_regression else select_target_columns_of_model(targets)
    if is_regression:
        shift = (aims - outputs).mean(0)
        variance = compute_variance_of_mean(aims - outputs)
        miss = torch.zeros_like(shift)
    else:
        shift = fit_logit_shifts_to_frequencies(outputs, aims)
        rate = (aims.sum(0) + 0.5) / (len(aims) + 1)
        variance = 1 / (len(aims) * rate * (1 - rate))
        # Adapting must have helped with the shift that the rows show, at face value.
        rows = outputs[sort_rows_and_limit_their_number(basis, outputs[:, 0])]
        usual = compute_class_frequencies_of_model(state)
        spread = measure_intercept_spread(state.arrivals, 0.0)
        shifts = estimate_intercept_shifts(rows, usual, spread).samples
        frequency_gain = measure_gain_over_stable_model(
            base._replace(levels=base.levels.mean(0) + shifts)
        )
        widest = torch.full_like(shift, WIDEST_SPREAD)
        # With the same prior, which also makes the shift of a single class finite.
        shown = estimate_intercept_shifts(rows, usual, widest).mean
        miss = shown - fit_intercept_shifts_to_labels(outputs, targets, widest)
    slope, slope_variance = fit_calibration_slope(outputs, aims, is_regression)
    used = predict_calibration_slope(
        state.arrivals
    )  # what the outputs were multiplied by already
    entry = ScoresBeforeTraining(
        torch.stack([loss.mean() for loss in losses]),
        torch.stack([score.mean() for score in scores]),
        gains,
        errors,
        torch.stack(
            [
                compute_correlation(
                    _compute_mean_predictions(predictor, basis, is_regression), aims
                )
                for predictor in (base, predictors[2])
            ]
        ),
        shift,
        variance,
        *frequency_gain,
        slope * used,
        slope_variance * used.square(),
        miss,
    )
    return state._replace(arrivals=append_row_to_tensors(state.arrivals, entry))


def compute_variance_of_mean(values: Tensor) -> Tensor:
    """Return the sampling variance of the mean of values [n, ...].

    A single value does not show its variance; its square then stands in for it, so that
    the mean does not count as different from zero.
    """
    if len(values) == 1:
        return values[0].square()
    return values.var(0) / len(values)


def compute_correlation(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the correlation of predictions [n, k] with targets [n, k], over all k."""
    one, other = predictions - predictions.mean(0), targets - targets.mean(0)
    norms = one.square().sum() * other.square().sum()
    return (one * other).sum() / norms.sqrt().clamp(min=1e-12)


def _compute_mean_predictions(
    predictor: CoefficientSamples, basis: Tensor, is_regression: bool
) -> Tensor:
    """Return probabilities or values [n, k], averaged over samples."""
    outputs = compute_outputs_of_predictor(predictor, basis)
    if is_regression:
        return outputs.mean(0)
    if outputs.shape[-1] == 1:
        return outputs.sigmoid().mean(0)
    return outputs.softmax(-1).mean(0)


def _compute_loss_and_score_of_rows(
    predictor: CoefficientSamples, basis: Tensor, targets: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and the score of each row, [n] each."""
    prediction = _compute_mean_predictions(predictor, basis, noise > 0)
    if noise > 0:
        squares = (prediction - targets)[:, 0].square()
        total = (targets - targets.mean()).square().mean().clamp(min=1e-12)
        return 0.5 * squares / noise, 100 * (1 - squares / total)
    if prediction.shape[1] == 1:
        prediction = torch.cat([1 - prediction, prediction], 1)
    chosen = (prediction * targets).sum(1)
    correct = prediction.argmax(1) == targets.argmax(1)
    return -chosen.clamp(min=1e-6).log(), 100.0 * correct.double()
