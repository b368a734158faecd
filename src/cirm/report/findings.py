"""Sections of a reproduction's page: tables, figures of the data, claims, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cirm.records import Curve, Record, Run
from cirm.report import blocks, comparison, sections
from cirm.report.comparison import Grid
from cirm.report.markup import Markup, joined, tag
from cirm.report.page import Section
from cirm.report.sections import View
from cirm.report.summary import summarise
from cirm.report.text import join_words

RESIDUALS = ("consensus", "constraint")
HOLDS = {True: "holds", False: "does not hold", None: "not known"}
COLOURS = {True: "match", False: "differs", None: "no-data"}


class Data(NamedTuple):
    """The records of learners on the same data, and the places they trained at."""

    title: str
    records: Sequence[Record]
    trained: Sequence[float] = ()


class Drawing(NamedTuple):
    """A figure of its own, with its caption."""

    figure: Markup
    caption: str


@dataclass(frozen=True)
class Part:
    """One experiment: its summary as in summary.json, and its data.

    `chance` is the accuracy of guessing in percent; `axis` is what sweeps vary.
    """

    summary: Mapping[str, Any]
    data: Sequence[Data]
    chance: float | None = None
    axis: str = "place of the unseen environment"

    def view(self, data: Data) -> View:
        """One row's data as figures see it."""
        return View(data.records, summarise(data.records)["learners"], self.chance)


def compared(part: Part, heading: str) -> Section:
    """The tables of an experiment, with the verdicts coloured."""
    content: list[str] = []
    for grid in map(comparison.readable, comparison.grids(part.summary)):
        printed = comparison.kinds(grid) != ["mean"]
        below = " Printed numbers stand below ours." if printed else ""
        title = f"{grid.title}.{below}"
        content += [blocks.paragraph(title), _table(grid)]
    content.append(blocks.paragraph(comparison.legend(part.summary), "small"))
    notes = comparison.missing(part.summary)
    content += [blocks.listing(notes)] if notes else []
    return Section(heading, tuple(content))


def shown(part: Part, data: Data) -> list[Section]:
    """The figures of one row's data."""
    view = part.view(data)
    found = [
        sections.across(view, part.axis, data.trained),
        sections.along(view),
        sections.against(view),
        _residuals(part, data),
    ]
    return [section for section in found if section]


def folded(part: Part, data: Data) -> Markup:
    """The figures of one row's data in a block that opens with a click."""
    pieces: list[Markup] = []
    for section in shown(part, data):
        pieces.append(tag("h3", section.heading))
        pieces += [
            piece if isinstance(piece, Markup) else blocks.paragraph(piece)
            for piece in section.content
        ]
    learners = len(part.view(data).learners)
    return blocks.folded(data.title, joined(*pieces), f"{learners} learners")


def claimed(claims: Sequence[Mapping[str, Any]]) -> Section | None:
    """The paper's claims that can be judged, whether they hold, and our figures."""
    names = ("claim", "here", "in the paper", "our figures")
    rows = [
        [
            blocks.Cell(f"{n}. {claim['claim']}"),
            blocks.Cell(HOLDS[claim["holds"]], verdict=COLOURS[claim["holds"]]),
            blocks.Cell(HOLDS[claim["in_paper"]]),
            blocks.Cell(joined(*(tag("div", text) for text in claim["figures"]))),
        ]
        for n, claim in enumerate(claims, 1)
        if claim["figures"]
    ]
    if not rows:
        return None
    text = (
        "Each claim is put to our means, and to those that the paper prints. Chance is "
        "50 %: a learner that ends near it in training and test has learned nothing."
    )
    table = blocks.table([blocks.Cell(name) for name in names], rows)
    return Section("The paper's claims", (text, table))


def drawn(drawings: Sequence[Drawing]) -> Section | None:
    """Figures of their own; none without any."""
    if not drawings:
        return None
    content = [blocks.figure(drawing.caption, drawing.figure) for drawing in drawings]
    return Section("Sequential projection", tuple(content))


def settings(parts: Sequence[Part]) -> Section:
    """The command of each experiment, and what its learners and data were."""
    content: list[Markup] = []
    for part in parts:
        content.append(blocks.command(str(part.summary["command"])))
        commits = join_words(list(part.summary["commits"]))
        if commits:
            content.append(blocks.paragraph(f"Source code: {commits}.", "small"))
        content += [
            blocks.folded(name, blocks.code("\n".join(lines)))
            for name, lines in _described(part).items()
        ]
    return Section("Settings, and how to run it again", tuple(content))


def _table(grid: Grid) -> Markup:
    headings = [blocks.Cell(" ".join(grid.corner).strip())]
    headings += [blocks.Cell(" ".join(c), numeric=True) for c in grid.columns]
    rows = [
        [blocks.Cell(" = ".join(line.headings)), *map(_cell, line.cells)]
        for line in grid.lines
    ]
    return blocks.table(headings, rows)


def _cell(cell: comparison.Cell | None) -> blocks.Cell:
    """Our number above the printed ones, coloured by the verdict."""
    if cell is None:
        return blocks.Cell("", numeric=True)
    mark = comparison.MARKS.get(cell["verdict"], "")
    ours = blocks.number(comparison.number(cell, "mean"))
    printed = [
        tag("div", tag("span", blocks.number(text), class_="spread"))
        for kind in ("paper", "elsewhere")
        if (text := comparison.number(cell, kind))
    ]
    content = joined(f"{mark} " if mark else "", ours, *printed)
    return blocks.Cell(content, numeric=True, verdict=cell["verdict"])


def _residuals(part: Part, data: Data) -> Section | None:
    """How far ADMM is from its constraints; none where no learner uses it."""
    kept = [
        record
        for record in data.records
        if not isinstance(record, Curve) or record.metric in RESIDUALS
    ]
    view = part.view(data)
    section = sections.curves(View(kept, view.learners, part.chance))
    if section is None:
        return None
    text = (
        "How far the environments are from agreeing (consensus) and their gradients "
        f"from zero (constraint): means over seeds{view.bands}."
    )
    return Section("Residuals of ADMM", (text, *section.content[1:]))


def _described(part: Part) -> dict[str, list[str]]:
    """Lines by learner, and by data where the settings differ there; then the data."""
    ways: dict[str, dict[str, list[str]]] = {}
    sources: dict[str, None] = {}
    for data in part.data:
        for run in (r for r in data.records if isinstance(r, Run)):
            lines = [f"settings chosen by: {run.selection}", f"order: {run.order}"]
            text = "\n".join([*lines, *_lines(run.settings)])
            titles = ways.setdefault(run.learner, {}).setdefault(text, [])
            titles += [data.title] if data.title not in titles else []
            sources[", ".join(_lines(run.dataset))] = None
    found = {
        learner if len(texts) == 1 else f"{learner}: {_few(titles)}": [text]
        for learner, texts in ways.items()
        for text, titles in texts.items()
    }
    return {**found, "data": list(sources)} if sources else found


def _few(titles: list[str]) -> str:
    others = f" and {len(titles) - 1} others" if len(titles) > 1 else ""
    return f"{titles[0]}{others}"


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {json.dumps(v, default=str)}" for name, v in values.items()]
