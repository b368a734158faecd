"""The engine for images, embeddings and long vectors of which a number is predicted.

As with classes, what inputs say is compared with earlier environments: here the slopes
of the inputs on the target. A change leads to a number u that the inputs contain, and
to a view of the inputs without it, from which an ensemble learns. What u says is its
slope on the target in an environment: known where there are labels, and the slope on
stable predictions where there are none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_regression_adapt as adapt
from cirm.learners.steady import directions_regression_search as search
from cirm.learners.steady.directions_compare import Trend
from cirm.learners.steady.directions_inputs import scale_inputs
from cirm.learners.steady.directions_kernel import fit_kernel_width
from cirm.learners.steady.directions_regression_search import (
    FoundNumber,
    KnownNumber,
    NumberSearchOutcome,
)
from cirm.learners.steady.directions_regression_state import (
    PLACES,
    allocate_regression_state_tensors,
)
from cirm.learners.steady.directions_stable import has_single_target
from cirm.learners.steady.directions_start import FEW_ROWS, weigh_training_on_few_rows
from cirm.learners.steady.directions_state import (
    SteadyNetworkState,
    remove_adaptation_from_state,
)
from cirm.learners.steady.directions_statistics import fit_image_statistics_scale
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    Model,
    NetworkEnsemble,
    compute_ensemble_member_outputs,
    select_held_out_outputs_of_members,
    train_ensemble_members,
)
from cirm.likelihoods import Likelihood
from cirm.memory import select_state_of_replica, stack_states_of_replicas
from cirm.randomness import Randomness
from cirm.training import Descent, Watch


class RegressionSettings(NamedTuple):
    """The settings of the learner that a regression needs, and its network."""

    model: Model
    likelihood: Likelihood
    descent: Descent
    level: float
    trust: str


def observe_regression_stage(
    settings: RegressionSettings,
    state: SteadyNetworkState,
    inputs: Tensor,
    targets: Tensor,
    environment_of_row: Tensor,
    randomness: Randomness,
    watch: Watch,
) -> SteadyNetworkState:
    """Search for unstable numbers, then learn what holds without them."""
    shape, replicas = tuple(inputs.shape[2:]), range(len(inputs))
    has_learned, count = bool(state.places[0]), targets.shape[1]
    if has_learned and has_single_target(targets):
        return remove_adaptation_from_state(state)  # no other targets to tell it from
    if not has_learned:
        is_single = targets.shape[1] == 1  # so that there is no spread
        spread = targets.std(1, correction=0 if is_single else 1).clamp(min=1e-6)
        state = state._replace(frame=torch.stack([targets.mean(1), spread], 1))
    y = (targets - state.frame[:, :1]) / state.frame[:, 1:]
    if is_first := not state.numbers.effects.numel():  # or of an earlier version
        state = allocate_regression_state_tensors(state, shape)
        scales = [
            fit_image_statistics_scale(x.flatten(1).double(), (t > 0).long(), shape)
            for x, t in zip(inputs, y, strict=True)
        ]
        widths = [fit_kernel_width(x.flatten(1)) for x in inputs]
        state = state._replace(
            scale=stack_states_of_replicas(scales), width=torch.stack(widths)
        )
    state = remove_adaptation_from_state(state)
    outcomes = []
    for r in replicas:
        one = select_state_of_replica(state, r)
        past = search.PastOfSearch(
            None if is_first else one.moments,
            one.kernel if one.kernel.counts.any() else None,
            one.numbers.halves,
            int(one.looks),
            Trend(float(one.trend[0]), int(one.trend[1])),
        )
        outcome = search.search_for_unstable_numbers(
            inputs[r].flatten(1),
            y[r],
            environment_of_row,
            past,
            get_unstable_numbers_of_replica(one),
            search.NumberSearchSettings(settings.level, shape, one.scale, one.width),
        )
        outcomes.append(outcome)
    seen = torch.stack([o.rows.float() for o in outcomes]).view(inputs.shape)
    seen = scale_inputs(seen, state.inputs)
    fit, outputs, held_out = _train_ensemble_beside_numbers(
        settings,
        state.members,
        LabelledTrainingRows(seen, y, torch.zeros(*y.shape, 1)),
        [o.values for o in outcomes],
        environment_of_row,
        randomness.at("train"),
        watch,
    )
    parts = [
        _update_regression_state_of_replica(
            select_state_of_replica(state, r),
            outcomes[r],
            outputs[r, ..., 0].double(),
            held_out[r, :, 0].double(),
            y[r].double(),
            environment_of_row,
            settings.trust,
        )
        for r in replicas
    ]
    members = fit.params
    if has_learned and count < FEW_ROWS:
        seen_rows = state.moments.counts.sum(1)
        members = weigh_training_on_few_rows(members, state.members, seen_rows, count)
        parts = [
            new
            if outcomes[r].found
            else new._replace(
                correction=state.correction[r],
                leak=state.leak[r],
                numbers=new.numbers._replace(stable=state.numbers.stable[r]),
            )
            for r, new in enumerate(parts)
        ]
    return stack_states_of_replicas(parts)._replace(members=members)


def _train_ensemble_beside_numbers(
    settings: RegressionSettings,
    initial_params: Tensor,
    rows: LabelledTrainingRows,
    numbers: list[Tensor],
    environment_of_row: Tensor,
    randomness: Randomness,
    watch: Watch,
) -> tuple[NetworkEnsemble, Tensor, Tensor]:
    """Return an ensemble, and its outputs [replica, member, n, 1], also held out.

    What the numbers [number, n] of a replica say is a fixed part of its outputs, so
    that the networks need not learn what of them the view still shows. How much they
    say depends on what the networks leave open, so these are trained twice.
    """

    def train(offset: Tensor) -> tuple[NetworkEnsemble, Tensor, Tensor]:
        fit = train_ensemble_members(
            settings.model,
            initial_params,
            rows._replace(offset=offset),
            settings.likelihood,
            settings.descent,
            randomness,
            watch,
        )
        outputs = compute_ensemble_member_outputs(
            settings.model, fit.params, rows.inputs
        )
        return fit, outputs, select_held_out_outputs_of_members(outputs, fit.folds)

    fit, outputs, held_out = train(rows.offset)
    if not any(len(own) for own in numbers):
        return fit, outputs, held_out
    offset = rows.offset.clone()
    for r, own in enumerate(numbers):
        y = rows.targets[r].double()
        stable, _, _ = _remove_leak(held_out[r, :, 0].double(), own, y)
        parts, _ = _calibrate_stable_outputs(stable, outputs[r, ..., 0].double(), y)
        for place in environment_of_row.unique().tolist():
            here = environment_of_row == place
            effects = [measure_effect_on_target(u, y[here]) for u in own[:, here]]
            if effects:
                slope, _, level, noise = torch.stack(effects).T
                weights = slope / noise.clamp(min=1e-9)
                precision = 1 / float(parts[3]) + weights @ slope
                said = weights @ (own[:, here] - level[:, None]) / precision
                offset[r, here, 0] = said.to(offset)
    return train(offset)


def predict_regression_values(
    settings: RegressionSettings, state: SteadyNetworkState, inputs: Tensor
) -> Tensor:
    """Return values [replica, sample, n, 1]."""
    shift, scale = state.frame[:, :, None, None, None].unbind(1)
    if not state.numbers.effects.numel():
        inputs = scale_inputs(inputs, state.inputs)
        outputs = compute_ensemble_member_outputs(settings.model, state.members, inputs)
        return outputs.mean(1, keepdim=True) * scale + shift
    results = []
    for r, (stable, numbers) in enumerate(
        _compute_stable_predictions(settings, state, inputs)
    ):
        one = select_state_of_replica(state, r)
        means, _ = adapt.combine_predictions_with_numbers(
            stable,
            numbers,
            adapt.choose_effects_for_prediction(one, settings.trust),
            float(one.numbers.stable[3]),
        )
        results.append(means)
    return torch.stack(results)[..., None].float() * scale + shift


def adapt_regression_state(
    settings: RegressionSettings, state: SteadyNetworkState, inputs: Tensor
) -> SteadyNetworkState:
    """Estimate what unstable numbers mean in the environment of unlabelled inputs."""
    if not state.numbers.effects.numel():
        return state
    state = remove_adaptation_from_state(state)
    with torch.no_grad():
        rows = _compute_stable_predictions(settings, state, inputs)
    parts = [
        adapt.estimate_adaptation_of_regression(
            select_state_of_replica(state, r), *own, settings.trust
        )
        for r, own in enumerate(rows)
    ]
    return state._replace(adaptation=stack_states_of_replicas(parts))


def get_unstable_numbers_of_replica(state: SteadyNetworkState) -> list[KnownNumber]:
    """Return the unstable numbers of one replica."""
    parts = state.numbers.readers, state.numbers.views
    return [
        KnownNumber(*(select_state_of_replica(part, j) for part in parts))  # type: ignore[arg-type]
        for j in range(int(state.found))
    ]


def _compute_stable_predictions(
    settings: RegressionSettings, state: SteadyNetworkState, inputs: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return each replica's stable predictions [n] and unstable numbers [number, n]."""
    shape = tuple(inputs.shape[2:])
    rows, numbers = [], []
    for r, own in enumerate(inputs):
        one = select_state_of_replica(state, r)
        known = get_unstable_numbers_of_replica(one)
        flat = own.flatten(1).double()
        seen, _, values = search.remove_numbers_from_rows(flat, known, shape, one.scale)
        rows.append(seen.to(state.members.dtype))
        none = torch.zeros(0, len(flat)).double()
        numbers.append(torch.stack(values) if values else none)
    seen = scale_inputs(torch.stack(rows).view(inputs.shape), state.inputs)
    outputs = compute_ensemble_member_outputs(settings.model, state.members, seen)
    means = outputs.mean(1)[..., 0].double()
    return [
        (_correct_stable_predictions(select_state_of_replica(state, r), m, u), u)
        for r, (m, u) in enumerate(zip(means, numbers, strict=True))
    ]


def _correct_stable_predictions(
    state: SteadyNetworkState, outputs: Tensor, numbers: Tensor
) -> Tensor:
    """Return predictions [n] of one replica: without leak, calibrated."""
    if not len(numbers):
        return outputs
    centre, slope, level, *_ = state.numbers.stable.tolist()
    outputs = outputs - state.correction[: len(numbers)].double() @ numbers
    return level + slope * (outputs - centre)


def _update_regression_state_of_replica(
    state: SteadyNetworkState,
    outcome: NumberSearchOutcome,
    outputs: Tensor,
    held_out: Tensor,
    targets: Tensor,
    environment_of_row: Tensor,
    trust: str,
) -> SteadyNetworkState:
    """Return the state after a stage, from outputs [member, n], [n] held out."""
    for j, found in enumerate(outcome.found, int(state.found)):
        state = _store_number_in_state(state, j, found)
    values = outcome.values
    held_out, correction, leak = _remove_leak(held_out, values, targets)
    kept = torch.zeros_like(state.correction)
    kept[: len(values)] = correction.to(kept)
    stable, predictions = _calibrate_stable_outputs(held_out, outputs, targets)
    state = state._replace(
        correction=kept,
        moments=outcome.moments,
        kernel=outcome.kernel,
        found=torch.tensor(float(len(values))),
        looks=torch.tensor(float(outcome.looks)),
        trend=torch.tensor([outcome.trend.total, float(outcome.trend.n_changes)]),
        unexplained=state.unexplained + float(outcome.is_unexplained),
        leak=torch.tensor([*leak, float(stable[4].square())]),
        numbers=state.numbers._replace(stable=stable, halves=outcome.halves),
    )
    for place in environment_of_row.unique().tolist():
        here = environment_of_row == place
        gain = adapt.measure_gain_of_adapting_regression(
            state, predictions[here], values[:, here], targets[here], trust
        )
        effects = [measure_effect_on_target(u, targets[here]) for u in values[:, here]]
        state = _store_effects_of_environment(state, effects, gain)
    return state


def measure_effect_on_target(numbers: Tensor, targets: Tensor) -> Tensor:
    """Return the slope of numbers [n] on targets [n], its variance, level and noise."""
    y, u = targets - targets.mean(), numbers - numbers.mean()
    total = y.square().sum().clamp(min=1e-12)
    slope = (y * u).sum() / total
    noise = (u - slope * y).square().sum() / max(1, len(y) - 2)
    level = numbers.mean() - slope * targets.mean()
    return torch.stack([slope, noise / total, level, noise])


def _remove_leak(
    outputs: Tensor, numbers: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """Return outputs [n] without what they know of numbers, given the target.

    Also what of each number is subtracted, and the size of the leak with its standard
    error, in units of what a standard deviation of the target changes. What may be
    noise is shrunk.
    """
    if not len(numbers):
        return outputs, torch.zeros(0).double(), (0.0, 0.0)
    n, count = len(outputs), len(numbers)
    design = torch.stack([torch.ones_like(targets), targets, *numbers], 1)
    inverse = torch.linalg.pinv(design, rtol=1e-6)
    parts = inverse @ outputs
    slopes = parts[2:]
    noise = (outputs - design @ parts).square().mean()
    base = design[:, :2]
    rest = numbers.T - base @ (torch.linalg.pinv(base) @ numbers.T)
    size = (rest @ slopes).square().mean().sqrt()
    error = (noise * count / n).sqrt()
    kept = (1 - (error / size.clamp(min=1e-12)).square()).clamp(min=0)
    unit = (parts[1].abs() * targets.std(correction=0)).clamp(min=1e-6)
    slopes = kept * slopes
    outputs = outputs - slopes @ numbers
    return outputs, slopes, (float(size / unit), float(error / unit))


def _calibrate_stable_outputs(
    held_out: Tensor, outputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what calibrates the mean of members, and held-out predictions [n].

    The slope is that of single members on rows that they have not seen. Their noise
    cancels in the mean, which would otherwise vary too little.
    """
    centre, level = held_out.mean(), targets.mean()
    rest, goal = held_out - centre, targets - level
    total = rest.square().sum().clamp(min=1e-12)
    slope = ((rest * goal).sum() / total).clamp(min=0)
    variance = (goal - slope * rest).square().mean().clamp(min=1e-6)
    spread = (total * goal.square().sum()).sqrt()
    correlation = (rest * goal).sum() / spread.clamp(min=1e-12)
    predictions = level + slope * rest
    gain = _measure_spread(outputs).mean() / _measure_spread(outputs.mean(0))
    parts = centre, slope * gain.clamp(1.0, 2.0), level, variance, correlation
    return torch.stack(parts), predictions


def _measure_spread(outputs: Tensor) -> Tensor:
    """Return the variance of outputs [..., n], which is not zero."""
    return outputs.var(-1, correction=0).clamp(min=1e-12)


def _store_number_in_state(
    state: SteadyNetworkState, index: int, found: FoundNumber
) -> SteadyNetworkState:
    """Return the state with an unstable number at an index."""
    numbers, places = state.numbers, int(state.places)

    def copy_with_part(tensor: Tensor, part: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[index] = part.to(tensor)
        return tensor

    effects = numbers.effects.clone()
    if places and found.past[1] > 0:
        effects[:places, index] = found.past.to(effects)
        effects[:places, index, 1] *= places
    return state._replace(
        p_values=copy_with_part(state.p_values, torch.tensor(found.p_value)),
        numbers=numbers._replace(
            readers=type(numbers.readers)(
                *map(copy_with_part, numbers.readers, found.known.reader)
            ),
            views=type(numbers.views)(
                *map(copy_with_part, numbers.views, found.known.view)
            ),
            effects=effects,
        ),
    )


def _store_effects_of_environment(
    state: SteadyNetworkState, new_effects: list[Tensor], gain: Tensor
) -> SteadyNetworkState:
    """Return the state with the effects and the gain of one more place."""
    place = int(state.places)
    effects, gains = state.numbers.effects.clone(), state.gains.clone()
    if place == PLACES:  # the oldest place is forgotten
        effects, gains = (torch.cat([t[1:], 0 * t[:1]]) for t in (effects, gains))
        place -= 1
    for j, effect in enumerate(new_effects):
        effects[place, j] = effect.to(effects)
    gains[place] = gain.to(gains)
    return state._replace(
        numbers=state.numbers._replace(effects=effects),
        gains=gains,
        places=torch.tensor(float(place + 1)),
    )
