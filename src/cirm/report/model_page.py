"""Tables and pages of a model: its description, its scores and its predictions.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report.page import (
    Section,
    render_command,
    render_facts,
    render_list,
    render_page,
    render_settings,
)
from cirm.report.table import Cell, Column, Table, number_columns
from cirm.report.text import format_bytes

Content = Mapping[str, Any]
HEADINGS = {
    "rows": "rows",
    "accuracy": "accuracy, %",
    "calibration_error": "calibration error, %",
    "log_loss": "log loss",
    "roc_auc": "ROC AUC",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
}
"""The metrics' names for readers."""


def build_model_page(content: Content, command: str = "") -> str:
    """Build the page of a model, from what `cirm inspect --json` prints."""
    environments = content["history"]
    last = environments[-1]
    lead = (
        f"A {content['task']} model for {content['target']}, trained by "
        f"{content['learner']} on {len(environments)} "
        f"environment{'s' if len(environments) > 1 else ''}; last updated on "
        f"{last['time'][:10]}."
    )
    settings = {
        "learner": content["learner"],
        "seed": content["seed"],
        "network": content["network"],
        **content["settings"],
    }
    sections = [
        Section("", [render_facts(_list_model_facts(content))]),
        _build_environments_section(environments),
        _build_diagnostics_section(environments),
        _build_importance_section(content),
        _build_explanation_section(content),
        _build_memory_section(content),
        _build_columns_section(content),
        Section(
            "Settings",
            [
                *([render_command(command)] if command else []),
                render_settings(settings),
            ],
        ),
    ]
    return render_page(str(content["model"]), lead, sections)


def build_evaluation_page(content: Content, command: str = "") -> str:
    """Build the page of an evaluation, from what `cirm evaluate --json` prints."""
    sections = [
        Section("Scores", [build_scores_table(content)]),
        _build_expected_section(content),
        _build_calibration_section(content),
        _build_notes_section(content["notes"], command),
    ]
    title = f"{content['model']} on {', '.join(content['data'])}"
    verdict = content["verdict"]
    return render_page(title, f"{verdict[0].upper()}{verdict[1:]}.", sections)


def build_prediction_page(content: Content, command: str = "") -> str:
    """Build the page of predictions, from what `cirm predict --json` prints."""
    tables: list[str | Table] = []
    rows = [
        [Cell(label), _count_cell(count), _percent_cell(100 * count / content["rows"])]
        for label, count in content["predictions"].items()
    ]
    if rows:
        columns = [Column("prediction"), *number_columns("rows", "share")]
        tables.append(Table("Predictions", columns, rows))
    means = [[Cell(name), _number_cell(v)] for name, v in content["means"].items()]
    columns = [Column("mean of"), *number_columns("value")]
    tables.append(Table("Means", columns, means))
    lead = f"{content['rows']:,} rows of {content['data']}, predicted by "
    sections = [
        Section("Predictions", tables),
        _build_notes_section(content["notes"], command),
    ]
    return render_page("Predictions", f"{lead}{content['model']}.", sections)


def build_environments_table(environments: Sequence[Content]) -> Table:
    """Build the table of a model's environments with their scores."""
    parts = "metrics_before", "metrics_after"
    names = list(dict.fromkeys(n for e in environments for p in parts for n in e[p]))
    columns = [Column("environment"), Column("learned on")]
    columns += number_columns("rows", "held out", *(HEADINGS.get(n, n) for n in names))
    rows = []
    for one in environments:
        count = _count_cell(one["rows"])
        if one["metrics_before"]:
            scores = [_number_cell(one["metrics_before"].get(name)) for name in names]
            name = Cell(f"{one['name']}, before learning")
            rows.append([name, Cell(), count, Cell(), *scores])
        if one["metrics_after"]:
            scores = [_number_cell(one["metrics_after"].get(name)) for name in names]
            date = Cell(one["time"][:16].replace("T", " "))
            rows.append(
                [Cell(one["name"]), date, count, _count_cell(one["held_out"]), *scores]
            )
    return Table("Environments", columns, rows)


def build_model_diagnostics_table(environments: Sequence[Content]) -> Table | None:
    """Build the table of the diagnostics after each environment; None without any."""
    names = list(dict.fromkeys(n for e in environments for n in e["diagnostics"]))
    rows = [
        [Cell(e["name"]), *(_number_cell(e["diagnostics"].get(n)) for n in names)]
        for e in environments
    ]
    columns = [Column("after learning"), *number_columns(*names)]
    return Table("Diagnostics", columns, rows) if names else None


def build_model_memory_table(content: Content) -> Table:
    """Build the table of what the model's file keeps, by part."""
    rows = [
        [
            Cell(name),
            _count_cell(entry["examples"]),
            _count_cell(entry["parameters"]),
            Cell(format_bytes(entry["bytes"])),
        ]
        for name, entry in content["memory"].items()
    ]
    columns = [Column("part"), *number_columns("raw examples", "numbers", "size")]
    return Table("Data kept from earlier environments", columns, rows)


def build_scores_table(content: Content) -> Table:
    """Build the table of an evaluation's scores: all rows, then groups of rows."""
    groups = {"": {"all rows": {"rows": content["rows"], **content["overall"]}}}
    groups["environment"] = content["environments"]
    if "classes" in content:
        groups["class"] = content["classes"]
    groups |= content["groups"]
    names = list(groups[""]["all rows"])
    rows = []
    for kind, members in groups.items():
        for value, scores in members.items():
            numbers = [
                _number_cell(scores.get(name)) for name in names if name != "rows"
            ]
            rows.append(
                [Cell(f"{kind} {value}".strip()), _count_cell(scores["rows"]), *numbers]
            )
    headings = [HEADINGS.get(name, name) for name in names if name != "rows"]
    return Table("Scores", [Column(""), *number_columns("rows", *headings)], rows)


def _list_model_facts(content: Content) -> list[tuple[str, str]]:
    environments = content["history"]
    metric = "accuracy" if content["classes"] else "rmse"
    score = environments[-1]["metrics_after"].get(metric)
    facts = [
        (f"{len(environments)}", "environments"),
        (f"{sum(one['rows'] for one in environments):,}", "training rows"),
        (f"{content['raw_examples']:,}", "raw examples kept"),
        (format_bytes(content["bytes"]), "kept in total"),
    ]
    if score is not None:
        name = HEADINGS[metric].removesuffix(", %")
        unit = " %" if metric == "accuracy" else ""
        facts.append((f"{score:.3g}{unit}", f"{name} in the last environment"))
    return facts


def _build_environments_section(environments: Sequence[Content]) -> Section:
    notes = [f"{e['name']}: {note}" for e in environments for note in e["notes"]]
    text = (
        "Scores were measured when the environment was learned, on its held-out rows "
        "if there are any. Scores before learning come closest to those of an "
        "environment that the model has never seen."
    )
    table = build_environments_table(environments)
    extra = [render_list(notes)] if notes else []
    return Section("Environments", [table, text, *extra])


def _build_diagnostics_section(environments: Sequence[Content]) -> Section | None:
    table = build_model_diagnostics_table(environments)
    if table is None:
        return None
    text = (
        "Rows are grouped by their class and by whether the reference, a small plain "
        "model, is right. A model that generalises does well in the worst group and "
        "does not merely repeat the predictions of the reference."
    )
    return Section("Can the model be trusted?", [text, table])


def _build_importance_section(content: Content) -> Section | None:
    names = content["importance"]
    if not names:
        return None
    environments = [one for one in content["history"] if one["importance"]]
    rows = []
    for name in names:
        shares = [
            100
            * one["importance"].get(name, 0.0)
            / (sum(one["importance"].values()) or 1)
            for one in environments
        ]
        rows.append([Cell(name), *map(_percent_cell, shares)])
    headings = [f"after {one['name']}" for one in environments]
    table = Table("Importance", [Column("column"), *number_columns(*headings)], rows)
    text = (
        "The importance of a column is how much the predictions change when its values "
        "are replaced by random ones; the table shows each column's share."
    )
    first = content["history"][0]["name"]
    for name, drop in content["importance_drops"].items():
        text += f" The share of {name} was {drop['first']:.0f} % after {first} and is "
        text += f"{drop['last']:.0f} % now."
    return Section("Importance of columns", [text, table])


def _build_explanation_section(content: Content) -> Section | None:
    explanation = content["explanation"]
    if not explanation:
        return None
    parts: list[str | Table] = [f"{explanation['verdict']}. {explanation['evidence']}"]
    if explanation.get("rows"):
        groups = list(explanation["rows"])
        rows = [[Cell("rows"), *(_count_cell(explanation["rows"][n]) for n in groups)]]
        rows += [
            [
                Cell(f"{kind} model: classified correctly"),
                *(_percent_cell(explanation[kind][name]) for name in groups),
            ]
            for kind in ("plain", "invariant")
        ]
        headings = [f"reference {name}" for name in groups]
        parts.append(Table("Models", [Column(""), *number_columns(*headings)], rows))
    return Section("Spurious features", parts)


def _build_memory_section(content: Content) -> Section:
    count = content["raw_examples"]
    text = f"{count:,} rows" if count else "No row"
    text += f" of earlier environments {'are' if count > 1 else 'is'} kept."
    table = build_model_memory_table(content)
    return Section(table.title, [text, table])


def _build_columns_section(content: Content) -> Section | None:
    if not content["columns"]:
        return None
    rows = [[Cell(c["name"]), Cell(c["treatment"])] for c in content["columns"]]
    text = "The first environment decides how columns are used; later ones do not."
    table = Table("Columns", [Column("column"), Column("use")], rows)
    return Section("Columns", [text, table])


def _build_expected_section(content: Content) -> Section:
    words = {"held_out": "after learning it", "on_arrival": "before learning it"}
    rows = []
    for kind, entries in content["expected"].items():
        for entry in entries:
            others = ("environment", "rows")
            score = next(value for key, value in entry.items() if key not in others)
            rows.append(
                [
                    Cell(entry["environment"]),
                    Cell(words[kind]),
                    _count_cell(entry["rows"]),
                    _number_cell(score),
                ]
            )
    columns = [Column("training environment"), Column("measured")]
    table = Table("Scores", [*columns, *number_columns("rows", "score")], rows)
    return Section(
        "Scores in the training environments",
        [table if rows else "The model's file has no scores to compare with."],
    )


def _build_calibration_section(content: Content) -> Section | None:
    if not content.get("reliability"):
        return None
    rows = [
        [
            Cell(f"{one['confidence']:.1f} %"),
            _percent_cell(one["accuracy"]),
            _count_cell(one["rows"]),
        ]
        for one in content["reliability"]
    ]
    columns = [Column("mean confidence"), *number_columns("accuracy", "rows")]
    text = "For a calibrated model, confidence and accuracy are equal in every row."
    return Section("Calibration", [text, Table("Calibration", columns, rows)])


def _build_notes_section(notes: Sequence[str], command: str) -> Section | None:
    parts = [render_list(notes)] if notes else []
    parts += [render_command(command)] if command else []
    return Section("Notes and command", parts) if parts else None


def _number_cell(value: float | None) -> Cell:
    return Cell("" if value is None else f"{value:.4g}")


def _count_cell(count: float) -> Cell:
    return Cell(f"{count:,.0f}")


def _percent_cell(percent: float) -> Cell:
    return Cell(f"{percent:.1f} %")
