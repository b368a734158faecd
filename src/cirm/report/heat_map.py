"""A heat map: numbers in coloured cells, readable without telling green from red."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from cirm.report.axes import LETTER, shorten_text_to_pixel_width
from cirm.report.drawing import (
    TIPPED_SHAPE,
    add_text_label_near_point,
    create_blank_axes,
    encode_class_and_tooltip_as_svg_id,
    get_css_color,
    render_as_inline_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GOOD, BAD = "s1", "s0"  # blue and vermilion, the safest pair of Okabe and Ito
ROW, COLUMN, HEAD = 40, 60, 52  # pixels: a cell, and the headings of the columns
FAINTEST, FULLEST = 0.1, 0.55  # opacity of cells; text on them stays readable
LABEL = 225  # pixels for the names of the rows


class HeatMapCell(NamedTuple):
    """A cell of a heat map.

    Attributes:
        text: The number in the cell.
        note: A smaller number below it.
        strength: The colour: from -1 for full vermilion to 1 for full blue.
        tip: What the cell says when pointed at.
    """

    text: str
    note: str
    strength: float
    tip: str = ""


@render_as_inline_svg
def plot_heat_map(
    rows: Sequence[str],
    columns: Sequence[tuple[str, str]],
    cells: Mapping[tuple[int, int], HeatMapCell],
    *,
    label: str,
) -> tuple[Axes, str]:
    """Plot cells by row and column; columns have a group and a heading."""
    left = min(LABEL, 20 + LETTER * max(map(len, rows), default=0))
    width, height = left + COLUMN * len(columns), HEAD + ROW * len(rows)
    box = (left, 0, width, ROW * len(rows))
    limits = (0, max(1, len(columns))), (len(rows), 0)
    ax = create_blank_axes((width, height), box, *limits)
    for (row, column), cell in cells.items():
        _draw_heat_cell(ax, row, column, cell)
    for row, name in enumerate(rows):
        text = shorten_text_to_pixel_width(name, left - 10)
        add_text_label_near_point(ax, text, (0, row + 0.5), (-10, -4), "right", size=12)
    start = 0
    for group, members in groupby(columns, key=lambda column: column[0]):
        count = len(list(members))
        if group:
            middle = start + count / 2
            add_text_label_near_point(
                ax, group, (middle, 0), (0, 30), "center", "muted", size=12
            )
        for column in range(start, start + count):
            heading = shorten_text_to_pixel_width(columns[column][1], 1.25 * COLUMN)
            add_text_label_near_point(
                ax, heading, (column + 0.5, 0), (0, 9), "center", "muted", size=11
            )
        start += count
    return ax, label


def _draw_heat_cell(ax: Axes, row: int, column: int, cell: HeatMapCell) -> None:
    from matplotlib.patches import Rectangle

    color = get_css_color(GOOD if cell.strength >= 0 else BAD)
    strength = min(1.0, abs(cell.strength))
    # The gap keeps neighbours apart where their colours are alike.
    place, size = (column + 0.03, row + 0.04), (0.94, 0.92)
    look: Any = {
        "facecolor": color,
        "alpha": FAINTEST + (FULLEST - FAINTEST) * strength,
        "lw": 0,
    }
    part = encode_class_and_tooltip_as_svg_id(
        TIPPED_SHAPE, [cell.tip] if cell.tip else []
    )
    ax.add_patch(Rectangle(place, *size, **look, gid=part))
    middle = (column + 0.5, row + 0.5)
    add_text_label_near_point(
        ax, cell.text, middle, (0, 1), "center", size=13, weight="bold"
    )
    part = encode_class_and_tooltip_as_svg_id("cell-note")
    add_text_label_near_point(
        ax, cell.note, middle, (0, -13), "center", size=11, gid=part
    )
