"""What the columns engine found and did, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from cirm.learners.base import NO_NAMES, TableNames
from cirm.learners.steady.columns_changes import (
    MOST_OF_LEVEL,
    compute_p_value_of_change,
    compute_share_of_significance_level,
    find_features_unrelated_to_target,
)
from cirm.learners.steady.columns_effects import LEAST_EFFECT, LEAST_VALUE_EFFECT
from cirm.learners.steady.columns_explain_adaptation import describe_adaptation
from cirm.learners.steady.columns_learn import summarise_effects_over_environments
from cirm.learners.steady.columns_residual import compute_residual_of_feature_on_others
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.columns_words import (
    EffectWords,
    create_words_for_effects,
    describe_effects_by_environment,
    find_most_variable_output,
    format_odds_factor,
    get_column_names_of_features,
    list_effects_by_environment,
    list_most_variable_feature_of_unstable_columns,
)
from cirm.learners.steady.meta_analysis import UNKNOWN
from cirm.wording import join_words

SUSPICIOUS = 1.64  # z that one in ten stable columns has
STRONG = 1.8  # log odds per standard deviation of such a column
POLICIES = "invariant", "interval", "average", "adapted"


def explain_state_of_columns(
    state: SteadyTableState,
    columns: Mapping[str, int],
    trust: str,
    level: float,
    n_classes: int,
    table: TableNames = NO_NAMES,
) -> dict[str, Any]:
    """Return the unstable columns, their effects, and what was adapted.

    Args:
        state: The state of one replica.
        columns: Number of features of each column.
        trust: The learner's setting.
        level: The learner's setting.
        n_classes: Number of classes; 0 for regression.
        table: What features and classes are called, if that is known.
    """
    names = get_column_names_of_features(columns, len(state.unit))
    words = create_words_for_effects(state, names, n_classes, table)
    unstable = [
        _describe_effect_of_unstable_column(state, feature, names[feature], words)
        for feature in list_most_variable_feature_of_unstable_columns(state, names)
    ]
    for entry in unstable:
        entry["copies"] = sorted(
            {
                names[int(j)]
                for j in _find_features_of_same_column(state, entry["index"])
            }
            - {entry["feature"]}
        )
    environments = len(state.places.rows)
    if unstable:
        found = sorted({f"`{entry['feature']}`" for entry in unstable})
        verb = "means" if len(found) == 1 else "mean"
        verdict = f"{join_words(found)} {verb} something different at each place"
        verdict += _describe_use_of_unstable_columns(trust)
    elif environments < 2:
        verdict = "One place cannot show which columns are unstable"
    else:
        verdict = "No column was found to change its meaning between places"
    explanation = {
        "verdict": verdict,
        "evidence": [
            *(entry["sentence"] for entry in unstable),
            *_describe_columns_that_change_together(state, names),
            *_describe_suspicious_column(state, names, level, n_classes),
            *_describe_detectable_change(state, level, n_classes),
            *_describe_scores_by_trust(state, n_classes),
        ],
        "unstable": unstable,
        "trust": trust,
        "costs": _list_scores_by_trust(state),
    }
    if int(state.adaptation.rows):
        explanation["adaptation"] = describe_adaptation(state, names, words)
    return explanation


def _find_features_of_same_column(state: SteadyTableState, feature: int) -> Tensor:
    return (state.unit == state.unit[feature]).nonzero()[:, 0]


def _describe_use_of_unstable_columns(trust: str) -> str:
    return {
        "invariant": (
            "; until the model is adapted to a new place, it does not use such columns"
        ),
        "interval": (
            "; until the model is adapted to a new place, it uses such columns only "
            "as far as the places seen agree"
        ),
        "average": (
            "; until the model is adapted to a new place, it uses the average effect "
            "of such columns"
        ),
    }[trust]


def _describe_effect_of_unstable_column(
    state: SteadyTableState, feature: int, name: str, words: EffectWords
) -> dict[str, Any]:
    output = find_most_variable_output(state, feature)
    effects = list_effects_by_environment(state, feature, output)
    p_value = compute_p_value_of_change(state, feature, output)
    given = state.basis.scale.gt(0) & ~state.unstable
    leak = compute_residual_of_feature_on_others(state, feature, given)[1]
    told = describe_effects_by_environment(effects, words, feature, output)
    sentence = f"`{name}` changes its meaning: {told}"
    size = "< 1e-15" if p_value < 1e-15 else f"= {p_value:.1g}"
    sentence += f" (p {size})." if p_value < 0.05 else "."
    return {
        "feature": name,
        "index": feature,
        "effects": [round(value, 4) for value in effects.values()],
        "p_value": p_value,
        "leak": round(leak, 4),
        "sentence": sentence,
    }


def _describe_columns_that_change_together(
    state: SteadyTableState, names: list[str]
) -> list[str]:
    found = (state.entangled & state.needed & ~state.unstable).nonzero()[:, 0]
    if not len(found):
        return []
    words = join_words(list(dict.fromkeys(f"`{names[int(j)]}`" for j in found)))
    return [
        f"The effect of {words} seems to change, but cannot be separated from the "
        "effects of other columns. To make a model ignore such a column, name it "
        "with `cirm fit --unstable`."
    ]


def _describe_detectable_change(
    state: SteadyTableState, level: float, n_classes: int
) -> list[str]:
    """Say which change the rows could have shown, and which they could not."""
    places, needed = state.places, state.needed
    variances = places.contrasts.compute_effects_and_variances()[1][:, needed]
    known = (variances < UNKNOWN).sum(0) > 1
    if len(places.rows) < 2:
        return []
    if not bool(known.any()):
        return [
            "The places have too few rows, or too few of one class, to show whether "
            "a column changes its meaning."
        ]
    errors = variances[:, known].sort(0).values[:2].sum(0).sqrt()
    typical = float(errors.median())
    if not n_classes:
        limit = _compute_z_score_for_detection(state, level, LEAST_VALUE_EFFECT)
        own = places.contrasts.noise[:, needed].log().mean(0).exp()[known].median()
        change = limit * typical * (float(own) * float(state.noise[0])) ** 0.5
        text = (
            "A change of a column's partial correlation with the target by about "
            f"{min(change, 2.0):.2f} between two places can be detected."
        )
        strongest = _compute_z_score_of_correlation_change(state)
        kind = "whose partial correlation with the target is 0.8 at one place and 0.6"
        return [text + _describe_power_to_detect_column(kind, strongest, limit)]
    limit = _compute_z_score_for_detection(state, level, LEAST_EFFECT)
    factor = format_odds_factor(math.exp(min(limit * typical, 20.0)))
    text = (
        "With this number of rows, a change can be detected if the odds per standard "
        f"deviation of a column change by a factor of about {factor} or more."
    )
    strongest = _compute_z_score_of_agreement_change(state)
    kind = "that agrees with the outcome for 90 % of the rows at one place and for 80 %"
    return [text + _describe_power_to_detect_column(kind, strongest, limit)]


def _describe_power_to_detect_column(kind: str, strongest: float, limit: float) -> str:
    """Say how likely a kind of column is to be detected, unless it is very likely."""
    chance = float(ndtr(strongest - limit))
    if chance >= 0.9:
        return ""
    return (
        f" Smaller changes may stay unnoticed. For example, a column {kind} in another "
        f"would be detected with a probability of {100 * chance:.0f} % (its z-score "
        f"would be {strongest:.1f} at most; {limit:.1f} is needed). If you suspect a "
        "column, name it with `cirm fit --unstable`."
    )


def _describe_suspicious_column(
    state: SteadyTableState, column_names: list[str], level: float, n_classes: int
) -> list[str]:
    """Name the most predictive column if its change is almost significant."""
    if n_classes > 2 or len(state.places.rows) < 2:
        return []
    summary = summarise_effects_over_environments(state)
    tested = state.needed & ~state.unstable & ~state.entangled
    sizes = torch.where(tested, summary.common[:, 0].abs(), -1.0)
    first = int(sizes.argmax())
    z = float(-ndtri(float(summary.p_value()[first, 0]) / 2))
    least = LEAST_EFFECT if n_classes else LEAST_VALUE_EFFECT
    limit = _compute_z_score_for_detection(state, level, least)
    if not bool(tested[first]) or not SUSPICIOUS < z < limit:
        return []
    return [
        f"`{column_names[first]}` is the most informative column, and its effect on "
        f"the prediction differs between places (its z-score is {z:.1f}; {limit:.1f} "
        "is needed to call it unstable). If this column may mean something different "
        "at other places, name it with `cirm fit --unstable`."
    ]


def _compute_z_score_for_detection(
    state: SteadyTableState, level: float, least_effect: float
) -> float:
    """Return the z that a column as strong as all others together needs."""
    rivals = state.needed & find_features_unrelated_to_target(state, state.unit)
    common = summarise_effects_over_environments(state).common[rivals]
    rest = float((common.square() + least_effect**2).amax(1).square().sum())
    own = max(rest, STRONG**4)
    share = MOST_OF_LEVEL * level * own / (own + rest)
    share *= compute_share_of_significance_level(max(1, int(state.looks)))
    return float(-ndtri(share / 2))


def _compute_z_score_of_agreement_change(state: SteadyTableState) -> float:
    """Return the z of a column that agrees with a class in 90 % and 80 % of the rows.

    The log odds ratio has the variance (1 / n1 + 1 / n0) / (a (1 - a)) for an agreement
    a among n1 rows of the class and n0 others. The two environments and the class that
    show most are taken.
    """
    rows = state.places.rows[:, None]
    cases = (state.places.targets * rows).clamp(min=0.5)
    errors = 1 / cases + 1 / (rows - cases).clamp(min=0.5)
    best = errors.sort(0).values[:2]
    variance = best[0] / (0.9 * 0.1) + best[1] / (0.8 * 0.2)
    return 2 * math.log(9 / 4) / float(variance.min()) ** 0.5


def _compute_z_score_of_correlation_change(state: SteadyTableState) -> float:
    """Return the z of a column with a correlation of 0.8 and 0.6, by Fisher's z."""
    rows = state.places.rows.sort(descending=True).values[:2]
    variance = float((1 / (rows - 3).clamp(min=1)).sum())
    return (math.atanh(0.8) - math.atanh(0.6)) / variance**0.5


def _list_scores_by_trust(state: SteadyTableState) -> dict[str, list[float]]:
    scores = state.arrivals.scores
    return {
        name: [round(value, 3) for value in scores[:, i].tolist()]
        for i, name in enumerate(POLICIES)
        if len(scores)
    }


def _describe_scores_by_trust(state: SteadyTableState, n_classes: int) -> list[str]:
    if not len(state.arrivals.skill) or not bool(state.unstable.any()):
        return []
    invariant, interval, average, adapted = state.arrivals.scores.mean(0).tolist()
    score = "accuracy" if n_classes else "explained variance"
    return [
        "At the places after the first, before the model learned from them, the mean "
        f"{score} was {invariant:.1f} % without unstable columns (trust=invariant), "
        f"{interval:.1f} % with only those unstable columns whose effects agree "
        f"between places (trust=interval), {average:.1f} % with all columns "
        f"(trust=average), and {adapted:.1f} % after adapting to the rows of each "
        "place without their labels."
    ]
