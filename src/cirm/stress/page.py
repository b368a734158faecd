"""The stress map as a page and as a table: where a learner works, and where not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cirm.report import page
from cirm.report.heat_map import HeatMapCell, plot_heat_map
from cirm.report.markup import EscapedHtml, render_html_element
from cirm.report.page import PageSection, PngPicture
from cirm.report.table import (
    ReportCell,
    ReportColumn,
    ReportTable,
    build_mean_and_std_cell,
)
from cirm.report.text import describe_adaptation_to_rows, list_adaptation_row_counts
from cirm.stress.cells import ADAPT, CONDITIONS
from cirm.stress.results import (
    MAX_ADAPTATION_LOSS,
    MAX_GAP,
    MAX_GAP_IF_RARE,
    MAX_GAP_OF_ANY_SEED,
)
from cirm.wording import format_count, join_words

Summary = Mapping[str, Any]
CRITERIA = (
    f"The mean accuracy is at most {MAX_GAP:g} points below that of the oracle, or "
    f"{MAX_GAP_IF_RARE:g} points where few labels contradict the shortcut.",
    f"No seed is more than {MAX_GAP_OF_ANY_SEED:g} points below the oracle.",
    "Adapting, to however many rows, lowers the mean accuracy by at most "
    f"{MAX_ADAPTATION_LOSS:g} point.",
)
"""What must hold in a cell for the learner to withstand the shortcut there."""
LOST = 20.0  # points below the reference at which the colour is full
MOST_NAMED = 6  # cells that the lead names


def build_stress_test_page(
    cells: Sequence[Summary],
    learner: str,
    notes: Sequence[str],
    command: str,
    pictures: Sequence[PngPicture] = (),
) -> str:
    """Build the page of a stress map as one self-contained HTML document."""
    unseen = (
        f"Accuracy of {learner} at the unseen place, before it has seen any row from "
        f"there. Below it: the difference to the oracle, {learner} on the same data "
        "without the shortcut; the colour shows this difference"
    )
    adapted = (
        f"Accuracy of {learner} after adapting to all rows of the unseen place "
        "without their labels. Below it: the difference to the Bayes limit, the best "
        "accuracy that is possible if the meaning of the shortcut there is known. "
        "The colour shows this difference. Where the limit is not known, the "
        "difference to the oracle is shown in brackets"
    )
    legend = (
        f"Blue: the score is less than {MAX_GAP:g} points below the score that it is "
        f"compared with (before adapting, {MAX_GAP_IF_RARE:g} points where few labels "
        "contradict the shortcut). Orange, with ✗: it is further below; the larger the "
        "difference, the stronger the colour. For regressions, scores are explained "
        "variance in percent."
    )
    content = [
        PageSection(
            "",
            [
                page.render_headline_numbers(list_stress_test_headline_numbers(cells)),
                "A learner withstands a shortcut if three conditions hold:",
                page.render_notes_as_list(CRITERIA),
            ],
        ),
        PageSection(
            "At a glance", [_render_score_overview_figure(cells, learner, legend)]
        ),
        PageSection(
            "Unseen: no rows of the place are known",
            [
                _render_heat_map_of_cells(
                    cells, _build_unseen_score_cell, f"{unseen}. {legend}"
                ),
                *notes,
            ]
            if cells
            else [],
        ),
        PageSection(
            "Adapted: unlabelled rows of the place are known",
            [
                _render_heat_map_of_cells(
                    cells, _build_adapted_score_cell, f"{adapted}. {legend}"
                )
            ]
            if any(cell["adapted"] for cell in cells)
            else [],
        ),
        PageSection("All numbers", [build_stress_test_table(cells, learner)]),
        PageSection(
            "Kinds of shortcut",
            [
                *(page.render_inline_png_picture(picture) for picture in pictures),
                page.render_notes_as_list(_describe_shortcut_kinds(cells)),
            ],
        ),
        PageSection(
            "Command that repeats this run", [page.render_shell_command(command)]
        ),
    ]
    title = f"Stress test of {learner}"
    return page.render_html_page(
        title, write_stress_test_summary_paragraph(cells, learner), content
    )


def write_stress_test_summary_paragraph(cells: Sequence[Summary], learner: str) -> str:
    """Say in how many cells the learner withstands the shortcut, and where it fails."""
    if not cells:
        return "No combination of shortcut and condition has results yet."
    failed = sorted(
        (c for c in cells if not c["withstands"]), key=lambda c: float(c["gap"])
    )
    text = (
        f"{learner} withstands the shortcut in {len(cells) - len(failed)} of "
        f"{format_count(len(cells), 'combination')} of shortcut and condition."
    )
    if failed:
        names = join_words(map(format_name_of_stress_cell, failed), MOST_NAMED + 1)
        text += f" It fails in: {names}."
    return text


def list_stress_test_headline_numbers(
    cells: Sequence[Summary],
) -> list[tuple[str, str]]:
    """Return the main numbers, each with its description."""
    if not cells:
        return []
    held = sum(bool(cell["withstands"]) for cell in cells)
    worst = min(cells, key=lambda cell: float(cell["gap"]))
    facts = [
        (
            f"{held} of {len(cells)}",
            ("combinations of shortcut and condition that the learner withstands"),
        ),
        (
            _format_signed_difference(worst["gap"]),
            f"largest gap to the oracle ({format_name_of_stress_cell(worst)})",
        ),
    ]
    gains = [cell["gain"] for cell in cells if cell["gain"] is not None]
    if gains:
        mean = sum(gains) / len(gains)
        facts.append(
            (_format_signed_difference(mean), "mean gain by adapting to all rows")
        )
    return facts


def format_name_of_stress_cell(cell: Summary) -> str:
    """Return the name of a cell in a few words."""
    condition = f" ({cell['factor']} {cell['value']})" if cell["factor"] else ""
    return f"{cell['title']}{condition}"


def build_stress_test_table(cells: Sequence[Summary], learner: str) -> ReportTable:
    """Build the table of all numbers, with a row for each cell."""
    counts = list_adaptation_row_counts({str(n): cell for n, cell in enumerate(cells)})
    if not counts:
        counts = [str(count) for count in ADAPT]
    rows = []
    for cell in cells:
        verdict = "match" if cell["withstands"] else "differs"
        unseen = build_mean_and_std_cell(cell["unseen"], "accuracy")
        adapted = [cell["adapted"].get(count) for count in counts]
        limit = cell["limit"]
        rows.append(
            [
                ReportCell(cell["title"]),
                ReportCell(f"{cell['factor']} {cell['value']}".strip()),
                build_mean_and_std_cell(cell["erm"], "accuracy"),
                build_mean_and_std_cell(cell["oracle"], "accuracy"),
                ReportCell(unseen.text, unseen.spread, verdict),
                *(
                    build_mean_and_std_cell(a, "accuracy") if a else ReportCell()
                    for a in adapted
                ),
                ReportCell("" if limit is None else f"{limit:.1f}"),
            ]
        )
    columns = [
        ReportColumn("shortcut"),
        ReportColumn("condition"),
        *(ReportColumn(name, "right") for name in ("erm", "oracle", "unseen")),
        *(
            ReportColumn(describe_adaptation_to_rows(count), "right")
            for count in counts
        ),
        ReportColumn("limit", "right"),
    ]
    notes = [
        "Scores at the unseen place: accuracy in percent, for regressions explained "
        "variance in percent, as mean ± standard deviation over seeds. Oracle: the "
        "score of the learner on the same data without the shortcut. Limit: the best "
        "score that is possible if the meaning of the shortcut is known (Bayes "
        "limit).",
        "✓: the learner withstands the shortcut. " + " ".join(CRITERIA),
    ]
    return ReportTable(
        f"Stress test of {learner}", columns, rows, notes, row_headings=2
    )


def _render_score_overview_figure(
    cells: Sequence[Summary], learner: str, legend: str
) -> EscapedHtml:
    """Render the scores of each kind under usual conditions, before and after adapting.

    All differences are those to the oracle, so that columns can be compared.
    """
    usual = [cell for cell in cells if not cell["factor"]]
    if not usual:
        return EscapedHtml()
    counts = list_adaptation_row_counts({str(n): cell for n, cell in enumerate(usual)})
    columns = [("", "erm"), ("", "unseen")]
    columns += [("number of rows adapted to", count) for count in counts]
    made = {}
    for row, cell in enumerate(usual):
        scores = [cell["erm"], cell["unseen"]]
        scores += [cell["adapted"].get(count) for count in counts]
        for column, score in enumerate(scores):
            if score and score["mean"] is not None and cell["oracle"]["mean"]:
                mean = score["mean"]
                gap = mean - cell["oracle"]["mean"]
                heat = _build_heat_map_cell(mean, gap, _describe_cell_in_tooltip(cell))
                made[row, column] = heat
    caption = (
        f"Accuracy at the unseen place for each kind of shortcut under usual "
        f"conditions: plain training (erm), {learner} without any row of the place "
        f"(unseen), and {learner} after adapting to rows without labels. Below each: "
        f"the difference to the oracle, {learner} on the same data without the "
        f"shortcut. {legend}"
    )
    names = [str(cell["title"]) for cell in usual]
    drawing = plot_heat_map(names, columns, made, label=caption.partition(":")[0])
    return _render_scrolling_figure(caption, drawing)


def _render_scrolling_figure(caption: str, drawing: EscapedHtml) -> EscapedHtml:
    box = render_html_element(
        "div", drawing, class_="scroll", tabindex="0", role="group"
    )
    return page.render_html_figure(caption, box)


def _describe_cell_in_tooltip(cell: Summary) -> str:
    """Say everything that is known of a cell, for those who point at it."""
    parts = [
        f"{name} {cell[name]['mean']:.1f}"
        for name in ("erm", "oracle", "unseen")
        if cell[name]["mean"] is not None
    ]
    parts += [
        f"{describe_adaptation_to_rows(rows)} {score['mean']:.1f}"
        for rows, score in cell["adapted"].items()
        if score["mean"] is not None
    ]
    if cell["limit"] is not None:
        parts.append(f"limit {cell['limit']:.1f}")
    return f"{format_name_of_stress_cell(cell)}: {', '.join(parts)}"


def _render_heat_map_of_cells(
    cells: Sequence[Summary],
    make: Callable[[Summary], HeatMapCell | None],
    caption: str,
) -> EscapedHtml:
    """Render a heat map with kinds as rows and conditions as columns."""
    kinds = list(dict.fromkeys(str(cell["title"]) for cell in cells))
    known = {(cell["factor"], cell["value"]) for cell in cells}
    conditions = [
        (c.factor, c.value) for c in CONDITIONS if (c.factor, c.value) in known
    ]
    made = {
        (kinds.index(c["title"]), conditions.index((c["factor"], c["value"]))): heat
        for c in cells
        if (heat := make(c)) is not None
    }
    label = caption.partition(".")[0]
    drawing = plot_heat_map(kinds, conditions, made, label=label)
    return _render_scrolling_figure(caption, drawing)


def _build_unseen_score_cell(cell: Summary) -> HeatMapCell:
    tip = _describe_cell_in_tooltip(cell)
    return _build_heat_map_cell(
        cell["unseen"]["mean"], cell["gap"], tip, tolerance=cell["tolerance"]
    )


def _build_adapted_score_cell(cell: Summary) -> HeatMapCell | None:
    statistic = cell["adapted"].get("all")
    if statistic is None or statistic["mean"] is None:
        return None
    mean, limit = statistic["mean"], cell["limit"]
    tip = _describe_cell_in_tooltip(cell)
    if limit is None:
        return _build_heat_map_cell(mean, mean - cell["oracle"]["mean"], tip, "({})")
    return _build_heat_map_cell(mean, mean - limit, tip)


def _build_heat_map_cell(
    mean: float, gap: float, tip: str, note: str = "{}", tolerance: float = MAX_GAP
) -> HeatMapCell:
    """Colour by the gap: blue above the tolerance, then ever more vermilion."""
    # Strengths begin at a third, so that the two colours differ at their border.
    if gap >= -tolerance:
        strength = 1 / 3 + 2 / 3 * min(1.0, (gap + tolerance) / tolerance)
    else:
        share = (-gap - tolerance) / (LOST - tolerance)
        strength = -(1 / 3 + 2 / 3 * min(1.0, share))
    text = ("" if strength > 0 else "✗ ") + note.format(
        _format_signed_difference(gap, 0)
    )
    return HeatMapCell(f"{mean:.0f}", text, strength, tip)


def _format_signed_difference(gap: float, n_digits: int = 1) -> str:
    """Format a difference with its sign; zero has none."""
    rounded = round(gap, n_digits)
    text = f"{rounded:+.{n_digits}f}" if rounded else "0"
    return text.replace("-", "\N{MINUS SIGN}")


def _describe_shortcut_kinds(cells: Sequence[Summary]) -> list[str]:
    """Say what each kind is called on the command line."""
    kinds = dict.fromkeys((str(c["title"]), str(c["kind"])) for c in cells)
    return [f"{title}: `--kind {name}`" for title, name in kinds]
