"""What figures are made of: lines, marks, references, names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cirm.report.axes import LETTER, Axis, apart, drawing, shortened, words
from cirm.report.markup import Markup, joined, tag
from cirm.report.summary import Point, Statistic, Track

HUES = 6  # colours in figures.css; beyond them lines are dashed
CEILING, CHANCE = -1, -2  # styles of the references
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8L4.6 3.4H-4.6z",
    "M0-5L5 0L0 5L-5 0z",
)
LABEL_GAP, ROW, NAME_ROOM = 16, 20, 176
Place = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A learner's points; `style` numbers its look: 0, 1, ... or CEILING or CHANCE."""

    label: str
    points: tuple[Point, ...]
    style: int


@dataclass(frozen=True)
class Pair:
    """A learner's score in training and in the unseen environments."""

    label: str
    train: Statistic
    test: Statistic
    style: int


def chance_line(chance: float | None, low: float, high: float) -> list[Line]:
    """The score of guessing as a line from low to high; none if it is not known."""
    if chance is None:
        return []
    ends = (Point(low, chance, None), Point(high, chance, None))
    return [Line(f"chance, {chance:.3g} %", ends, CHANCE)]


def look(style: int) -> str:
    """The classes that give a style its colour and dashes."""
    if style < 0:
        return "ceiling" if style == CEILING else "chance"
    return f"s{style % HUES}{' dashed' if style // HUES % 2 else ''}"


def mark(style: int, place: Place, said: str = "") -> Markup:
    """A style's mark at a place, with what it says when pointed at."""
    title = (tag("title", said),) if said else ()
    return tag("g", *title, _shape(style, place), class_=look(style))


def swatch(style: int) -> Markup:
    """A style's line and mark as a small picture, for tables."""
    line = tag("path", d="M0 7H27", class_="line")
    inside = tag("g", line, _shape(style, (13.5, 7)), class_=look(style))
    return drawing(27, 14, "its look in the figures", inside)


def curve(line: Line, x: Axis, y: Axis, marks: bool = False) -> Markup:
    """The mean as a line within a band of one standard deviation either side."""
    places = [(x.at(p.x), y.at(p.mean)) for p in line.points]
    parts = [path(places, "line")]
    spread = [(x.at(p.x), p.mean, p.std) for p in line.points if p.std is not None]
    if len(spread) > 1:
        over = [(at, y.at(mean + std)) for at, mean, std in spread]
        under = [(at, y.at(mean - std)) for at, mean, std in reversed(spread)]
        parts.insert(0, path([*over, *under], "band"))
    if marks:
        parts += [
            tag("g", tag("title", said(line.label, p)), _shape(line.style, place))
            for p, place in zip(line.points, places, strict=True)
        ]
    return tag("g", *parts, class_=look(line.style))


def learned(track: Track, strength: float, x: Axis, y: Axis) -> Markup:
    """A training environment along the stream: rings until it arrives, then dots."""
    places = [(x.at(p.x), y.at(p.mean)) for p in track.points]
    dots = [
        tag(
            "circle",
            tag("title", said(track.environment, point)),
            cx=place[0],
            cy=place[1],
            r=2.6,
            class_="ring" if point.x < (track.arrival or 0) else "dot",
        )
        for point, place in zip(track.points, places, strict=True)
    ]
    return tag("g", path(places, "line"), *dots, class_="learned", opacity=strength)


def cross(pair: Pair, place: Place, x: Axis, y: Axis) -> Markup:
    """Error bars of one standard deviation each way."""
    bars = []
    if pair.train.mean is not None and pair.train.std is not None:
        ends = (pair.train.mean - pair.train.std, pair.train.mean + pair.train.std)
        bars.append(path([(x.at(end), place[1]) for end in ends], "bar"))
    if pair.test.mean is not None and pair.test.std is not None:
        ends = (pair.test.mean - pair.test.std, pair.test.mean + pair.test.std)
        bars.append(path([(place[0], y.at(end)) for end in ends], "bar"))
    return tag("g", *bars, class_=look(pair.style))


def path(places: Sequence[Place], class_: str) -> Markup:
    """Straight lines through places."""
    corners = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    return tag("path", d=f"M{corners}", class_=class_)


def said(label: str, point: Point) -> str:
    """A point in words."""
    spread = "" if point.std is None else f" ± {point.std:.3g}"
    return f"{label} at {point.x:g}: {point.mean:.4g}{spread}"


def name_room(lines: Sequence[Line]) -> float:
    """Pixels that names beside a plot need."""
    longest = max((len(line.label) for line in lines), default=0)
    return min(longest * LETTER, NAME_ROOM) + 44


def names_beside(lines: Sequence[Line], x: Axis, y: Axis) -> Markup:
    """Each line's name right of the plot, led to from its end."""
    column = x.end + 26
    ends = [(x.at(line.points[-1].x), y.at(line.points[-1].mean)) for line in lines]
    places = apart([end[1] for end in ends], LABEL_GAP, y.end, y.start + 36)
    return joined(
        *(
            tag(
                "g",
                path([end, (column, place), (column + 6, place)], "leader"),
                words(column + 11, place + 4, shortened(line.label, NAME_ROOM)),
                class_=look(line.style),
            )
            for line, end, place in zip(lines, ends, places, strict=True)
        )
    )


def names_below(lines: Sequence[Line], top: float, width: float) -> Markup:
    """Each line's look and name, in rows below a plot."""
    keys = []
    for row, items in enumerate(name_rows(lines, width)):
        y = top + ROW * row
        for line, x in items:
            stroke = path([(x, y - 4), (x + 27, y - 4)], "line")
            name = words(x + 33, y, shortened(line.label, width - 40))
            shape = _shape(line.style, (x + 13.5, y - 4))
            keys.append(tag("g", stroke, shape, name, class_=look(line.style)))
    return joined(*keys)


def name_rows(lines: Sequence[Line], width: float) -> list[list[tuple[Line, float]]]:
    """Names in rows that fit a width, each with the pixel at which it begins."""
    rows: list[list[tuple[Line, float]]] = [[]]
    at = 4.0
    for line in lines:
        room = 33 + min(len(line.label) * LETTER, width - 40)
        if rows[-1] and at + room > width:
            rows.append([])
            at = 4.0
        rows[-1].append((line, at))
        at += room + 16
    return rows


def _shape(style: int, place: Place) -> Markup:
    if style == CHANCE:
        return Markup()
    shape = SHAPES[max(style, 0) % len(SHAPES)]
    where = f"translate({place[0]:.1f} {place[1]:.1f})"
    return tag("path", d=shape, transform=where, class_="mark")
