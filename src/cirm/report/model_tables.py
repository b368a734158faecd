"""Tables and sentences about a model: its history, its scores and its adaptation.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report.table import ReportColumn, ReportTable
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
    "agreement": "agreement with the reference model, %",
    "reference": "score of the reference model",
    "calibration spread": "spread of the calibration error between groups",
    "constant": "collapse to a constant",
}
"""Names of metrics and diagnostics for readers."""

ADAPTATION_PARTS = {
    "Class frequencies": "frequencies",
    "What adapting would have gained at places with known targets": "gains",
    "Not adapted": "refusals",
    "Notes": "notes",
}
"""Lists of sentences about an adaptation, with their headings."""

STATE_PART = "state of the learner"
MEMORY_PARTS = {
    "columns": "treatment of columns",
    "history": "history of places",
    "earlier versions": "earlier versions",
}
"""Rows of the table of memory; all other parts are the learner's state."""


def build_model_environments_table(environments: Sequence[Content]) -> ReportTable:
    """Build the table of a model's environments with their scores."""
    parts = "metrics_before", "metrics_after"
    names = list(dict.fromkeys(n for e in environments for p in parts for n in e[p]))
    rows = []
    for one in environments:
        before, after = (
            [format_score_with_four_digits(one[part].get(name)) for name in names]
            for part in parts
        )
        name, count, held_out = one["name"], f"{one['rows']:,}", f"{one['held_out']:,}"
        if one["metrics_before"]:
            rows.append([f"{name}, before learning", "", count, "", *before])
        if one["metrics_after"]:
            time = one["time"][:16].replace("T", " ")
            rows.append([name, time, count, held_out, *after])
    headings = [HEADINGS.get(name, name) for name in names]
    columns = ["place", ReportColumn("learned on"), "rows", "held out", *headings]
    return ReportTable("Places", columns, rows)


def build_model_diagnostics_table(
    environments: Sequence[Content],
) -> ReportTable | None:
    """Build the table of the diagnostics after each environment; None without any."""
    names = list(dict.fromkeys(n for e in environments for n in e["diagnostics"]))
    rows = [
        [
            e["name"],
            *(
                format_score_with_four_digits(e["diagnostics"].get(name))
                for name in names
            ),
        ]
        for e in environments
    ]
    columns = ["after learning", *(HEADINGS.get(name, name) for name in names)]
    return ReportTable("Diagnostics", columns, rows) if names else None


def build_model_memory_table(content: Content) -> ReportTable:
    """Build the table of what a model file keeps; the learner's state is one row."""
    parts: dict[str, Counter[str]] = {}
    for name, entry in content["memory"].items():
        parts.setdefault(MEMORY_PARTS.get(name, STATE_PART), Counter()).update(entry)
    rows = [
        [
            name,
            f"{entry['examples']:,}",
            f"{entry['parameters']:,}",
            f"{entry['names']:,}",
            format_bytes(entry["bytes"]),
        ]
        for name, entry in parts.items()
    ]
    columns = ["part", "raw examples", "numbers", "names of categories", "size"]
    return ReportTable("Data kept from earlier places", columns, rows)


def build_evaluation_scores_table(content: Content) -> ReportTable:
    """Build the table of an evaluation's scores: all rows, then groups of rows."""
    groups = [
        ("", {"all rows": {"rows": content["rows"], **content["overall"]}}),
        ("place", content["environments"]),
        ("class", content.get("classes", {})),
        *content["groups"].items(),
    ]
    names = list(content["overall"])
    rows = [
        [
            f"{kind} {value}".strip(),
            f"{scores['rows']:,.0f}",
            *(format_score_with_four_digits(scores.get(name)) for name in names),
        ]
        for kind, members in groups
        for value, scores in members.items()
    ]
    headings = [HEADINGS.get(name, name) for name in names]
    return ReportTable("Scores", ["", "rows", *headings], rows)


def build_coverage_tables(content: Content) -> list[ReportTable]:
    """Build the tables of coverage and abstention: each environment, then classes."""
    tables = []
    if coverage := content.get("coverage"):
        name = "size" if "size" in coverage["overall"] else "width"
        kind = "sets" if name == "size" else "intervals"
        columns = ["", "rows", "coverage, %", "95 % interval", f"mean {name}"]
        rows = [
            [
                *_format_share_with_interval(label, one, "coverage"),
                format_score_with_four_digits(one[name]),
            ]
            for label, one in _list_coverage_by_environment(coverage)
        ]
        title = f"Coverage of {coverage['level']:.3g} % prediction {kind}"
        tables.append(ReportTable(title, columns, rows))
    if abstention := content.get("abstention"):
        columns = ["", "rows", "error of the answered rows, %", "95 % interval"]
        rows = [
            [
                *_format_share_with_interval(label, one, "error"),
                format_percent_with_one_decimal(one["answered"]),
            ]
            for label, one in _list_coverage_by_environment(abstention)
        ]
        title = f"Abstention, for at most {abstention['rate']:.3g} % wrong predictions"
        tables.append(ReportTable(title, [*columns, "answered"], rows))
    return tables


def list_coverage_sentences(content: Content) -> list[str]:
    """Say what the coverage of sets or intervals is based on, and of abstention."""
    sentences = []
    if coverage := content.get("coverage"):
        overall = coverage["overall"]["coverage"]
        sentences.append(
            f"{overall:.1f} % of the targets lie in their {coverage['level']:.3g} % "
            "prediction sets or intervals. Expected coverage: "
            f"{coverage['guarantee'][0].lower()}{coverage['guarantee'][1:]}."
        )
    if abstention := content.get("abstention"):
        wanted = f"at most {abstention['rate']:.3g} % of the predictions to be wrong"
        text = (
            "The model abstains on every row: none of its predictions is confident "
            f"enough for {wanted} at a new place. Allow a larger error rate with "
            "--abstain."
        )
        if abstention["confidence"] is not None:
            least = f"rows with a confidence of {abstention['confidence']:g} or more"
            text = (
                f"For {wanted}, the model answers "
                f"{least if abstention['confidence'] else 'all rows'}; "
                f"{abstention['expected']:.1f} % of the answers are expected to be "
                "wrong at a new place."
            )
        sentences.append(text)
    return sentences


def _list_coverage_by_environment(part: Content) -> list[tuple[str, Content]]:
    places = [(f"place {n}", one) for n, one in part["environments"].items()]
    if len(places) > 1:
        places.append(("mean over places", part["overall"]))
    places += [(f"class {n}", one) for n, one in part.get("classes", {}).items()]
    return places


def _format_share_with_interval(label: str, coverage: Content, name: str) -> list[str]:
    """Return a label, the number of rows, and a percentage with its interval."""
    if name not in coverage:
        return [label, f"{coverage['rows']:,}", "", ""]
    interval = f"{coverage['low']:.1f} to {coverage['high']:.1f}"
    return [label, f"{coverage['rows']:,}", f"{coverage[name]:.1f}", interval]


def build_precision_recall_table(content: Content) -> ReportTable:
    """Build the table of precision and recall by class, with 95 % intervals."""
    rows = []
    for name, scores in content["classes"].items():
        counts = [f"{scores.get(key, 0):,.0f}" for key in ("rows", "predicted")]
        rates = [
            _format_value_with_interval(scores, key, digits)
            for key, digits in (
                ("recall", 1),
                ("precision", 1),
                ("average_precision", 3),
            )
        ]
        rows.append([name, *counts, *rates])
    names = ("rows", "predicted", "recall, %", "precision, %", "PR AUC")
    return ReportTable("Classes, with 95 % intervals", ["class", *names], rows)


def build_confusion_table(content: Content) -> ReportTable:
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
    return ReportTable(title, columns, rows)


def summarise_adaptation(adaptation: Content) -> str:
    """Describe in a sentence or two what a model was adapted to, and what changed."""
    rows = adaptation["rows"]
    text = f"Adapted to {adaptation['name']} with {rows:,} row{'s' * (rows != 1)} "
    verdict = adaptation.get("verdict")
    return text + "without targets." + (f" {add_full_stop(verdict)}" if verdict else "")


def build_adapted_effects_table(adaptation: Content) -> ReportTable | None:
    """Build the table of the effects that were estimated anew; None without any."""
    effects = adaptation.get("effects")
    rows = [
        [
            effect["feature"],
            ", ".join(_format_column_effect(value) for value in effect["seen"]),
            _format_column_effect(effect["here"]),
            " to ".join(_format_column_effect(effect[end]) for end in ("low", "high")),
        ]
        for effect in effects or ()
    ]
    columns = ["feature", "effect at each place", "effect here", "95 % interval"]
    return (
        ReportTable(f"Learned anew for {adaptation['name']}", columns, rows)
        if rows
        else None
    )


def list_sentences_on_learner_decisions(explanation: Content) -> list[str]:
    """List the sentences behind what the learner decided, unstable features first."""
    evidence = explanation["evidence"]
    sentences = [one["sentence"] for one in explanation.get("unstable", ())]
    sentences += [evidence] if isinstance(evidence, str) else evidence
    return [add_full_stop(sentence) for sentence in dict.fromkeys(sentences)]


def add_full_stop(text: str) -> str:
    """Return a sentence with its full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def format_score_with_four_digits(value: float | None) -> str:
    """Format a score with four digits; empty if there is none."""
    return "" if value is None else f"{value:.4g}"


def _format_value_with_interval(scores: Content, name: str, n_digits: int) -> str:
    """Return a value with its interval, such as 90.0 (85.2 to 93.4)."""
    if name not in scores:
        return ""
    ends = (scores[f"{name}_low"], scores[f"{name}_high"])
    low, high = (f"{end:.{n_digits}f}" for end in ends)
    return f"{scores[name]:.{n_digits}f} ({low} to {high})"


def _format_column_effect(value: float) -> str:
    return f"{value:.3g}"


def format_percent_with_one_decimal(percent: float) -> str:
    """Format a percentage with one decimal."""
    return f"{percent:.1f} %"
