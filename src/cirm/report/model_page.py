"""The pages of a model and of its predictions: the answer, figures, then tables.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from cirm.report import page
from cirm.report.dot_plot import MarkKind
from cirm.report.evaluation_page import build_notes_section
from cirm.report.markup import Markup
from cirm.report.model_answer import describe_what_model_relies_on
from cirm.report.model_plots import (
    PlaceScore,
    render_adapted_effects_figure,
    render_importance_figure,
    render_scores_figure,
)
from cirm.report.model_tables import (
    ADAPTATION_PARTS,
    HEADINGS,
    Content,
    add_full_stop,
    build_adapted_effects_table,
    build_environments_table,
    build_model_diagnostics_table,
    build_model_memory_table,
    format_percent,
    format_score,
    list_evidence_sentences,
    summarise_adaptation,
)
from cirm.report.page import Section
from cirm.report.table import Column, Table
from cirm.report.text import format_bytes

LEGEND: dict[MarkKind, str] = {
    "main": "after learning it, held-out rows",
    "earlier": "on arrival, before learning it",
}


def build_model_page(content: Content, command: str = "") -> str:
    """Build the page of a model, from what `cirm inspect --json` prints."""
    history = content["history"]
    count = f"{len(history)} place{'s' if len(history) > 1 else ''}"
    about = (
        f"A {content['task']} model for {content['target']}, trained by "
        f"{content['learner']} on {count}; last updated on {history[-1]['time'][:10]}."
    )
    answer = describe_what_model_relies_on(content)
    if adaptation := content["adaptation"]:
        told = summarise_adaptation(adaptation)
        if answer and adaptation.get("effects"):  # which the answer sums up
            told = told.partition(". ")[0] + "."
        answer = f"{told} {answer}"
    elif not answer and (verdict := content["explanation"].get("verdict")):
        answer = add_full_stop(verdict)
    sections = [
        Section("", [about if answer else "", _render_main_facts(content)]),
        _build_adaptation_section(content["adaptation"]),
        _build_importance_section(content),
        _build_scores_section(content),
        _build_explanation_section(content),
        _build_environments_section(content),
        Section("Details", _render_folded_details(content, command)),
    ]
    return page.render_page(str(content["model"]), (answer or about).strip(), sections)


def build_prediction_page(content: Content, command: str = "") -> str:
    """Build the page of predictions, from what `cirm predict --json` prints."""
    rows = [
        [label, f"{count:,}", format_percent(100 * count / content["rows"])]
        for label, count in content["predictions"].items()
    ]
    means = [[name, format_score(v)] for name, v in content["means"].items()]
    tables = [
        Table("Predictions", ["prediction", "rows", "share"], rows),
        Table("Means", ["mean of", "value"], means),
    ]
    lead = f"{content['rows']:,} rows of {content['data']}, predicted by "
    sections = [
        Section("", content["uncertainty"]),
        _build_adaptation_section(content["adaptation"]),
        Section("Predictions", [table for table in tables if table.rows]),
        build_notes_section(content["notes"], command),
    ]
    return page.render_page("Predictions", f"{lead}{content['model']}.", sections)


def _render_main_facts(content: Content) -> Markup:
    history = content["history"]
    metric = _get_main_metric(content)
    facts = [
        (f"{len(history)}", "places"),
        (f"{sum(one['rows'] for one in history):,}", "training rows"),
        (f"{content['raw_examples']:,}", "raw examples kept"),
    ]
    arrivals = [one for one in history if metric in one["metrics_before"]]
    for one, part, words in (
        *((one, "metrics_before", "on arrival at") for one in arrivals[-1:]),
        (history[-1], "metrics_after", "now, held-out rows of"),
    ):
        if metric in one[part]:
            name = HEADINGS[metric].removesuffix(", %")
            unit = " %" if metric == "accuracy" else ""
            text = f"{name} {words} {one['name']}"
            facts.append((f"{one[part][metric]:.3g}{unit}", text))
    return page.render_headline_numbers(facts)


def _get_main_metric(content: Content) -> str:
    return "accuracy" if content["classes"] else "rmse"


def _build_adaptation_section(adaptation: Content | None) -> Section | None:
    if not adaptation:
        return None
    sentences = [effect.get("sentence", "") for effect in adaptation.get("effects", ())]
    told = page.render_notes_as_list(
        [add_full_stop(text) for text in sentences if text]
    )
    parts: list[str | Table] = [summarise_adaptation(adaptation)]
    if table := build_adapted_effects_table(adaptation):
        parts += [render_adapted_effects_figure(adaptation), told, table]
    for title, name in ADAPTATION_PARTS.items():
        if items := adaptation.get(name):
            parts += [
                f"{title}:",
                page.render_notes_as_list([*map(add_full_stop, items)]),
            ]
    return Section(f"Adapted to {adaptation['name']}", parts)


def _build_importance_section(content: Content) -> Section | None:
    history = [one for one in content["history"] if one["importance"]]
    if not content["importance"] or not history:
        return None
    rows = []
    for name in content["importance"]:
        shares = [
            100 * values.get(name, 0.0) / (sum(values.values()) or 1)
            for values in (one["importance"] for one in history)
        ]
        rows.append([name, *map(format_percent, shares)])
    columns = ["column", *(f"after {one['name']}" for one in history)]
    folded = page.render_collapsible_block(
        "The same as a table, after each place",
        page.render_section_content([Table("Importance", columns, rows)]),
    )
    first = content["history"][0]["name"]
    now = "before adapting" if content["adaptation"] else "now"
    drops = [
        f"The share of `{name}` was {drop['first']:.0f} % after {first} and "
        f"{drop['last']:.0f} % {now}."
        for name, drop in content["importance_drops"].items()
    ]
    figure = render_importance_figure(content)
    return Section("What the predictions rely on", [*drops, figure, folded])


def _build_scores_section(content: Content) -> Section | None:
    metric, scores = _get_main_metric(content), []
    for one in content["history"]:
        if metric in one["metrics_before"]:
            value = one["metrics_before"][metric]
            scores.append(
                PlaceScore(one["name"], value, one["rows"], "earlier", "on arrival")
            )
        if metric in one["metrics_after"]:
            value, rows = one["metrics_after"][metric], one["held_out"] or one["rows"]
            words = "after learning it"
            scores.append(PlaceScore(one["name"], value, rows, "main", words))
    if not scores:
        return None
    text = (
        "Scores on arrival, before the model had learned from a place, come closest to "
        "those at a place that it has never seen."
    )
    return Section(
        "Scores by place", [text, render_scores_figure(scores, metric, LEGEND)]
    )


def _build_explanation_section(content: Content) -> Section | None:
    explanation = content["explanation"]
    if not explanation.get("verdict"):
        return None
    parts: list[str | Table] = [add_full_stop(explanation["verdict"])]
    parts.append(page.render_notes_as_list(list_evidence_sentences(explanation)))
    return Section("What differs between places", parts)


def _build_environments_section(content: Content) -> Section:
    history = content["history"]
    notes = [f"{e['name']}: {note}" for e in history for note in e["notes"]]
    table = build_environments_table(history)
    return Section("Places", [table, page.render_notes_as_list(notes)])


def _render_folded_details(content: Content, command: str) -> list[Markup]:
    """Render what few readers need, folded."""
    names = ("learner", "seed", "network")
    settings = {name: content[name] for name in names} | content["settings"]
    kept = content["raw_examples"]
    memory = f"{kept:,} rows" if kept else "No row"
    memory += f" of earlier places {'are' if kept > 1 else 'is'} kept."
    parts: dict[str, tuple[str, list[str | Table]]] = {}
    if diagnostics := build_model_diagnostics_table(content["history"]):
        text = (
            "Rows are grouped by their class and by whether the reference, a small "
            "plain model, is right. A model that generalises does well in the worst "
            "group and does not merely repeat the predictions of the reference."
        )
        parts["Diagnostics"] = ("", [text, diagnostics])
    size = format_bytes(content["bytes"])
    table = build_model_memory_table(content)
    parts[table.title] = (f"{memory} {size} in total", [table])
    if rows := [[column["name"], column["treatment"]] for column in content["columns"]]:
        text = (
            "The first place determines how columns are used; later ones do not "
            "change it."
        )
        columns = Table("Columns", ["column", Column("use")], rows)
        parts["Columns"] = (f"{len(rows)} columns", [text, columns])
    parts["Settings and command"] = (
        "",
        [page.render_shell_command(command), page.render_settings_as_lines(settings)],
    )
    return [
        page.render_collapsible_block(title, page.render_section_content(own), aside)
        for title, (aside, own) in parts.items()
    ]
