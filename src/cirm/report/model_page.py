"""Tables and pages of a model: its description, its scores and its predictions.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report import page
from cirm.report.page import Section
from cirm.report.table import Column, Row, Table
from cirm.report.text import format_bytes

Content = Mapping[str, Any]
HEADINGS = {
    "accuracy": "accuracy, %",
    "calibration_error": "calibration error, %",
    "log_loss": "log loss",
    "balanced_accuracy": "balanced accuracy, %",
    "roc_auc": "ROC AUC",
    "average_precision": "PR AUC",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
    "agreement": "agrees with the reference, %",
    "reference": "score of the reference",
    "calibration spread": "range of the calibration error over groups",
    "constant": "collapse to a constant",
}
"""Names of metrics and diagnostics for readers."""

ADAPTATION_PARTS = {
    "What adapting gained when labelled environments arrived": "gains",
    "Not adapted": "refusals",
    "Notes": "notes",
}
"""Lists of sentences about an adaptation, with their headings."""


def build_model_page(content: Content, command: str = "") -> str:
    """Build the page of a model, from what `cirm inspect --json` prints."""
    history = content["history"]
    count = f"{len(history)} environment{'s' if len(history) > 1 else ''}"
    lead = (
        f"A {content['task']} model for {content['target']}, trained by "
        f"{content['learner']} on {count}; last updated on {history[-1]['time'][:10]}."
    )
    if content["adaptation"]:
        lead = f"{summarise_adaptation(content['adaptation'])} {lead}"
    elif verdict := content["explanation"].get("verdict"):
        lead = f"{add_full_stop(verdict)} {lead}"
    names = ("learner", "seed", "network")
    settings = {name: content[name] for name in names} | content["settings"]
    sections = [
        Section("", [page.render_large_numbers(_list_model_facts(content))]),
        _build_adaptation_section(content["adaptation"]),
        _build_explanation_section(content),
        _build_environments_section(history),
        _build_diagnostics_section(history),
        _build_importance_section(content),
        _build_memory_section(content),
        _build_columns_section(content),
        Section(
            "Settings",
            [
                page.render_shell_command(command),
                page.render_settings_as_lines(settings),
            ],
        ),
    ]
    return page.render_page(str(content["model"]), lead, sections)


def build_evaluation_page(content: Content, command: str = "") -> str:
    """Build the page of an evaluation, from what `cirm evaluate --json` prints."""
    lines = [one["line"] for one in content["comparisons"]]
    sections = [
        Section("", [page.render_notes_as_list([f"{line}." for line in lines])]),
        Section("Scores", [build_scores_table(content)]),
        _build_expected_scores_section(content),
        _build_coverage_section(content),
        _build_calibration_section(content),
        _build_notes_section(content["notes"], command),
    ]
    title = f"{content['model']} on {', '.join(content['data'])}"
    verdict = content["verdict"]
    return page.render_page(title, f"{verdict[0].upper()}{verdict[1:]}.", sections)


def build_prediction_page(content: Content, command: str = "") -> str:
    """Build the page of predictions, from what `cirm predict --json` prints."""
    rows = [
        [label, f"{count:,}", _format_percent(100 * count / content["rows"])]
        for label, count in content["predictions"].items()
    ]
    means = [[name, _format_score(v)] for name, v in content["means"].items()]
    tables = [
        Table("Predictions", ["prediction", "rows", "share"], rows),
        Table("Means", ["mean of", "value"], means),
    ]
    lead = f"{content['rows']:,} rows of {content['data']}, predicted by "
    sections = [
        Section("", content["uncertainty"]),
        _build_adaptation_section(content["adaptation"]),
        Section("Predictions", [table for table in tables if table.rows]),
        _build_notes_section(content["notes"], command),
    ]
    return page.render_page("Predictions", f"{lead}{content['model']}.", sections)


def build_environments_table(environments: Sequence[Content]) -> Table:
    """Build the table of a model's environments with their scores."""
    parts = "metrics_before", "metrics_after"
    names = list(dict.fromkeys(n for e in environments for p in parts for n in e[p]))
    rows = []
    for one in environments:
        before, after = (
            [_format_score(one[part].get(name)) for name in names] for part in parts
        )
        name, count, held_out = one["name"], f"{one['rows']:,}", f"{one['held_out']:,}"
        if one["metrics_before"]:
            rows.append([f"{name}, before learning", "", count, "", *before])
        if one["metrics_after"]:
            time = one["time"][:16].replace("T", " ")
            rows.append([name, time, count, held_out, *after])
    headings = [HEADINGS.get(name, name) for name in names]
    columns = ["environment", Column("learned on"), "rows", "held out", *headings]
    return Table("Environments", columns, rows)


def build_model_diagnostics_table(environments: Sequence[Content]) -> Table | None:
    """Build the table of the diagnostics after each environment; None without any."""
    names = list(dict.fromkeys(n for e in environments for n in e["diagnostics"]))
    rows = [
        [e["name"], *(_format_score(e["diagnostics"].get(name)) for name in names)]
        for e in environments
    ]
    columns = ["after learning", *(HEADINGS.get(name, name) for name in names)]
    return Table("Diagnostics", columns, rows) if names else None


def build_model_memory_table(content: Content) -> Table:
    """Build the table of what the model's file keeps, by part."""
    rows = [
        [
            name,
            f"{entry['examples']:,}",
            f"{entry['parameters']:,}",
            f"{entry.get('names', 0):,}",
            format_bytes(entry["bytes"]),
        ]
        for name, entry in content["memory"].items()
    ]
    columns = ["part", "raw examples", "numbers", "names of categories", "size"]
    return Table("Data kept from earlier environments", columns, rows)


def build_scores_table(content: Content) -> Table:
    """Build the table of an evaluation's scores: all rows, then groups of rows."""
    groups = {
        "": {"all rows": {"rows": content["rows"], **content["overall"]}},
        "environment": content["environments"],
        "class": content.get("classes", {}),
        **content["groups"],
    }
    names = list(content["overall"])
    rows = [
        [
            f"{kind} {value}".strip(),
            f"{scores['rows']:,.0f}",
            *(_format_score(scores.get(name)) for name in names),
        ]
        for kind, members in groups.items()
        for value, scores in members.items()
    ]
    headings = [HEADINGS.get(name, name) for name in names]
    return Table("Scores", ["", "rows", *headings], rows)


def build_coverage_tables(content: Content) -> list[Table]:
    """Build the tables of coverage and abstention: each environment, then classes."""
    tables = []
    if coverage := content.get("coverage"):
        name = "size" if "size" in coverage["overall"] else "width"
        kind = "sets" if name == "size" else "intervals"
        columns = ["", "rows", "coverage, %", "95 % interval", f"mean {name}"]
        rows = [
            [*_start_share_row(label, one, "coverage"), _format_score(one[name])]
            for label, one in _list_places(coverage)
        ]
        title = f"Coverage of {coverage['level']:.3g} % prediction {kind}"
        tables.append(Table(title, columns, rows))
    if abstention := content.get("abstention"):
        columns = ["", "rows", "error of the answered, %", "95 % interval"]
        rows = [
            [*_start_share_row(label, one, "error"), _format_percent(one["answered"])]
            for label, one in _list_places(abstention)
        ]
        title = f"Abstention for an error of {abstention['rate']:.3g} %"
        tables.append(Table(title, [*columns, "answered"], rows))
    return tables


def list_coverage_sentences(content: Content) -> list[str]:
    """Say what the coverage of sets or intervals is based on, and of abstention."""
    sentences = []
    if coverage := content.get("coverage"):
        overall = coverage["overall"]["coverage"]
        sentences.append(
            f"{overall:.1f} % of the targets lie in their {coverage['level']:.3g} % "
            f"prediction sets or intervals. {coverage['guarantee']}."
        )
    if abstention := content.get("abstention"):
        wanted = f"at most {abstention['rate']:.3g} % of the predictions to be wrong"
        text = f"No confidence is enough for {wanted}."
        if abstention["confidence"] is not None:
            least = f"rows with a confidence of {abstention['confidence']:g} or more"
            text = (
                f"For {wanted}, the model answers "
                f"{least if abstention['confidence'] else 'all rows'}; "
                f"{abstention['expected']:.1f} % of the answers are expected to be "
                "wrong in a new environment."
            )
        sentences.append(text)
    return sentences


def _list_places(part: Content) -> list[tuple[str, Content]]:
    places = [(f"environment {n}", one) for n, one in part["environments"].items()]
    if len(places) > 1:
        places.append(("mean over environments", part["overall"]))
    places += [(f"class {n}", one) for n, one in part.get("classes", {}).items()]
    return places


def _start_share_row(label: str, one: Content, name: str) -> list[str]:
    """Return a label, the number of rows, and a percentage with its interval."""
    if name not in one:
        return [label, f"{one['rows']:,}", "", ""]
    interval = f"{one['low']:.1f} to {one['high']:.1f}"
    return [label, f"{one['rows']:,}", f"{one[name]:.1f}", interval]


def _build_coverage_section(content: Content) -> Section | None:
    parts: list[str | Table] = [*list_coverage_sentences(content)]
    parts += build_coverage_tables(content)
    return Section("Coverage", parts) if parts else None


def build_classes_table(content: Content) -> Table:
    """Build the table of precision and recall by class, with 95 % intervals."""
    rows = []
    for name, scores in content["classes"].items():
        counts = [f"{scores.get(key, 0):,.0f}" for key in ("rows", "predicted")]
        rates = [
            _format_interval(scores, key, digits)
            for key, digits in (
                ("recall", 1),
                ("precision", 1),
                ("average_precision", 3),
            )
        ]
        rows.append([name, *counts, *rates])
    names = ("rows", "predicted", "recall, %", "precision, %", "PR AUC")
    return Table("Classes, with 95 % intervals", ["class", *names], rows)


def build_confusion_table(content: Content) -> Table:
    """Build the confusion matrix: rows by class, and as which class predicted."""
    matrix = content["confusion"]
    rows = []
    for index, name in enumerate(matrix["classes"]):
        parts = (matrix[key][index] for key in ("counts", "percent", "low", "high"))
        cells = [
            f"{count:,.0f} ({percent:.1f} %, {low:.1f} to {high:.1f})"
            for count, percent, low, high in zip(*parts, strict=True)
        ]
        rows.append([name, *cells])
    columns = ["class", *(f"predicted {name}" for name in matrix["classes"])]
    title = "Confusion matrix: rows, and percent of the class with 95 % intervals"
    return Table(title, columns, rows)


def _list_model_facts(content: Content) -> list[tuple[str, str]]:
    history = content["history"]
    metric = "accuracy" if content["classes"] else "rmse"
    score = history[-1]["metrics_after"].get(metric)
    facts = [
        (f"{len(history)}", "environments"),
        (f"{sum(one['rows'] for one in history):,}", "training rows"),
        (f"{content['raw_examples']:,}", "raw examples kept"),
        (format_bytes(content["bytes"]), "kept in total"),
    ]
    if score is not None:
        name = HEADINGS[metric].removesuffix(", %")
        unit = " %" if metric == "accuracy" else ""
        facts.append((f"{score:.3g}{unit}", f"{name} in the last environment"))
    return facts


def _build_environments_section(history: Sequence[Content]) -> Section:
    notes = [f"{e['name']}: {note}" for e in history for note in e["notes"]]
    text = (
        "Scores were measured when the environment was learned, on its held-out rows "
        "if there are any. Scores before learning come closest to those of an "
        "environment that the model has never seen."
    )
    table = build_environments_table(history)
    return Section("Environments", [table, text, page.render_notes_as_list(notes)])


def _build_diagnostics_section(history: Sequence[Content]) -> Section | None:
    table = build_model_diagnostics_table(history)
    if table is None:
        return None
    text = (
        "Rows are grouped by their class and by whether the reference, a small plain "
        "model, is right. A model that generalises does well in the worst group and "
        "does not merely repeat the predictions of the reference."
    )
    return Section("Can the model be trusted?", [text, table])


def _build_importance_section(content: Content) -> Section | None:
    if not content["importance"]:
        return None
    history = [one for one in content["history"] if one["importance"]]
    rows = []
    for name in content["importance"]:
        shares = [
            100 * values.get(name, 0.0) / (sum(values.values()) or 1)
            for values in (one["importance"] for one in history)
        ]
        rows.append([name, *map(_format_percent, shares)])
    columns = ["column", *(f"after {one['name']}" for one in history)]
    text = (
        "The importance of a column is how much the predictions change when its values "
        "are replaced by random ones; the table shows each column's share."
    )
    first = content["history"][0]["name"]
    for name, drop in content["importance_drops"].items():
        text += f" The share of {name} was {drop['first']:.0f} % after {first} and is "
        text += f"{drop['last']:.0f} % now."
    table = Table("Importance", columns, rows)
    return Section("Importance of columns", [text, table])


def summarise_adaptation(adaptation: Content) -> str:
    """Describe in a sentence or two what a model was adapted to, and what changed."""
    rows = adaptation["rows"]
    text = f"Adapted to {adaptation['name']} by {rows:,} row{'s' * (rows != 1)} "
    verdict = adaptation.get("verdict")
    return text + "without targets." + (f" {add_full_stop(verdict)}" if verdict else "")


def build_effects_table(adaptation: Content) -> Table | None:
    """Build the table of the effects that were estimated anew; None without any."""
    effects = adaptation.get("effects")
    rows = [
        [
            effect["feature"],
            ", ".join(_format_effect(value) for value in effect["seen"]),
            _format_effect(effect["here"]),
            f"{_format_effect(effect['low'])} to {_format_effect(effect['high'])}",
        ]
        for effect in effects or ()
    ]
    columns = ["feature", "effect in each environment", "effect here", "95 % interval"]
    return (
        Table(f"Learned anew for {adaptation['name']}", columns, rows) if rows else None
    )


def list_evidence_sentences(explanation: Content) -> list[str]:
    """List the sentences behind what the learner decided, unstable features first."""
    evidence = explanation["evidence"]
    sentences = [one["sentence"] for one in explanation.get("unstable", ())]
    sentences += [evidence] if isinstance(evidence, str) else evidence
    return [add_full_stop(sentence) for sentence in dict.fromkeys(sentences)]


def add_full_stop(text: str) -> str:
    """Return a sentence with its full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _build_adaptation_section(adaptation: Content | None) -> Section | None:
    if not adaptation:
        return None
    sentences = [effect.get("sentence", "") for effect in adaptation.get("effects", ())]
    told = page.render_notes_as_list(
        [add_full_stop(text) for text in sentences if text]
    )
    parts: list[str | Table] = [summarise_adaptation(adaptation), told]
    if table := build_effects_table(adaptation):
        parts.append(table)
    for title, name in ADAPTATION_PARTS.items():
        if items := adaptation.get(name):
            parts += [
                f"{title}:",
                page.render_notes_as_list([*map(add_full_stop, items)]),
            ]
    return Section(f"Adapted to {adaptation['name']}", parts)


def _build_explanation_section(content: Content) -> Section | None:
    explanation = content["explanation"]
    if not explanation.get("verdict"):
        return None
    parts: list[str | Table] = [add_full_stop(explanation["verdict"])]
    parts.append(page.render_notes_as_list(list_evidence_sentences(explanation)))
    if counts := explanation.get("rows"):
        rows = [["rows", *(f"{count:,}" for count in counts.values())]]
        for kind in ("plain", "invariant"):
            shares = [_format_percent(explanation[kind][group]) for group in counts]
            rows.append([f"{kind} model: classified correctly", *shares])
        columns = ["", *(f"reference {group}" for group in counts)]
        parts.append(Table("Models", columns, rows))
    return Section("What differs between environments", parts)


def _build_memory_section(content: Content) -> Section:
    count = content["raw_examples"]
    text = f"{count:,} rows" if count else "No row"
    text += f" of earlier environments {'are' if count > 1 else 'is'} kept."
    table = build_model_memory_table(content)
    return Section(table.title, [text, table])


def _build_columns_section(content: Content) -> Section | None:
    rows = [[column["name"], column["treatment"]] for column in content["columns"]]
    text = (
        "The first environment determines how columns are used; later ones do not "
        "change it."
    )
    table = Table("Columns", ["column", Column("use")], rows)
    return Section("Columns", [text, table]) if rows else None


def _build_expected_scores_section(content: Content) -> Section:
    words = {"held_out": "after learning it", "on_arrival": "before learning it"}
    rows: list[Row] = []
    for kind, entries in content["expected"].items():
        for entry in entries:
            others = ("environment", "rows")
            score = next(value for key, value in entry.items() if key not in others)
            count, number = f"{entry['rows']:,}", _format_score(score)
            rows.append([entry["environment"], words[kind], count, number])
    names = ("training environment", "measured", "rows", "score")
    return Section(
        "Scores in the training environments",
        [
            Table("Scores", names, rows, row_headings=2)
            if rows
            else "The model file contains no scores to compare with."
        ],
    )


def _build_calibration_section(content: Content) -> Section | None:
    rows = [
        [
            _format_percent(one["confidence"]),
            _format_percent(one["accuracy"]),
            f"{one['rows']:,}",
        ]
        for one in content.get("reliability") or ()
    ]
    text = (
        "For a calibrated model, confidence and accuracy are equal in every row "
        "of this table."
    )
    table = Table("Calibration", ["mean confidence", "accuracy", "rows"], rows)
    return Section("Calibration", [text, table]) if rows else None


def _build_notes_section(notes: Sequence[str], command: str) -> Section | None:
    if not notes and not command:
        return None
    content = [page.render_notes_as_list(notes), page.render_shell_command(command)]
    return Section("Notes and command", content)


def _format_score(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _format_interval(scores: Content, name: str, digits: int) -> str:
    """Return a value with its interval, such as 90.0 (85.2 to 93.4)."""
    if name not in scores:
        return ""
    ends = (scores[f"{name}_low"], scores[f"{name}_high"])
    low, high = (f"{end:.{digits}f}" for end in ends)
    return f"{scores[name]:.{digits}f} ({low} to {high})"


def _format_effect(value: float) -> str:
    return f"{value:.3g}"


def _format_percent(percent: float) -> str:
    return f"{percent:.1f} %"
