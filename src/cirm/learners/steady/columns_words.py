"""Effects of columns in numbers and words that users read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cirm.learners.base import TableNames
from cirm.learners.steady.columns_learn import summarise_effects_over_environments
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.meta_analysis import UNKNOWN
from cirm.wording import join_words

MOST_OF_NUMBERS = 1e3  # the limit of a feature that has more than two values
MOST_SHOWN_FACTOR = 1_000  # of odds, as a number
MOST_SHOWN = 20  # effects of environments that one sentence lists
MOST_NAMED = 6  # environments that one sentence names


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

    For classes, the factor by which the odds change, with many classes those against
    the average of the others: with a two-valued feature when it has its higher value,
    else per standard deviation. For regression, the partial correlation with the
    target given the other columns.
    """
    noise = float(state.noise[1])
    if noise > 0:
        own = state.places.contrasts.noise[:, feature].log().mean().exp()
        size = effect * (float(own) * noise) ** 0.5
        return size / (1 + size**2) ** 0.5
    n_classes = state.places.targets.shape[1]
    if n_classes > 2:  # measured against the average of all classes
        effect *= n_classes / (n_classes - 1)
    if float(state.basis.limit[feature]) < MOST_OF_NUMBERS:
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
) -> dict[int, float]:
    """Return the effects of a feature by environment seen, as users read them.

    Environments that do not show the effect are left out.
    """
    places = state.places
    effects, variances = places.contrasts.compute_effects_and_variances()
    offset = places.targets.shape[1] - effects.shape[2]
    return {
        e: convert_effect_to_reported_unit(
            float(effects[e, feature, output]),
            float(places.inputs[e, feature]),
            float(places.targets[e, output + offset]),
            state,
            feature,
        )
        for e in range(len(places.rows))
        if float(variances[e, feature, output]) < UNKNOWN
    }


class EffectWords(NamedTuple):
    """What is called how in sentences about effects.

    Args:
        features: For each feature what has the effect.
        classes: For each class its name; none for regression.
        environments: For each environment its name; none if they are not known.
    """

    features: Sequence[str]
    classes: Sequence[str]
    environments: Sequence[str]


def create_words_for_effects(
    state: SteadyTableState, columns: list[str], n_classes: int, table: TableNames
) -> EffectWords:
    """Return what is called how in sentences about effects.

    Args:
        state: The state of one replica.
        columns: The column of each feature.
        n_classes: Number of classes; 0 for regression.
        table: The names of features, classes and environments, if they are known.
    """
    names = table.features if len(table.features) == len(columns) else columns
    is_number = state.basis.limit < MOST_OF_NUMBERS
    features = []
    for position, (name, column) in enumerate(zip(names, columns, strict=True)):
        if name != column:  # a category, or that the value is missing
            features.append(f"`{name}`")
        elif not n_classes:
            features.append("it")
        elif is_number[position]:
            features.append("each standard deviation of it")
        else:
            features.append("its higher value")
    known = len(table.environments) == len(state.places.rows)
    return EffectWords(
        features,
        _list_class_labels(n_classes, table.classes),
        table.environments if known else (),
    )


def _list_class_labels(n_classes: int, names: Sequence[str]) -> tuple[str, ...]:
    if len(names) == n_classes:
        return tuple(f"class `{name}`" for name in names)
    if n_classes == 2:
        return "the other outcome", "the outcome"
    return tuple(f"class {n} of {n_classes}" for n in range(1, n_classes + 1))


def describe_effects_by_environment(
    effects: Mapping[int, float], words: EffectWords, feature: int, output: int
) -> str:
    """Say what a column did in the environments seen, by name if these are few.

    Args:
        effects: As `list_effects_by_environment` returns them.
        words: What features and classes are called.
        feature: The feature whose effects these are.
        output: The output whose effects these are; two classes have one output, that
            of the second class.
    """
    if not effects:
        return "at the places seen, its effect could not be measured"
    subject = words.features[feature]
    if words.classes:
        label = words.classes[1 if len(words.classes) == 2 else output]
        did, by = f"multiplied the odds of {label} by", "by "
        numbers = {e: format_odds_factor(value) for e, value in effects.items()}
    else:
        did, by = "had a partial correlation with the target of", ""
        numbers = {e: f"{value:.2f}" for e, value in effects.items()}
    if words.environments and len(numbers) <= MOST_NAMED:
        parts = [
            f"{number} at {words.environments[e]}" for e, number in numbers.items()
        ]
        return f"{subject} {did} {join_words(parts[:1] + [by + p for p in parts[1:]])}"
    shown = join_words(list(numbers.values())[-MOST_SHOWN:])
    return f"at the places seen, {subject} {did} {shown}"


def format_odds_factor(value: float) -> str:
    """Return a factor of odds as text: 9, 1.4, or 1/8.

    Example:
        >>> [format_odds_factor(factor) for factor in (9.02, 0.125, 1.44, 5000)]
        ['9', '1/8', '1.4', 'more than 1,000']
    """
    if value < 1 / MOST_SHOWN_FACTOR:
        return f"less than 1/{MOST_SHOWN_FACTOR:,}"
    if value > MOST_SHOWN_FACTOR:
        return f"more than {MOST_SHOWN_FACTOR:,}"
    if value < 0.95:
        return f"1/{format_odds_factor(1 / max(value, 1e-9))}"
    return f"{value:.0f}" if value >= 2.5 else f"{value:.2g}"
