"""What a summary says, in a few sentences with their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cirm.report.summary import is_ceiling
from cirm.report.text import format_mean

Entry = Mapping[str, Any]
BASELINE = "erm"


def headline(
    summary: Mapping[str, Any], chance: float | None = None, unseen: int = 1
) -> str:
    """Who holds in the unseen environments and who does not."""
    where = "the unseen environment" if unseen == 1 else "the unseen environments"
    tested = _tested(summary)
    if not tested:
        return "No unseen environment was scored: these are scores in training only."
    if next(iter(tested.values()))["metric"] != "accuracy":
        return _errors(tested, where)
    sentences = [
        _first(tested, chance, where),
        _others(tested, chance),
        _ceiling(summary),
    ]
    return " ".join(filter(None, sentences))


def facts(
    summary: Mapping[str, Any], chance: float | None = None
) -> list[tuple[str, str]]:
    """The figures of the headline, each with what it is."""
    tested = _tested(summary)
    if not tested:
        return []
    shown = dict.fromkeys((_lead(tested), _ranked(tested)[-1]))
    found = [(_change(tested[name]), f"{name}, training → unseen") for name in shown]
    if chance is not None:
        found.append((_guess(chance), "chance"))
    found += [
        (_percent(entry["test"]["mean"]), "colour-blind ceiling")
        for entry in _ceilings(summary).values()
        if entry["metric"] == "accuracy"
    ][:1]
    return found


def _first(tested: Mapping[str, Entry], chance: float | None, where: str) -> str:
    name = _lead(tested)
    entry = tested[name]
    test = _percent(entry["test"]["mean"])
    if entry["train"]["mean"] is None:
        return f"{name} is right in {test} of the cases in {where}."
    text = f"{name} is right in {_percent(entry['train']['mean'])} of the cases where "
    text += f"it was trained, and in {test} in {where}"
    if chance is not None and _below(entry, chance):
        text += f": worse than guessing ({_guess(chance)})"
    return f"{text}."


def _others(tested: Mapping[str, Entry], chance: float | None) -> str:
    best = _ranked(tested)[-1]
    if best == _lead(tested):
        return "No other learner does better there." if len(tested) > 1 else ""
    entry = tested[best]
    reached = f"{best}, reaches {_percent(entry['test']['mean'])}"
    if chance is None:
        return f"The best there, {reached}."
    count = sum(_below(other, chance) for other in tested.values())
    if count == len(tested):
        return f"All {count} learners fall below chance there; the best, {reached}."
    some = f"{count} of {len(tested)} learners" if count else "No learner"
    verb = "fall" if count > 1 else "falls"
    text = f"{some} {verb} below chance there; the best, {reached}"
    lowest = entry["test"]["mean"] - (entry["test"]["std"] or 0.0)
    return f"{text}, no better than guessing." if lowest <= chance else f"{text}."


def _ceiling(summary: Mapping[str, Any]) -> str:
    for name, entry in _ceilings(summary).items():
        reached = _percent(entry["test"]["mean"])
        return f"A predictor that cannot see colour ({name}) reaches {reached}."
    return ""


def _errors(tested: Mapping[str, Entry], where: str) -> str:
    name, best = _lead(tested), _ranked(tested)[-1]
    train, test = tested[name]["train"]["mean"], tested[name]["test"]["mean"]
    text = (
        f"The mean squared error of {name} is {format_mean(test, 'error')} in {where}"
    )
    if train:
        before = format_mean(train, "error")
        text += f", {test / train:.3g} times that in training ({before})"
    if best != name:
        lowest = format_mean(tested[best]["test"]["mean"], "error")
        text += f"; the best, {best}, has {lowest}"
    return f"{text}."


def _tested(summary: Mapping[str, Any]) -> dict[str, Entry]:
    """Learners with a score in the unseen environments, the ceiling aside."""
    return {
        name: entry
        for name, entry in summary["learners"].items()
        if entry["test"]["mean"] is not None and not is_ceiling(name)
    }


def _ceilings(summary: Mapping[str, Any]) -> dict[str, Entry]:
    return {
        name: entry
        for name, entry in summary["learners"].items()
        if entry["test"]["mean"] is not None and is_ceiling(name)
    }


def _lead(tested: Mapping[str, Entry]) -> str:
    """The learner to speak of first: the baseline, else the worst."""
    return BASELINE if BASELINE in tested else _ranked(tested)[0]


def _ranked(tested: Mapping[str, Entry]) -> list[str]:
    """Learners from the worst in the unseen environments to the best."""
    ranked = sorted(tested, key=lambda name: tested[name]["test"]["mean"])
    is_error = tested[ranked[0]]["metric"] != "accuracy"
    return ranked[::-1] if is_error else ranked


def _below(entry: Entry, chance: float) -> bool:
    """Below chance by more than the seeds differ."""
    return bool(entry["test"]["mean"] + (entry["test"]["std"] or 0.0) < chance)


def _change(entry: Entry) -> str:
    metric, train = entry["metric"], entry["train"]["mean"]
    before = "" if train is None else f"{format_mean(train, metric)} → "
    unit = " %" if metric == "accuracy" else ""
    return f"{before}{format_mean(entry['test']['mean'], metric)}{unit}"


def _percent(number: float) -> str:
    return f"{format_mean(number, 'accuracy')}\N{NO-BREAK SPACE}%"


def _guess(chance: float) -> str:
    return f"{chance:.3g}\N{NO-BREAK SPACE}%"
