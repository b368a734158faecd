"""Put into words which directions are unstable, and what an adaptation changed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cirm.learners.steady.directions_adapt import REFUSALS
from cirm.learners.steady.directions_state import MOST_PLACES, SteadyNetworkState

TRUST = {
    "invariant": "does not rely on it",
    "interval": "relies on it only as far as the places seen agree",
    "average": "uses its average meaning",
}


def explain_state_of_networks(
    state: SteadyNetworkState, trust: str, n_environments: int
) -> dict[str, Any]:
    """Explain the state of one replica after a number of environments."""
    found, places = int(state.found[0]), int(state.places[0])
    unstable = [_describe_unstable_direction(state, j) for j in range(found)]
    if found:
        one = found == 1
        verdict = (
            f"{'A direction' if one else f'{found} directions'} of the inputs "
            f"{'means' if one else 'mean'} something different at each place; without "
            f"rows of a new place the model {TRUST[trust]}"
        )
    elif places < 2:
        verdict = "One place cannot show what is unstable"
    else:
        verdict = "Nothing was found to change its meaning between places"
    evidence = [entry["sentence"] for entry in unstable]
    if state.unexplained[0]:
        rest = "More than that" if found else "What inputs say about the classes"
        change = f"{rest} changed between places, and no direction explains it"
        if not found:
            verdict = f"{change}; the model relies on all inputs"
        evidence.append(
            f"{change}. The examples of a class may look different at each place "
            "(photos, then sketches), or the labels may be wrong more often at some "
            "places. Evaluate the model on labelled rows of a new place before you "
            "rely on it there."
        )
    skipped = n_environments - places
    if 0 < places < MOST_PLACES and skipped > 0:
        evidence.append(
            f"At {skipped} of the {n_environments} places all rows have the same "
            "class. They cannot show what distinguishes the classes, so nothing was "
            "learned from them."
        )
    if found:
        size, error, right = state.leak[0].tolist()
        evidence.append(
            "At first, the unstable directions still changed the outputs of the "
            f"stable model, by {size:.0%} of the mean difference between its outputs "
            f"for two classes (standard error {error:.0%}). This part has been "
            "subtracted. The stable model alone now predicts the right class for "
            f"{right:.0%} of held-out rows."
        )
    explanation: dict[str, Any] = {"verdict": verdict, "evidence": evidence}
    explanation["unstable"] = unstable
    if int(state.adaptation.notes[0, 0]):
        explanation["adaptation"] = _describe_adaptation(state, unstable)
    return explanation


def measure_agreement_with_class(value_counts: Tensor) -> tuple[float, float, float]:
    """Return how often values equal the class, classes even, with a 95 % interval.

    Counts are [class, value]; one pseudo-row of each class is even.
    """
    k = len(value_counts)
    rows = value_counts.sum(1).double() + 1
    rates = (value_counts.diagonal().double() + 1 / k) / rows
    mean = float(rates.mean())
    error = float((rates * (1 - rates) / rows).sum().sqrt()) / k
    return mean, max(0.0, mean - 1.96 * error), min(1.0, mean + 1.96 * error)


def _describe_unstable_direction(
    state: SteadyNetworkState, index: int
) -> dict[str, Any]:
    """Describe an unstable direction by how often it agrees with the target."""
    tables = state.tables[0, : int(state.places[0]), index]
    effects = [measure_agreement_with_class(table) for table in tables]
    p_value = float(state.p_values[0, index])
    rates = ", ".join(
        f"{mean:.0%} ({low:.0%} to {high:.0%})" for mean, low, high in effects
    )
    return {
        "feature": f"direction {index + 1}",
        "effects": [
            {"effect": mean, "low": low, "high": high} for mean, low, high in effects
        ],
        "p_value": p_value,
        "sentence": (
            f"direction {index + 1} alone would predict the right class for {rates} of "
            "the rows at the places seen (in order of arrival, with 95 % intervals); "
            f"its meaning changed between them (p = {p_value:.2g})."
        ),
    }


def _describe_adaptation(
    state: SteadyNetworkState, unstable: list[dict[str, Any]]
) -> dict[str, Any]:
    """Describe what was learned from rows without labels."""
    adaptation = state.adaptation
    rows, refused = (int(number) for number in adaptation.notes[0, :2])
    effects = []
    for j, entry in enumerate(unstable if not refused else []):
        table = adaptation.tables[0, j].diagonal()
        error = adaptation.error[0, j].diagonal()
        here = float(table.mean())
        half = 1.96 * float((table * error).square().sum().sqrt()) / len(table)
        low, high = max(0.0, here - half), min(1.0, here + half)
        seen = [effect["effect"] for effect in entry["effects"]]
        rates = ", ".join(f"{rate:.0%}" for rate in seen)
        effects.append(
            {
                "feature": entry["feature"],
                "seen": seen,
                "here": here,
                "low": low,
                "high": high,
                "sentence": (
                    f"At the places seen, {entry['feature']} agreed with the target "
                    f"in {rates} of the rows; here the agreement is estimated at "
                    f"{here:.0%} (95 % interval {low:.0%} to {high:.0%}, from {rows} "
                    "rows without labels). Predictions use this estimate."
                ),
            }
        )
    refusal = f"Nothing was adapted: {REFUSALS[refused]}." if refused else ""
    verdict = f"Learned from {rows} rows without labels what the unstable directions "
    verdict += "mean here"
    return {
        "rows": rows,
        "verdict": refusal.removesuffix(".") or verdict,
        "effects": effects,
        "gains": _describe_gains_of_adapting(state),
        "refusals": [refusal] if refused else [],
    }


def _describe_gains_of_adapting(state: SteadyNetworkState) -> list[str]:
    """Tell what adapting would have gained in the environments with labels."""
    sentences = []
    for place, gain in enumerate(state.gains[0].tolist(), 1):
        rows, _, before, _, after = gain
        if rows:
            sentences.append(
                f"At place {place}, adapting to its {rows:.0f} rows as if they had no "
                f"labels changes the accuracy from {before:.0%} to {after:.0%}."
            )
    return sentences
