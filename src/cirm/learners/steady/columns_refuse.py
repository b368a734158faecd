"""When unlabelled rows must not change the meaning of a feature, and why."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.columns_residual import compute_residual_of_feature_on_others
from cirm.learners.steady.columns_state import SteadyTableState

FEWEST_ROWS = 30  # below that the interval of an effect holds any effect
LEAST_SKILL = 0.1  # correlation of stable predictions with targets, on arrival
MOST_LEAK = 0.25  # squared correlation with stable features given the target
UNITS = 10.0  # ratio of standard deviations that only another unit explains
FEWEST_ARRIVALS = 2  # of environments, to see whether class frequencies can be adapted
EARNED = 2.0  # standard errors by which adapting must have helped on arrival

FEW, CONSTANT, OTHER_UNIT, UNTRIED, CHANCE, LEAK, UNEARNED, UNCLEAR = range(1, 9)


def list_reasons_not_to_adapt(
    state: SteadyTableState, inputs: Tensor, is_found: Tensor
) -> Tensor:
    """Return why each feature is not adapted to inputs; 0 if it is, [d].

    Args:
        state: The state of one replica.
        inputs: Unlabelled inputs, [n, d].
        is_found: Features that these inputs show to have changed, [d]. Adapting them
            was not tried on arrival, and they are known to be related to the others.
    """
    reasons = torch.zeros_like(state.unit)
    features = state.basis.standardise(inputs)
    spread = features.std(0, correction=0)
    raw = (inputs - state.basis.centre) * state.basis.scale
    given = state.basis.scale.gt(0) & ~state.unstable
    arrivals = state.arrivals
    for feature in (state.unstable & state.needed).nonzero()[:, 0].tolist():
        if len(inputs) < FEWEST_ROWS:
            reason = FEW
        elif float(spread[feature]) < 1e-6:
            reason = CONSTANT
        elif is_on_another_scale(raw[:, feature], float(state.basis.limit[feature])):
            reason = OTHER_UNIT
        elif bool(is_found[feature]):
            reason = 0
        elif not len(arrivals.skill):
            reason = UNTRIED
        elif float(arrivals.skill[:, 0].mean()) < LEAST_SKILL:
            reason = CHANCE
        elif (
            compute_residual_of_feature_on_others(state, feature, given)[1] > MOST_LEAK
        ):
            reason = LEAK
        elif not has_adapting_to_feature_helped(state, feature):
            reason = UNEARNED
        else:
            reason = 0
        reasons[feature] = reason
    return reasons


def is_on_another_scale(values: Tensor, limit: float) -> bool:
    """Return whether standardised values [n] are on another scale than at first."""
    if limit > 1e3:  # two values
        return False
    ordered = values.sort().values
    tenth = len(ordered) // 10
    spread = float(ordered[-1 - tenth] - ordered[tenth]) / 2.56  # of a normal: one
    centre = float(ordered[len(ordered) // 2])
    return spread > UNITS or spread < 1 / UNITS or abs(centre) > UNITS


def has_adapting_to_feature_helped(state: SteadyTableState, feature: int) -> bool:
    """Return whether adapting a feature has helped on the arrival of environments."""
    errors = state.arrivals.errors[:, feature]
    tried = errors.isfinite()
    if not bool(tried.any()):
        return False
    gains = state.arrivals.gains[tried, feature]
    return float(gains.sum()) > EARNED * float(errors[tried].square().sum().sqrt())


def has_adapting_to_frequencies_helped(state: SteadyTableState) -> bool:
    """Return whether adapting the class frequencies has helped on arrival.

    Any change of the inputs can look like one of the frequencies, by more than the
    error of the rows. So adapting must have helped on each of two or more arrivals.
    """
    gains, errors = state.arrivals.frequency_gains, state.arrivals.frequency_errors
    if len(gains) < FEWEST_ARRIVALS or not bool((gains > 0).all()):
        return False
    return float(gains.sum()) > EARNED * float(errors.square().sum().sqrt())
