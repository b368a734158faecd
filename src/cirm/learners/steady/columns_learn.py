"""Learn from the labelled environments of a stage, for one replica."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cirm.learners.steady.columns_adapt import adapt_predictor
from cirm.learners.steady.columns_basis import find_units, fit_basis
from cirm.learners.steady.columns_effects import (
    LEAST_SPREAD,
    LEAST_SPREAD_VALUES,
    Effects,
    find_unstable,
    measure_effects,
)
from cirm.learners.steady.columns_glm import (
    Posterior,
    choose_ridge,
    fit_classes,
    fit_moments,
)
from cirm.learners.steady.columns_predict import apply_predictor, draw_predictor
from cirm.learners.steady.columns_state import (
    Arrivals,
    Places,
    Predictor,
    State,
    Without,
    append_entry,
    make_empty_state,
)
from cirm.learners.steady.meta_analysis import MetaAnalysis, combine_effects

KEPT = 8  # units without which a model is kept: those that matter most


def make_first_state(
    inputs: Tensor, targets: Tensor, widths: tuple[int, ...], is_value: bool
) -> State:
    """Return the state whose basis, units and ridge fit the first environment."""
    classes = targets.shape[1]
    outputs = 1 if classes == 2 else classes
    basis = fit_basis(inputs, outputs)
    features = basis.standardise(inputs)
    unit, needed = find_units(features, widths)
    d, p = len(unit), len(basis.active)
    kept = 0 if is_value else min(KEPT, d)
    state = make_empty_state(d, p, outputs, classes, kept, len(basis.knots))
    ridge = torch.ones(p, dtype=torch.float64)
    if not is_value and has_two_classes(targets):
        active = basis.active
        expanded = basis.expand(inputs)[:, active]
        groups = make_groups(state)[active]
        ridge[active] = choose_ridge(expanded, model_targets(targets), groups)
    prior = Posterior(state.whole.mean, torch.diag(ridge).repeat(outputs, 1, 1))
    return state._replace(
        basis=basis, unit=unit, needed=needed, ridge=ridge, whole=prior, stable=prior
    )


def has_two_classes(targets: Tensor) -> bool:
    """Return whether more than one class occurs in targets [n, classes]."""
    return int((targets.sum(0) > 0).sum()) > 1


def model_targets(targets: Tensor) -> Tensor:
    """Return the columns of targets that the model has outputs for."""
    return targets[:, 1:] if targets.shape[1] == 2 else targets


def make_groups(state: State) -> Tensor:
    """Return the group of basis functions that share a ridge: features, hinges, [p]."""
    d, p = len(state.unit), len(state.ridge)
    return (torch.arange(p) >= d).long()


def find_features(state: State, features: Tensor) -> Tensor:
    """Return which basis functions [p] belong to features [d]."""
    return features.repeat(len(state.ridge) // len(features))


def summarise_effects(state: State) -> MetaAnalysis:
    """Summarise the effects [d, k] over the environments seen."""
    return combine_effects(state.places.effects, state.places.variances)


def get_covariance(state: State) -> Tensor:
    """Return the covariance of the basis within environments, [p, p]."""
    p = len(state.ridge)
    return state.moments[:p, :p] / state.places.rows.sum().clamp(min=1)


def measure_place(
    state: State, inputs: Tensor, targets: Tensor, is_value: bool
) -> Effects:
    """Measure the effects of all features in an environment."""
    d = len(state.unit)
    features = state.basis.standardise(inputs)
    past = get_covariance(state)[:d, :d] if len(state.places.rows) else features[:0]
    targets = targets if is_value else model_targets(targets)
    return measure_effects(features, targets, state.unit, past, is_value)


def search_unstable(
    state: State,
    effects: list[Effects],
    level: float,
    named: Tensor,
    protected: Tensor,
    is_value: bool,
) -> State:
    """Test features between environments, and set aside those that are unstable.

    The k-th look at the data spends 6 / (pi k)^2 of the level, so that all looks
    together spend no more than the level.

    Args:
        state: The state before the stage.
        effects: Effects in each environment of the stage.
        level: Probability of any false alarm over all looks.
        named: Features that are unstable by the user's word, [d].
        protected: Features that are stable by the user's word, [d].
        is_value: Whether this is a regression.
    """
    old = state.places
    values = torch.cat([old.effects, torch.stack([e.effect for e in effects])])
    errors = torch.cat([old.variances, torch.stack([e.variance for e in effects])])
    unstable = state.unstable | named
    looks = state.looks
    if len(values) > 1:
        looks = looks + 1
        share = level * 6 / (math.pi * float(looks)) ** 2
        least = LEAST_SPREAD
        if is_value:
            rest = float(state.noise[0]) if float(state.noise[0]) > 0 else 1.0
            least = LEAST_SPREAD_VALUES / rest**0.5
        summary = combine_effects(values, errors)
        unstable = unstable | find_unstable(summary, state.needed, share, least)
    members = torch.isin(state.unit, state.unit[unstable])
    unstable = members & ~protected
    new = unstable & ~state.unstable
    state = state._replace(unstable=unstable, looks=looks)
    if not bool(new.any()):
        return state
    return refit_values(state) if is_value else set_aside(state, new)


def set_aside(state: State, new: Tensor) -> State:
    """Remove features [d] from the stable model of classes.

    If a model without the unit was kept, it is used. Other features are removed by the
    rule that holds if they are independent of the stable ones given the class and a
    linear combination: coefficient times regression on the stable features is added.
    """
    stable, without = state.stable, state.without
    active = state.basis.active
    rest = active & ~find_features(state, state.unstable)
    mean, ratio = stable.mean, 1.0
    for position, unit in enumerate(without.unit.tolist()):
        if float(without.ratio[position]) > 0 and bool(new[state.unit == unit].any()):
            mean, ratio = without.mean[position], float(without.ratio[position])
            break
    dropped = find_features(state, new) & active
    slopes = _regress_on(state, dropped, rest)
    precision = stable.precision.clone()
    data = (precision - torch.diag(state.ridge)) * ratio
    keep = rest[:, None] & rest
    precision = torch.where(keep, data, 0.0) + torch.diag(state.ridge)
    means = torch.cat([mean[None], without.mean])
    added = torch.zeros_like(means)
    added[..., rest] = means[..., dropped] @ slopes
    means = torch.where(rest, means + added, 0.0)
    gone = torch.isin(without.unit, state.unit[new])
    return state._replace(
        stable=Posterior(means[0], precision),
        without=without._replace(
            mean=means[1:], ratio=torch.where(gone, 0.0, without.ratio)
        ),
    )


def _regress_on(state: State, dropped: Tensor, rest: Tensor) -> Tensor:
    """Return slopes of dropped basis functions on others given the targets."""
    p = len(state.ridge)
    others = torch.cat([rest.nonzero()[:, 0], torch.arange(p, len(state.moments))])
    gram = state.moments[others[:, None], others]
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-9)
    gram = gram + ridge * torch.eye(len(others), dtype=gram.dtype)
    cross = state.moments[others][:, dropped.nonzero()[:, 0]]
    return torch.linalg.solve(gram, cross)[: int(rest.sum())].T


def refit_values(state: State) -> State:
    """Fit the regressions with and without unstable features to the moments."""
    active, groups = state.basis.active, make_groups(state)
    rows = int(state.places.rows.sum()) - len(state.places.rows)
    if rows < 1:
        return state
    whole, noise = fit_moments(state.moments, active, groups, rows)
    stable, rest = whole, noise
    if bool(state.unstable.any()):
        used = active & ~find_features(state, state.unstable)
        stable, rest = fit_moments(state.moments, used, groups, rows)
    noises = torch.tensor([noise, rest], dtype=torch.float64)
    return state._replace(whole=whole, stable=stable, noise=noises)


def learn_place(
    state: State, inputs: Tensor, targets: Tensor, effects: Effects, is_value: bool
) -> State:
    """Return the state after learning from one environment."""
    basis = state.basis.expand(inputs)
    joint = torch.cat([basis, targets], 1)
    means = joint.mean(0)
    joint = joint - means
    p = basis.shape[1]
    place = Places(
        torch.tensor(float(len(inputs)), dtype=torch.float64),
        means[:p],
        means[p:],
        effects.effect,
        effects.variance,
    )
    if not is_value and has_two_classes(targets):
        state = _learn_classes(state, basis, model_targets(targets))
    state = state._replace(
        moments=state.moments + joint.T @ joint,
        places=append_entry(state.places, place),
    )
    return refit_values(state) if is_value else state


def _learn_classes(state: State, basis: Tensor, targets: Tensor) -> State:
    active = state.basis.active
    whole = _update(state.whole, basis, targets, active)
    rest = active & ~find_features(state, state.unstable)
    stable = whole
    if bool(state.unstable.any()):
        stable = _update(state.stable, basis, targets, rest)
    without = state.without
    if not bool((without.ratio > 0).any()) and not len(state.places.rows):
        without = _choose_without(state, stable)
    means, ratios = without.mean.clone(), without.ratio.clone()
    for position, unit in enumerate(without.unit.tolist()):
        if float(ratios[position]) == 0:
            continue
        used = rest & ~find_features(state, state.unit == unit)
        prior = Posterior(means[position], state.stable.precision)
        left = _update(prior, basis, targets, used)
        data = [
            (m.precision[:, used][:, :, used].diagonal(dim1=1, dim2=2).sum())
            - state.ridge[used].sum() * len(m.precision)
            for m in (left, stable)
        ]
        means[position] = left.mean
        ratios[position] = (data[0] / data[1].clamp(min=1e-9)).clamp(1.0, 10.0)
    return state._replace(
        whole=whole, stable=stable, without=without._replace(mean=means, ratio=ratios)
    )


def _choose_without(state: State, model: Posterior) -> Without:
    """Choose the units whose removal changes the model of the first place most."""
    impacts = {}
    for unit in state.unit[state.needed & ~state.unstable].unique().tolist():
        own = find_features(state, state.unit == unit) & state.basis.active
        mean = model.mean[:, own]
        precision = model.precision[:, own][:, :, own]
        impacts[unit] = float((mean * (precision @ mean[..., None])[..., 0]).sum())
    best = sorted(impacts, key=lambda unit: -impacts[unit])[: len(state.without.unit)]
    unit, ratio = state.without.unit.clone(), state.without.ratio.clone()
    unit[: len(best)] = torch.tensor(best, dtype=torch.int64)
    ratio[: len(best)] = 1.0
    return Without(unit, torch.zeros_like(state.without.mean), ratio)


def _update(
    prior: Posterior, basis: Tensor, targets: Tensor, used: Tensor
) -> Posterior:
    """Return the posterior after an environment, of the basis functions used."""
    index = used.nonzero()[:, 0]
    small = Posterior(prior.mean[:, index], prior.precision[:, index[:, None], index])
    fit = fit_classes(basis[:, index], targets, small)
    mean, precision = torch.zeros_like(prior.mean), prior.precision.clone()
    mean[:, index] = fit.mean
    precision[:, index[:, None], index] = small.precision + fit.information
    return Posterior(mean, precision)


def make_predictors(state: State, normals: Tensor, trust: str) -> State:
    """Return the state with the predictors for a new environment."""
    active, covariance = state.basis.active, get_covariance(state)
    used = active & ~find_features(state, state.unstable)
    whole_noise, stable_noise = state.noise.tolist()
    base = draw_predictor(
        state.stable, used, state.places, covariance, stable_noise, normals
    )
    state = state._replace(base=base, predictor=base)
    if trust == "invariant" or not bool(state.unstable.any()):
        return state
    whole = draw_predictor(
        state.whole, active, state.places, covariance, whole_noise, normals
    )
    return state._replace(predictor=choose_predictor(state, whole, trust))


def choose_predictor(state: State, whole: Predictor, trust: str) -> Predictor:
    """Return the predictor for a new environment that a kind of trust asks for."""
    if trust == "invariant":
        return state.base
    if trust == "average":
        return whole
    low, high = summarise_effects(state).prediction_interval()
    crosses = ((low < 0) & (high > 0)).all(1)
    relevant = state.unstable & state.needed
    if not bool((relevant & crosses).any()):
        return whole
    return state.base  # mixed cases follow


def score_arrival(
    state: State,
    inputs: Tensor,
    targets: Tensor,
    normals: Tensor,
    is_value: bool,
) -> State:
    """Record how well an environment is predicted before its labels are used."""
    state = make_predictors(state, normals, "invariant")
    basis = state.basis.expand(inputs)
    whole = draw_predictor(
        state.whole,
        state.basis.active,
        state.places,
        get_covariance(state),
        float(state.noise[0]),
        normals,
    )
    summary = summarise_effects(state)
    chosen = (state.unstable & state.needed).nonzero()[:, 0].tolist()
    predictors = [
        state.base,
        choose_predictor(state, whole, "interval"),
        whole,
        adapt_predictor(state, basis, summary, chosen)[0],
    ]
    losses, scores = zip(
        *(_score(p, basis, targets, float(state.noise[1])) for p in predictors),
        strict=True,
    )
    d = len(state.unit)
    gains = torch.zeros(d, dtype=torch.float64)
    errors = torch.full((d,), torch.inf, dtype=torch.float64)
    for unit in state.unit[chosen].unique().tolist():
        own = [j for j in chosen if int(state.unit[j]) == unit]
        alone = adapt_predictor(state, basis, summary, own)[0]
        gain = losses[0] - _score(alone, basis, targets, float(state.noise[1]))[0]
        members = state.unit == unit
        gains[members] = gain.mean()
        errors[members] = gain.std() / len(gain) ** 0.5 + 1e-9
    prediction = _predict(state.base, basis, is_value)
    aim = targets if is_value else targets[:, -prediction.shape[1] :]
    pair = torch.stack(
        [prediction[:, 0] - prediction[:, 0].mean(), aim[:, 0] - aim[:, 0].mean()]
    )
    if prediction.shape[1] > 1:
        pair = torch.stack(
            [(prediction - prediction.mean(0)).flatten(), (aim - aim.mean(0)).flatten()]
        )
    norms = pair.square().sum(1).sqrt().clamp(min=1e-12)
    skill = (pair[0] @ pair[1]) / norms[0] / norms[1]
    entry = Arrivals(
        torch.stack([loss.mean() for loss in losses]),
        torch.stack([score.mean() for score in scores]),
        gains,
        errors,
        skill,
    )
    return state._replace(arrivals=append_entry(state.arrivals, entry))


def _predict(predictor: Predictor, basis: Tensor, is_value: bool) -> Tensor:
    """Return probabilities or values [n, k], averaged over samples."""
    outputs = apply_predictor(predictor, basis)
    if is_value:
        return outputs.mean(0)
    if outputs.shape[-1] == 1:
        return outputs.sigmoid().mean(0)
    return outputs.softmax(-1).mean(0)


def _score(
    predictor: Predictor, basis: Tensor, targets: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Return the loss and the score of each row, [n] each."""
    prediction = _predict(predictor, basis, noise > 0)
    if noise > 0:
        squares = (prediction - targets)[:, 0].square()
        total = (targets - targets.mean()).square().mean().clamp(min=1e-12)
        return 0.5 * squares / noise, 100 * (1 - squares / total)
    if prediction.shape[1] == 1:
        prediction = torch.cat([1 - prediction, prediction], 1)
    chosen = (prediction * targets).sum(1)
    correct = prediction.argmax(1) == targets.argmax(1)
    return -chosen.clamp(min=1e-6).log(), 100.0 * correct.double()
