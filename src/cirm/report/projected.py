"""Figures of sequential projection: sets of distributions, and where beliefs go."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cirm.report.axes import Axis, drawing, words
from cirm.report.marks import look, mark, path
from cirm.report.markup import Markup, joined, tag

Point = Sequence[float]
Place = tuple[float, float]
SIDE, EDGE, NAMES = 400.0, 40.0, 70.0  # pixels: the triangle, around it, names
HEIGHT = SIDE * math.sqrt(3) / 2
BELIEF = 3  # the style of what is believed; the sets have those before it
LOOKS = ((1, "q⁻"), (0, "q*"), (2, "q⁺"))
SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def simplex_figure(
    names: Sequence[str], ends: Sequence[tuple[Point, Point]], beliefs: Sequence[Point]
) -> Markup:
    """Sets as lines in the triangle of three outcomes, and the path of projections."""
    corners = [_place(corner) for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    sets = [
        _set(style, name, _place(start), _place(end))
        for style, (name, (start, end)) in enumerate(zip(names, ends, strict=True))
    ]
    steps = [_place(belief) for belief in beliefs]
    way = tag("g", path(steps, "line"), class_=look(BELIEF))
    first, last = steps[0], steps[-1]
    return drawing(
        SIDE + 2 * EDGE + NAMES,
        HEIGHT + 2 * EDGE,
        f"{len(steps) - 1} projections in turn onto the sets {', '.join(names)}",
        path([*corners, corners[0]], "diagonal"),
        *_corner_names(corners),
        *sets,
        way,
        *(mark(BELIEF, step) for step in steps),
        words(first[0] + 12, first[1] + 4, _indexed(0)),
        words(last[0] + 12, last[1] + 18, _indexed(len(steps) - 1)),
    )


def supports_figure(
    names: Sequence[str],
    allowed: Sequence[Sequence[bool]],
    beliefs: Sequence[Sequence[float]],
) -> Markup:
    """A row of bars for each belief, over the outcomes that its set allows."""
    rows, tall, wide = len(beliefs), 84.0, 480.0
    top = max(max(belief) for belief in beliefs)
    everything = [True] * len(beliefs[0])
    parts = []
    for row, belief in enumerate(beliefs):
        mask = allowed[row - 1] if row else everything
        name = f"{_indexed(row)} in {names[row - 1]}" if row else _indexed(0)
        y = Axis(0, top, tall * (row + 1) - 4, tall * row + 14)
        x = Axis(0, len(belief), 96, wide)
        parts.append(_bars(x, y, belief, mask, row - 1))
        parts.append(words(0, y.start - 18, name))
    label = f"Distributions after projection onto {', '.join(names)}"
    return drawing(wide, tall * rows + 8, label, *parts)


def between_figure(
    steps: Sequence[tuple[Sequence[float], Sequence[float], Sequence[float]]],
) -> Markup:
    """For each step what was believed, what is best here, and what is between both."""
    tall, wide = 190.0, 480.0
    parts = []
    for row, densities in enumerate(steps):
        top = max(max(density) for density in densities)
        y = Axis(0, top, tall * (row + 1) - 24, tall * row + 26)
        x = Axis(0, len(densities[0]) - 1, 0, wide)
        base = path([(x.start, y.start), (x.end, y.start)], "diagonal")
        parts.append(words(0, y.end - 10, f"environment {row + 2}", class_="heading"))
        parts.append(base)
        for (style, name), density in zip(LOOKS, densities, strict=True):
            parts.append(_density(x, y, style, name, density, filled=style == 2))
    label = f"What is believed after environments 2 to {len(steps) + 1}"
    return drawing(wide, tall * len(steps), label, *parts)


def _place(point: Point) -> Place:
    """Where a distribution of three outcomes lies in the triangle."""
    _, second, third = point
    return EDGE + SIDE * (second + third / 2), EDGE + HEIGHT * (1 - third)


def _corner_names(corners: Sequence[Place]) -> list[Markup]:
    (a, b), (c, d), (e, f) = corners
    return [
        words(a, b + 20, "outcome 1", "middle", "note"),
        words(c, d + 20, "outcome 2", "middle", "note"),
        words(e, f - 10, "outcome 3", "middle", "note"),
    ]


def _set(style: int, name: str, start: Place, end: Place) -> Markup:
    """A set, with its name beyond the end that is further to the right."""
    left, right = sorted((start, end))
    slope = math.atan2(right[1] - left[1], right[0] - left[0])
    at = right[0] + 14 * math.cos(slope), right[1] + 14 * math.sin(slope) + 4
    return tag("g", path([left, right], "line"), words(*at, name), class_=look(style))


def _bars(
    x: Axis, y: Axis, belief: Sequence[float], mask: Sequence[bool], style: int
) -> Markup:
    base = path([(x.start, y.start), (x.end, y.start)], "diagonal")
    places = [(x.at(n), x.at(n + 1)) for n in range(len(belief))]
    shades = [
        _box(left, right, y.end, y.start, "band")
        for (left, right), inside in zip(places, mask, strict=True)
        if inside and style >= 0
    ]
    bars = [
        _box(left + 6, right - 6, y.at(mass), y.start, "mark")
        for (left, right), mass in zip(places, belief, strict=True)
        if mass > 0
    ]
    return joined(
        tag("g", *shades, class_=look(max(style, 0))),
        base,
        tag("g", *bars, class_=look(BELIEF)),
    )


def _box(left: float, right: float, top: float, bottom: float, class_: str) -> Markup:
    size = {"width": right - left, "height": bottom - top}
    return tag("rect", x=left, y=top, **size, class_=class_)


def _density(
    x: Axis, y: Axis, style: int, name: str, density: Sequence[float], filled: bool
) -> Markup:
    places = [(x.at(n), y.at(mass)) for n, mass in enumerate(density)]
    area = path([(x.start, y.start), *places, (x.end, y.start)], "band")
    peak = max(range(len(density)), key=lambda n: density[n])
    text = words(places[peak][0], places[peak][1] - 6, name, "middle")
    parts = [area] if filled else []
    return tag("g", *parts, path(places, "line"), text, class_=look(style))


def _indexed(number: int) -> str:
    return f"p{str(number).translate(SMALL)}"
