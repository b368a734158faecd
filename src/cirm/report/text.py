"""Numbers as text, and the main findings of a run in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cirm.report.summary import is_learner_on_grey_images
from cirm.wording import join_words

Entry = Mapping[str, Any]
UNITS = {"accuracy": "accuracy, %", "error": "mean squared error"}
CURVES = {
    "risk": "risk",
    "kl": "KL divergence from the prior",
    "opposed": "conflicts with past gradients",
    "consensus": "consensus residual",
    "constraint": "constraint residual",
}
"""What a page calls training curves; in records the name of a player may follow."""
BASELINE = "erm"


def describe_metric_with_unit(metric: str) -> str:
    """Return a metric's name with its unit."""
    return UNITS.get(metric, metric)


def describe_training_curve(metric: str) -> str:
    """Return the name of a training curve in words."""
    name, _, player = metric.partition(" ")
    if name not in CURVES:
        return metric
    return f"{CURVES[name]}, {player}" if player else CURVES[name]


def describe_adaptation_to_rows(row_count: str) -> str:
    """Say that a learner was adapted, and to how many rows."""
    count = f"{int(row_count):,}" if row_count.isdecimal() else row_count
    return f"adapted ({count} row{'' if row_count == '1' else 's'})"


def list_adaptation_row_counts(learners: Mapping[str, Entry]) -> list[str]:
    """List the numbers of rows that any learner adapted to, all rows last."""
    found = {rows for entry in learners.values() for rows in entry.get("adapted", {})}
    return sorted(found, key=lambda rows: int(rows) if rows.isdecimal() else math.inf)


def format_mean_of_metric(mean: float, metric: str) -> str:
    """Format a mean: accuracies with one decimal, others with three digits."""
    text = f"{mean:.1f}" if metric == "accuracy" else _format_significant_digits(mean)
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


def describe_settings_choices(choices: Iterable[tuple[str, str]]) -> str:
    """Say how settings were chosen, from pairs of a learner and the words for it."""
    learners: dict[str, dict[str, None]] = {}
    for learner, words in choices:
        learners.setdefault(words, {})[learner] = None
    parts = [
        words if len(learners) == 1 else f"{words} ({join_words(list(names))})"
        for words, names in learners.items()
    ]
    return f"Settings: {'; '.join(parts)}."


def write_headline_of_run(
    summary: Mapping[str, Any], chance: float | None = None, n_unseen: int = 1
) -> str:
    """Say which learners work in the unseen environments and which do not.

    `chance` is the accuracy of guessing in percent, `n_unseen` the number of unseen
    environments.
    """
    tested, ceilings = _select_learners_with_unseen_score(summary)
    if not tested:
        return (
            "No unseen environment was scored; all scores are from the training "
            "environments."
        )
    first, best = (
        _choose_reference_learner(tested),
        _sort_learners_from_worst_to_best_unseen(tested)[-1],
    )
    is_accuracy = tested[first]["metric"] == "accuracy"
    text = f"{first} has {'an accuracy' if is_accuracy else 'a mean squared error'} of "
    if tested[first]["train"]["mean"] is not None:
        trained = _format_score_of_split(tested[first], "train")
        text += f"{trained} in the training environments and "
    where = "environment" if n_unseen == 1 else "environments"
    text += f"{_format_score_of_split(tested[first])} in the unseen {where}"
    if is_accuracy and _is_score_below_chance(tested[first], chance):
        text += f", which is worse than chance ({chance:.3g}\N{NO-BREAK SPACE}%)"
    sentences = [text, _describe_unseen_scores_of_others(tested, first, best, chance)]
    for name, rows in _choose_best_adapted_learner(tested):
        count = "all" if rows == "all" else f"{int(rows):,}"
        score = _format_mean_and_std(
            tested[name]["adapted"][rows], tested[name]["metric"]
        )
        sentences.append(
            f"After adapting to {count} unlabelled rows there, {name} reaches {score}"
        )
    for name in [*ceilings][:1]:
        score = _format_score_of_split(ceilings[name])
        sentences.append(
            f"A classifier that cannot see colour ({name}) reaches {score}"
        )
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def list_headline_numbers_of_run(
    summary: Mapping[str, Any], chance: float | None = None
) -> list[tuple[str, str]]:
    """Return the numbers of the headline, each with its description."""
    tested, ceilings = _select_learners_with_unseen_score(summary)
    if not tested:
        return []
    facts = []
    for name in dict.fromkeys(
        (
            _choose_reference_learner(tested),
            _sort_learners_from_worst_to_best_unseen(tested)[-1],
        )
    ):
        train, metric = tested[name]["train"]["mean"], tested[name]["metric"]
        before = "" if train is None else f"{format_mean_of_metric(train, metric)} → "
        change = f"{before}{_format_score_of_split(tested[name])}"
        facts.append((change, f"{name}, training → unseen"))
    for name, rows in _choose_best_adapted_learner(tested):
        score = _format_mean_and_std(
            tested[name]["adapted"][rows], tested[name]["metric"]
        )
        facts.append((score, f"{name}, unseen, {describe_adaptation_to_rows(rows)}"))
    if chance is not None:
        facts.append((f"{chance:.3g} %", "chance"))
    ceiling = [_format_score_of_split(entry) for entry in ceilings.values()][:1]
    return facts + [(score, "ceiling, without colour") for score in ceiling]


def _format_significant_digits(number: float) -> str:
    if number and not 1e-3 <= abs(number) < 1e5:
        return f"{number:.2e}"
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 0
    return f"{number:.{max(3 - whole, 0)}f}"


def _format_score_of_split(entry: Entry, split: str = "test") -> str:
    return _format_mean_and_std(entry[split], entry["metric"])


def _format_mean_and_std(statistic: Mapping[str, Any], metric: str) -> str:
    unit = "\N{NO-BREAK SPACE}%" if metric == "accuracy" else ""
    return f"{format_mean_of_metric(statistic['mean'], metric)}{unit}"


def _choose_best_adapted_learner(
    results: Mapping[str, Entry],
) -> list[tuple[str, str]]:
    """Return the learner that adapts best, with its largest number of rows, if any."""
    adapted = {
        name: (rows[-1], entry["adapted"][rows[-1]]["mean"])
        for name, entry in results.items()
        if (rows := list_adaptation_row_counts({name: entry}))
    }
    known = {name: pair for name, pair in adapted.items() if pair[1] is not None}
    if not known:
        return []
    is_accuracy = next(iter(results.values()))["metric"] == "accuracy"
    best = (max if is_accuracy else min)(known, key=lambda name: known[name][1])
    return [(best, known[best][0])]


def _describe_unseen_scores_of_others(
    results: Mapping[str, Entry],
    reference: str,
    best: str,
    chance: float | None,
) -> str:
    """How the other learners do in the unseen environments; empty without others."""
    if best == reference:
        return "No other learner does better there" if len(results) > 1 else ""
    reached = (
        f"the best learner, {best}, reaches {_format_score_of_split(results[best])}"
    )
    if chance is None or results[best]["metric"] != "accuracy":
        return f"T{reached[1:]}"
    count = sum(_is_score_below_chance(other, chance) for other in results.values())
    below = f"{count} of {len(results)} learners do worse than chance there"
    if count == 1:
        below = f"One of {len(results)} learners does worse than chance there"
    if count in (0, len(results)):
        some = f"All {count} learners do" if count else "No learner does"
        below = f"{some} worse than chance there"
    test = results[best]["test"]
    is_chance = count < len(results) and test["mean"] - (test["std"] or 0.0) <= chance
    doubt = ", no better than chance" if is_chance else ""
    return f"{below}; {reached}{doubt}"


def _select_learners_with_unseen_score(
    summary: Mapping[str, Any],
) -> tuple[dict[str, Entry], ...]:
    """The learners with a score in unseen environments, and the ceilings with one."""
    tested = {
        n: e for n, e in summary["learners"].items() if e["test"]["mean"] is not None
    }
    return (
        {
            name: entry
            for name, entry in tested.items()
            if not is_learner_on_grey_images(name)
        },
        {
            name: entry
            for name, entry in tested.items()
            if is_learner_on_grey_images(name)
        },
    )


def _choose_reference_learner(results: Mapping[str, Entry]) -> str:
    """The learner to mention first: the baseline, else the worst."""
    return (
        BASELINE
        if BASELINE in results
        else _sort_learners_from_worst_to_best_unseen(results)[0]
    )


def _sort_learners_from_worst_to_best_unseen(
    results: Mapping[str, Entry],
) -> list[str]:
    """Learners from the worst in the unseen environments to the best."""
    names = sorted(
        results,
        key=lambda name: results[name]["test"]["mean"],
    )
    return names if results[names[0]]["metric"] == "accuracy" else names[::-1]


def _is_score_below_chance(entry: Entry, chance: float | None) -> bool:
    """Whether the score is below chance by more than the seeds differ."""
    highest = entry["test"]["mean"] + (entry["test"]["std"] or 0.0)
    return chance is not None and bool(highest < chance)
