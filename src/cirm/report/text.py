"""Numbers as text, and the main findings of a run in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cirm.report.summary import is_ceiling

Entry = Mapping[str, Any]
UNITS = {"accuracy": "accuracy, %", "error": "mean squared error"}
BASELINE = "erm"


def describe_metric(metric: str) -> str:
    """Return a metric's name with its unit."""
    return UNITS.get(metric, metric)


def format_mean(mean: float, metric: str) -> str:
    """Format a mean: accuracies with one decimal, others with three digits."""
    text = f"{mean:.1f}" if metric == "accuracy" else _format_significant(mean)
    return text.replace("-", "\N{MINUS SIGN}")


def format_seconds(seconds: float | None) -> str:
    """Format a number of seconds; a dash if it is unknown."""
    if seconds is None:
        return "\N{EN DASH}"
    return f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def format_bytes(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def list_selections(choices: Iterable[tuple[str, str]]) -> str:
    """Say how settings were chosen, from pairs of a learner and the words for it."""
    learners: dict[str, dict[str, None]] = {}
    for learner, words in choices:
        learners.setdefault(words, {})[learner] = None
    parts = [
        words if len(learners) == 1 else f"{words} ({join_words(list(names))})"
        for words, names in learners.items()
    ]
    return f"Settings: {'; '.join(parts)}."


def write_headline(
    summary: Mapping[str, Any], chance: float | None = None, unseen: int = 1
) -> str:
    """Say which learners work in the unseen environments and which do not.

    Args:
        summary: The content of summary.json.
        chance: The accuracy of guessing, in percent, if it is known.
        unseen: The number of unseen environments.
    """
    where = "the unseen environment" if unseen == 1 else "the unseen environments"
    tested = _select_tested(summary, ceiling=False)
    if not tested:
        return (
            "No unseen environment was scored; all scores are from the training "
            "environments."
        )
    if next(iter(tested.values()))["metric"] != "accuracy":
        return _compare_errors(tested, where)
    sentences = [_describe_first(tested, chance, where), _describe_best(tested, chance)]
    for name, entry in _select_tested(summary, ceiling=True).items():
        accuracy = _format_percent(entry["test"]["mean"])
        sentences.append(
            f"A classifier that cannot see colour ({name}) reaches {accuracy}."
        )
        break
    return " ".join(filter(None, sentences))


def list_facts(
    summary: Mapping[str, Any], chance: float | None = None
) -> list[tuple[str, str]]:
    """Return the numbers of the headline, each with its description."""
    tested = _select_tested(summary, ceiling=False)
    if not tested:
        return []
    names = dict.fromkeys((_choose_first(tested), _rank(tested)[-1]))
    facts = [(_format_change(tested[n]), f"{n}, training → unseen") for n in names]
    if chance is not None:
        facts.append((_format_chance(chance), "chance"))
    facts += [
        (_format_percent(entry["test"]["mean"]), "ceiling, without colour")
        for entry in _select_tested(summary, ceiling=True).values()
        if entry["metric"] == "accuracy"
    ][:1]
    return facts


def _format_significant(number: float) -> str:
    if number and not 1e-3 <= abs(number) < 1e5:
        return f"{number:.2e}"
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 0
    return f"{number:.{max(3 - whole, 0)}f}"


def _describe_first(
    tested: Mapping[str, Entry], chance: float | None, where: str
) -> str:
    name = _choose_first(tested)
    entry = tested[name]
    test = _format_percent(entry["test"]["mean"])
    if entry["train"]["mean"] is None:
        return f"{name} classifies {test} of the examples in {where} correctly."
    train = _format_percent(entry["train"]["mean"])
    text = f"{name} classifies {train} of the examples in the training environments "
    text += f"correctly and {test} in {where}"
    if chance is not None and _is_below(entry, chance):
        text += f", which is worse than chance ({_format_chance(chance)})"
    return f"{text}."


def _describe_best(tested: Mapping[str, Entry], chance: float | None) -> str:
    best = _rank(tested)[-1]
    if best == _choose_first(tested):
        return "No other learner does better there." if len(tested) > 1 else ""
    entry = tested[best]
    reached = (
        f"the best learner, {best}, reaches {_format_percent(entry['test']['mean'])}"
    )
    if chance is None:
        return f"{reached[0].upper()}{reached[1:]}."
    count = sum(_is_below(other, chance) for other in tested.values())
    if count == len(tested):
        return f"All {count} learners are below chance there; {reached}."
    some = f"{count} of {len(tested)} learners" if count else "No learner"
    text = f"{some} {'are' if count > 1 else 'is'} below chance there; {reached}"
    lowest = entry["test"]["mean"] - (entry["test"]["std"] or 0.0)
    return f"{text}, no better than chance." if lowest <= chance else f"{text}."


def _compare_errors(tested: Mapping[str, Entry], where: str) -> str:
    name, best = _choose_first(tested), _rank(tested)[-1]
    train, test = tested[name]["train"]["mean"], tested[name]["test"]["mean"]
    error = format_mean(test, "error")
    text = f"The mean squared error of {name} is {error} in {where}"
    if train:
        before = format_mean(train, "error")
        text += f", {test / train:.3g} times its training error ({before})"
    if best != name:
        lowest = format_mean(tested[best]["test"]["mean"], "error")
        text += f"; the best learner, {best}, reaches {lowest}"
    return f"{text}."


def _select_tested(summary: Mapping[str, Any], ceiling: bool) -> dict[str, Entry]:
    """The learners with a score in unseen environments: ceilings, or the others."""
    return {
        name: entry
        for name, entry in summary["learners"].items()
        if entry["test"]["mean"] is not None and is_ceiling(name) is ceiling
    }


def _choose_first(tested: Mapping[str, Entry]) -> str:
    """The learner to mention first: the baseline, else the worst."""
    return BASELINE if BASELINE in tested else _rank(tested)[0]


def _rank(tested: Mapping[str, Entry]) -> list[str]:
    """Learners from the worst in the unseen environments to the best."""
    names = sorted(tested, key=lambda name: tested[name]["test"]["mean"])
    return names if tested[names[0]]["metric"] == "accuracy" else names[::-1]


def _is_below(entry: Entry, chance: float) -> bool:
    """Whether the score is below chance by more than the seeds differ."""
    return bool(entry["test"]["mean"] + (entry["test"]["std"] or 0.0) < chance)


def _format_change(entry: Entry) -> str:
    metric, train = entry["metric"], entry["train"]["mean"]
    before = "" if train is None else f"{format_mean(train, metric)} → "
    unit = " %" if metric == "accuracy" else ""
    return f"{before}{format_mean(entry['test']['mean'], metric)}{unit}"


def _format_percent(accuracy: float) -> str:
    return f"{format_mean(accuracy, 'accuracy')}\N{NO-BREAK SPACE}%"


def _format_chance(chance: float) -> str:
    return f"{chance:.3g}\N{NO-BREAK SPACE}%"
