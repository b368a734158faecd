"""The board's figure: the score where learners were trained against that elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cirm.report.axes import WIDE, choose_round_axis_limits, show_axis_ticks_and_titles
from cirm.report.drawing import (
    add_text_label_near_point,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    render_as_inline_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT, ROOM = 420, 110  # pixels: of the figure, and for names at its right
MOST_NAMED = 6  # points with their name; the others tell it when pointed at
CLOSE = (0.16, 0.045)  # parts of the axes within which two names would overlap


class SeenAndUnseenScore(NamedTuple):
    """A row: its name, its mean seen and unseen score, and whether it is ours."""

    name: str
    seen: float
    unseen: float
    is_ours: bool = False


@render_as_inline_svg
def plot_unseen_over_seen_scores(
    points: Sequence[SeenAndUnseenScore], *, width: int = WIDE
) -> tuple[Axes, str]:
    """Plot the unseen over the seen score; on the diagonal nothing is lost."""
    xlim = choose_round_axis_limits([point.seen for point in points])
    ylim = choose_round_axis_limits([point.unseen for point in points])
    box = (44, 52, width - ROOM, HEIGHT - 40)
    ax = create_blank_axes((width, HEIGHT), box, xlim, ylim)
    titles = ("score at the seen places, %", "score at the unseen place, %")
    show_axis_ticks_and_titles(
        ax, titles, log=(False, False), color=get_css_color("muted")
    )
    low, high = max(xlim[0], ylim[0]), min(xlim[1], ylim[1])
    if low < high:
        ax.plot([low, high], [low, high], color=get_css_color("muted"), lw=1)
    for point in points:
        tip = f"{point.name}: seen {point.seen:.1f}, unseen {point.unseen:.1f}"
        color = get_css_color("s0" if point.is_ours else "s1")
        size = 9 if point.is_ours else 6
        ax.plot(
            point.seen, point.unseen, "o", color=color, ms=size, zorder=3,
            gid=encode_class_and_tooltip_as_svg_id("mark", [tip]),
        )  # fmt: skip
    for point in choose_plot_points_to_label(points, xlim, ylim):
        add_text_label_near_point(ax, point.name, (point.seen, point.unseen), (8, -4))
    names = ", ".join(point.name for point in points)
    return ax, f"Score at unseen places against score at seen places, for {names}"


def choose_plot_points_to_label(
    points: Sequence[SeenAndUnseenScore],
    xlim: tuple[float, float],
    ylim: tuple[float, float],
) -> list[SeenAndUnseenScore]:
    """Return ours and the best points whose names do not lie on one another."""
    ranked = sorted(points, key=lambda point: (not point.is_ours, -point.unseen))
    named: list[SeenAndUnseenScore] = []
    for point in ranked:
        is_free = all(
            abs(point.seen - other.seen) > CLOSE[0] * (xlim[1] - xlim[0])
            or abs(point.unseen - other.unseen) > CLOSE[1] * (ylim[1] - ylim[0])
            for other in named
        )
        if is_free and len(named) < MOST_NAMED:
            named.append(point)
    return named
