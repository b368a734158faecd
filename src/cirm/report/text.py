"""A summary as rows of text, for the terminal, Markdown and the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UNITS = {"accuracy": "accuracy, %", "error": "mean squared error"}


def rows(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row of text per learner."""
    learners = summary["learners"]
    unit = (
        describe_metric(next(iter(learners.values()))["metric"])
        if learners
        else "score"
    )
    headings = [
        "learner",
        f"training ({unit})",
        f"unseen ({unit})",
        "seeds",
        "settings",
        "seconds",
    ]
    return headings, [
        [
            learner,
            format_statistic(entry["train"], entry["metric"]),
            format_statistic(entry["test"], entry["metric"]),
            str(max(entry["train"]["seeds"], entry["test"]["seeds"])),
            entry["selection"],
            format_seconds(entry["seconds"]),
        ]
        for learner, entry in learners.items()
    ]


def markdown(summary: Mapping[str, Any]) -> str:
    """A summary as a Markdown table."""
    headings, body = rows(summary)
    numeric = {1, 2, 3, 5}
    rule = ["--:" if n in numeric else ":--" for n in range(len(headings))]
    lines = [headings, rule, *body]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def describe_metric(metric: str) -> str:
    """A metric as a reader names it, with its unit."""
    return UNITS.get(metric, metric)


def format_mean(number: float, metric: str) -> str:
    """A mean as text: percent with one digit after the point, else three digits."""
    text = f"{number:.1f}" if metric == "accuracy" else _significant(number)
    return text.replace("-", "\N{MINUS SIGN}")


def format_statistic(statistic: Mapping[str, Any], metric: str) -> str:
    """Mean ± standard deviation as text; a dash where nothing was measured."""
    if statistic["mean"] is None:
        return "not finite" if statistic["seeds"] else "\N{EN DASH}"
    mean = format_mean(statistic["mean"], metric)
    if statistic["std"] is None:
        return mean
    return f"{mean} ± {format_mean(statistic['std'], metric)}"


def format_seconds(seconds: float | None) -> str:
    """Seconds as text."""
    if seconds is None:
        return "\N{EN DASH}"
    return f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def format_bytes(count: float) -> str:
    """Bytes as text."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def join_words(words: Sequence[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _significant(number: float) -> str:
    if number and not 1e-3 <= abs(number) < 1e5:
        return f"{number:.2e}"
    whole = len(str(int(abs(number)))) if abs(number) >= 1 else 0
    return f"{number:.{max(3 - whole, 0)}f}"


def _cell(text: str) -> str:
    # A bar would end the cell, a line break the row, and < could begin HTML.
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(safe.split())
