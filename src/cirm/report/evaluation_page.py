"""The page of an evaluation: the verdict, figures, then tables."""

from __future__ import annotations

from collections.abc import Sequence

from cirm.intervals import compute_rmse_interval
from cirm.report import page
from cirm.report.dot_plot import MarkKind
from cirm.report.model_plots import (
    EnvironmentScoreWithRows,
    compute_percentage_interval,
    render_calibration_figure,
    render_confusion_figure,
    render_scores_by_environment_figure,
)
from cirm.report.model_tables import (
    HEADINGS,
    Content,
    build_confusion_table,
    build_coverage_tables,
    build_evaluation_scores_table,
    build_precision_recall_table,
    format_percent_with_one_decimal,
    format_score_with_four_digits,
    list_coverage_sentences,
)
from cirm.report.page import PageSection
from cirm.report.table import ReportTable, Row
from cirm.wording import capitalise_first_letter

MAX_CLASSES_AS_TABLE = 5  # with intervals, more columns do not fit a page
LEGEND: dict[MarkKind, str] = {
    "main": "here",
    "warning": "here, significantly worse",
    "earlier": "at other places, before training there",
}


def build_evaluation_page(content: Content, command: str = "") -> str:
    """Build the page of an evaluation, from what `cirm evaluate --json` prints."""
    answer, rest = split_off_first_sentence(content["verdict"])
    sections = [
        PageSection(
            "",
            [
                *rest,
                page.render_headline_numbers(_list_main_numbers_of_evaluation(content)),
            ],
        ),
        _build_scores_by_place_section(content),
        _build_confusion_matrix_section(content),
        _build_calibration_section(content),
        PageSection("All comparisons", [_render_score_comparisons(content)]),
        _build_scores_by_class_section(content),
        _build_coverage_section(content),
        PageSection("All scores", [build_evaluation_scores_table(content)]),
        _build_expected_scores_section(content),
        build_notes_and_command_section(content["notes"], command),
    ]
    title = f"{content['model']} on {', '.join(content['data'])}"
    return page.render_html_page(title, answer, sections)


def split_off_first_sentence(verdict: str) -> tuple[str, list[str]]:
    """Return the first sentence of a verdict, and the others."""
    first, dot, rest = verdict.partition(". ")
    sentences = [f"{rest.rstrip('.')}."] if dot else []
    return f"{capitalise_first_letter(first).rstrip('.')}.", sentences


def build_notes_and_command_section(
    notes: Sequence[str], command: str
) -> PageSection | None:
    """Build the section of notes and of the command that made a page, if any."""
    if not notes and not command:
        return None
    content = [page.render_notes_as_list(notes), page.render_shell_command(command)]
    return PageSection("Notes and command", content)


def _get_main_metric_of_evaluation(content: Content) -> str:
    return "accuracy" if "accuracy" in content["overall"] else "rmse"


def _list_main_numbers_of_evaluation(content: Content) -> list[tuple[str, str]]:
    metric, rows = _get_main_metric_of_evaluation(content), content["rows"]
    value = content["overall"][metric]
    is_accuracy = metric == "accuracy"
    find_interval = (
        compute_percentage_interval if is_accuracy else compute_rmse_interval
    )
    low, high = find_interval(value, rows)
    name = HEADINGS[metric].removesuffix(", %")
    unit = " %" if is_accuracy else ""
    digits = ".1f" if is_accuracy else ".4g"
    text = f"{name} (95 % interval {low:{digits}} to {high:{digits}})"
    facts = [(f"{value:{digits}}{unit}", text)]
    for other in ("roc_auc", "calibration_error", "r2"):
        if other in content["overall"]:
            name, _, percent = HEADINGS[other].partition(", ")
            number = f"{content['overall'][other]:.3g} {percent}".strip()
            facts.append((number, name))
    return [*facts, (f"{rows:,}", "rows")]


def _build_scores_by_place_section(content: Content) -> PageSection:
    """Show the scores here beside those on arrival at other places."""
    metric = _get_main_metric_of_evaluation(content)
    is_worse = any(
        one["significant"] and one["score"] == metric for one in content["comparisons"]
    )
    kind: MarkKind = "warning" if is_worse else "main"
    scores = [
        EnvironmentScoreWithRows(name, one[metric], one["rows"], kind, "here")
        for name, one in content["environments"].items()
    ]
    expected = content["expected"]
    earlier = expected["on_arrival"] or expected["held_out"]
    words, legend = "before training there", LEGEND
    if without := content["arrivals_without_columns"]:
        names = without[0]["without"].replace("`", "")
        earlier, words = without, f"before training there, without {names}"
        legend = LEGEND | {"earlier": words}
    elif not expected["on_arrival"]:
        words = "held-out rows"
        legend = LEGEND | {"earlier": "held-out rows of the training places"}
    scores += [
        EnvironmentScoreWithRows(
            one["environment"], one[metric], one["rows"], "earlier", words
        )
        for one in earlier
    ]
    return PageSection(
        "Scores by place", [render_scores_by_environment_figure(scores, metric, legend)]
    )


def _build_confusion_matrix_section(content: Content) -> PageSection | None:
    if "confusion" not in content:
        return None
    figure = render_confusion_figure(content["confusion"])
    return (
        PageSection("Which classes are confused with which", [figure])
        if figure
        else None
    )


def _build_scores_by_class_section(content: Content) -> PageSection | None:
    if "confusion" not in content:
        return None
    tables = [build_precision_recall_table(content)]
    if len(content["confusion"]["classes"]) <= MAX_CLASSES_AS_TABLE:
        tables.append(build_confusion_table(content))
    return PageSection("Classes, with 95 % intervals", tables)


def _build_calibration_section(content: Content) -> PageSection | None:
    bins = content.get("reliability") or ()
    rows = [
        [
            format_percent_with_one_decimal(one["confidence"]),
            format_percent_with_one_decimal(one["accuracy"]),
            f"{one['rows']:,.0f}",
        ]
        for one in bins
    ]
    if not rows:
        return None
    table = ReportTable("Calibration", ["mean confidence", "accuracy", "rows"], rows)
    folded = page.render_collapsible_html_block(
        "The same numbers as a table", page.render_section_content([table])
    )
    return PageSection("Calibration", [render_calibration_figure(bins), folded])


def _render_score_comparisons(content: Content) -> str:
    lines = [one["line"] for one in content["comparisons"]]
    return page.render_notes_as_list(
        [f"{capitalise_first_letter(line)}." for line in lines]
    )


def _build_coverage_section(content: Content) -> PageSection | None:
    parts: list[str | ReportTable] = [*list_coverage_sentences(content)]
    parts += build_coverage_tables(content)
    return PageSection("Coverage", parts) if parts else None


def _build_expected_scores_section(content: Content) -> PageSection:
    words = {"held_out": "after training", "on_arrival": "before training"}
    rows: list[Row] = []
    for kind, entries in content["expected"].items():
        for entry in entries:
            others = ("environment", "rows")
            score = next(value for key, value in entry.items() if key not in others)
            count, number = f"{entry['rows']:,}", format_score_with_four_digits(score)
            rows.append([entry["environment"], words[kind], count, number])
    names = (
        "place",
        "measured",
        "rows",
        HEADINGS[_get_main_metric_of_evaluation(content)],
    )
    return PageSection(
        "Scores at the places that the model learned from",
        [
            ReportTable("Scores", names, rows, row_headings=2)
            if rows
            else "The model file contains no earlier scores to compare these with."
        ],
    )
