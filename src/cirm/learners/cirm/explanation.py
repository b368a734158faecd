"""What the learner `cirm` decided about the shortcut, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.disagreement import UNLIKELY
from cirm.learners.cirm.state import Evidence, State
from cirm.learners.cirm.values import STRONG

if TYPE_CHECKING:
    from cirm.learners.cirm.learner import CIRM

GROUPS = "right", "wrong"
LEAST_PART = 0.1  # columns with a smaller part of the hidden directions are not named
ALONE = "There is no other environment to compare with yet."


def explain_decision(
    learner: CIRM, state: State, columns: Mapping[str, int], environments: int
) -> dict[str, Any]:
    """Return the decision, the reasons for it, and the numbers behind them.

    `rows` counts the held-out rows for which the reference is right and wrong; `plain`
    and `invariant` are the accuracies of both models there, in percent. `strength` is
    the evidence between environments: for classification the p-value of the least
    likely disagreement, for regression the squared slope of the residuals divided by
    its noise. `columns` are the columns hidden from the invariant model, with their
    part of the hidden directions.
    """
    dropped = bool(learner.drops_shortcut(state)[0])
    explanation: dict[str, Any] = {
        "dropped": dropped,
        "verdict": "The model ignores the shortcut that plain training relies on"
        if dropped
        else "The model uses all inputs, as plain training does",
        "strength": float(f"{_get_strength(learner, state):.3g}"),
        "rows": {},
        "plain": {},
        "invariant": {},
        "columns": _find_hidden_columns(state, columns),
    }
    if learner.classes:
        explanation |= _compute_rates(state.tally[0])
    if learner.shortcut != "auto":
        reason = f"This was requested with shortcut={learner.shortcut}."
    elif learner.classes:
        comparison = _describe_comparison(learner, state, explanation)
        hidden = list(explanation["columns"]) if dropped else []
        disagreement = _describe_disagreement(learner, state, environments, hidden)
        reason = f"{comparison} {disagreement}"
    else:
        reason = _describe_slope(explanation["strength"], environments)
    if dropped and explanation["columns"]:
        parts = [f"{name} ({p:.0%})" for name, p in explanation["columns"].items()]
        reason += f" Hidden columns: {', '.join(parts)}."
    return explanation | {"evidence": reason}


def _get_strength(learner: CIRM, state: State) -> float:
    """Return the evidence, for classification corrected for several comparisons."""
    evidence = Evidence.from_tensor(state.evidence)
    least, anything, count, _ = (float(part[0]) for part in evidence)
    return (
        min(1.0, min(least, anything) * max(1.0, count)) if learner.classes else least
    )


def _find_hidden_columns(state: State, columns: Mapping[str, int]) -> dict[str, float]:
    """Return the columns with a tenth or more of the hidden directions."""
    directions = state.directions[0]
    if not columns or not directions.any():
        return {}
    squares = shortcuts.scale_directions(directions).square().sum((0, 1))
    pieces = squares.split(list(columns.values()))
    parts = [float(piece.sum() / squares.sum()) for piece in pieces]
    named = zip(columns, parts, strict=True)
    large = {name: part for name, part in named if part >= LEAST_PART}
    return dict(sorted(large.items(), key=lambda item: -item[1]))


def _compute_rates(tally: Tensor) -> dict[str, dict[str, float]]:
    """Return row counts and both models' accuracies in percent from counts [3, 2]."""
    counts, *hits = tally.tolist()
    filled = [(place, count) for place, count in enumerate(counts) if count]
    rates = [
        {GROUPS[place]: 100 * hit[place] / n for place, n in filled} for hit in hits
    ]
    rows = {GROUPS[place]: n for place, n in filled}
    return {"rows": rows, "plain": rates[0], "invariant": rates[1]}


def _describe_comparison(
    learner: CIRM, state: State, explanation: Mapping[str, Any]
) -> str:
    """Compare the accuracies of both models on held-out rows."""
    if "wrong" not in explanation["rows"]:
        return "The reference model, the easiest predictor, is right for every row."
    shares = dict(
        zip(GROUPS, shortcuts.fair_shares(learner.classes).tolist(), strict=True)
    )
    kinds = "plain", "invariant"
    means = [
        sum(shares[name] * rate for name, rate in explanation[kind].items())
        for kind in kinds
    ]
    right, wrong = (f"{explanation['rows'].get(name, 0):,.0f}" for name in GROUPS)
    rates = [explanation[kind]["wrong"] for kind in kinds]
    margin = 100 * float(learner.margin(state)[0])
    rule = "must be more than" if margin > 0 else "may be at most"
    side = "higher" if margin > 0 else "lower"
    return (
        "On held-out rows the reference model, the easiest predictor, is right for "
        f"{right} rows and wrong for {wrong} rows. Where it is wrong, the accuracy "
        f"of plain training is {rates[0]:.1f} % and that of the model without the "
        f"shortcut {rates[1]:.1f} %. With rows weighted so that the reference carries "
        f"no information, they are {means[0]:.1f} % and {means[1]:.1f} %; to drop the "
        f"shortcut, the second {rule} {abs(margin):.1f} points {side}."
    )


def _describe_disagreement(
    learner: CIRM, state: State, environments: int, hidden: Sequence[str]
) -> str:
    """Say whether environments disagree about what the inputs mean.

    `hidden` are the columns that the model ignores for that reason.
    """
    evidence = Evidence.from_tensor(state.evidence)
    if environments < 2:
        return ALONE
    if not evidence.comparisons[0]:
        return (
            "The environments cannot be compared: there are too few rows, or their "
            "classes differ."
        )
    p_value = _get_strength(learner, state)
    shown = f"p = {p_value:.1g}" if p_value > 1e-30 else "p < 1e-30"
    if p_value >= UNLIKELY:
        return (
            "The environments do not disagree significantly about what the inputs "
            f"mean ({shown}; significant below {UNLIKELY:g})."
        )
    if hidden and bool(learner.has_evidence(state)[0]):
        names = " and ".join(f"`{name}`" for name in hidden)
        verb, them = ("means", "it") if len(hidden) == 1 else ("mean", "them")
        return (
            f"The sites disagree about what {names} {verb} ({shown}). The model no "
            f"longer relies on {them}."
        )
    subject = "They disagree about the easiest predictor."
    if not bool(learner.has_evidence(state)[0]):
        subject = "It is not clear about which feature, so this is not used."
    elif evidence.taught[0]:
        subject = (
            "They disagree about another feature than the easiest predictor, and that "
            "feature is now treated as the shortcut."
        )
    return f"The environments disagree about what the inputs mean ({shown}). {subject}"


def _describe_slope(strength: float, environments: int) -> str:
    """Say how far a regression model's residuals depend on the inputs of new data."""
    if environments < 2:
        return ALONE
    return (
        "Where environments differ, the squared slope of the plain model's residuals "
        f"is {strength:.1f} times its noise ({STRONG:.0f} or more is evidence, and so "
        "are columns without which the regressions of all environments agree)."
    )
