import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm.report import along_stream, summarise, sweep
from cirm.report.axes import apart, spanning, tick_text
from cirm.report.figures import (
    NARROW,
    WIDE,
    curves_figure,
    scatter_figure,
    span_figure,
    standalone,
    stream_figure,
    sweep_figure,
)
from cirm.report.marks import CHANCE, Line, Pair
from cirm.report.summary import Point, Statistic

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e6, 1e6)


def lines_of(records):
    curves = sweep(records).items()
    return [Line(name, points, style) for style, (name, points) in enumerate(curves)]


def pairs_of(records):
    learners = summarise(records)["learners"].items()
    return [
        Pair(name, Statistic(**entry["train"]), Statistic(**entry["test"]), style)
        for style, (name, entry) in enumerate(learners)
    ]


def drawn(records, width):
    falling = Line("erm", tuple(Point(n, 10.0**-n, 0.0) for n in range(5)), 0)
    tracks = along_stream(records)["erm"]
    return {
        "sweep": sweep_figure(
            lines_of(records), chance=50.0, trained=(0.1, 0.2), width=width
        ),
        "scatter": scatter_figure(pairs_of(records), chance=50.0, width=width),
        "curves": curves_figure(
            [falling], metric="residual", starts=(0, 2), log=True, width=width
        ),
        "stream": stream_figure("erm", tracks, chance=50.0, width=width),
        "span": span_figure(pairs_of(records)[0], low=0, high=100, references=[50]),
    }


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_figures_are_well_formed_described_and_the_same_each_time(records, width):
    again = drawn(records, width)
    for name, figure in drawn(records, width).items():
        root = ElementTree.fromstring(figure)
        assert root.tag == f"{SVG}svg"
        assert root.get("role") == "img"
        assert root.find(f"{SVG}title").text == root.get("aria-label")
        assert figure == again[name]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_learner_is_named_in_the_sweep_and_the_scatter(records, width):
    figures = drawn(records, width)
    for name in ("sweep", "scatter"):
        root = ElementTree.fromstring(figures[name])
        texts = {element.text for element in root.iter(f"{SVG}text")}
        assert {line.label for line in lines_of(records)} | {"chance, 50 %"} <= texts


def test_a_line_is_drawn_at_its_values():
    line = Line("erm", (Point(0.0, 100.0, None), Point(1.0, 0.0, None)), 0)
    root = ElementTree.fromstring(sweep_figure([line]))
    path = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "line")
    rules = [r for r in root.iter(f"{SVG}line") if r.get("class") == "rule"]
    heights = [float(rule.get("y1")) for rule in rules]
    left, right = float(rules[0].get("x1")), float(rules[0].get("x2"))
    assert (
        path.get("d")
        == f"M{left:.1f} {min(heights):.1f}L{right:.1f} {max(heights):.1f}"
    )


def test_markup_in_a_name_stays_text():
    line = Line("<script>&\x00", (Point(0.0, 50.0, 1.0), Point(1.0, 50.0, 1.0)), 0)
    figure = sweep_figure([line], axis='"<b>')
    assert "<script" not in figure
    assert "<b>" not in figure
    texts = [t.text for t in ElementTree.fromstring(figure).iter(f"{SVG}text")]
    assert "<script>&\N{REPLACEMENT CHARACTER}" in texts


def test_figures_of_little_or_nothing_are_still_figures():
    alone = Line("erm", (Point(0.3, 40.0, None),), 0)
    none = Pair("erm", Statistic(None, None, 0), Statistic(None, None, 0), 0)
    for figure in (
        sweep_figure([]),
        sweep_figure([alone]),
        sweep_figure([alone], metric="error"),
        curves_figure([], metric="loss"),
        curves_figure([alone], metric="loss", log=True),
        curves_figure([Line("erm", (Point(0, -1.0, None),), 0)], metric="a", log=True),
        scatter_figure([none]),
        stream_figure("erm", []),
        span_figure(none, low=0, high=1),
    ):
        assert "nan" not in figure
        ElementTree.fromstring(figure)


def test_a_figure_alone_brings_its_colours_along():
    line = Line("erm", (Point(0.0, 50.0, None), Point(1.0, 50.0, None)), 0)
    root = ElementTree.fromstring(standalone(sweep_figure([line])))
    assert "--s0" in root.find(f"{SVG}style").text


def test_a_long_curve_is_thinned_and_keeps_its_last_point():
    points = tuple(Point(n, float(n), None) for n in range(5000))
    figure = curves_figure([Line("erm", points, 0)], metric="loss")
    root = ElementTree.fromstring(figure)
    path = next(p for p in root.iter(f"{SVG}path") if p.get("class") == "line")
    base = next(r for r in root.iter(f"{SVG}line") if r.get("class") == "base")
    corners = path.get("d").split("L")
    assert len(corners) < 200
    assert corners[-1].split()[0] == base.get("x2")


def test_learners_beyond_the_colours_are_dashed_and_chance_has_no_mark():
    points = (Point(0.0, 50.0, None), Point(1.0, 50.0, None))
    figure = sweep_figure([Line(str(n), points, n) for n in range(7)], chance=50.0)
    root = ElementTree.fromstring(figure)
    looks = {group.get("class") for group in root.iter(f"{SVG}g")}
    assert {"s0", "s5", "s0 dashed", "chance"} <= looks
    chance = Line("chance", points, CHANCE)
    assert 'class="mark"' not in sweep_figure([chance])


@given(st.lists(numbers, max_size=12), st.floats(1, 100))
def test_labels_keep_their_order_and_their_distance(wanted, gap):
    places = apart(wanted, gap, -1e7, 1e7)
    ranked = sorted(range(len(wanted)), key=lambda n: wanted[n])
    for first, second in pairwise(ranked):
        assert places[second] - places[first] >= gap * (1 - 1e-6)


@given(st.lists(numbers, min_size=1, max_size=12))
def test_labels_stay_inside_where_they_fit(wanted):
    places = apart(wanted, 10.0, 0.0, 200.0)
    assert min(places) >= 0.0
    assert max(places) <= 200.0 + 1e-9


def test_labels_with_room_stay_where_they_are_wanted():
    assert apart([50.0, 10.0], 16.0, 0.0, 100.0) == [50.0, 10.0]
    assert apart([50.0, 50.0], 16.0, 0.0, 100.0) == [42.0, 58.0]


@given(numbers, numbers)
def test_an_axis_holds_its_values_and_has_ticks(one, other):
    axis = spanning([one, other], 0.0, 100.0)
    slack = 1e-9 * max(abs(one), abs(other), 1)
    assert axis.low - slack <= min(one, other)
    assert axis.high + slack >= max(one, other)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 12
    assert all(map(math.isfinite, ticks))


def test_logarithmic_axes_are_even_in_decades():
    axis = spanning([0.002, 30.0], 0.0, 100.0, log=True)
    assert axis.ticks() == pytest.approx([0.001, 0.01, 0.1, 1, 10, 100])
    assert axis.at(0.1) == pytest.approx(40.0)
    assert tick_text(0.001, log=True) == "10⁻³"
