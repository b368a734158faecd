"""What the columns engine did with unlabelled rows, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cirm.learners.steady import columns_refuse as refuse
from cirm.learners.steady.columns_frequencies import (
    WITHIN,
    compute_shifted_class_frequencies,
)
from cirm.learners.steady.columns_state import (
    SteadyTableState,
    compute_class_frequencies_of_model,
    compute_mean_targets_of_past,
)
from cirm.learners.steady.columns_words import (
    EffectWords,
    convert_effect_to_reported_unit,
    describe_effects_by_environment,
    find_most_variable_output,
    format_odds_factor,
    list_effects_by_environment,
    list_most_variable_feature_of_unstable_columns,
)
from cirm.wording import join_words

REFUSALS = {
    refuse.FEW: "{name} was not adapted: {rows} rows are too few, at least 30 are "
    "needed.",
    refuse.CONSTANT: "{name} was not adapted: it is constant in these rows.",
    refuse.OTHER_UNIT: (
        "{name} was not adapted: its values are on another scale than at the first "
        "place. Check the unit of this column."
    ),
    refuse.UNTRIED: (
        "{name} was not adapted: it is not known yet whether adapting this column "
        "helps. Update the model with labelled rows of another place first."
    ),
    refuse.CHANCE: "{name} was not adapted: without unstable columns the model "
    "predicts hardly better than chance.",
    refuse.LEAK: (
        "{name} was not adapted: it is too closely related to the stable columns."
    ),
    refuse.UNEARNED: (
        "{name} was not adapted: on arrival at earlier places, adapting it did not "
        "clearly improve the predictions."
    ),
    refuse.UNCLEAR: "{name} was not adapted: these rows do not show what it "
    "means here.",
}

NOT_USED = (
    "{name} is not used here: it depends on the other columns in another way than "
    "at the places seen, but these rows do not show what it means here."
)
FOUND_HERE = (
    " The places seen did not show that this column can change its meaning. These "
    "rows show it, because the column depends on the other columns in another way "
    "here."
)


def describe_adaptation(
    state: SteadyTableState, names: list[str], words: EffectWords
) -> dict[str, Any]:
    """Return what was re-learned and what was not, with the gains on arrival.

    Args:
        state: The adapted state of one replica.
        names: The column of each feature.
        words: What features and classes are called in sentences.
    """
    adaptation = state.adaptation
    rows = int(adaptation.rows)
    found = set(adaptation.found.nonzero()[:, 0].tolist())
    shown = state.unstable.clone()
    shown[list(found)] = True
    effects, refusals = [], []
    for feature in list_most_variable_feature_of_unstable_columns(
        state._replace(unstable=shown), names
    ):
        reason = int(adaptation.reasons[feature])
        name = f"`{names[feature]}`"
        if reason and feature in found:
            refusals.append(NOT_USED.format(name=name))
        elif reason:
            refusals.append(REFUSALS[reason].format(name=name, rows=rows))
        elif bool(adaptation.effects[:, feature].any()):  # else a copy of another one
            effects.append(
                _describe_adapted_effect_of_feature(
                    state, feature, names[feature], words
                )
            )
            if feature in found:
                effects[-1]["sentence"] += FOUND_HERE
    frequencies = _describe_adapted_class_frequencies(state, words.classes, not effects)
    if effects:
        count = len({entry["feature"] for entry in effects})
        noun = "column" if count == 1 else "columns"
        verdict = f"Re-learned {count} {noun} from {rows:,} rows without labels"
    elif frequencies:
        verdict = f"Re-learned the class frequencies from {rows:,} rows without labels"
    elif found:
        count = len({names[feature] for feature in found})
        noun = "column" if count == 1 else "columns"
        verdict = (
            f"Nothing was re-learned from {rows:,} rows, but the predictions here no "
            f"longer use {count} {noun}"
        )
    elif refusals:
        verdict = f"Nothing was re-learned from {rows:,} rows; the model is unchanged"
    else:
        verdict = (
            "No column is known to be unstable, and none has changed here, so the "
            "model is unchanged"
        )
    return {
        "rows": rows,
        "verdict": verdict,
        "effects": effects,
        "found": sorted({names[feature] for feature in found}),
        "gains": _describe_gains_of_adapting(state, words),
        "arrivals": _list_scores_on_arrival(state),
        "refusals": list(dict.fromkeys(refusals)),
        "frequencies": frequencies,
    }


def _describe_adapted_class_frequencies(
    state: SteadyTableState, labels: Sequence[str], is_alone: bool
) -> list[str]:
    """Say which class frequencies were re-learned.

    If nothing else was, the intercepts of the model differ from those before by samples
    of their shifts, which give the interval of two classes.
    """
    here = state.adaptation.frequencies
    if not float(here.sum()):
        return []
    seen = compute_mean_targets_of_past(state)
    usual, interval = compute_class_frequencies_of_model(state), ""
    if is_alone and len(here) == 2:
        levels = state.adaptation.predictor.levels - state.base.levels.mean(0)
        reach = WITHIN * levels.std(0, correction=0)
        low, high = (
            float(compute_shifted_class_frequencies(shift, usual)[1])
            for shift in (levels.mean(0) - reach, levels.mean(0) + reach)
        )
        interval = (
            f" (95 % interval of {labels[1]} {100 * low:.0f} to {100 * high:.0f} %)"
        )
    now, before = (
        [f"{100 * float(part):.0f} %" for part in parts] for parts in (here, seen)
    )
    told = [f"{part} for {label}" for part, label in zip(now, labels, strict=True)]
    return [
        f"The frequencies of the classes are estimated as {join_words(told)} "
        f"here{interval}, {join_words(before)} at the places seen. "
        "Such estimates improved the predictions on arrival at every place so far."
    ]


def _describe_adapted_effect_of_feature(
    state: SteadyTableState, feature: int, name: str, words: EffectWords
) -> dict[str, Any]:
    output = find_most_variable_output(state, feature)
    seen = list_effects_by_environment(state, feature, output)
    adaptation, places = state.adaptation, state.places
    offset = places.targets.shape[1] - adaptation.effects.shape[2]
    frequency = float(places.targets[:, output + offset].mean())
    here, low, high = (
        convert_effect_to_reported_unit(
            float(value), float(adaptation.means[feature]), frequency, state, feature
        )
        for value in adaptation.effects[:, feature, output]
    )
    rows = f"from {int(adaptation.rows):,} rows without labels"
    told = describe_effects_by_environment(seen, words, feature, output)
    if not words.classes:
        now = f"here it is {here:.2f} (95 % interval {low:.2f} to {high:.2f}, {rows})"
    elif low <= 1 <= high:
        now = (
            "here it says little about them: the factor is between "
            f"{format_odds_factor(low)} and {format_odds_factor(high)} "
            f"(95 % interval, {rows})"
        )
    else:
        verb = "raises" if here > 1 else "lowers"
        ends = sorted([low, high], key=lambda value: abs(math.log(value)))
        now = (
            f"here it {verb} them, by a factor of {format_odds_factor(here)} "
            f"(95 % interval {format_odds_factor(ends[0])} to "
            f"{format_odds_factor(ends[1])}, {rows})"
        )
    differs = bool(seen) and not min(seen.values()) <= here <= max(seen.values())
    what = (
        "means something different here"
        if differs
        else ("means the same here as before")
    )
    return {
        "feature": name,
        "seen": [round(value, 4) for value in seen.values()],
        "here": round(here, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "sentence": (
            f"`{name}` {what}: {told}; {now}. Predictions rely on its meaning here."
        ),
    }


def _describe_gains_of_adapting(
    state: SteadyTableState, words: EffectWords
) -> list[str]:
    score = "accuracy" if words.classes else "explained variance"
    sentences = []
    for one in _list_scores_on_arrival(state):
        number = one["environment"]
        name = (
            words.environments[number - 1] if words.environments else f"place {number}"
        )
        sentences.append(
            f"On arrival at {name}, adapting would have changed the {score} from "
            f"{one['score']:.1f} to {one['adapted']:.1f} %."
        )
    return sentences


def _list_scores_on_arrival(state: SteadyTableState) -> list[dict[str, Any]]:
    """Return the scores in percent on arrivals, as they were and after adapting."""
    tried = state.arrivals.errors.isfinite().any(1)
    return [
        {"environment": index + 2, "score": float(row[0]), "adapted": float(row[3])}
        for index, row in enumerate(state.arrivals.scores)
        if bool(tried[index])
    ]
