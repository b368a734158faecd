import json
import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm.report.axes import NARROW, WIDE
from cirm.report.drawing import (
    CEILING,
    CHANCE,
    get_line_style_of_learner,
    render_svg_file,
)
from cirm.report.plots import (
    LearnerPlotLine,
    TrainingAndUnseenScore,
    plot_legend_swatch,
    plot_scores_after_stages,
    plot_scores_of_trials,
    plot_scores_over_sweep,
    plot_training_against_unseen_scores,
    plot_training_curves,
    plot_training_to_unseen_score,
    spread_overlapping_label_positions,
)
from cirm.report.summary import (
    MeanAndStd,
    SummaryCurvePoint,
    collect_scores_after_each_stage,
    collect_scores_along_sweep,
    summarise_records,
)

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e6, 1e6)


def lines_of(records):
    curves = collect_scores_along_sweep(records).items()
    return [
        LearnerPlotLine(name, points, style)
        for style, (name, points) in enumerate(curves)
    ]


def pairs_of(records):
    learners = summarise_records(records)["learners"].items()
    return [
        TrainingAndUnseenScore(
            name, MeanAndStd(**entry["train"]), MeanAndStd(**entry["test"]), style
        )
        for style, (name, entry) in enumerate(learners)
    ]


def plot_all(records, width):
    falling = LearnerPlotLine(
        "erm", tuple(SummaryCurvePoint(n, 10.0**-n, 0.0) for n in range(5)), 0
    )
    pairs = pairs_of(records)
    return {
        "sweep": plot_scores_over_sweep(
            lines_of(records), chance=50.0, trained_at=(0.1, 0.2), width=width
        ),
        "scatter": plot_training_against_unseen_scores(pairs, chance=50.0, width=width),
        "curves": plot_training_curves(
            [falling], metric="residual", starts=(0, 2), log=True, width=width
        ),
        "stream": plot_scores_after_stages(
            "erm", collect_scores_after_each_stage(records)["erm"], chance=50.0
        ),
        "trials": plot_scores_of_trials(
            "rate",
            "Score over rate",
            [(0, 0.1, 3), (1, 1, 5)],
            picked_trial=1,
            log=True,
        ),
        "span": plot_training_to_unseen_score(
            pairs[0], low=0, high=100, references=[50]
        ),
        "swatch": plot_legend_swatch(0),
    }


def parse(figure):
    return ElementTree.fromstring(figure)


def texts_of(figure):
    return [element.text for element in parse(figure).iter(f"{SVG}text")]


def part(figure, name, kind="path"):
    """The elements of a kind inside the groups of a class."""
    groups = [g for g in parse(figure).iter(f"{SVG}g") if g.get("class") == name]
    return [element for group in groups for element in group.iter(f"{SVG}{kind}")]


def corners(path):
    """The points of a path without curves."""
    values = [float(value) for value in re.findall(r"-?[\d.]+", path.get("d"))]
    return list(zip(values[::2], values[1::2], strict=True))


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_figures_are_well_formed_described_and_the_same_each_time(records, width):
    again = plot_all(records, width)
    for name, figure in plot_all(records, width).items():
        root = parse(figure)
        assert root.tag == f"{SVG}svg"
        assert root.get("role") == "img"
        assert root.find(f"{SVG}title").text == root.get("aria-label")
        assert figure == again[name]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_figures_hold_no_id_no_date_and_no_colour_of_their_own(records, width):
    for figure in plot_all(records, width).values():
        assert not re.search(r" id=|#|url\(|\b20\d\d-|font-family", figure)
        assert "var(--" in figure


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_learner_is_named_in_the_sweep_and_the_scatter(records, width):
    figures = plot_all(records, width)
    names = {line.label for line in lines_of(records)} | {"chance, 50 %"}
    for figure in ("sweep", "scatter"):
        assert names <= set(texts_of(figures[figure]))


def test_a_line_is_drawn_at_its_values_and_its_marks_say_them():
    line = LearnerPlotLine(
        "erm",
        (SummaryCurvePoint(0.0, 100.0, None), SummaryCurvePoint(1.0, 0.0, 2.5)),
        0,
    )
    figure = plot_scores_over_sweep([line])
    rules = [corners(rule) for rule in part(figure, "rule")]
    heights = [rule[0][1] for rule in rules]
    (left, _), (right, _) = rules[0]
    path = part(figure, "line")[0]
    assert corners(path) == [(left, min(heights)), (right, max(heights))]
    tips = [tip.text for tip in part(figure, "line", "title")]
    assert tips == ["erm at 0: 100", "erm at 1: 0 ± 2.5"]


def test_a_band_ends_at_the_axes():
    line = LearnerPlotLine(
        "erm",
        (SummaryCurvePoint(0.0, 90.0, 50.0), SummaryCurvePoint(1.0, 10.0, 50.0)),
        0,
    )
    figure = plot_scores_over_sweep([line])
    heights = [rule[0][1] for rule in map(corners, part(figure, "rule"))]
    band = [y for path in part(figure, "band") for _, y in corners(path)]
    assert (min(band), max(band)) == (min(heights), max(heights))


def test_bars_of_one_standard_deviation_end_at_the_axes():
    pair = TrainingAndUnseenScore(
        "erm", MeanAndStd(99.0, 9.0, 3), MeanAndStd(50.0, 10.0, 3), 0
    )
    figure = plot_training_against_unseen_scores([pair])
    root = parse(figure)
    bars = [p for p in root.iter(f"{SVG}path") if "opacity: 0.6" in p.get("style", "")]
    (left, right), (low, high) = map(corners, bars)
    ends = corners(part(figure, "rule")[0])
    assert right[0] == ends[1][0] and left[0] < right[0]
    assert abs(low[1] - high[1]) == pytest.approx(0.2 * 370, abs=0.2)


def test_markup_and_formulas_in_a_name_stay_text():
    line = LearnerPlotLine(
        "<script>&\x00 $x$",
        (SummaryCurvePoint(0.0, 50.0, 1.0), SummaryCurvePoint(1.0, 50.0, 1.0)),
        0,
    )
    figure = plot_scores_over_sweep([line], axis='"<b>')
    assert "<script" not in figure
    assert "<b>" not in figure
    assert "<script>&\N{REPLACEMENT CHARACTER} $x$" in texts_of(figure)


def test_letters_that_the_font_lacks_are_left_to_the_browser():
    line = LearnerPlotLine(
        "方法",
        (SummaryCurvePoint(0.0, 50.0, None), SummaryCurvePoint(1.0, 50.0, None)),
        0,
    )
    assert "方法" in texts_of(plot_scores_over_sweep([line]))


def test_figures_of_little_or_nothing_are_still_figures():
    alone = LearnerPlotLine("erm", (SummaryCurvePoint(0.3, 40.0, None),), 0)
    none = TrainingAndUnseenScore(
        "erm", MeanAndStd(None, None, 0), MeanAndStd(None, None, 0), 0
    )
    for figure in (
        plot_scores_over_sweep([]),
        plot_scores_over_sweep([], width=NARROW),
        plot_scores_over_sweep([alone]),
        plot_scores_over_sweep([alone], metric="error"),
        plot_training_curves([], metric="loss"),
        plot_training_curves([alone], metric="loss", log=True),
        plot_training_curves(
            [LearnerPlotLine("erm", (SummaryCurvePoint(0, -1.0, None),), 0)],
            metric="a",
            log=True,
        ),
        plot_training_against_unseen_scores([none]),
        plot_scores_after_stages("erm", []),
        plot_scores_of_trials("rate", "scores", [(0, 1.0, 2.0)], picked_trial=0),
        plot_training_to_unseen_score(none, low=0, high=1),
    ):
        assert "nan" not in figure
        parse(figure)


def test_a_figure_alone_brings_its_colours_along():
    line = LearnerPlotLine(
        "erm",
        (SummaryCurvePoint(0.0, 50.0, None), SummaryCurvePoint(1.0, 50.0, None)),
        0,
    )
    root = parse(render_svg_file(plot_scores_over_sweep([line])))
    css = root.find(f"{SVG}style").text
    for name in set(re.findall(r"var\((--\w+)\)", plot_scores_over_sweep([line]))):
        assert css.count(f"{name}: #") == 2  # in light and in dark


def test_a_long_curve_is_thinned_and_keeps_its_last_point():
    points = tuple(SummaryCurvePoint(n, float(n), None) for n in range(5000))
    figure = plot_training_curves([LearnerPlotLine("erm", points, 0)], metric="loss")
    path = corners(part(figure, "line")[0])
    assert len(path) < 200
    assert path[-1][0] == corners(part(figure, "base")[0])[1][0]


def test_lines_of_training_break_where_a_stage_starts():
    points = tuple(SummaryCurvePoint(n, float(n % 3), None) for n in range(6))
    figure = plot_training_curves(
        [LearnerPlotLine("erm", points, 0)], metric="loss", starts=(0, 3)
    )
    assert [len(corners(path)) for path in part(figure, "line")] == [3, 3]


def test_environments_are_rings_until_they_arrive(records):
    tracks = [
        t
        for t in collect_scores_after_each_stage(records)["erm"]
        if t.environment == "late"
    ]
    figure = plot_scores_after_stages("erm", tracks)
    fills = [mark.get("style") for mark in part(figure, "mark")]
    assert ["fill: var(--page)" in fill for fill in fills] == [True, False]


def test_24_learners_and_the_references_look_different_and_chance_has_no_mark():
    looks = [
        get_line_style_of_learner(style) for style in (*range(24), CEILING, CHANCE)
    ]
    assert len({json.dumps(look, sort_keys=True) for look in looks}) == 26
    assert "marker" not in get_line_style_of_learner(CHANCE)
    pairs = {(look["color"], look.get("marker")) for look in looks[:12]}
    assert len(pairs) == 12


def test_logarithmic_axes_are_labelled_in_decades():
    line = LearnerPlotLine(
        "erm", (SummaryCurvePoint(0, 0.002, None), SummaryCurvePoint(1, 30.0, None)), 0
    )
    texts = texts_of(plot_training_curves([line], metric="loss", log=True))
    assert {"10⁻³", "10⁻¹", "10¹"} <= set(texts)


def test_settings_of_the_user_do_not_change_a_figure():
    import matplotlib

    before = plot_legend_swatch(0), plot_scores_after_stages("erm", [])
    with matplotlib.rc_context({"lines.antialiased": False, "font.size": 30}):
        assert (plot_legend_swatch(0), plot_scores_after_stages("erm", [])) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_importing_the_report_does_not_load_matplotlib():
    code = "import cirm.report, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"


@given(st.lists(numbers, max_size=12), st.floats(1, 100))
def test_labels_keep_their_order_and_their_distance(positions, gap):
    places = spread_overlapping_label_positions(positions, gap, -1e7, 1e7)
    ranked = sorted(range(len(positions)), key=lambda n: positions[n])
    for first, second in pairwise(ranked):
        assert places[second] - places[first] >= gap * (1 - 1e-6)


@given(st.lists(numbers, min_size=1, max_size=12))
def test_labels_stay_inside_where_they_fit(positions):
    places = spread_overlapping_label_positions(positions, 10.0, 0.0, 200.0)
    assert min(places) >= 0.0
    assert max(places) <= 200.0 + 1e-9


def test_labels_with_room_stay_where_they_are_wanted():
    assert spread_overlapping_label_positions([50.0, 10.0], 16.0, 0.0, 100.0) == [
        50.0,
        10.0,
    ]
    assert spread_overlapping_label_positions([50.0, 50.0], 16.0, 0.0, 100.0) == [
        42.0,
        58.0,
    ]
