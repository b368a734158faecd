"""Pages of a model: what it is, how good it is, what it predicted.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report import blocks
from cirm.report.blocks import Cell
from cirm.report.markup import Markup
from cirm.report.page import Section, page
from cirm.report.text import format_bytes

HEADINGS = {
    "rows": "rows",
    "accuracy": "accuracy, %",
    "calibration_error": "calibration error, %",
    "log_loss": "log loss",
    "roc_auc": "area under the ROC curve",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "variance explained",
}
"""What a reader calls each measure."""


def model_page(content: Mapping[str, Any], command: str = "") -> str:
    """The page of a model, from what `cirm inspect --json` prints."""
    visits = content["history"]
    last = visits[-1]
    lead = (
        f"A {content['task']} model of {content['target']}, learned from "
        f"{len(visits)} environment{'s' if len(visits) > 1 else ''} by "
        f"{content['learner']}, last on {last['time'][:10]}."
    )
    sections = [
        Section("", (blocks.facts(_model_facts(content)),)),
        Section("Where it has been", _visits(visits)),
        _diagnostics(visits),
        _reliance(content),
        _shortcut(content),
        Section("What is kept of past data", _kept(content)),
        _columns(content),
        Section("Settings", _settings(content, command)),
    ]
    return page(str(content["model"]), lead, [part for part in sections if part])


def evaluation_page(content: Mapping[str, Any], command: str = "") -> str:
    """The page of an evaluation, from what `cirm evaluate --json` prints."""
    groups = {"all": {"all rows": {"rows": content["rows"], **content["overall"]}}}
    groups["environment"] = content["environments"]
    if "classes" in content:
        groups["class"] = content["classes"]
    sections = [
        Section(
            "Scores",
            tuple(
                _scores(name, own) for name, own in (groups | content["groups"]).items()
            ),
        ),
        Section("What was to be expected", _expected(content)),
        _reliability(content),
        _remarks(content["notes"], command),
    ]
    title = f"{content['model']} on {', '.join(content['data'])}"
    lead = f"{content['verdict'][0].upper()}{content['verdict'][1:]}."
    return page(title, lead, [part for part in sections if part])


def prediction_page(content: Mapping[str, Any], command: str = "") -> str:
    """The page of predictions, from what `cirm predict --json` prints."""
    rows = [
        [Cell(label), _count(count), _count(100 * count / content["rows"], "%")]
        for label, count in content["predictions"].items()
    ]
    parts: list[str] = []
    if rows:
        headings = [Cell("prediction"), _head("rows"), _head("part")]
        parts.append(blocks.table(headings, rows))
    means = [[Cell(n), _number(v)] for n, v in content["means"].items()]
    parts.append(blocks.table([Cell("mean of"), _head("value")], means))
    lead = f"{content['rows']:,} rows of {content['data']}, by {content['model']}."
    sections = [
        Section("Predictions", tuple(parts)),
        _remarks(content["notes"], command),
    ]
    return page("Predictions", lead, [part for part in sections if part])


def _model_facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    visits = content["history"]
    metric = "accuracy" if content["classes"] else "rmse"
    score = visits[-1]["metrics_after"].get(metric)
    found = [
        (f"{len(visits)}", "environments"),
        (f"{sum(visit['rows'] for visit in visits):,}", "rows learned from"),
        (f"{content['raw_examples']:,}", "raw examples kept"),
        (format_bytes(content["bytes"]), "kept in all"),
    ]
    if score is not None:
        unit = " %" if metric == "accuracy" else ""
        found.append((f"{score:.3g}{unit}", f"{metric} in the last environment"))
    return found


def _visits(visits: Sequence[Mapping[str, Any]]) -> tuple[Markup, ...]:
    names = list(
        dict.fromkeys(
            n for v in visits for n in (*v["metrics_before"], *v["metrics_after"])
        )
    )
    headings = [Cell("environment"), Cell("learned"), _head("rows"), _head("held out")]
    headings += [_head(HEADINGS.get(name, name)) for name in names]
    rows = []
    for visit in visits:
        counts = [_count(visit["rows"]), _count(visit["held_out"])]
        if visit["metrics_before"]:
            own = [_number(visit["metrics_before"].get(n)) for n in names]
            rows.append(
                [
                    Cell(f"{visit['name']}, on arrival"),
                    Cell(""),
                    counts[0],
                    Cell(""),
                    *own,
                ]
            )
        own = [_number(visit["metrics_after"].get(n)) for n in names]
        rows.append(
            [
                Cell(visit["name"]),
                Cell(visit["time"][:16].replace("T", " ")),
                *counts,
                *own,
            ]
        )
    said = [f"{v['name']}: {note}" for v in visits for note in v["notes"]]
    text = (
        "Scores are those measured when the environment was learned, on the rows held "
        "out of it where there are any; on arrival, before anything of it was learned: "
        "the nearest there is to a place never seen."
    )
    parts = [blocks.table(headings, rows), blocks.paragraph(text, "small")]
    return (*parts, *([blocks.listing(said)] if said else []))


def _diagnostics(visits: Sequence[Mapping[str, Any]]) -> Section | None:
    names = list(dict.fromkeys(n for v in visits for n in v["diagnostics"]))
    if not names:
        return None
    headings = [Cell("after"), *map(_head, names)]
    rows = [
        [Cell(v["name"]), *(_number(v["diagnostics"].get(n)) for n in names)]
        for v in visits
    ]
    text = (
        "Rows are grouped by their class and by whether a small plain model, the "
        "reference, is right. A model that holds elsewhere does well in the worst "
        "group, and does not just answer as the reference does."
    )
    return Section("Whether to trust it", (text, blocks.table(headings, rows)))


def _reliance(content: Mapping[str, Any]) -> Section | None:
    found = content["importance"]
    if not found:
        return None
    visits = [visit for visit in content["history"] if visit["importance"]]
    headings = [Cell("column"), *(_head(f"after {v['name']}") for v in visits)]
    rows = []
    for name in found:
        shares = [
            100
            * v["importance"].get(name, 0.0)
            / (sum(v["importance"].values()) or 1.0)
            for v in visits
        ]
        rows.append([Cell(name), *(_count(share, "%") for share in shares)])
    text = (
        "Share of each column in the importance, after each environment: how far the "
        "predictions change when the column is replaced by random values."
    )
    first = content["history"][0]["name"]
    for name, drop in content["importance_drops"].items():
        before, now = drop["first"], drop["last"]
        text += f" The importance of {name} was {before:.0f} % after {first} and is "
        text += f"{now:.0f} % now."
    return Section("Importance of the columns", (text, blocks.table(headings, rows)))


def _shortcut(content: Mapping[str, Any]) -> Section | None:
    said = content["explanation"]
    if not said:
        return None
    parts = [f"{said['verdict']}. {said['evidence']}"]
    if said.get("rows"):
        groups = list(said["rows"])
        headings = [Cell("model"), *(_head(f"reference {name}") for name in groups)]
        rows = [[Cell("rows"), *(_count(said["rows"][name]) for name in groups)]]
        rows += [
            [Cell(f"{kind}, right in"), *(_count(said[kind][n], "%") for n in groups)]
            for kind in ("plain", "invariant")
        ]
        parts.append(blocks.table(headings, rows))
    return Section("What it goes without", tuple(parts))


def _kept(content: Mapping[str, Any]) -> tuple[str, ...]:
    headings = [Cell("part"), _head("raw examples"), _head("numbers"), _head("size")]
    rows = [
        [
            Cell(name),
            _count(entry["examples"]),
            _count(entry["parameters"]),
            Cell(format_bytes(entry["bytes"]), numeric=True),
        ]
        for name, entry in content["memory"].items()
    ]
    raw = content["raw_examples"]
    text = (
        f"{raw:,} rows of past data are kept."
        if raw
        else "No row of past data is kept."
    )
    return (text, blocks.table(headings, rows))


def _columns(content: Mapping[str, Any]) -> Section | None:
    if not content["columns"]:
        return None
    rows = [[Cell(c["name"]), Cell(c["treatment"])] for c in content["columns"]]
    text = "The first environment alone decided this; no later one changes it."
    table = blocks.table([Cell("column"), Cell("treatment")], rows)
    return Section("Columns", (text, table))


def _settings(content: Mapping[str, Any], command: str) -> tuple[Markup, ...]:
    shown = {
        "learner": content["learner"],
        "seed": content["seed"],
        "network": content["network"],
        **content["settings"],
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in shown.items()]
    parts = [blocks.command(command)] if command else []
    return (*parts, blocks.code("\n".join(lines)))


def _scores(name: str, groups: Mapping[str, Mapping[str, float]]) -> Markup:
    measures = list(next(iter(groups.values())))
    headings = [Cell("" if name == "all" else name)]
    headings += [_head(HEADINGS.get(measure, measure)) for measure in measures]
    rows = [
        [
            Cell(value),
            *(
                _count(numbers[m]) if m == "rows" else _number(numbers.get(m))
                for m in measures
            ),
        ]
        for value, numbers in groups.items()
    ]
    return blocks.table(headings, rows)


def _expected(content: Mapping[str, Any]) -> tuple[str, ...]:
    rows = []
    words = {"held_out": "learned", "on_arrival": "before learning"}
    for what, entries in content["expected"].items():
        for entry in entries:
            score = next(
                v for k, v in entry.items() if k not in ("environment", "rows")
            )
            rows.append(
                [
                    Cell(entry["environment"]),
                    Cell(words[what]),
                    _count(entry["rows"]),
                    _number(score),
                ]
            )
    headings = [
        Cell("training environment"),
        Cell("when"),
        _head("rows"),
        _head("score"),
    ]
    return (blocks.table(headings, rows),) if rows else ("Nothing is known.",)


def _reliability(content: Mapping[str, Any]) -> Section | None:
    if not content.get("reliability"):
        return None
    rows = [
        [
            Cell(f"{b['confidence']:.1f} %"),
            _count(b["accuracy"], "%"),
            _count(b["rows"]),
        ]
        for b in content["reliability"]
    ]
    headings = [Cell("mean confidence"), _head("accuracy"), _head("rows")]
    text = "Where the model is well calibrated the first two columns agree."
    return Section("Calibration", (text, blocks.table(headings, rows)))


def _remarks(notes: Sequence[str], command: str) -> Section | None:
    parts = [blocks.listing(notes)] if notes else []
    parts += [blocks.command(command)] if command else []
    return Section("How it was made", tuple(parts)) if parts else None


def _head(text: str) -> Cell:
    return Cell(text, numeric=True)


def _number(value: float | None) -> Cell:
    return Cell("" if value is None else f"{value:.4g}", numeric=True)


def _count(value: float, unit: str = "") -> Cell:
    text = f"{value:.1f} {unit}" if unit else f"{value:,.0f}"
    return Cell(text, numeric=True)
