"""Figures of the paper's theory: projections, the causal graph, rates and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cirm.report.axes import choose_round_axis_limits, show_axis_ticks_and_titles
from cirm.report.drawing import (
    DOTS,
    add_text_label_near_point,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    get_line_style_of_learner,
    render_as_inline_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Distribution = Sequence[float]
BELIEF = 3  # the style of beliefs; the sets have the styles before it
HEIGHT = math.sqrt(3) / 2  # of the triangle, whose sides are 1
NAMES = ("q⁻", "q*", "q⁺")
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@render_as_inline_svg
def plot_simplex_projections(
    names: Sequence[str],
    ends: Sequence[tuple[Distribution, Distribution]],
    beliefs: Sequence[Distribution],
) -> tuple[Axes, str]:
    """Plot sets as lines in the triangle of three outcomes, and the projections."""
    box = (40, 40, 440, 40 + 400 * HEIGHT)
    ax = create_blank_axes((550, 80 + 400 * HEIGHT), box, (0, 1), (0, HEIGHT))
    corners = [
        _get_triangle_coordinates(corner)
        for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    ax.plot(*zip(*corners, corners[0], strict=True), color=get_css_color("muted"), lw=1)
    for number, (corner, lift) in enumerate(zip(corners, (-20, -20, 10), strict=True)):
        add_text_label_near_point(
            ax, f"outcome {number + 1}", corner, (0, lift), "center", "muted"
        )
    for style, (name, set_ends) in enumerate(zip(names, ends, strict=True)):
        left, right = sorted(map(_get_triangle_coordinates, set_ends))
        ax.plot(
            *zip(left, right, strict=True),
            **get_line_style_of_learner(style, marks=False),
        )
        slope = math.atan2(right[1] - left[1], right[0] - left[0])
        beyond = (14 * math.cos(slope), 14 * math.sin(slope) - 4)
        add_text_label_near_point(ax, name, right, beyond)
    steps = [_get_triangle_coordinates(belief) for belief in beliefs]
    ax.plot(*zip(*steps, strict=True), **get_line_style_of_learner(BELIEF))
    add_text_label_near_point(ax, _format_number_as_subscript(0), steps[0], (12, -4))
    add_text_label_near_point(
        ax, _format_number_as_subscript(len(steps) - 1), steps[-1], (12, -18)
    )
    text = f"{len(steps) - 1} projections in turn onto the sets {', '.join(names)}"
    return ax, text


@render_as_inline_svg
def plot_support_projections(
    names: Sequence[str],
    allowed: Sequence[Sequence[bool]],
    beliefs: Sequence[Distribution],
) -> tuple[Axes, str]:
    """Plot each belief as bars, over the shaded outcomes that its set allows."""
    rows, outcomes = len(beliefs), range(len(beliefs[0]))
    size = (480, 84 * rows + 8)
    ax = create_blank_axes(
        size, (96, 4, 480, size[1]), (-0.5, len(outcomes) - 0.5), (-rows, 0)
    )
    top = max(max(belief) for belief in beliefs)
    for row, belief in enumerate(beliefs):
        base = -row - 0.95
        name = (
            f"{_format_number_as_subscript(row)} in {names[row - 1]}"
            if row
            else _format_number_as_subscript(0)
        )
        add_text_label_near_point(ax, name, (-0.5, base), (-96, 18))
        mask = allowed[row - 1] if row else [False] * len(outcomes)
        hue = get_line_style_of_learner(max(row - 1, 0))["color"]
        inside = [n for n in outcomes if mask[n]]
        ax.bar(
            inside,
            0.8,
            1,
            base,
            color=hue,
            alpha=0.13,
            gid=encode_class_and_tooltip_as_svg_id("band"),
        )
        heights = [0.8 * mass / top for mass in belief]
        held = [n for n in outcomes if belief[n] > 0]
        tall = [heights[n] for n in held]
        ax.bar(held, tall, 0.75, base, color=get_line_style_of_learner(BELIEF)["color"])
        ax.plot(
            (-0.5, len(outcomes) - 0.5),
            (base, base),
            color=get_css_color("muted"),
            lw=1,
        )
    return ax, f"Distributions after projection onto {', '.join(names)}"


@render_as_inline_svg
def plot_belief_densities(
    steps: Sequence[tuple[Distribution, Distribution, Distribution]],
) -> tuple[Axes, str]:
    """Plot for each step the belief before, the best belief here, and the next one."""
    size, last = (480, 190 * len(steps)), len(steps[0][0]) - 1
    ax = create_blank_axes(size, (0, 0, *size), (0, last), (-len(steps), 0))
    for row, densities in enumerate(steps):
        base = -(row + 1) + 24 / 190
        place = (0, -row - 16 / 190)
        add_text_label_near_point(ax, f"environment {row + 2}", place, weight="bold")
        ax.plot((0, last), (base, base), color=get_css_color("muted"), lw=1)
        top = max(max(density) for density in densities)
        for style, name, density in zip((1, 0, 2), NAMES, densities, strict=True):
            heights = [base + 140 / 190 * mass / top for mass in density]
            ax.plot(heights, **get_line_style_of_learner(style, marks=False))
            if style == 2:
                hue = get_line_style_of_learner(style)["color"]
                ax.fill_between(range(last + 1), base, heights, color=hue, alpha=0.13)
            peak = max(range(last + 1), key=lambda n: heights[n])
            add_text_label_near_point(ax, name, (peak, heights[peak]), (0, 6), "center")
    return ax, f"Beliefs after environments 2 to {len(steps) + 1}"


@render_as_inline_svg
def plot_causal_graph() -> tuple[Axes, str]:
    """Plot the causal graph of coloured images, with the intervention on the colour."""
    ax = create_blank_axes((360, 240), (50, 40, 310, 200), (0, 1), (0, 1))
    places = {"digit": (0.0, 0.0), "colour": (0.0, 1.0), "image": (1.0, 0.0)}
    arrow = {"arrowstyle": "-|>", "color": get_css_color("ink"), "shrinkA": 30}
    for start, end in (("digit", "image"), ("colour", "image"), ("digit", "colour")):
        ax.annotate("", places[end], places[start], arrowprops={**arrow, "shrinkB": 30})
    for name, place in places.items():
        ax.plot(
            *place,
            "o",
            ms=52,
            mfc="none",
            mec=get_css_color("muted"),
            clip_on=False,
        )
        add_text_label_near_point(ax, name, place, (0, -5), "center")
    hit = {
        **arrow,
        "color": get_line_style_of_learner(0)["color"],
        "shrinkA": 4,
        "shrinkB": 30,
    }
    ax.annotate("", places["colour"], (0.45, 1.1), arrowprops=hit)
    add_text_label_near_point(ax, "environment", (0.47, 1.1), (0, -5))
    arrows = "digit to image, colour to image, digit to colour"
    return ax, f"Causal graph: {arrows}; the environment acts on the colour"


@render_as_inline_svg
def plot_admm_rates(
    curves: Sequence[tuple[str, Sequence[int], Sequence[float], Sequence[float]]],
) -> tuple[Axes, str]:
    """Plot gaps over steps, each with the order that bounds it as a dotted line."""
    values = [v for _, _, gaps, bounds in curves for v in (*gaps, *bounds)]
    steps = [step for curve in curves for step in curve[1]]
    ax = create_blank_axes(
        (640, 340),
        (56, 46, 480, 300),
        choose_round_axis_limits(steps, log=True),
        choose_round_axis_limits(values, log=True),
    )
    show_axis_ticks_and_titles(ax, ("steps", "gap"), log=(True, True))
    for style, (name, x, gaps, bounds) in enumerate(curves):
        look = get_line_style_of_learner(style, marks=False)
        ax.plot(x, gaps, **look)
        ax.plot(x, bounds, **{**look, "ls": DOTS, "lw": 1.5})
        add_text_label_near_point(ax, name, (x[-1], gaps[-1]), (8, 10 * style - 4))
    names = ", ".join(name for name, *_ in curves)
    return ax, f"Gap of stochastic ADMM over steps: {names}"


@render_as_inline_svg
def plot_invariance_counts(
    counts: Sequence[tuple[int, int, int]], theoretical_number: int, n_starts: int
) -> tuple[Axes, str]:
    """Plot how many solutions are found, and how many of them do not carry over."""
    ax = create_blank_axes(
        (560, 300), (56, 46, 540, 260), (0.5, len(counts) + 0.5), (0, n_starts)
    )
    show_axis_ticks_and_titles(ax, ("environments", "starts"), log=(False, False))
    numbers = [count[0] for count in counts]
    ax.bar(numbers, [c[1] for c in counts], 0.7, color=get_css_color("rule"))
    hue = get_line_style_of_learner(0)["color"]
    ax.bar(numbers, [c[2] for c in counts], 0.7, color=hue)
    ax.axvline(theoretical_number + 0.5, color=get_css_color("muted"), lw=1.5, ls=DOTS)
    text = "; ".join(f"{n}: {bad} of {all_} violate" for n, all_, bad in counts)
    return ax, f"Invariant predictors by the number of environments: {text}"


def _get_triangle_coordinates(belief: Distribution) -> tuple[float, float]:
    """Return where a distribution of three outcomes lies in the triangle."""
    _, second, third = belief
    return second + third / 2, HEIGHT * third


def _format_number_as_subscript(number: int) -> str:
    return f"p{str(number).translate(SUBSCRIPTS)}"
