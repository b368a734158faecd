"""Figures as SVG: pure functions of plain data; colours come from figures.css."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from cirm.report import axes
from cirm.report.axes import Axis, drawing, grid, shortened, tick_text, words
from cirm.report.marks import (
    ROW,
    Line,
    Pair,
    chance_line,
    cross,
    curve,
    learned,
    mark,
    name_room,
    name_rows,
    names_below,
    names_beside,
    path,
)
from cirm.report.markup import Markup, joined, tag
from cirm.report.summary import Point, Track
from cirm.report.text import describe_metric, format_mean, join_words

WIDE, NARROW = 800, 350
PERCENT = (0.0, 25.0, 50.0, 75.0, 100.0)
MOST_POINTS = 150


def sweep_figure(
    lines: Sequence[Line],
    *,
    axis: str = "position",
    metric: str = "accuracy",
    chance: float | None = None,
    trained: Sequence[float] = (),
    width: int = WIDE,
) -> Markup:
    """Unseen score over the sweep's axis, a line per learner.

    `chance` in percent is marked, and so is the range of the places in `trained`.
    """
    lines = [line for line in lines if line.points]
    points = [point for line in lines for point in line.points] or [Point(0, 0, None)]
    low, high = _ends(points)
    guess = chance_line(chance, low, high)
    start, end, bottom = _room([*lines, *guess], width, 44)
    height = 300 if width < WIDE else 380
    x = Axis(low, high, start, end)
    y = _scores(points, metric, height, 30)
    return drawing(
        width,
        height + bottom,
        f"Unseen {describe_metric(metric)} over {axis}, for {_names(lines)}",
        _trained(x, y, trained),
        grid(x, y, (axis, describe_metric(metric)), (None, _percent(metric))),
        *(curve(line, x, y) for line in guess),
        *(curve(line, x, y, marks=True) for line in lines),
        _named([*lines, *guess], x, y, width),
    )


def curves_figure(
    lines: Sequence[Line],
    *,
    metric: str,
    starts: Sequence[float] = (),
    log: bool = False,
    width: int = WIDE,
) -> Markup:
    """A training quantity over steps, a line per learner; stages begin at `starts`."""
    lines = [line for line in (_thinned(line, log) for line in lines) if line.points]
    points = [point for line in lines for point in line.points] or [Point(1, 1, None)]
    start, end, bottom = _room(lines, width, 56)
    height = 260 if width < WIDE else 320
    x = Axis(*_ends(points), start, end)
    y = axes.spanning([p.mean for p in points], height, 30, log)
    return drawing(
        width,
        height + bottom,
        f"{metric} over training steps, for {_names(lines)}",
        grid(x, y, ("training step", metric)),
        *(
            path([(x.at(step), y.start), (x.at(step), y.end)], "start")
            for step in starts[1:]
        ),
        *(curve(part, x, y) for line in lines for part in _stages(line, starts)),
        _named(lines, x, y, width),
    )


def scatter_figure(
    pairs: Sequence[Pair],
    *,
    metric: str = "accuracy",
    chance: float | None = None,
    width: int = WIDE,
) -> Markup:
    """Unseen over training score, a mark per learner; the diagonal is no loss."""
    known = [(p, p.train.mean, p.test.mean) for p in pairs]
    found = [(p, a, b) for p, a, b in known if a is not None and b is not None]
    lines = [Line(p.label, (Point(a, b, p.test.std),), p.style) for p, a, b in found]
    low, high = _upper([Point(0, a, p.train.std) for p, a, _ in found], metric)
    guess = chance_line(chance, low, high)
    start, end, bottom = _room([*lines, *guess], width, 44)
    height = 310 if width < WIDE else 400
    x = Axis(low, high, start, end)
    y = _scores([line.points[0] for line in lines], metric, height, 30)
    places = [(x.at(a), y.at(b)) for _, a, b in found]
    titles = (
        f"training {describe_metric(metric)}",
        f"unseen {describe_metric(metric)}",
    )
    return drawing(
        width,
        height + bottom,
        f"Unseen over training {describe_metric(metric)}, for {_names(lines)}",
        grid(x, y, titles, (None, _percent(metric))),
        _diagonal(x, y),
        *(curve(line, x, y) for line in guess),
        _named([*lines, *guess], x, y, width),
        *(
            cross(p, place, x, y)
            for (p, _, _), place in zip(found, places, strict=True)
        ),
        *(
            mark(
                p.style,
                place,
                f"{p.label}: {format_mean(a, metric)} → {format_mean(b, metric)}",
            )
            for (p, a, b), place in zip(found, places, strict=True)
        ),
    )


def stream_figure(
    label: str,
    tracks: Sequence[Track],
    *,
    style: int = 0,
    metric: str = "accuracy",
    chance: float | None = None,
    width: int = 220,
) -> Markup:
    """One learner on each environment after each stage; the unseen in its colour."""
    height = 206
    points = [point for track in tracks for point in track.points]
    stages = sorted({point.x for point in points}) or [1.0]
    x = Axis(stages[0] - 0.2, max(stages[-1], stages[0] + 1) + 0.2, 32, width - 4)
    y = _scores(points, metric, height - 42, 36)
    past = [track for track in tracks if track.split == "train"]
    unseen = [Line(t.environment, t.points, style) for t in tracks if t not in past]
    every = -(-len(stages) // 6)
    ticks = (stages[::every], PERCENT[::2] if metric == "accuracy" else None)
    return drawing(
        width,
        height,
        f"{label}: {describe_metric(metric)} in each environment after each stage",
        words(0, 13, shortened(label, 0.85 * width), "start", "heading"),
        grid(x, y, ("stage", ""), ticks),
        *(curve(line, x, y) for line in chance_line(chance, x.low, x.high)),
        *(
            learned(track, 0.35 + 0.65 * n / len(past), x, y)
            for n, track in enumerate(past, 1)
        ),
        *(curve(line, x, y, marks=True) for line in unseen),
    )


def span_figure(
    pair: Pair, *, low: float, high: float, references: Sequence[float] = ()
) -> Markup:
    """From training (ring) to unseen score (mark), small enough for a table's row."""
    x, middle = Axis(low, high, 7, 193), 11.0
    train, test = pair.train.mean, pair.test.mean
    rules = [path([(x.at(v), 0), (x.at(v), 22)], "line") for v in references]
    parts = [tag("g", *rules, class_="chance")]
    if train is not None and test is not None:
        parts.append(path([(x.at(train), middle), (x.at(test), middle)], "span"))
    if train is not None:
        parts.append(tag("circle", cx=x.at(train), cy=middle, r=4, class_="ring"))
    if test is not None:
        parts.append(mark(pair.style, (x.at(test), middle)))
    said = " to ".join(f"{end:.3g}" for end in (train, test) if end is not None)
    return drawing(200, 22, f"{pair.label}: {said or 'nothing measured'}", *parts)


def scale_figure(
    *, low: float, high: float, references: Sequence[float] = ()
) -> Markup:
    """The ends of the axis of `span_figure`, and chance, for the table's heading."""
    x = Axis(low, high, 7, 193)
    texts = [words(x.at(v), 12, "chance", "middle") for v in references]
    ends = (words(0, 12, tick_text(low)), words(200, 12, tick_text(high), "end"))
    group = tag("g", *ends, *texts, class_="axes")
    return drawing(200, 16, f"From {low:.3g} to {high:.3g}", group)


def standalone(figure: str) -> str:
    """A figure as the content of an .svg file, with its colours inside."""
    css = files("cirm.report").joinpath("figures.css").read_text(encoding="utf-8")
    return figure.replace("<title>", f"<style>{css}</style><title>", 1)


def _room(lines: Sequence[Line], width: int, left: float) -> tuple[float, float, float]:
    """Where a plot starts and ends across, and the pixels below it.

    Names stand beside a wide plot and below a narrow one.
    """
    if width < WIDE:
        return left, width - 12, 52 + ROW * len(name_rows(lines, width))
    return left, width - name_room(lines), 46


def _named(lines: Sequence[Line], x: Axis, y: Axis, width: int) -> Markup:
    if width < WIDE:
        return names_below(lines, y.start + 64, width)
    return names_beside(lines, x, y)


def _scores(points: Sequence[Point], metric: str, start: float, end: float) -> Axis:
    """The axis of a score: 0 to 100 for percent, else from 0 to what holds all."""
    if metric == "accuracy" or not points:
        return Axis(0, 100, start, end)
    highest = max(point.mean + (point.std or 0) for point in points)
    return axes.spanning([0.0, highest or 1.0], start, end)


def _upper(points: Sequence[Point], metric: str) -> tuple[float, float]:
    """The ends of a score's axis, from a round value below points and its middle."""
    axis = _scores(points, metric, 0, 1)
    lowest = min((p.mean - (p.std or 0) for p in points), default=axis.low)
    step = (axis.high - axis.low) / 10
    steps = min(max(int((lowest - axis.low) / step), 0), 5)
    return axis.low + step * steps, axis.high


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    low, high = min(p.x for p in points), max(p.x for p in points)
    return low, high if high > low else low + 1


def _percent(metric: str) -> tuple[float, ...] | None:
    return PERCENT if metric == "accuracy" else None


def _names(lines: Sequence[Line]) -> str:
    return join_words([line.label for line in lines]) or "no learner"


def _trained(x: Axis, y: Axis, places: Sequence[float]) -> Markup:
    """The part of the axis on which the training environments lie."""
    if not places:
        return Markup()
    start, end = x.at(min(places)), x.at(max(places))
    room = max(end - start, 6)
    area = tag("rect", x=start, y=y.end, width=room, height=y.start - y.end)
    text = words(start + room / 2, y.start - 7, "training", "middle", "note")
    return tag("g", area, text, class_="trained")


def _diagonal(x: Axis, y: Axis) -> Markup:
    low, high = max(x.low, y.low), min(x.high, y.high)
    if low >= high:
        return Markup()
    line = path([(x.at(low), y.at(low)), (x.at(high), y.at(high))], "diagonal")
    at = low + 0.82 * (high - low)
    return joined(
        line, words(x.at(at) - 8, y.at(at) - 6, "nothing lost", "end", "note")
    )


def _stages(line: Line, starts: Sequence[float]) -> list[Line]:
    """A line in parts, one per stage, since a new stage is a new beginning."""
    parts: dict[int, list[Point]] = {}
    for point in line.points:
        parts.setdefault(sum(start <= point.x for start in starts), []).append(point)
    return [Line(line.label, tuple(points), line.style) for points in parts.values()]


def _thinned(line: Line, log: bool) -> Line:
    """A line with few enough points to draw, the last one kept."""
    shown = [p for p in line.points if p.mean > 0 or not log]
    stride = max(-(-len(shown) // MOST_POINTS), 1)
    return Line(line.label, (*shown[:-1:stride], *shown[-1:]), line.style)
