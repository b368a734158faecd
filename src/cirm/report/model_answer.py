"""What a model relies on, in one sentence: the first thing that its page says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.wording import join_names_in_backticks

Content = Mapping[str, Any]
RELEVANT = 10.0  # percent of the importance from which on a model relies on a column
NEGLIGIBLE = 2.0  # percent of the importance below which a column is as good as ignored
MOST_NAMED = 4  # columns that the sentence names


def describe_what_model_relies_on(content: Content) -> str:
    """Say which columns a model relies on, and which it ignores and why."""
    importance = content["importance"]
    total = sum(importance.values())
    if not total:
        return ""
    shares = {name: 100 * value / total for name, value in importance.items()}
    unstable = [
        one["feature"]
        for one in content["explanation"].get("unstable", ())
        if one["feature"] in shares
    ]
    relied = [n for n, share in shares.items() if share >= RELEVANT]
    text = f"Relies on {_join_column_names(relied or list(shares)[:1])}"
    if unstable:
        return f"{text}; {_describe_unstable_columns(unstable, shares, content)}."
    return f"{text}. {_describe_whether_column_meanings_hold(content)}"


def _describe_unstable_columns(
    names: Sequence[str], shares: Mapping[str, float], content: Content
) -> str:
    """Say what became of the columns whose meaning differs between places."""
    adaptation = content["adaptation"]
    anew = {one["feature"] for one in (adaptation or {}).get("effects", ())}
    parts = []
    if learned := [name for name in names if name in anew]:
        verb = "is" if len(learned) == 1 else "are"
        parts.append(
            f"{_join_column_names(learned)} {verb} used with the meaning learned at "
            f"{adaptation['name']}"
        )
    rest = [name for name in names if name not in anew]
    ignored = [name for name in rest if shares[name] < NEGLIGIBLE]
    used = [name for name in rest if name not in ignored]
    for group, word in ((ignored, "ignored"), (used, "used with its mean effect")):
        if not group:
            continue
        one = len(group) == 1
        reason = "because" if group is ignored else "although"
        words = word if one else word.replace("its", "their")
        parts.append(
            f"{_join_column_names(group)} {'is' if one else 'are'} {words} {reason} "
            f"{'its' if one else 'their'} meaning differs between places"
        )
    return "; ".join(parts)


def _describe_whether_column_meanings_hold(content: Content) -> str:
    """Say how far it is known that the meaning of columns holds elsewhere."""
    verdict = content["explanation"].get("verdict")
    if verdict:
        return verdict if verdict.endswith(".") else f"{verdict}."
    return (
        "Whether these columns mean the same at other places is unknown, because the "
        f"learner {content['learner']} does not test it. Evaluate the model at each "
        "new place."
    )


def _join_column_names(names: Sequence[str]) -> str:
    return join_names_in_backticks(names, MOST_NAMED + 1)
