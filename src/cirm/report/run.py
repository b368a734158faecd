"""The page of one run: what was reached, where it fails, and with what settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cirm.records import Record, Run, Score
from cirm.report import blocks, plots, sections
from cirm.report.blocks import Cell, Picture
from cirm.report.diagnostics import trust
from cirm.report.headline import facts, headline
from cirm.report.markup import Markup, joined
from cirm.report.page import Section, page
from cirm.report.sections import View
from cirm.report.summary import summarise
from cirm.report.text import (
    describe_metric,
    format_bytes,
    format_seconds,
    format_statistic,
    join_words,
)


def run_report(
    records: Sequence[Record],
    title: str,
    command: str = "",
    notes: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    *,
    chance: float | None = None,
    axis: str = "place of the unseen environment",
    trained: Sequence[float] = (),
) -> str:
    """The page of a run as one self-contained HTML document.

    `chance` is the accuracy of guessing in percent; `axis` names what the sweep
    varies, and `trained` holds the places of the training environments on it.
    """
    if not _scores(records):
        raise ValueError(f"report {title!r}: there must be a score to report; got none")
    summary = summarise(records)
    view = View(records, summary["learners"], chance)
    unseen = {r.environment for r in _scores(records) if r.split == "test"}
    content = [
        _facts(summary, chance),
        _results(view, notes),
        sections.pictures(pictures),
        sections.across(view, axis, trained),
        sections.along(view),
        sections.against(view),
        trust(records, view.metric),
        sections.curves(view),
        _kept(view),
        _settings(view, command),
    ]
    lead = headline(summary, chance, len(unseen))
    return page(title, lead, [section for section in content if section])


def _scores(records: Sequence[Record]) -> list[Score]:
    return [record for record in records if isinstance(record, Score)]


def _facts(summary: Mapping[str, Any], chance: float | None) -> Section | None:
    found = facts(summary, chance)
    return Section("", (blocks.facts(found),)) if found else None


def _results(view: View, notes: Sequence[str]) -> Section:
    low, high, chance = _range(view)
    scale = f"from {low:.3g} to {high:.3g}{', dotted: chance' if chance else ''}"
    headings = [
        Cell("learner"),
        *(Cell(heading, numeric=True) for heading in _splits(view).values()),
        Cell(scale),
    ]
    rows = [_row(view, learner) for learner in view.learners]
    content = [
        blocks.table(headings, rows),
        blocks.paragraph(_counted(view), "small"),
        blocks.paragraph(_chosen(view), "small"),
        *([blocks.listing(notes)] if notes else []),
    ]
    return Section("Results", tuple(content))


def _splits(view: View) -> dict[str, str]:
    """The splits that were scored, with their headings."""
    unit = describe_metric(view.metric)
    headings = {"train": f"training {unit}", "test": f"unseen {unit}"}
    scored = [s for s in headings if any(e[s]["seeds"] for e in view.learners.values())]
    return {split: headings[split] for split in scored}


def _row(view: View, learner: str) -> list[Cell]:
    entry, pair = view.learners[learner], view.pair(learner)
    low, high, chance = _range(view)
    numbers = (format_statistic(entry[split], view.metric) for split in _splits(view))
    return [
        Cell(joined(plots.plot_swatch(pair.style), learner)),
        *(Cell(blocks.number(text), numeric=True) for text in numbers),
        Cell(plots.plot_span(pair, low=low, high=high, references=chance)),
    ]


def _chosen(view: View) -> str:
    """How the settings were chosen, and whose."""
    ways: dict[str, list[str]] = {}
    for learner, entry in view.learners.items():
        ways.setdefault(entry["selection"], []).append(learner)
    if len(ways) == 1:
        return f"Settings of all learners: {next(iter(ways))}."
    parts = [f"{way} ({join_words(names)})" for way, names in ways.items()]
    return f"Settings: {'; '.join(parts)}."


def _range(view: View) -> tuple[float, float, list[float]]:
    """The ends of the axis in the results' rows, and chance on it."""
    if view.metric == "accuracy":
        return 0.0, 100.0, [] if view.chance is None else [view.chance]
    means = [e[s]["mean"] for e in view.learners.values() for s in ("train", "test")]
    high = max([mean for mean in means if mean is not None], default=0.0)
    return 0.0, high or 1.0, []


def _counted(view: View) -> str:
    """How the table's figures were taken, and how its marks are read."""
    entries = view.learners.values()
    seeds = [max(e["train"]["seeds"], e["test"]["seeds"]) for e in entries]
    few, many = min(seeds), max(seeds)
    count = str(few) if few == many else f"{few} to {many}"
    text = f"Mean ± sample standard deviation over {count} seeds, after the last stage."
    if many < 2:
        text = "After the last stage, with one seed, so the spread is not known."
    marks = "Ring: training. Filled: unseen." if "test" in _splits(view) else ""
    return f"{text} {marks}".rstrip()


def _kept(view: View) -> Section | None:
    rows = [
        _held(learner, kind, counts)
        for learner, entry in view.learners.items()
        for kind, counts in entry["memory"].items()
    ]
    if not rows:
        return None
    raw = [
        learner
        for learner, entry in view.learners.items()
        if any(counts.get("examples") for counts in entry["memory"].values())
    ]
    verb = "keeps" if len(raw) == 1 else "keep"
    kept = f"{join_words(raw)} {verb} raw examples." if raw else "None keeps examples."
    headings = [Cell("learner"), Cell("what")]
    headings += [Cell(n, numeric=True) for n in ("raw examples", "parameters", "size")]
    rest = "The table counts all that the state of one seed holds after the last stage."
    table = blocks.table(headings, rows)
    return Section("What is kept of the past", (f"{kept} {rest}", table))


def _held(learner: str, kind: str, counts: Mapping[str, int]) -> list[Cell]:
    numbers = [f"{counts.get(name, 0):,}" for name in ("examples", "parameters")]
    numbers.append(format_bytes(counts.get("bytes", 0)))
    return [Cell(learner), Cell(kind), *(Cell(n, numeric=True) for n in numbers)]


def _settings(view: View, command: str) -> Section:
    content: list[Markup] = [blocks.command(command)] if command else []
    for learner, entry in view.learners.items():
        lines = [f"settings chosen by: {entry['selection']}"]
        lines += [f"order: {entry['order']}", *_lines(entry["settings"])]
        spent = f"{format_seconds(entry['seconds'])} s"
        content.append(blocks.folded(learner, blocks.code("\n".join(lines)), spent))
    datasets = {str(r.dataset): r.dataset for r in view.records if isinstance(r, Run)}
    content += [
        blocks.folded("data set", blocks.code("\n".join(_lines(dataset))))
        for dataset in datasets.values()
    ]
    return Section("Settings, and how to run it again", tuple(content))


def _lines(settings: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in settings.items()
    ]
