"""Axes of figures: limits, ticks, titles, and text that must fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cirm.report.drawing import (
    Pair,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    replace_characters_invalid_in_xml,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Locator

WIDE, NARROW = 800, 350  # pixels: beside the text of a page, and on a phone
LETTER = 6.9  # pixels of an average letter
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_axis_ticks_and_titles(
    ax: Axes,
    titles: tuple[str, str],
    *,
    log: tuple[bool, bool],
    ticks: int = 5,
    **heading: str | float,
) -> None:
    """Show ticks, horizontal rules, the title of x, and a heading at the upper left."""
    from matplotlib.ticker import NullLocator

    ax.set_axis_on()
    limits: dict[str, Any] = {"xlim": ax.get_xlim(), "ylim": ax.get_ylim()}
    xscale, yscale = ("log" if each else "linear" for each in log)
    ax.set(xscale=xscale, yscale=yscale, **limits)
    for axis, logarithmic in zip((ax.xaxis, ax.yaxis), log, strict=True):
        axis.set_major_locator(create_axis_tick_locator(logarithmic, ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(
            _format_power_of_ten if logarithmic else _format_tick_label
        )
    if limits["ylim"] == (0, 100):
        ax.set_yticks((0, 25, 50, 75, 100))
    ax.tick_params(length=0, labelsize=12, labelcolor=get_css_color("muted"), pad=7)
    ax.set_axisbelow(True)
    ax.grid(
        axis="y",
        color=get_css_color("rule"),
        lw=1,
        gid=encode_class_and_tooltip_as_svg_id("rule"),
    )
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.spines["bottom"].set(
        color=get_css_color("muted"),
        lw=1,
        gid=encode_class_and_tooltip_as_svg_id("base"),
    )
    ax.set_xlabel(
        replace_characters_invalid_in_xml(titles[0]),
        color=get_css_color("muted"),
        labelpad=7,
    )
    look: dict[str, Any] = {"size": 13, "pad": 14, **heading}
    ax.set_title(
        replace_characters_invalid_in_xml(titles[1]),
        loc="left",
        x=-ax.bbox.x0 / ax.bbox.width,
        **look,
    )


def choose_round_axis_limits(values: Sequence[float], log: bool = False) -> Pair:
    """Return round limits of an axis that shows all values."""
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return 10.0**first, 10.0 ** max(last, first + 1)
    low, high = create_axis_tick_locator(log).view_limits(low, high)
    return float(low), float(high)


def create_axis_tick_locator(log: bool, ticks: int = 5) -> Locator:
    """Return round values at which to draw ticks, up to a number of them."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if log:
        return LogLocator(numticks=ticks + 1)
    return MaxNLocator(ticks, steps=[1, 2, 5, 10])


def _format_tick_label(number: float, _: float) -> str:
    text = f"{number:,.0f}" if abs(number) >= 1e4 else f"{round(number, 10) + 0.0:g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _format_power_of_ten(number: float, _: float) -> str:
    return f"10{str(round(math.log10(number))).translate(SUPERSCRIPTS)}"


def shorten_text_to_pixel_width(text: str, max_width: float) -> str:
    """Shorten a text to the letters that fit into a width in pixels."""
    letters = max(int(max_width / LETTER), 2)
    return text if len(text) <= letters else f"{text[: letters - 1].rstrip()}…"
