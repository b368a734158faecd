"""Figures of a run: functions of plain data that return inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cirm.report.axes import (
    LETTER,
    WIDE,
    choose_round_axis_limits,
    shorten_text_to_pixel_width,
    show_axis_ticks_and_titles,
)
from cirm.report.drawing import (
    CHANCE,
    DOTS,
    Pair,
    add_text_label_near_point,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    get_hollow_marker_style,
    get_line_style_of_learner,
    render_as_inline_svg,
    replace_characters_invalid_in_xml,
)
from cirm.report.summary import EnvironmentScoresByStage, MeanAndStd, SummaryCurvePoint
from cirm.report.text import describe_metric_with_unit, format_mean_of_metric
from cirm.wording import join_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 150  # of a line; more would only make the page larger
NAME_GAP, NAME_ROOM = 16, 176  # pixels from name to name, and for the longest name


@dataclass(frozen=True)
class LearnerPlotLine:
    """A learner's points; `style` numbers its look: 0, 1, ... or CEILING or CHANCE."""

    label: str
    points: tuple[SummaryCurvePoint, ...]
    style: int


@dataclass(frozen=True)
class TrainingAndUnseenScore:
    """A learner's score in training and in the unseen environments."""

    label: str
    train: MeanAndStd
    test: MeanAndStd
    style: int


@render_as_inline_svg
def plot_scores_over_sweep(
    lines: Sequence[LearnerPlotLine],
    *,
    axis: str = "position",
    metric: str = "accuracy",
    chance: float | None = None,
    trained_at: Sequence[float] = (),
    width: int = WIDE,
) -> tuple[Axes, str]:
    """Plot the unseen score over the sweep's axis, one line per learner.

    `chance` in percent is marked, and so is the range of positions `trained_at`.
    """
    lines = [line for line in lines if line.points]
    points = [point for line in lines for point in line.points] or [
        SummaryCurvePoint(0, 0, None)
    ]
    xlim, ylim = _find_x_range_of_lines(points), _choose_score_limits(points, metric)
    shown = [*lines, *_build_lines_of_chance_score(chance, xlim)]
    unit = describe_metric_with_unit(metric)
    ax = _create_axes_with_room_for_names(shown, width, 380, xlim, ylim, (axis, unit))
    if trained_at:
        _shade_range_of_x_axis(ax, min(trained_at), max(trained_at), "training")
    for line in shown:
        _plot_line_with_band(ax, line, marks=True)
    _add_names_at_line_ends(ax, shown)
    return ax, (
        f"Unseen environments: {unit} against {axis}, for {_join_line_names(lines)}"
    )


@render_as_inline_svg
def plot_training_curves(
    lines: Sequence[LearnerPlotLine],
    *,
    metric: str,
    starts: Sequence[float] = (),
    log: bool = False,
    width: int = WIDE,
) -> tuple[Axes, str]:
    """Plot a training quantity over steps; lines break where a stage starts."""
    lines = [
        line
        for line in (_drop_points_too_close_to_draw(line, log) for line in lines)
        if line.points
    ]
    points = [point for line in lines for point in line.points] or [
        SummaryCurvePoint(1, 1, None)
    ]
    xlim, ylim = (
        _find_x_range_of_lines(points),
        choose_round_axis_limits([p.mean for p in points], log),
    )
    ax = _create_axes_with_room_for_names(
        lines, width, 320, xlim, ylim, ("training step", metric), log
    )
    for start in starts[1:]:
        ax.axvline(start, color=get_css_color("muted"), lw=1, ls=(0, (1, 4)))
    for line in lines:
        for part in _split_line_at_stages(line, starts):
            _plot_line_with_band(ax, part)
    _add_names_at_line_ends(ax, lines)
    return ax, f"{metric} against training steps, for {_join_line_names(lines)}"


@render_as_inline_svg
def plot_training_against_unseen_scores(
    pairs: Sequence[TrainingAndUnseenScore],
    *,
    metric: str = "accuracy",
    chance: float | None = None,
    width: int = WIDE,
) -> tuple[Axes, str]:
    """Plot the unseen over the training score; on the diagonal nothing is lost."""
    scores = [(p, p.train.mean, p.test.mean) for p in pairs]
    known = [(p, a, b) for p, a, b in scores if a is not None and b is not None]
    lines = [
        LearnerPlotLine(p.label, (SummaryCurvePoint(a, b, p.test.std),), p.style)
        for p, a, b in known
    ]
    ylim = _choose_score_limits([line.points[0] for line in lines], metric)
    xlim = _choose_score_limits(
        [SummaryCurvePoint(0, a, p.train.std) for p, a, _ in known], metric
    )
    if metric == "accuracy":
        lowest = min((a - (p.train.std or 0) for p, a, _ in known), default=0)
        xlim = min(max(lowest // 10 * 10, 0), 50), 100
    shown = [*lines, *_build_lines_of_chance_score(chance, xlim)]
    unit = describe_metric_with_unit(metric)
    titles = (f"training {unit}", f"unseen {unit}")
    ax = _create_axes_with_room_for_names(shown, width, 400, xlim, ylim, titles)
    low, high = max(xlim[0], ylim[0]), min(xlim[1], ylim[1])
    if low < high:
        ax.plot([low, high], [low, high], color=get_css_color("muted"), lw=1)
        at = low + 0.82 * (high - low)
        _add_text_with_halo(ax, "nothing lost", (at, at), (-8, 6), "right")
    for line in shown[len(lines) :]:
        _plot_line_with_band(ax, line)
    _add_names_at_line_ends(ax, shown)
    for pair, train, test in known:
        look = get_line_style_of_learner(pair.style)
        bar = {"color": look["color"], "alpha": 0.6, "lw": 1.5}
        ax.plot(
            _clip_one_standard_deviation_interval(train, pair.train.std, xlim),
            [test] * 2,
            **bar,
        )
        ax.plot(
            [train] * 2,
            _clip_one_standard_deviation_interval(test, pair.test.std, ylim),
            **bar,
        )
        before, after = (format_mean_of_metric(mean, metric) for mean in (train, test))
        means = f"{before} → {after}"
        tip = f"{pair.label}: {means}"
        ax.plot(
            train,
            test,
            **look,
            zorder=3,
            gid=encode_class_and_tooltip_as_svg_id("mark", [tip]),
        )
    names = _join_line_names(lines)
    return ax, f"Unseen environments: {unit} against {titles[0]}, for {names}"


@render_as_inline_svg
def plot_scores_after_stages(
    label: str,
    tracks: Sequence[EnvironmentScoresByStage],
    *,
    style: int = 0,
    metric: str = "accuracy",
    chance: float | None = None,
) -> tuple[Axes, str]:
    """Plot one learner's score in each environment after each stage, as a panel.

    Training environments are grey, later ones darker, and rings before they arrive;
    the unseen environments have the learner's look.
    """
    points = [point for track in tracks for point in track.points]
    stages = sorted({point.x for point in points}) or [1.0]
    xlim = (stages[0] - 0.2, max(stages[-1], stages[0] + 1) + 0.2)
    ax = _create_axes_of_panel(
        label, xlim, _choose_score_limits(points, metric), "stage"
    )
    ax.set_xticks(stages[:: -(-len(stages) // 6)])
    for line in _build_lines_of_chance_score(chance, xlim):
        _plot_line_with_band(ax, line)
    past = [track for track in tracks if track.split == "train"]
    for order, track in enumerate(past, 1):
        _plot_scores_of_training_environment(
            ax, track, strength=0.35 + 0.65 * order / len(past)
        )
    for track in tracks:
        if track not in past:
            _plot_line_with_band(
                ax, LearnerPlotLine(track.environment, track.points, style), marks=True
            )
    unit = describe_metric_with_unit(metric)
    return ax, f"{label}: {unit} in each environment after each stage"


@render_as_inline_svg
def plot_scores_of_trials(
    name: str,
    label: str,
    trials: Sequence[tuple[int, float, float]],
    *,
    picked_trial: int,
    reference: float | None = None,
    log: bool = False,
) -> tuple[Axes, str]:
    """Plot the scores of a search over the setting `name`, as a panel.

    `trials` are number, value of the setting and score; the number `picked_trial` is a
    square, and `reference` the score of the unchanged settings.
    """
    guides = [] if reference is None else [reference]
    ylim = choose_round_axis_limits([*guides, *(score for *_, score in trials)])
    ax = _create_axes_of_panel(
        name, choose_round_axis_limits([x for _, x, _ in trials], log), ylim, log=log
    )
    for guide in guides:
        ax.axhline(guide, color=get_css_color("muted"), lw=1.5, ls=DOTS)
    for number, x, score in sorted(trials, key=lambda trial: trial[0] == picked_trial):
        tip = f"trial {number}: {name} {x:.3g}, score {score:.3g}"
        look = get_line_style_of_learner(int(number == picked_trial))
        ax.plot(x, score, **look, gid=encode_class_and_tooltip_as_svg_id("mark", [tip]))
    return ax, label


@render_as_inline_svg
def plot_training_to_unseen_score(
    pair: TrainingAndUnseenScore,
    *,
    low: float,
    high: float,
    references: Sequence[float] = (),
) -> tuple[Axes, str]:
    """Plot training (ring) and unseen score (mark) on a line, for a table's row."""
    ax = create_blank_axes((200, 22), (7, 0, 193, 22), (low, high), (-1, 1))
    for reference in references:
        ax.axvline(reference, color=get_css_color("muted"), lw=1.5, ls=DOTS)
    ends = [s.mean for s in (pair.train, pair.test) if s.mean is not None]
    ax.plot(ends, [0] * len(ends), color=get_css_color("muted"), lw=1.5)
    if pair.train.mean is not None:
        ax.plot(pair.train.mean, 0, **get_hollow_marker_style("muted"))
    if pair.test.mean is not None:
        ax.plot(pair.test.mean, 0, **get_line_style_of_learner(pair.style))
    text = " to ".join(f"{end:.3g}" for end in ends) or "not measured"
    return ax, f"{pair.label}: {text}"


@render_as_inline_svg
def plot_legend_swatch(style: int) -> tuple[Axes, str]:
    """Plot a style's line and mark, for a table's row."""
    ax = create_blank_axes((27, 14), (0, 0, 27, 14), (0, 2), (-1, 1))
    ax.plot([0, 1, 2], [0, 0, 0], **get_line_style_of_learner(style), markevery=[1])
    return ax, "line and mark in the figures"


def spread_overlapping_label_positions(
    positions: Sequence[float], gap: float, low: float, high: float
) -> list[float]:
    """Move positions at least a gap apart, in their order and as little as needed.

    This is the least-squares solution, moved inside low and high where all fit.
    """
    order = sorted(range(len(positions)), key=lambda n: positions[n])
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        blocks.append((positions[index] - rank * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (other, more) = blocks[-2], blocks[-1]
            total = count + more
            blocks[-2:] = [((mean * count + other * more) / total, total)]
    starts = [mean for mean, count in blocks for _ in range(count)]
    top = max(high - (len(positions) - 1) * gap, low)
    places = [0.0] * len(positions)
    for rank, index in enumerate(order):
        places[index] = min(max(starts[rank], low), top) + rank * gap
    return places


def _create_axes_with_room_for_names(
    lines: Sequence[LearnerPlotLine],
    width: int,
    height: int,
    xlim: Pair,
    ylim: Pair,
    titles: tuple[str, str],
    log: bool = False,
) -> Axes:
    """Start a figure with room for names: to its right, or below if it is narrow."""
    longest = max((len(line.label) for line in lines), default=0)
    below, right = 46, width - min(longest * LETTER, NAME_ROOM) - 44
    if width < WIDE:
        rows = -(-len(lines) // _count_legend_columns(lines, width))
        below, right, height = 58 + 20 * rows, width - 12, height - 70
    size, box = (width, height + below), (48, below, right, height + below - 30)
    ax = create_blank_axes(size, box, xlim, ylim)
    show_axis_ticks_and_titles(
        ax, titles, color=get_css_color("muted"), log=(False, log)
    )
    return ax


def _create_axes_of_panel(
    heading: str, xlim: Pair, ylim: Pair, title: str = "", log: bool = False
) -> Axes:
    ax = create_blank_axes((220, 206), (36, 42, 214, 170), xlim, ylim)
    titles = (title, shorten_text_to_pixel_width(heading, 187))
    show_axis_ticks_and_titles(
        ax, titles, color=get_css_color("ink"), weight="bold", log=(log, False), ticks=4
    )
    if ylim == (0, 100):
        ax.set_yticks((0, 50, 100))
    return ax


def _add_names_at_line_ends(ax: Axes, lines: Sequence[LearnerPlotLine]) -> None:
    """Name each line beside the end of a wide plot, or below a narrow one."""
    names = [shorten_text_to_pixel_width(line.label, NAME_ROOM) for line in lines]
    width, box = ax.figure.bbox.width, ax.bbox
    if width < WIDE:
        _add_line_legend(ax, lines, names)
        return
    ends = [(line.points[-1].x, line.points[-1].mean) for line in lines]
    heights = [ax.transData.transform(end)[1] for end in ends]
    places = spread_overlapping_label_positions(heights, NAME_GAP, box.y0 - 36, box.y1)
    for line, name, end, y in zip(lines, names, ends, places, strict=True):
        look = {
            "color": get_line_style_of_learner(line.style)["color"],
            "alpha": 0.75,
            "lw": 1,
        }
        leader = {"arrowstyle": "-", "shrinkA": 5, "shrinkB": 0, "relpos": (0, 0.5)}
        ax.annotate(
            replace_characters_invalid_in_xml(name),
            end,
            (box.x1 + 37, y - 4),
            textcoords="figure pixels",
            color=get_css_color("ink"),
            annotation_clip=False,
            arrowprops={**leader, **look, "patchA": None},
        )


def _add_line_legend(
    ax: Axes, lines: Sequence[LearnerPlotLine], names: Sequence[str]
) -> None:
    from matplotlib.lines import Line2D

    ax.figure.legend(
        [Line2D([], [], **get_line_style_of_learner(line.style)) for line in lines],
        [replace_characters_invalid_in_xml(name) for name in names],
        loc="lower left",
        bbox_to_anchor=(0, 0),
        ncols=_count_legend_columns(lines, ax.figure.bbox.width),
        labelcolor=get_css_color("ink"),
        frameon=False,
        borderaxespad=0,
    )


def _count_legend_columns(lines: Sequence[LearnerPlotLine], width: float) -> int:
    """Count the columns of names that fit a width: 2 or 1."""
    sizes = [min(len(line.label) * LETTER, NAME_ROOM) + 60 for line in lines]
    half = -(-len(lines) // 2)
    return (
        2 if half and max(sizes[:half]) + max(sizes[half:], default=0) <= width else 1
    )


def _add_text_with_halo(
    ax: Axes, text: str, at: Pair, offset: Pair, align: str = "center"
) -> None:
    """Write a small text with a halo, so that it can lie on lines."""
    part = encode_class_and_tooltip_as_svg_id("note")
    add_text_label_near_point(
        ax, text, at, offset, align, "muted", size=12, zorder=4, gid=part
    )


def _shade_range_of_x_axis(ax: Axes, low: float, high: float, text: str) -> None:
    """Shade a range of x, at least 6 pixels wide, with a note at its foot."""
    pixels = ax.transData.transform([(low, 0), (high, 0)])
    pixels[1, 0] = max(pixels[1, 0], pixels[0, 0] + 6)
    (low, _), (high, _) = ax.transData.inverted().transform(pixels)
    ax.axvspan(low, high, color=get_css_color("muted"), alpha=0.13, lw=0)
    _add_text_with_halo(ax, text, ((low + high) / 2, ax.get_ylim()[0]), (0, 7))


def _plot_line_with_band(ax: Axes, line: LearnerPlotLine, marks: bool = False) -> None:
    """Draw the mean as a line within a band of one standard deviation each way."""
    limits, look = ax.get_ylim(), get_line_style_of_learner(line.style, marks)
    band = [
        (p.x, *_clip_one_standard_deviation_interval(p.mean, p.std, limits))
        for p in line.points
        if p.std is not None
    ]
    if len(band) > 1:
        at, low, high = zip(*band, strict=True)
        part = encode_class_and_tooltip_as_svg_id("band")
        outline = [*at, *reversed(at)], [*low, *reversed(high)]
        ax.fill(*outline, color=look["color"], alpha=0.13, lw=0, gid=part)
    tips = (
        [_describe_point_in_tooltip(line.label, point) for point in line.points]
        if marks
        else []
    )
    means = [
        _clip_one_standard_deviation_interval(point.mean, 0, limits)[0]
        for point in line.points
    ]
    xs = [point.x for point in line.points]
    ax.plot(xs, means, **look, gid=encode_class_and_tooltip_as_svg_id("line", tips))


def _plot_scores_of_training_environment(
    ax: Axes, track: EnvironmentScoresByStage, strength: float
) -> None:
    """Draw a training environment: rings until it arrives, then dots."""
    grey, page = get_css_color("muted"), get_css_color("page")
    xs, means = [p.x for p in track.points], [p.mean for p in track.points]
    fills = [grey if x >= (track.arrival or 0) else page for x in xs]
    part = encode_class_and_tooltip_as_svg_id(
        "mark", [_describe_point_in_tooltip(track.environment, p) for p in track.points]
    )
    ax.plot(
        xs,
        means,
        color=grey,
        lw=1.5,
        alpha=strength,
        gid=encode_class_and_tooltip_as_svg_id("line"),
    )
    ax.scatter(xs, means, 25, fills, ec=grey, alpha=strength, zorder=3, gid=part)


def _build_lines_of_chance_score(
    chance: float | None, xlim: Pair
) -> list[LearnerPlotLine]:
    """Return the score of guessing as a line; none if it is not known."""
    if chance is None:
        return []
    points = tuple(SummaryCurvePoint(end, chance, None) for end in xlim)
    return [LearnerPlotLine(f"chance, {chance:.3g} %", points, CHANCE)]


def _find_x_range_of_lines(points: Sequence[SummaryCurvePoint]) -> Pair:
    low, high = min(p.x for p in points), max(p.x for p in points)
    return low, high if high > low else low + 1


def _choose_score_limits(points: Sequence[SummaryCurvePoint], metric: str) -> Pair:
    """Return 0 and 100 for percent, else 0 and a round value above all."""
    if metric == "accuracy" or not points:
        return 0, 100
    highest = max(point.mean + (point.std or 0) for point in points)
    return choose_round_axis_limits([0, highest or 1])


def _clip_one_standard_deviation_interval(
    mean: float, std: float | None, limits: Pair
) -> list[float]:
    """Return the ends of one standard deviation each way, inside the axes."""
    ends = (mean - (std or 0), mean + (std or 0))
    return [min(max(end, limits[0]), limits[1]) for end in ends]


def _describe_point_in_tooltip(label: str, point: SummaryCurvePoint) -> str:
    spread = "" if point.std is None else f" ± {point.std:.3g}"
    return f"{label} at {point.x:g}: {point.mean:.4g}{spread}"


def _join_line_names(lines: Sequence[LearnerPlotLine]) -> str:
    return join_words([line.label for line in lines]) or "no learner"


def _split_line_at_stages(
    line: LearnerPlotLine, starts: Sequence[float]
) -> list[LearnerPlotLine]:
    parts: dict[int, list[SummaryCurvePoint]] = {}
    for point in line.points:
        parts.setdefault(sum(start <= point.x for start in starts), []).append(point)
    return [
        LearnerPlotLine(line.label, tuple(points), line.style)
        for points in parts.values()
    ]


def _drop_points_too_close_to_draw(line: LearnerPlotLine, log: bool) -> LearnerPlotLine:
    """Keep few enough points to draw, the last one included."""
    points = [p for p in line.points if p.mean > 0 or not log]
    stride = max(-(-len(points) // MOST_POINTS), 1)
    return LearnerPlotLine(line.label, (*points[:-1:stride], *points[-1:]), line.style)
