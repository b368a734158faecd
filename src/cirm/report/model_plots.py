"""Figures of a model: importance, scores by place, calibration, confusion, effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cirm.intervals import compute_rmse_interval, compute_wilson_interval
from cirm.report import page
from cirm.report.axes import NARROW, show_axis_ticks_and_titles
from cirm.report.dot_plot import (
    DotPlotMark,
    DotPlotRow,
    MarkKind,
    choose_axis_limits_of_factors,
    plot_rows_of_marks,
)
from cirm.report.drawing import (
    DOTS,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    render_as_inline_svg,
)
from cirm.report.heat_map import HeatMapCell, plot_heat_map
from cirm.report.markup import EscapedHtml, render_html_element
from cirm.wording import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Content = Mapping[str, Any]
MOST_COLUMNS = 15  # of a figure; tables show all
MOST_CLASSES = 15  # of a confusion matrix that an eye can take in


class EnvironmentScoreWithRows(NamedTuple):
    """A score at a place and its number of rows; `kind` is how its mark looks."""

    place: str
    value: float
    rows: float
    kind: MarkKind
    words: str


def compute_percentage_interval(percent: float, n_rows: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a percentage of rows."""
    low, high = compute_wilson_interval(percent / 100 * n_rows, n_rows)
    return 100 * low, 100 * high


def render_column_importance_figure(content: Content) -> EscapedHtml:
    """Render the importance of columns after the first environment, and now."""
    history = [one for one in content["history"] if one["importance"]]
    now, first = (
        _convert_importance_to_percent(history[n]["importance"]) for n in (-1, 0)
    )
    unstable = {one["feature"] for one in content["explanation"].get("unstable", ())}
    when = "before adapting" if content["adaptation"] else "now"
    has_earlier = history[0]["stage"] < history[-1]["stage"]  # else learned together
    names = sorted(now, key=lambda name: -max(now[name], first.get(name, 0)))
    rows = []
    for name in sorted(names[:MOST_COLUMNS], key=lambda name: -now[name]):
        kind: MarkKind = "warning" if name in unstable else "main"
        dots = [DotPlotMark(now[name], kind, f"{name}: {now[name]:.1f} % {when}")]
        if has_earlier:
            tip = f"{name}: {first.get(name, 0):.1f} % after {history[0]['name']}"
            dots.append(DotPlotMark(first.get(name, 0), "earlier", tip))
        rows.append(DotPlotRow(name, dots, f"{now[name]:.0f} %"))
    legend: dict[MarkKind, str] = {"main": when}
    if unstable & set(names[:MOST_COLUMNS]):
        legend["warning"] = f"{when}; differs between places"
    if has_earlier:
        legend["earlier"] = f"after {history[0]['name']}"
    caption = (
        "Share of the importance of each column: how much the predictions change when "
        "its values are replaced by random ones."
    )
    if (more := len(names) - MOST_COLUMNS) > 0:
        caption += (
            f" The table below also has {format_count(more, 'less important column')}."
        )
    label = "Importance of columns, percent: " + ", ".join(
        f"{row.label} {row.note}" for row in rows
    )
    top = max(dot.value for row in rows for dot in row.dots)
    limits = (0.0, max(top, 1.0))
    return render_dot_plot_figure(
        caption, rows, label=label, axis="importance, %", limits=limits, legend=legend
    )


def render_scores_by_environment_figure(
    scores: Sequence[EnvironmentScoreWithRows],
    metric: str,
    legend: Mapping[MarkKind, str],
) -> EscapedHtml:
    """Render the score at each place, with 95 % intervals."""
    is_accuracy = metric == "accuracy"
    find_interval = (
        compute_percentage_interval if is_accuracy else compute_rmse_interval
    )
    unit = " %" if is_accuracy else ""
    by_place: dict[str, list[DotPlotMark]] = {}
    ends = []
    for score in scores:
        low, high = find_interval(score.value, score.rows)
        tip = (
            f"{score.place}, {score.words}: {score.value:.4g}{unit} (95 % interval "
            f"{low:.4g} to {high:.4g}, {score.rows:,.0f} rows)"
        )
        dot = DotPlotMark(score.value, score.kind, tip, low, high)
        by_place.setdefault(score.place, []).append(dot)
        ends += [low, high]
    rows = []
    for place, dots in by_place.items():
        # The number beside a row is the score now, if there is one.
        shown = next((dot for dot in dots if dot.kind != "earlier"), dots[0])
        rows.append(DotPlotRow(place, dots, f"{shown.value:.3g}{unit}"))
    limits = (min(ends), max(ends))
    name = "accuracy, %" if is_accuracy else "root mean squared error"
    label = f"{name} by place: " + ", ".join(f"{row.label} {row.note}" for row in rows)
    used = {score.kind for score in scores}
    known = {kind: text for kind, text in legend.items() if kind in used}
    caption = "Lines are 95 % intervals."
    return render_dot_plot_figure(
        caption, rows, label=label, axis=name, limits=limits, legend=known
    )


def render_adapted_effects_figure(adaptation: Content) -> EscapedHtml:
    """Render what was learned anew, with what it was in the environments seen."""
    rows = []
    for effect in adaptation["effects"]:
        name, here = effect["feature"], effect["here"]
        tip = f"{name}: {here:.3g} here ({effect['low']:.3g} to {effect['high']:.3g})"
        dots = [
            DotPlotMark(one, "earlier", f"{name}: {one:.3g}") for one in effect["seen"]
        ]
        dots.append(DotPlotMark(here, "main", tip, effect["low"], effect["high"]))
        rows.append(DotPlotRow(name, dots))
    values = [end for row in rows for dot in row.dots for end in (dot.value, *dot[3:])]
    known = [value for value in values if value is not None]
    factors = min(known) > 0
    limits = (
        choose_axis_limits_of_factors(known) if factors else (min(known), max(known))
    )
    legend: dict[MarkKind, str] = {
        "main": f"at {adaptation['name']}, from rows without targets",
        "earlier": "at the places seen",
    }
    caption = (
        "Effect of each column on the prediction, estimated again for this place. "
    )
    caption += "The line is the 95 % interval" + (
        "; a factor of 1 means that the column says nothing about the target."
        if factors
        else "."
    )
    label = "Effects estimated again for this place: " + "; ".join(
        f"{one['feature']} {one['here']:.3g}" for one in adaptation["effects"]
    )
    return render_dot_plot_figure(
        caption,
        rows,
        label=label,
        axis="factor by which the odds change" if factors else "effect",
        limits=limits,
        legend=legend,
        are_factors=factors,
        reference=1.0 if factors else 0.0,
    )


@render_as_inline_svg
def plot_calibration_curve(bins: Sequence[Content], *, width: int) -> tuple[Axes, str]:
    """Plot accuracy over confidence; on the diagonal the model is calibrated."""
    low = min(50.0, *(one["confidence"] for one in bins))
    start = 10 * math.floor(low / 10)
    side = min(width, 420)
    box = (44, 48, side - 12, side - 34)
    lowest = min(compute_percentage_interval(b["accuracy"], b["rows"])[0] for b in bins)
    bottom = min(start, 10 * math.floor(lowest / 10))
    ax = create_blank_axes((side, side), box, (start, 100), (bottom, 100))
    muted, hue = get_css_color("muted"), get_css_color("s1")
    titles = ("confidence, %", "accuracy, %")
    show_axis_ticks_and_titles(ax, titles, log=(False, False), color=muted)
    ax.plot((start, 100), (start, 100), color=muted, lw=1.5, ls=DOTS)
    largest = max(one["rows"] for one in bins)
    for one in bins:
        x, y, rows = one["confidence"], one["accuracy"], one["rows"]
        span = compute_percentage_interval(y, rows)
        ax.plot((x, x), span, color=hue, lw=2.5, alpha=0.6)
        tip = f"confidence {x:.0f} %: {y:.1f} % of {rows:,.0f} rows correct"
        part = encode_class_and_tooltip_as_svg_id("mark", [tip])
        size = 5 + 8 * math.sqrt(rows / largest)
        ax.plot(x, y, "o", ms=size, color=hue, clip_on=False, gid=part, zorder=3)
    pairs = ", ".join(f"{b['confidence']:.0f} {b['accuracy']:.0f}" for b in bins)
    return ax, f"Calibration curve, confidence and accuracy in percent: {pairs}"


def render_calibration_figure(bins: Sequence[Content]) -> EscapedHtml:
    """Render the calibration curve."""
    caption = (
        "Accuracy of the predictions by their confidence. On the dotted line, the "
        "accuracy equals the confidence; below it, the model is overconfident. Lines "
        "are 95 % intervals; larger dots stand for more rows."
    )
    return page.render_html_figure(
        caption,
        plot_calibration_curve(bins, width=420),
        plot_calibration_curve(bins, width=NARROW),
    )


def render_confusion_figure(matrix: Content) -> EscapedHtml:
    """Render the confusion matrix as a heat map; empty if it has too many classes."""
    names = matrix["classes"]
    if len(names) > MOST_CLASSES:
        return EscapedHtml()
    cells = {}
    for row, percents in enumerate(matrix["percent"]):
        for column, percent in enumerate(percents):
            strength = percent / 100 if row == column else -percent / 100
            count = f"{matrix['counts'][row][column]:,.0f}"
            if sum(matrix["counts"][row]):
                cells[row, column] = HeatMapCell(f"{percent:.0f} %", count, strength)
    label = "Confusion matrix, percent of each class: " + "; ".join(
        f"{name} predicted as {name} {matrix['percent'][n][n]:.0f}"
        for n, name in enumerate(names)
        if sum(matrix["counts"][n])
    )
    columns = [("predicted", name) for name in names]
    drawing = plot_heat_map(names, columns, cells, label=label)
    caption = (
        "Rows are the true classes, columns the predicted ones. Each cell: percent of "
        "the true class, and number of rows. The diagonal (blue) is correct, the rest "
        "(orange) is wrong."
    )
    box = render_html_element(
        "div", drawing, class_="scroll", tabindex="0", role="group"
    )
    return page.render_html_figure(caption, box)


def _convert_importance_to_percent(importance: Mapping[str, float]) -> dict[str, float]:
    total = sum(importance.values()) or 1.0
    return {name: 100 * value / total for name, value in importance.items()}


def render_dot_plot_figure(
    caption: str,
    rows: Sequence[DotPlotRow],
    **options: Any,  # noqa: ANN401
) -> EscapedHtml:
    """Render a dot plot, for wide and for narrow screens."""
    plot: Callable[..., EscapedHtml] = plot_rows_of_marks
    wide, narrow = plot(rows, **options), plot(rows, width=NARROW, **options)
    return page.render_html_figure(caption, wide, narrow)
