"""What the columns engine found and did, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scipy import stats
from torch import Tensor

from cirm.learners.steady import columns_refuse as refuse
from cirm.learners.steady.columns_learn import summarise_effects
from cirm.learners.steady.columns_residual import find_residual
from cirm.learners.steady.columns_state import State
from cirm.learners.steady.meta_analysis import UNKNOWN

POLICIES = "invariant", "interval", "average", "adapted"
MOST_NAMED = 20  # effects of environments that one sentence lists


def explain_state(
    state: State, columns: Mapping[str, int], trust: str, level: float, classes: int
) -> dict[str, Any]:
    """Return the unstable columns, their effects, and what was adapted.

    Args:
        state: The state of one replica.
        columns: Number of features of each column.
        trust: The learner's setting.
        level: The learner's setting.
        classes: Number of classes; 0 for regression.
    """
    names = name_features(columns, len(state.unit))
    unstable = [
        _describe_feature(state, feature, names[feature], classes)
        for feature in _list_unstable(state, names)
    ]
    for entry in unstable:
        entry["copies"] = sorted(
            {names[int(j)] for j in _find_members(state, entry["index"])}
            - {entry["feature"]}
        )
    environments = len(state.places.rows)
    if unstable:
        words = _join(sorted({f"`{entry['feature']}`" for entry in unstable}))
        verdict = f"{words} {_mean(unstable)} something different in each environment"
        verdict += _describe_trust(trust)
    elif environments < 2:
        verdict = "One environment cannot show which columns are unstable"
    else:
        verdict = "No column was found to change its meaning between environments"
    explanation = {
        "verdict": verdict,
        "evidence": [
            *(entry["sentence"] for entry in unstable),
            *_describe_entangled(state, names),
            *_describe_power(state, level, classes),
            *_describe_costs(state, classes),
        ],
        "unstable": unstable,
        "trust": trust,
        "costs": _list_costs(state),
    }
    if int(state.adaptation.rows):
        explanation["adaptation"] = _describe_adaptation(state, names, classes)
    return explanation


def name_features(columns: Mapping[str, int], count: int) -> list[str]:
    """Return the name of the column of each feature."""
    names = [name for name, width in columns.items() for _ in range(width)]
    return names if len(names) == count else [f"feature {i}" for i in range(count)]


def _list_unstable(state: State, names: list[str]) -> list[int]:
    """Return one feature of each unstable column, the one that changes most."""
    spread = summarise_effects(state).spread.amax(1)
    features = (state.unstable & state.needed).nonzero()[:, 0]
    features = features[spread[features].argsort(descending=True, stable=True)]
    first = {names[int(j)]: int(j) for j in features.flip(0)}
    return sorted(first.values())


def _find_members(state: State, feature: int) -> Tensor:
    return (state.unit == state.unit[feature]).nonzero()[:, 0]


def _mean(entries: list[Any]) -> str:
    names = {entry["feature"] for entry in entries}
    return "mean" if len(names) > 1 else "means"


def _join(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if words[1:] else words[0]


def _describe_trust(trust: str) -> str:
    return {
        "invariant": "; without rows of a new environment the model does not rely on "
        "what changes",
        "interval": "; without rows of a new environment the model relies on it only "
        "as far as the environments seen agree",
        "average": "; without rows of a new environment the model uses the average "
        "meaning",
    }[trust]


def to_number(
    effect: float, mean: float, frequency: float, state: State, feature: int
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
    ones, zeros = _split_rate(ratio, rate, frequency)
    return ones / zeros


def _split_rate(ratio: float, rate: float, frequency: float) -> tuple[float, float]:
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


def _pick_output(state: State, feature: int) -> int:
    """Return the output whose effect varies most between environments."""
    return int(summarise_effects(state).spread[feature].argmax())


def _list_effects(state: State, feature: int, output: int) -> list[float]:
    places = state.places
    effects, variances = places.contrasts.compute_effects()
    offset = places.targets.shape[1] - effects.shape[2]
    return [
        to_number(
            float(effects[e, feature, output]),
            float(places.inputs[e, feature]),
            float(places.targets[e, output + offset]),
            state,
            feature,
        )
        for e in range(len(places.rows))
        if float(variances[e, feature, output]) < UNKNOWN
    ]


def _describe_feature(
    state: State, feature: int, name: str, classes: int
) -> dict[str, Any]:
    output = _pick_output(state, feature)
    effects = _list_effects(state, feature, output)
    p_value = float(summarise_effects(state).p_value()[feature, output])
    given = state.basis.scale.gt(0) & ~state.unstable
    leak = find_residual(state, feature, given)[1]
    told = _describe_seen(effects, classes, output)
    sentence = f"`{name}` changes its meaning: in the environments seen it {told}"
    sentence += f" (p = {p_value:.1g})." if p_value < 0.05 else "."
    return {
        "feature": name,
        "index": feature,
        "effects": [round(value, 4) for value in effects],
        "p_value": p_value,
        "leak": round(leak, 4),
        "sentence": sentence,
    }


def _describe_entangled(state: State, names: list[str]) -> list[str]:
    found = (state.entangled & state.needed & ~state.unstable).nonzero()[:, 0]
    if not len(found):
        return []
    words = _join(list(dict.fromkeys(f"`{names[int(j)]}`" for j in found)))
    return [
        f"The effect of {words} changes too, but cannot be separated from that of the "
        "other columns, so the model keeps using it. Name a column as unstable to do "
        "without it."
    ]


def _describe_outcome(classes: int, output: int) -> str:
    if classes > 2:
        return f"the odds of class {output + 1} of {classes}"
    return "the odds of the outcome"


def _describe_seen(effects: list[float], classes: int, output: int) -> str:
    shown = effects[-MOST_NAMED:]
    if not shown:
        return "could not be measured"
    if not classes:
        numbers = _join([f"{value:.2f}" for value in shown])
        return f"had a correlation with the target of {numbers}"
    numbers = _join([format_factor(value) for value in shown])
    return f"multiplied {_describe_outcome(classes, output)} by {numbers}"


def format_factor(value: float) -> str:
    """Return a factor of odds as text: 9, 1.4, or 1/8.

    Example:
        >>> format_factor(9.02), format_factor(0.125), format_factor(1.44)
        ('9', '1/8', '1.4')
    """
    if value < 0.95:
        return f"1/{format_factor(1 / max(value, 1e-9))}"
    return f"{value:.0f}" if value >= 2.5 else f"{value:.2g}"


def _describe_power(state: State, level: float, classes: int) -> list[str]:
    """Say which change the rows could have shown, if none was found."""
    places, needed = state.places, state.needed
    variances = places.contrasts.compute_effects()[1][:, needed]
    known = (variances < UNKNOWN).all(0)
    if len(places.rows) < 2:
        return []
    if not bool(known.any()):
        return [
            "The environments have too few rows, or too few of one class, to show "
            "whether a column changes its meaning."
        ]
    tests = variances[0].numel()
    share = level * 6 / (math.pi * max(1, int(state.looks))) ** 2 / tests
    limit = float(stats.norm.isf(share / 2))
    errors = variances[:, known].sort(0).values[:2].sum(0).sqrt()
    typical = float(errors.median())
    if not classes:
        change = limit * typical * float(state.noise[0]) ** 0.5
        return [
            "A change of a column's correlation with the target by about "
            f"{min(change, 2.0):.2f} between two environments can be recognised."
        ]
    factor = format_factor(math.exp(min(limit * typical, 20.0)))
    strongest = 0.8 / typical  # agreement with the outcome of 90 % here and 80 % there
    text = (
        "These rows can show a change of the odds per standard deviation of a column "
        f"by a factor of about {factor} or more."
    )
    if strongest < limit:
        text += (
            " Smaller changes stay unnoticed, even that of a column which agrees with "
            "the outcome for 90 % of the rows in one environment and 80 % in another: "
            f"its z is about {strongest:.1f}, and {limit:.1f} would be needed."
        )
    return [text]


def _list_costs(state: State) -> dict[str, list[float]]:
    scores = state.arrivals.scores
    return {
        name: [round(value, 3) for value in scores[:, i].tolist()]
        for i, name in enumerate(POLICIES)
        if len(scores)
    }


def _describe_costs(state: State, classes: int) -> list[str]:
    if not len(state.arrivals.skill) or not bool(state.unstable.any()):
        return []
    invariant, interval, average, adapted = state.arrivals.scores.mean(0).tolist()
    score = "accuracy" if classes else "explained variance"
    return [
        f"On the arrival of the environments after the first, the mean {score} was "
        f"{invariant:.1f} % without unstable columns (trust=invariant), "
        f"{interval:.1f} % with those whose effects agree (trust=interval), "
        f"{average:.1f} % with all (trust=average), and would have been "
        f"{adapted:.1f} % after adapting to the rows without labels."
    ]


REFUSALS = {
    refuse.FEW: "{name} was not adapted: {rows} rows are too few, at least 30 are "
    "needed.",
    refuse.CONSTANT: "{name} was not adapted: it is constant in these rows.",
    refuse.OTHER_UNIT: "{name} was not adapted: its values are on another scale than "
    "in the first environment. Check its unit.",
    refuse.UNTRIED: "{name} was not adapted: no environment has arrived yet that shows "
    "whether adapting helps.",
    refuse.CHANCE: "{name} was not adapted: without unstable columns the model "
    "predicts hardly better than chance.",
    refuse.LEAK: "{name} was not adapted: it shares too much with the stable columns.",
    refuse.UNEARNED: "{name} was not adapted: on the arrival of earlier environments "
    "adapting it did not help clearly.",
}


def _describe_adaptation(
    state: State, names: list[str], classes: int
) -> dict[str, Any]:
    adaptation = state.adaptation
    rows = int(adaptation.rows)
    effects, refusals = [], []
    for feature in _list_unstable(state, names):
        reason = int(adaptation.reasons[feature])
        name = f"`{names[feature]}`"
        if reason:
            refusals.append(REFUSALS[reason].format(name=name, rows=rows))
        else:
            effects.append(_describe_effect(state, feature, names[feature], classes))
    if effects:
        count = len({entry["feature"] for entry in effects})
        noun = "column" if count == 1 else "columns"
        verdict = f"{count} {noun} re-learned from {rows} rows without labels"
    elif refusals:
        verdict = f"Nothing was re-learned from {rows} rows; the model is unchanged"
    else:
        verdict = "No column is known to be unstable, so the model is unchanged"
    return {
        "rows": rows,
        "verdict": verdict,
        "effects": effects,
        "gains": _describe_gains(state, classes),
        "arrivals": _list_arrivals(state),
        "refusals": list(dict.fromkeys(refusals)),
    }


def _describe_effect(
    state: State, feature: int, name: str, classes: int
) -> dict[str, Any]:
    output = _pick_output(state, feature)
    seen = _list_effects(state, feature, output)
    adaptation, places = state.adaptation, state.places
    offset = places.targets.shape[1] - adaptation.effects.shape[2]
    frequency = float(places.targets[:, output + offset].mean())
    here, low, high = (
        to_number(
            float(value), float(adaptation.means[feature]), frequency, state, feature
        )
        for value in adaptation.effects[:, feature, output]
    )
    rows = f"from {int(adaptation.rows)} rows without labels"
    told = _describe_seen(seen, classes, output)
    if not classes:
        now = f"here it is {here:.2f} (95 % interval {low:.2f} to {high:.2f}, {rows})"
    elif low <= 1 <= high:
        now = (
            "here it says little: the odds are multiplied by between "
            f"{format_factor(low)} and {format_factor(high)} (95 % interval, {rows})"
        )
    else:
        verb = "raises" if here > 1 else "lowers"
        ends = sorted([low, high], key=lambda value: abs(math.log(value)))
        now = (
            f"here it {verb} them, by a factor of {format_factor(here)} (95 % interval "
            f"{format_factor(ends[0])} to {format_factor(ends[1])}, {rows})"
        )
    differs = bool(seen) and not min(seen) <= here <= max(seen)
    what = "means something different here" if differs else "means here what it did"
    return {
        "feature": name,
        "seen": [round(value, 4) for value in seen],
        "here": round(here, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "sentence": f"`{name}` {what}: in the environments seen it {told}; {now}. "
        "Predictions use it so.",
    }


def _describe_gains(state: State, classes: int) -> list[str]:
    score = "accuracy" if classes else "explained variance"
    return [
        f"On the arrival of environment {one['environment']}, adapting would have "
        f"changed the {score} from {one['score']:.1f} to {one['adapted']:.1f} %."
        for one in _list_arrivals(state)
    ]


def _list_arrivals(state: State) -> list[dict[str, Any]]:
    """Return the scores in percent on arrivals, as they were and after adapting."""
    tried = state.arrivals.errors.isfinite().any(1)
    return [
        {"environment": index + 2, "score": float(row[0]), "adapted": float(row[3])}
        for index, row in enumerate(state.arrivals.scores)
        if bool(tried[index])
    ]
