"""Put into words which directions of a regression are unstable, and what they mean."""

from __future__ import annotations

from typing import Any

from cirm.learners.steady.directions_adapt import REFUSALS
from cirm.learners.steady.directions_explain import TRUST
from cirm.learners.steady.directions_state import SteadyNetworkState
from cirm.wording import join_words


def explain_regression_with_networks(
    state: SteadyNetworkState, trust: str
) -> dict[str, Any]:
    """Explain the state of one replica."""
    found = int(state.found[0])
    unstable = [_describe_unstable_number(state, j) for j in range(found)]
    change = "What inputs say about the target changed between places"
    if found:
        verdict = (
            f"{'A direction' if found == 1 else f'{found} directions'} of the inputs "
            f"{'means' if found == 1 else 'mean'} something different at each place; "
            f"without rows of a new place the model {TRUST[trust]}"
        )
    elif state.unexplained[0]:
        verdict = f"{change}, and no direction explains it; the model relies on all "
        verdict += "inputs"
    elif not state.looks[0]:
        verdict = "One place cannot show what is unstable"
    else:
        verdict = "Nothing was found to change its meaning between places"
    evidence = [entry["sentence"] for entry in unstable]
    if state.unexplained[0]:
        more = "More than that changed between places" if found else change
        evidence.append(
            f"{more}, and no direction explains it. Evaluate the model on labelled "
            "rows of a new place before you rely on it there."
        )
    if found:
        size, error, explained = state.leak[0].tolist()
        evidence.append(
            "At first, the unstable directions still changed the predictions of the "
            f"stable model, by {size:.0%} of what one standard deviation of the target "
            f"changes (standard error {error:.0%}). This part has been subtracted. The "
            f"stable model alone now explains {explained:.0%} of the variance of "
            "held-out rows."
        )
    explanation: dict[str, Any] = {"verdict": verdict, "evidence": evidence}
    explanation["unstable"] = unstable
    if int(state.adaptation.notes[0, 0]):
        explanation["adaptation"] = _describe_adapted_regression(state, unstable)
    return explanation


def _describe_unstable_number(state: SteadyNetworkState, index: int) -> dict[str, Any]:
    """Describe an unstable direction by its slopes on the target."""
    effects = []
    for slope, variance, _, _ in state.numbers.effects[
        0, : int(state.places[0]), index
    ].tolist():
        if not variance:  # an earlier version kept no effect
            continue
        half = 1.96 * variance**0.5
        effects.append({"effect": slope, "low": slope - half, "high": slope + half})
    p_value = float(state.p_values[0, index])
    slopes = join_words(
        [f"{e['effect']:.2f} ({e['low']:.2f} to {e['high']:.2f})" for e in effects]
    )
    return {
        "feature": f"direction {index + 1}",
        "effects": effects,
        "p_value": p_value,
        "sentence": (
            f"per standard deviation of the target, direction {index + 1} changes by "
            f"{slopes} standard deviations of its own at the places seen (in order of "
            f"arrival, with 95 % intervals); its meaning changed between them "
            f"(p = {p_value:.2g})."
        ),
    }


def _describe_adapted_regression(
    state: SteadyNetworkState, unstable: list[dict[str, Any]]
) -> dict[str, Any]:
    """Describe what was learned from rows without labels."""
    rows, refused = (int(number) for number in state.adaptation.notes[0, :2])
    effects = []
    for j, entry in enumerate(unstable if not refused else []):
        here, low, high = state.adaptation.tables[0, j].tolist()
        seen = [effect["effect"] for effect in entry["effects"]]
        effects.append(
            {
                "feature": entry["feature"],
                "seen": seen,
                "here": here,
                "low": low,
                "high": high,
                "sentence": (
                    "Per standard deviation of the target, "
                    f"{entry['feature']} changed by "
                    f"{join_words([f'{slope:.2f}' for slope in seen])} standard "
                    "deviations of its own at the places seen; here it is estimated "
                    f"to change by {here:.2f} (95 % interval {low:.2f} to {high:.2f}, "
                    f"from {rows} rows without labels). Predictions use this estimate."
                ),
            }
        )
    refusal = f"Nothing was adapted: {REFUSALS[refused]}." if refused else ""
    verdict = f"Learned from {rows} rows without labels what the unstable directions "
    gains = []
    for place, (n, before, after) in enumerate(state.gains[0].tolist(), 1):
        if n:
            gains.append(
                f"At place {place}, adapting to its {n:.0f} rows as if they had no "
                f"labels changes the root mean squared error from {before**0.5:.2f} to "
                f"{after**0.5:.2f} standard deviations of the target."
            )
    return {
        "rows": rows,
        "verdict": refusal.removesuffix(".") or verdict + "mean here",
        "effects": effects,
        "gains": gains,
        "refusals": [refusal] if refused else [],
    }
