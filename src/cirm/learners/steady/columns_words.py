"""Effects of columns in numbers and words that users read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cirm.learners.steady.columns_learn import summarise_effects_over_environments
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.meta_analysis import UNKNOWN
from cirm.wording import join_words

MOST_NAMED = 20  # effects of environments that one sentence lists


def get_column_names_of_features(
    features_by_column: Mapping[str, int], n_features: int
) -> list[str]:
    """Return the name of the column of each feature."""
    names = [name for name, width in features_by_column.items() for _ in range(width)]
    return (
        names
        if len(names) == n_features
        else [f"feature {i}" for i in range(n_features)]
    )


def list_most_variable_feature_of_unstable_columns(
    state: SteadyTableState, column_names: list[str]
) -> list[int]:
    """Return one feature of each unstable column, the one that changes most."""
    spread = summarise_effects_over_environments(state).spread.amax(1)
    features = (state.unstable & state.needed).nonzero()[:, 0]
    features = features[spread[features].argsort(descending=True, stable=True)]
    first = {column_names[int(j)]: int(j) for j in features.flip(0)}
    return sorted(first.values())


def convert_effect_to_reported_unit(
    effect: float, mean: float, frequency: float, state: SteadyTableState, feature: int
) -> float:
    """Return an effect as users read it.

    For classes, the factor by which the odds change: with a two-valued feature when it
    has its higher value, else per standard deviation. For regression, the correlation
    with the target given the other columns.
    """
    noise = float(state.noise[1])
    if noise > 0:
        size = effect * noise**0.5
        return size / (1 + size**2) ** 0.5
    if float(state.basis.limit[feature]) < 1e3:
        return math.exp(max(-20.0, min(20.0, effect)))
    # Standardised values of a two-valued feature are -sqrt(q / p) and sqrt(p / q).
    scale = float(state.basis.scale[feature])
    low = -float(state.basis.centre[feature]) * scale
    ratio = max(-40.0, min(40.0, effect * scale))  # log odds ratio from 0 to 1
    rate = min(max((mean - low) / scale, 1e-3), 1 - 1e-3)
    ones, zeros = _compute_rates_by_class(ratio, rate, frequency)
    return ones / zeros


def _compute_rates_by_class(
    ratio: float, rate: float, frequency: float
) -> tuple[float, float]:
    """Return the rates in both classes that have a log odds ratio and a mean rate."""
    low, high = 1e-9, 1 - 1e-9
    ones = rate
    for _ in range(60):
        ones = (low + high) / 2
        odds = math.log(ones / (1 - ones)) - ratio
        zeros = 1 / (1 + math.exp(-max(-40.0, min(40.0, odds))))
        if frequency * ones + (1 - frequency) * zeros > rate:
            high = ones
        else:
            low = ones
    odds = math.log(ones / (1 - ones)) - ratio
    return ones, max(1 / (1 + math.exp(-max(-40.0, min(40.0, odds)))), 1e-9)


def find_most_variable_output(state: SteadyTableState, feature: int) -> int:
    """Return the output whose effect varies most between environments."""
    return int(summarise_effects_over_environments(state).spread[feature].argmax())


def list_effects_by_environment(
    state: SteadyTableState, feature: int, output: int
) -> list[float]:
    """Return the effects of a feature in the environments seen, as users read them."""
    places = state.places
    effects, variances = places.contrasts.compute_effects_and_variances()
    offset = places.targets.shape[1] - effects.shape[2]
    return [
        convert_effect_to_reported_unit(
            float(effects[e, feature, output]),
            float(places.inputs[e, feature]),
            float(places.targets[e, output + offset]),
            state,
            feature,
        )
        for e in range(len(places.rows))
        if float(variances[e, feature, output]) < UNKNOWN
    ]


def _describe_odds_of_class(n_classes: int, output: int) -> str:
    if n_classes > 2:
        return f"the odds of class {output + 1} of {n_classes}"
    return "the odds of the outcome"


def describe_effects_by_environment(
    effects: list[float], n_classes: int, output: int
) -> str:
    """Say what a column did in the environments seen."""
    shown = effects[-MOST_NAMED:]
    if not shown:
        return "could not be measured"
    if not n_classes:
        numbers = join_words([f"{value:.2f}" for value in shown])
        return f"had a correlation with the target of {numbers}"
    numbers = join_words([format_odds_factor(value) for value in shown])
    return f"multiplied {_describe_odds_of_class(n_classes, output)} by {numbers}"


def format_odds_factor(value: float) -> str:
    """Return a factor of odds as text: 9, 1.4, or 1/8.

    Example:
        >>> [format_odds_factor(factor) for factor in (9.02, 0.125, 1.44)]
        ['9', '1/8', '1.4']
    """
    if value < 0.95:
        return f"1/{format_odds_factor(1 / max(value, 1e-9))}"
    return f"{value:.0f}" if value >= 2.5 else f"{value:.2g}"
