"""A dot plot: a row for each thing, with marks and intervals on a common axis.

Marks differ in shape as well as in colour, so nobody has to tell colours apart. Each
mark says what it is when pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cirm.report.axes import (
    LETTER,
    WIDE,
    choose_round_axis_limits,
    shorten_text_to_pixel_width,
    show_axis_ticks_and_titles,
)
from cirm.report.drawing import (
    DOTS,
    Pair,
    add_text_label_near_point,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    get_hollow_marker_style,
    render_as_inline_svg,
    replace_characters_invalid_in_xml,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, FOOT, LEGEND = 32, 46, 28  # pixels: a row, the axis, a line of the legend
LARGEST_LABEL = 0.4  # share of the width for the names of rows
FACTORS = (1, 3, 10, 30, 100, 300, 1000)  # ticks of an axis of factors

MarkKind = Literal["main", "earlier", "warning"]


class DotPlotMark(NamedTuple):
    """A mark in a row.

    Attributes:
        value: Where it is.
        kind: Its look: a dot, a ring, or a diamond in another colour.
        tip: What it says when pointed at.
        low: Lower end of its interval, if it has one.
        high: Upper end of its interval.
    """

    value: float
    kind: MarkKind
    tip: str
    low: float | None = None
    high: float | None = None


class DotPlotRow(NamedTuple):
    """A row: its name, its marks, and a text at its right end."""

    label: str
    dots: Sequence[DotPlotMark]
    note: str = ""


@render_as_inline_svg
def plot_rows_of_marks(
    rows: Sequence[DotPlotRow],
    *,
    label: str,
    axis: str,
    limits: Pair,
    legend: Mapping[MarkKind, str],
    are_factors: bool = False,
    reference: float | None = None,
    width: int = WIDE,
) -> tuple[Axes, str]:
    """Plot rows of marks; the axis is logarithmic if the values are factors.

    `label` describes the figure to those who cannot see it, `legend` says what each
    kind of mark means, and `reference` is a value that a dotted line marks.
    """
    if not are_factors:
        limits = choose_round_axis_limits(limits)
    lines = 1 if width >= WIDE else len(legend)
    names = max((len(row.label) for row in rows), default=0) * LETTER + 18
    left = min(names, LARGEST_LABEL * width)
    right = width - 14 - max((len(row.note) for row in rows), default=0) * LETTER
    height = ROW * len(rows) + FOOT + LEGEND * lines
    box = (left, FOOT, right, FOOT + ROW * len(rows))
    ax = create_blank_axes((width, height), box, limits, (len(rows) - 0.5, -0.5))
    show_axis_ticks_and_titles(ax, (axis, ""), log=(False, False))
    ax.set_yticks([])
    if are_factors:
        _show_ticks_of_factors(ax, limits)
    ax.grid(
        axis="x",
        color=get_css_color("rule"),
        lw=1,
        gid=encode_class_and_tooltip_as_svg_id("rule"),
    )
    if reference is not None:
        ax.axvline(reference, color=get_css_color("muted"), lw=1.5, ls=DOTS)
    for place, row in enumerate(rows):
        _draw_row_of_dots(ax, place, row, left, limits)
    _add_legend_to_dot_plot(ax, legend, lines)
    return ax, label


def _draw_row_of_dots(
    ax: Axes, row_index: int, row: DotPlotRow, left_margin: float, limits: Pair
) -> None:
    name = shorten_text_to_pixel_width(row.label, left_margin - 14)
    add_text_label_near_point(ax, name, (limits[0], row_index), (-10, -4), "right")
    add_text_label_near_point(
        ax, row.note, (limits[1], row_index), (10, -4), "left", "muted", size=12
    )
    ends = [dot.value for dot in row.dots]
    muted = get_css_color("muted")
    if len(ends) > 1:
        span = (max(min(ends), limits[0]), min(max(ends), limits[1]))
        ax.plot(span, (row_index, row_index), color=muted, lw=1, alpha=0.6, zorder=1)
    for dot in sorted(row.dots, key=lambda dot: dot.kind != "earlier"):
        look = _get_style_of_dot_plot_mark(dot.kind)
        if dot.low is not None and dot.high is not None:
            span = (max(dot.low, limits[0]), min(dot.high, limits[1]))
            # Below the line of the row for what was earlier, so that both are seen.
            shift = 0.14 if dot.kind == "earlier" and len(ends) > 1 else 0.0
            ax.plot(
                span, (row_index + shift,) * 2, color=look["mec"], lw=2.5, alpha=0.75
            )
        value = min(max(dot.value, limits[0]), limits[1])
        part = encode_class_and_tooltip_as_svg_id("mark", [dot.tip])
        ax.plot(value, row_index, **look, ls="", zorder=3, clip_on=False, gid=part)


def _get_style_of_dot_plot_mark(kind: MarkKind) -> dict[str, Any]:
    if kind == "earlier":
        return get_hollow_marker_style("muted")
    name, marker = ("s0", "D") if kind == "warning" else ("s1", "o")
    hue = get_css_color(name)
    return {"color": hue, "mec": hue, "marker": marker, "ms": 8}


def _add_legend_to_dot_plot(
    ax: Axes, legend: Mapping[MarkKind, str], n_lines: int
) -> None:
    from matplotlib.lines import Line2D

    if not legend:
        return
    width = ax.figure.bbox.width
    # Each text has its share of a line, unless all of them fit as they are.
    room = width / len(legend) * n_lines - 40
    if n_lines == 1 and LETTER * sum(map(len, legend.values())) < width - 40 * len(
        legend
    ):
        room = width
    ax.figure.legend(
        [Line2D([], [], ls="", **_get_style_of_dot_plot_mark(kind)) for kind in legend],
        [
            replace_characters_invalid_in_xml(shorten_text_to_pixel_width(text, room))
            for text in legend.values()
        ],
        loc="upper left",
        bbox_to_anchor=(0, 1),
        ncols=len(legend) if n_lines == 1 else 1,
        labelcolor=get_css_color("ink"),
        frameon=False,
        borderaxespad=0,
        handletextpad=0.3,
    )


def _show_ticks_of_factors(ax: Axes, limits: Pair) -> None:
    """Show factors such as 1/3, 1 and 3 on a logarithmic axis."""
    ax.set_xscale("log")
    ax.set_xlim(limits)
    known = [*(1 / factor for factor in FACTORS[:0:-1]), *FACTORS]
    shown = [factor for factor in known if limits[0] <= factor <= limits[1]]
    names = [f"{n:g}" if n >= 1 else f"1/{1 / n:.0f}" for n in shown]
    ax.set_xticks(shown, names)
    ax.set_xticks([], minor=True)


def choose_axis_limits_of_factors(values: Sequence[float]) -> Pair:
    """Return limits for factors that show all values, and 1."""
    largest = max(abs(math.log(value)) for value in [*values, 1 / 3])
    return math.exp(-1.1 * largest), math.exp(1.1 * largest)
