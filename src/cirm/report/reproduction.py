"""The page of a reproduction: our numbers beside the paper's, and what lies behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.records import Record, Score
from cirm.report import blocks, findings, plots, sections
from cirm.report.blocks import Picture
from cirm.report.findings import Data, Drawing, Part
from cirm.report.markup import Markup
from cirm.report.page import Section, page
from cirm.report.summary import over_seeds, summarise, sweep
from cirm.report.text import join_words

Claims = Sequence[Mapping[str, Any]]
WORDS = {
    "match": "match",
    "better": "better",
    "differs": "differ",
    "no-data": "not measured",
}


def measured(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Each learner's numbers as in summary.json, and the errors of coefficients."""
    learners: dict[str, dict[str, Any]] = summarise(records)["learners"]
    truth = [r for r in records if isinstance(r, Score) and r.split == "truth"]
    for name, entry in learners.items():
        for kind in ("causal", "noncausal"):
            rows = [s for s in truth if (s.learner, s.environment) == (name, kind)]
            entry[kind] = over_seeds(rows)._asdict()
    return learners


def reproduction_page(
    title: str,
    parts: Sequence[Part],
    claims: Claims,
    pictures: Sequence[Picture] = (),
    drawings: Sequence[Drawing] = (),
) -> str:
    """The page of one or more experiments as one self-contained HTML document."""
    content: list[Section | None] = [_facts(parts)]
    for part in parts:
        content += _sections(part, alone=len(parts) == 1)
    content += [
        findings.claimed(claims) if parts else None,
        sections.pictures(pictures),
        findings.drawn(drawings),
        findings.settings(parts) if parts else None,
    ]
    text = lead(parts, claims) if parts else "The figures of the paper, made anew."
    return page(title, text, [section for section in content if section])


def lead(parts: Sequence[Part], claims: Claims) -> str:
    """What was found, in two sentences."""
    counts = counted(parts)
    total = sum(counts.values())
    if not total:
        return "The paper prints none of these numbers."
    if total == counts["no-data"]:
        return "None of the paper's numbers was measured."
    text = (
        f"Of {total} numbers that the paper prints, {counts['match']} match ours, "
        f"{counts['better']} of ours are better and {counts['differs']} differ"
    )
    if counts["no-data"]:
        text += f"; {counts['no-data']} were not measured"
    told = [_told(claims, True), _told(claims, False)]
    return ". ".join([text, *filter(None, told)]) + "."


def counted(parts: Sequence[Part]) -> dict[str, int]:
    """Numbers of the paper by verdict, over all parts."""
    cells = [cell for part in parts for cell in part.summary["cells"] if cell["paper"]]
    return {v: sum(c["verdict"] == v for c in cells) for v in blocks.VERDICTS}


def sweep_drawing(part: Part, data: Data) -> Markup | None:
    """The score over the sweep as a figure of its own; none without a sweep."""
    view = part.view(data)
    lines = [view.line(name, points) for name, points in sweep(data.records).items()]
    if not lines:
        return None
    return plots.plot_sweep(
        lines,
        axis=part.axis,
        metric=view.metric,
        chance=part.chance,
        trained=data.trained,
    )


def _sections(part: Part, alone: bool) -> list[Section]:
    """The tables of an experiment, then the figures of its data."""
    if not alone:
        section = findings.compared(part, str(part.summary["title"]))
        pieces = [findings.folded(part, data) for data in part.data]
        return [Section(section.heading, (*section.content, *pieces))]
    printed = any(counted([part]).values())
    heading = "Ours beside the paper's" if printed else "The numbers"
    shown = [findings.compared(part, heading)]
    for data in part.data[:1]:
        shown += findings.shown(part, data)
    others = tuple(findings.folded(part, data) for data in part.data[1:])
    more = [Section("The same for the other rows", others)] if others else []
    return [*shown, *more]


def _facts(parts: Sequence[Part]) -> Section | None:
    counts = counted(parts)
    found = [(str(counts[verdict]), word) for verdict, word in WORDS.items()]
    return Section("", (blocks.facts(found),)) if any(counts.values()) else None


def _told(claims: Claims, holds: bool) -> str:
    """Which claims hold, or which do not; nothing if there are none."""
    which = [str(n) for n, claim in enumerate(claims, 1) if claim["holds"] is holds]
    if not which:
        return ""
    many = len(which) > 1
    verb = ("hold" if many else "holds") if holds else "do not hold" if many else ""
    return f"Claim{'s' if many else ''} {join_words(which)} {verb or 'does not hold'}"
