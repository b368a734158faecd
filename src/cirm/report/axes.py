"""Scales, ticks, grids and labels: what figures are drawn on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cirm.report.markup import Markup, joined, tag

LETTER = 6.9  # pixels of an average letter at the size of figure text
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """Values from low to high on a line of pixels from start to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; values outside the axis fall on its nearer end."""
        value = min(max(value, self.low), self.high)
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round values on the axis."""
        if self.log:
            return _decades(self.low, self.high, count)
        step = _round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def spanning(
    values: Sequence[float], start: float, end: float, log: bool = False
) -> Axis:
    """An axis with round ends that holds all values; for log they are positive."""
    low, high = min(values), max(values)
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        return Axis(low, high if high > low else low * 10, start, end, log=True)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    step = _round_step((high - low) / 5)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return Axis(low, high, start, end)


def tick_text(value: float, log: bool = False) -> str:
    """A tick's value as text; powers of ten on a logarithmic axis."""
    if log:
        power = round(math.log10(value))
        return f"10{str(power).translate(SUPERSCRIPTS)}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}".replace("-", "\N{MINUS SIGN}")
    return f"{round(value, 10) + 0.0:g}".replace("-", "\N{MINUS SIGN}")


def grid(
    x: Axis,
    y: Axis,
    titles: tuple[str, str] = ("", ""),
    ticks: tuple[Sequence[float] | None, Sequence[float] | None] = (None, None),
) -> Markup:
    """Rules and tick texts of both axes; the y title stands above its axis."""
    across = ticks[0] if ticks[0] is not None else x.ticks()
    up = ticks[1] if ticks[1] is not None else y.ticks()
    rules = [
        tag("line", x1=x.start, x2=x.end, y1=y.at(v), y2=y.at(v), class_="rule")
        for v in up
    ]
    base = tag("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="base")
    below = [
        words(x.at(v), y.start + 18, tick_text(v, x.log), "middle") for v in across
    ]
    beside = [words(x.start - 8, y.at(v) + 4, tick_text(v, y.log), "end") for v in up]
    centre = (x.start + x.end) / 2
    named = [
        words(centre, y.start + 38, titles[0], "middle", "title"),
        words(min(x.start, 4), y.end - 14, titles[1], "start", "title"),
    ]
    return tag("g", *rules, base, *below, *beside, *named, class_="axes")


def words(
    x: float, y: float, text: str, anchor: str = "start", class_: str | None = None
) -> Markup:
    """Text at a place; nothing for an empty text."""
    if not text:
        return Markup()
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def shortened(text: str, room: float) -> str:
    """The text, cut to the letters that fit into so many pixels."""
    letters = max(int(room / LETTER), 2)
    return text if len(text) <= letters else f"{text[: letters - 1].rstrip()}…"


def drawing(width: float, height: float, label: str, *parts: str) -> Markup:
    """A whole figure with its description for those who can't see it."""
    return tag(
        "svg",
        tag("title", label),
        joined(*parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        class_="drawing",
        role="img",
        aria_label=label,
    )


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least a gap from one another.

    The least squares solution, moved inside low and high where all fit.
    """
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        blocks.append((wanted[index] - rank * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (other, more) = blocks[-2], blocks[-1]
            total = count + more
            blocks[-2:] = [((mean * count + other * more) / total, total)]
    starts = [mean for mean, count in blocks for _ in range(count)]
    top = max(high - (len(wanted) - 1) * gap, low)
    places = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        places[index] = min(max(starts[rank], low), top) + rank * gap
    return places


def _round_step(step: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is no smaller."""
    power = 10 ** math.floor(math.log10(step) + 1e-9)
    return power * next(n for n in (1, 2, 5, 10) if n * power >= step * (1 - 1e-9))


def _decades(low: float, high: float, count: int) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    stride = max(math.ceil((last - first) / count), 1)
    return [10.0**power for power in range(first, last + 1, stride)]
