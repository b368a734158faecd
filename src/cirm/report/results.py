"""Experiments as one Markdown document, each number with where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report import comparison
from cirm.report.comparison import safe
from cirm.report.findings import HOLDS, Part
from cirm.report.reproduction import Claims, lead
from cirm.report.text import format_seconds, join_words


def results(
    parts: Sequence[Part],
    claims: Claims,
    images: Mapping[str, Sequence[tuple[str, str]]],
    made_by: str,
) -> str:
    """The document; `images` are titles and files, by experiment."""
    lines = ["# Results", "", f"Made by `{made_by}`; do not edit.", ""]
    lines += [lead(parts, claims), "", *_claims(claims)]
    for part in parts:
        summary = part.summary
        lines += [f"## {summary['title']}", "", f"    {summary['command']}", ""]
        lines += [_origin(summary), "", comparison.markdown(summary)]
        for title, path in images.get(str(summary["experiment"]), ()):
            lines += [f"![{title}]({path})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _claims(claims: Claims) -> list[str]:
    if not any(claim["figures"] for claim in claims):
        return []
    lines = ["| claim | here | in the paper | our figures |"]
    lines.append("| :-- | :-- | :-- | :-- |")
    for number, claim in enumerate(claims, 1):
        figures = ". ".join(claim["figures"])
        told = [HOLDS[claim["holds"]], HOLDS[claim["in_paper"]], safe(figures)]
        lines.append(f"| {number}. {safe(claim['claim'])} | {' | '.join(told)} |")
    return [*lines, ""]


def _origin(summary: Mapping[str, Any]) -> str:
    """Seeds, source code, settings and time of an experiment's numbers."""
    cells = [cell for cell in summary["cells"] if cell["seeds"]]
    if not cells:
        return "Nothing was measured."
    counts = sorted({cell["seeds"] for cell in cells})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    spent = {(c["row"], c["learner"]): c["seconds"] or 0.0 for c in cells}
    commits = join_words([f"`{name}`" for name in summary["commits"]]) or "not known"
    ways: dict[str, dict[str, None]] = {}
    for cell in cells:
        ways.setdefault(cell["selection"], {})[cell["learner"]] = None
    chosen = "; ".join(
        way if len(ways) == 1 else f"{way} ({join_words(list(who))})"
        for way, who in ways.items()
    )
    return (
        f"Seeds 0 to N - 1 with N = {seeds}; source code {commits}; "
        f"{format_seconds(sum(spent.values()))} s of computing. Settings: {chosen}."
    )
