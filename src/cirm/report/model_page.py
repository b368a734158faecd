"""The pages of a model and of its predictions: the answer, figures, then tables.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from cirm.report import page
from cirm.report.dot_plot import MarkKind
from cirm.report.evaluation_page import build_notes_and_command_section
from cirm.report.markup import EscapedHtml
from cirm.report.model_answer import describe_what_model_relies_on
from cirm.report.model_plots import (
    EnvironmentScoreWithRows,
    render_adapted_effects_figure,
    render_column_importance_figure,
    render_scores_by_environment_figure,
)
from cirm.report.model_tables import (
    ADAPTATION_PARTS,
    HEADINGS,
    Content,
    add_full_stop,
    build_adapted_effects_table,
    build_model_diagnostics_table,
    build_model_environments_table,
    build_model_memory_table,
    format_percent_with_one_decimal,
    format_score_with_four_digits,
    list_sentences_on_learner_decisions,
    summarise_adaptation,
)
from cirm.report.page import PageSection
from cirm.report.table import ReportColumn, ReportTable
from cirm.report.text import format_bytes

LEGEND: dict[MarkKind, str] = {
    "main": "after training there, on held-out rows",
    "earlier": "before training there",
}


def build_model_page(content: Content, command: str = "") -> str:
    """Build the page of a model, from what `cirm inspect --json` prints."""
    history = content["history"]
    count = f"{len(history)} place{'s' if len(history) > 1 else ''}"
    about = (
        f"A {content['task']} model for {content['target']}, trained with "
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
        PageSection(
            "", [about if answer else "", _render_main_facts_of_model(content)]
        ),
        _build_adaptation_section(content["adaptation"]),
        _build_importance_section(content),
        _build_scores_section(content),
        _build_learner_explanation_section(content),
        _build_training_environments_section(content),
        PageSection("Details", _render_collapsed_model_details(content, command)),
    ]
    return page.render_html_page(
        str(content["model"]), (answer or about).strip(), sections
    )


def build_prediction_page(content: Content, command: str = "") -> str:
    """Build the page of predictions, from what `cirm predict --json` prints."""
    rows = [
        [
            label,
            f"{count:,}",
            format_percent_with_one_decimal(100 * count / content["rows"]),
        ]
        for label, count in content["predictions"].items()
    ]
    means = [
        [name, format_score_with_four_digits(v)] for name, v in content["means"].items()
    ]
    tables = [
        ReportTable("Predictions", ["prediction", "rows", "share"], rows),
        ReportTable("Means", ["mean of", "value"], means),
    ]
    lead = f"{content['rows']:,} rows of {content['data']}, predicted by "
    sections = [
        PageSection("", content["uncertainty"]),
        _build_adaptation_section(content["adaptation"]),
        PageSection("Predictions", [table for table in tables if table.rows]),
        build_notes_and_command_section(content["notes"], command),
    ]
    return page.render_html_page("Predictions", f"{lead}{content['model']}.", sections)


def _render_main_facts_of_model(content: Content) -> EscapedHtml:
    history = content["history"]
    metric = _get_main_metric_of_model(content)
    facts = [
        (f"{len(history)}", "places"),
        (f"{sum(one['rows'] for one in history):,}", "training rows"),
        (f"{content['raw_examples']:,}", "raw examples kept"),
    ]
    arrivals = [one for one in history if metric in one["metrics_before"]]
    for one, part, words in (
        *((one, "metrics_before", "before training at") for one in arrivals[-1:]),
        (history[-1], "metrics_after", "now, on held-out rows of"),
    ):
        if metric in one[part]:
            name = HEADINGS[metric].removesuffix(", %")
            unit = " %" if metric == "accuracy" else ""
            text = f"{name} {words} {one['name']}"
            facts.append((f"{one[part][metric]:.3g}{unit}", text))
    return page.render_headline_numbers(facts)


def _get_main_metric_of_model(content: Content) -> str:
    return "accuracy" if content["classes"] else "rmse"


def _build_adaptation_section(adaptation: Content | None) -> PageSection | None:
    if not adaptation:
        return None
    sentences = [effect.get("sentence", "") for effect in adaptation.get("effects", ())]
    told = page.render_notes_as_list(
        [add_full_stop(text) for text in sentences if text]
    )
    parts: list[str | ReportTable] = [summarise_adaptation(adaptation)]
    if table := build_adapted_effects_table(adaptation):
        parts += [render_adapted_effects_figure(adaptation), told, table]
    for title, name in ADAPTATION_PARTS.items():
        if items := adaptation.get(name):
            parts += [
                f"{title}:",
                page.render_notes_as_list([*map(add_full_stop, items)]),
            ]
    return PageSection(f"Adapted to {adaptation['name']}", parts)


def _build_importance_section(content: Content) -> PageSection | None:
    history = [one for one in content["history"] if one["importance"]]
    if not content["importance"] or not history:
        return None
    rows = []
    for name in content["importance"]:
        shares = [
            100 * values.get(name, 0.0) / (sum(values.values()) or 1)
            for values in (one["importance"] for one in history)
        ]
        rows.append([name, *map(format_percent_with_one_decimal, shares)])
    is_one_stage = history[0]["stage"] == history[-1]["stage"]
    word = "at" if is_one_stage else "after"
    columns = ["column", *(f"{word} {one['name']}" for one in history)]
    folded = page.render_collapsible_html_block(
        f"The same numbers as a table, {word} each place",
        page.render_section_content([ReportTable("Importance", columns, rows)]),
    )
    first = content["history"][0]["name"]
    now = "before adapting" if content["adaptation"] else "now"
    drops = [
        f"The share of `{name}` was {drop['first']:.0f} % after {first} and "
        f"{drop['last']:.0f} % {now}."
        for name, drop in content["importance_drops"].items()
    ]
    figure = render_column_importance_figure(content)
    return PageSection("What the predictions rely on", [*drops, figure, folded])


def _build_scores_section(content: Content) -> PageSection | None:
    metric, scores = _get_main_metric_of_model(content), []
    for one in content["history"]:
        if metric in one["metrics_before"]:
            value = one["metrics_before"][metric]
            scores.append(
                EnvironmentScoreWithRows(
                    one["name"], value, one["rows"], "earlier", "before training there"
                )
            )
        if metric in one["metrics_after"]:
            value, rows = one["metrics_after"][metric], one["held_out"] or one["rows"]
            words = "after training there"
            scores.append(
                EnvironmentScoreWithRows(one["name"], value, rows, "main", words)
            )
    if not scores:
        return None
    text = (
        "The scores before the model was trained on a place come closest to those at "
        "a place that it has never seen."
    )
    has_earlier = any(score.kind == "earlier" for score in scores)
    figure = render_scores_by_environment_figure(scores, metric, LEGEND)
    return PageSection("Scores by place", [*([text] if has_earlier else []), figure])


def _build_learner_explanation_section(content: Content) -> PageSection | None:
    explanation = content["explanation"]
    if not explanation.get("verdict"):
        return None
    parts: list[str | ReportTable] = [add_full_stop(explanation["verdict"])]
    parts.append(
        page.render_notes_as_list(list_sentences_on_learner_decisions(explanation))
    )
    return PageSection("What differs between places", parts)


def _build_training_environments_section(content: Content) -> PageSection:
    history = content["history"]
    notes = [f"{e['name']}: {note}" for e in history for note in e["notes"]]
    table = build_model_environments_table(history)
    return PageSection("Places", [table, page.render_notes_as_list(notes)])


def _render_collapsed_model_details(
    content: Content, command: str
) -> list[EscapedHtml]:
    """Render what few readers need, folded."""
    names = ("learner", "seed", "network")
    settings = {n: content[n] for n in names if content[n] is not None}
    if encoder := content["encoder"]:
        settings["encoder"] = f"{encoder['name']}, weights {encoder['checksum']}"
    settings |= content["settings"]
    kept = content["raw_examples"]
    memory = f"{kept:,} rows" if kept else "No row"
    memory += f" of earlier places {'are' if kept > 1 else 'is'} kept."
    parts: dict[str, tuple[str, list[str | ReportTable]]] = {}
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
            "How each column is read was decided at the first place and does not "
            "change at later places."
        )
        columns = ReportTable("Columns", ["column", ReportColumn("use")], rows)
        parts["Columns"] = (f"{len(rows)} columns", [text, columns])
    parts["Settings and command"] = (
        "",
        [
            page.render_shell_command(command),
            page.render_settings_as_html_lines(settings),
        ],
    )
    return [
        page.render_collapsible_html_block(
            title, page.render_section_content(own), aside
        )
        for title, (aside, own) in parts.items()
    ]
