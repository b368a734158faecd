"""Heat maps: text on every cell is readable, and cells tell more when pointed at."""

import re
from importlib.resources import files

import pytest

from cirm.report.heat_map import BAD, FULLEST, GOOD, HeatMapCell, plot_heat_map

CSS = files("cirm.report").joinpath("figures.css").read_text("utf-8")
THEMES = dict(zip(("light", "dark"), CSS.split("@media")[:2], strict=True))


def read_color(theme, name):
    text = re.search(rf"--{name}: #([0-9a-f]{{6}})", THEMES[theme])[1]
    return [int(text[n : n + 2], 16) for n in (0, 2, 4)]


def compute_luminance(color):
    """The relative luminance of the web's accessibility guidelines."""
    parts = [part / 255 for part in color]
    linear = [
        p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", [GOOD, BAD])
def test_text_has_enough_contrast_on_the_fullest_cells(theme, name):
    page, cell = read_color(theme, "page"), read_color(theme, name)
    mixed = [FULLEST * c + (1 - FULLEST) * p for c, p in zip(cell, page, strict=True)]
    ink = compute_luminance(read_color(theme, "ink"))
    low, high = sorted((ink, compute_luminance(mixed)))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_cell_tells_more_when_pointed_at():
    cells = {(0, 0): HeatMapCell("12", "3", 1.0, "more <words>")}
    figure = plot_heat_map(["row"], [("", "column")], cells, label="A map")
    assert re.search(r"<path[^>]*><title>more &lt;words&gt;</title></path>", figure)
    plain = {(0, 0): HeatMapCell("12", "3", -1.0)}
    figure = plot_heat_map(["row"], [("", "column")], plain, label="A map")
    assert figure.count("<title>") == 1  # of the whole


def test_long_names_are_cut_to_their_room():
    figure = plot_heat_map(["x" * 80], [("", "y" * 40)], {}, label="A map")
    assert "x" * 40 not in figure and "y" * 20 not in figure
