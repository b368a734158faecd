"""The page of a comparison of two tables, from what `cirm compare --json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cirm.report import page
from cirm.report.axes import shorten_text_to_pixel_width
from cirm.report.dot_plot import (
    DotPlotMark,
    DotPlotRow,
    MarkKind,
    choose_axis_limits_of_factors,
)
from cirm.report.drawing import (
    add_text_label_near_point,
    create_blank_axes,
    get_css_color,
    render_as_inline_svg,
)
from cirm.report.model_plots import render_dot_plot_figure
from cirm.report.page import PageSection
from cirm.report.table import ReportColumn, ReportTable
from cirm.wording import capitalise_first_letter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Content = Mapping[str, Any]
WIDE, NARROW = 800, 350  # pixels: beside the text of a page, and on a phone
ROW = 34  # pixels of a row of the figure
MOST_DRAWN = 15  # columns in the figure; the table has them all


def build_table_comparison_page(content: Content, command: str = "") -> str:
    """Build the page: the answer, a figure, the tests, and how they were made."""
    first, second = content["names"]
    facts = [
        (f"{count:,}", f"rows of {name}")
        for count, name in zip(content["rows"], content["names"], strict=True)
    ]
    significant = {one["column"] for one in content["inputs"] if one["significant"]}
    if content["inputs"]:
        one = len(significant) == 1
        words = f"{'input' if one else 'inputs'} that changed significantly"
        facts.append((f"{len(significant)}", words))
    if meaning := content["meaning"]:
        one = len(meaning["columns"]) == 1
        words = f"{'column' if one else 'columns'} whose relation to the target differs"
        facts.append((f"{len(meaning['columns'])}", words))
    sections = [
        PageSection("", [page.render_headline_numbers(facts)]),
        _build_changed_meaning_section(content),
        _build_distance_figure_section(content["inputs"]),
        PageSection(
            "In words",
            [page.render_notes_as_list(list_table_comparison_sentences(content))],
        ),
        *(
            PageSection(one.title, [one])
            for one in build_table_comparison_tables(content)
        ),
        PageSection("How it was tested", [_describe_statistical_tests(content)]),
        PageSection(
            "Notes and command",
            [
                page.render_notes_as_list(content["notes"]),
                page.render_shell_command(command),
            ],
        ),
    ]
    title = f"Comparison of {first} and {second}"
    return page.render_html_page(
        capitalise_first_letter(title), content["answer"], sections
    )


def list_table_comparison_sentences(content: Content) -> list[str]:
    """List the sentences behind the answer: meaning, units, all inputs, predictions."""
    meaning = content["meaning"] or {"columns": [], "evidence": []}
    sentences = [one["sentence"] for one in meaning["columns"]]
    sentences += meaning["evidence"]
    sentences += [f"{one['sentence']}." for one in content["units"]]
    if joint := content["joint"]:
        p_value = _format_p_value(joint["p_value"])
        sentences.append(
            "A classifier that sees all inputs tells the tables apart with a ROC AUC "
            f"of {joint['auc']:.2f} (0.5 is chance, p {p_value})."
        )
    predictions = content["predictions"] or {}
    classes = sorted(predictions.get("classes", {}).items(), key=lambda item: item[1])
    for name, (one, other) in classes[:1] if len(classes) == 2 else classes:
        sentences.append(
            f"The model predicts `{name}` for {100 * one:.1f} % of the rows of the "
            f"first table and {100 * other:.1f} % of the second."
        )
    if means := predictions.get("mean"):
        sentences.append(
            f"The mean prediction of the model is {means[0]:.4g} in the first table "
            f"and {means[1]:.4g} in the second."
        )
    return list(map(capitalise_first_letter, sentences))


def build_table_comparison_tables(content: Content) -> list[ReportTable]:
    """Build the tables of the target and of the inputs."""
    tables = []
    if rate := content["base_rate"]:
        title = "Target" if rate["kind"] == "values" else "Base rate"
        tables.append(_build_column_changes_table(title, [rate]))
    if changes := content["inputs"]:
        ordered = sorted(
            changes, key=lambda one: (not one["significant"], -one["distance"])
        )
        tables.append(_build_column_changes_table("Inputs", ordered))
    return tables


def _build_column_changes_table(title: str, changes: Sequence[Content]) -> ReportTable:
    headings: list[str | ReportColumn] = ["column", ReportColumn("compared")]
    headings += ["first", "second", "distance, %", "p-value"]
    rows = []
    for one in changes:
        levels = [_format_compared_statistic(one, name) for name in ("first", "second")]
        distance = f"{100 * one['distance']:.1f}"
        p_value = _format_p_value(one["p_value"]).removeprefix("= ")
        rows.append(
            [
                one["column"],
                _get_name_of_compared_statistic(one),
                *levels,
                distance,
                p_value,
            ]
        )
    return ReportTable(title, headings, rows)


def _format_compared_statistic(change: Content, name: str) -> str:
    value = change[name]
    if change["kind"] != "values":
        return f"{100 * value:.1f} %"
    if change["is_date"]:
        return str(np.datetime64(math.floor(value), "D"))
    return f"{value:.4g}"


def _get_name_of_compared_statistic(change: Content) -> str:
    """Name what the first and the second value of a change are."""
    if change["kind"] == "missing":
        return "share missing"
    if change["kind"] == "categories":
        return f"share of {change['label']}"
    shift = (
        f" (ranks {_describe_shift_of_column(change)})" if change["significant"] else ""
    )
    return f"median{shift}"


def _describe_statistical_tests(content: Content) -> str:
    return (
        "'First' and 'second' are medians in the two tables or, for categories and "
        "missing values, shares of rows. The distance is the largest difference "
        "between cumulative distributions (values) or the share of rows that would "
        "have to change (categories), so that columns can be compared. P-values are "
        "adjusted for the number of columns (by Holm's method) and for asking about "
        "inputs, base rates and relations to the target at once. Values are tested "
        "by their ranks and by their distribution, categories by their counts. The "
        "shift of the ranks is given in standard deviations (sd). If nothing has "
        "changed, the probability that any test reports a change is at most "
        f"{100 * content['level']:.3g} %. With many rows, even small changes are "
        "significant: look at their size as well."
    )


def _build_changed_meaning_section(content: Content) -> PageSection | None:
    """Show what each column with another meaning says about a class, as odds."""
    columns = (content["meaning"] or {"columns": []})["columns"]
    effects = [one["effects"] for one in columns]
    is_odds = (content["base_rate"] or {}).get("kind") == "categories"
    if not (is_odds and columns and min(map(min, effects)) > 0):
        return None
    kinds: tuple[MarkKind, MarkKind] = ("earlier", "main")
    rows = [
        DotPlotRow(
            one["column"],
            [
                DotPlotMark(value, kind, f"{one['column']}, {name}: {value:.3g}")
                for value, kind, name in zip(
                    one["effects"], kinds, content["names"], strict=True
                )
            ],
        )
        for one in columns
    ]
    figure = render_dot_plot_figure(
        "Factor by which the odds of the outcome change with the column, given the "
        "others. A factor of 1 means that the column says nothing about the outcome.",
        rows,
        label="What columns say about the target: "
        + ", ".join(f"{c['column']} {c['effects']}" for c in columns),
        axis="factor by which the odds change",
        limits=choose_axis_limits_of_factors(
            [value for own in effects for value in own]
        ),
        legend=dict(zip(kinds, content["names"], strict=True)),
        are_factors=True,
        reference=1.0,
    )
    return PageSection("Columns whose relation to the target differs", [figure])


def _build_distance_figure_section(changes: Sequence[Content]) -> PageSection | None:
    shown = sorted(changes, key=lambda one: -one["distance"])[:MOST_DRAWN]
    if not shown:
        return None
    figures = [plot_column_distances(shown, width=width) for width in (WIDE, NARROW)]
    more = len(changes) - len(shown)
    caption = (
        "Distance between the distributions of each input in the two tables, from 0 "
        "% (identical) to 100 % (no value in common). Dark bars marked with a star "
        "show significant differences; pale bars show differences that are not "
        "significant."
    )
    caption += f" {more} inputs with smaller distances are not shown." if more else ""
    return PageSection("What moved", [page.render_html_figure(caption, *figures)])


@render_as_inline_svg
def plot_column_distances(
    changes: Sequence[Content], *, width: int = WIDE
) -> tuple[Axes, str]:
    """Draw a bar for each input, with its name beside it or, on a phone, above it."""
    is_wide = width == WIDE
    left, right = (230, width - 240) if is_wide else (0, width - 50)
    height = len(changes) * (ROW if is_wide else ROW + 16) + 10
    largest = max(max(one["distance"] for one in changes), 0.1)
    ax = create_blank_axes(
        (width, height),
        (left, 5, right, height - 5),
        (0, largest),
        (len(changes) - 0.5, -0.5),
    )
    for place, one in enumerate(changes):
        strength = 1.0 if one["significant"] else 0.3
        thickness = 0.42 if is_wide else 0.28
        middle = place if is_wide else place + 0.16
        length = max(one["distance"], largest / 300)
        hue = get_css_color("s1")
        ax.barh(middle, length, thickness, color=hue, alpha=strength)
        name = shorten_text_to_pixel_width(
            _get_label_of_changed_column(one), (left if is_wide else width) - 16
        )
        at = (0.0, float(place if is_wide else place - 0.16))
        align, offset = ("right", (-12, -4)) if is_wide else ("left", (0, -2))
        add_text_label_near_point(ax, name, at, offset, align)
        star = " *" if one["significant"] else ""
        value = f"{100 * one['distance']:.0f} %{star}"
        if is_wide and one["kind"] == "values" and one["significant"]:
            value += f"  ({_describe_shift_of_column(one)})"
        end = (length, float(middle))
        add_text_label_near_point(ax, value, end, (8, -4), "left", "muted")
    names = ", ".join(_get_label_of_changed_column(one) for one in changes)
    return ax, f"Distance between the two tables in the distribution of {names}"


def _get_label_of_changed_column(change: Content) -> str:
    return (
        f"{change['column']}, missing"
        if change["kind"] == "missing"
        else change["column"]
    )


def _describe_shift_of_column(change: Content) -> str:
    direction = "up" if change["effect"] > 0 else "down"
    return f"{direction} {abs(change['effect']):.2f} sd"


def _format_p_value(value: float) -> str:
    if value < 1e-4:
        return "< 0.0001"
    return f"= {value:.2g}" if value < 0.1 else f"= {value:.2f}"
