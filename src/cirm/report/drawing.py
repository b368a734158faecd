"""What all figures share: colours, looks, axes, and the way from matplotlib to a page.

matplotlib draws each figure in the light colours of figures.css.
`render_as_inline_svg` puts CSS variables in the place of these colours, so that one
figure serves light pages, dark pages and paper. Text stays text, and the same data give
the same bytes.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec
from xml.etree import ElementTree

from cirm.report.markup import UNPRINTABLE, EscapedHtml

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CEILING, CHANCE = -1, -2  # styles of the two references
LINE_COLOURS = 6  # learner colours in figures.css, after Okabe and Ito
MARKERS = "os^D"
DASHES = ("-", (0, (3.5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
DOTS = (0, (1, 2))
TIPPED_SHAPE = "shape"  # class of a shape that says something when pointed at
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cirm",
    "text.parse_math": False,
    "axes.autolimit_mode": "round_numbers",
    "lines.solid_capstyle": "butt",
    "font.size": 13,
}
SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"
P = ParamSpec("P")
Pair = tuple[float, float]


def render_as_inline_svg(
    draw: Callable[P, tuple[Axes, str]],
) -> Callable[P, EscapedHtml]:
    """Let a function that returns axes and their description return inline SVG."""

    @wraps(draw)
    def draw_figure_with_page_style(*args: P.args, **kwargs: P.kwargs) -> EscapedHtml:
        import matplotlib

        file = BytesIO()
        with matplotlib.rc_context(), warnings.catch_warnings():
            # The reader's browser has the letters that matplotlib's own font lacks.
            warnings.filterwarnings("ignore", message="Glyph")
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(SETTINGS)
            ax, label = draw(*args, **kwargs)
            none = {"Date": None}  # which would differ from day to day
            ax.figure.canvas.print_figure(file, format="svg", metadata=none)
        return _simplify_svg_of_matplotlib(
            ElementTree.fromstring(file.getvalue()),
            replace_characters_invalid_in_xml(label),
        )

    return draw_figure_with_page_style


def render_svg_file(figure: str) -> str:
    """Turn a figure into the content of an .svg file, with its colours inside."""
    return figure.replace("<title>", f"<style>{_read_figure_css()}</style><title>", 1)


def get_css_color(name: str) -> str:
    """Return the light colour that figures.css gives to a variable."""
    return _read_css_colors()[name]


def get_line_style_of_learner(style: int, marks: bool = True) -> dict[str, Any]:
    """Return a learner's look, for `Axes.plot`; the first 24 styles differ."""
    if style == CHANCE:
        return {"color": get_css_color("muted"), "lw": 1.5, "ls": DOTS}
    if style == CEILING:
        shape = (
            get_hollow_marker_style("ink") if marks else {"color": get_css_color("ink")}
        )
        return {**shape, "lw": 1.5, "ls": (0, (3.5, 3.5))}
    return {
        "color": get_css_color(f"s{style % LINE_COLOURS}"),
        "lw": 2,
        "ls": DASHES[style // LINE_COLOURS % len(DASHES)],
        "marker": MARKERS[style % len(MARKERS)] if marks else "",
        "ms": 8,
        "mec": get_css_color("page"),
    }


def get_line_style_variant(style: int, variant_index: int) -> int:
    """Return a style in the same colour, for another line of the same learner."""
    # The first dashes are those of the learners after the first six.
    return style + LINE_COLOURS * (2 + variant_index) if style >= 0 else style


def get_hollow_marker_style(tone: str) -> dict[str, Any]:
    """Return the look of a hollow mark."""
    hue = get_css_color(tone)
    look = {"color": hue, "mec": hue, "mfc": get_css_color("page"), "mew": 1.5}
    return {**look, "marker": "o", "ms": 7}


def encode_class_and_tooltip_as_svg_id(name: str, tips: Sequence[str] = ()) -> str:
    """Encode the class of a part, and the tooltips of its marks, as its gid."""
    return json.dumps([name, *tips])


def create_blank_axes(
    size: Pair, box: tuple[float, float, float, float], xlim: Pair, ylim: Pair
) -> Axes:
    """Start a figure with axes that show nothing of themselves.

    `box` is left, bottom, right and top of the axes, in pixels from the lower left.
    """
    from matplotlib.figure import Figure

    (width, height), (left, bottom, right, top) = size, box
    # SVG has 72 dots per inch, so that a dot is a pixel of the page.
    figure = Figure((width / 72, height / 72), dpi=72, facecolor="none")
    extent = ((right - left) / width, (top - bottom) / height)
    ax = figure.add_axes((left / width, bottom / height, *extent), facecolor="none")
    ax.set(xlim=xlim, ylim=ylim)
    ax.set_axis_off()
    return ax


def add_text_label_near_point(
    ax: Axes,
    text: str,
    at: Pair,
    offset: Pair = (0, 0),
    align: str = "left",
    tone: str = "ink",
    **options: str | float,
) -> None:
    """Write a text some pixels away from a point of the axes."""
    place: dict[str, Any] = {"xycoords": "data", "textcoords": "offset pixels"}
    look = {"color": get_css_color(tone), "ha": align, "annotation_clip": False}
    ax.annotate(
        replace_characters_invalid_in_xml(text), at, offset, **place | look | options
    )


def replace_characters_invalid_in_xml(text: str) -> str:
    """Replace the characters that XML cannot hold."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _simplify_svg_of_matplotlib(root: ElementTree.Element, label: str) -> EscapedHtml:
    """Reduce matplotlib's SVG to what a page needs.

    Ids of several figures on one page would clash, so nothing has an id: marks are
    written out where they are used, and names of parts become classes.
    """
    tag = f"{{{SVG}}}"
    marks = {f"#{e.get('id')}": e.get("d", "") for e in root.iter(f"{tag}path")}

    def copy_svg_element(
        element: ElementTree.Element, tips: list[str]
    ) -> ElementTree.Element:
        kind, name = element.tag.removeprefix(tag), element.get("id", "")
        keys = ("viewBox", "d", "x", "y", "style")
        look = {key: _shorten_numbers_in_svg(element.get(key, "")) for key in keys}
        if name.startswith("["):
            look["class"], *tips = json.loads(name)
        if kind == "use":
            kind, look["d"] = (
                "path",
                _shorten_numbers_in_svg(marks[element.get(HREF, "")]),
            )
            look["transform"] = f"translate({look.pop('x')} {look.pop('y')})"
        twin = ElementTree.Element(kind, {k: v for k, v in look.items() if v})
        twin.text = element.text if kind == "text" else None
        for child in element:
            if child.tag not in (f"{tag}defs", f"{tag}metadata"):
                part = copy_svg_element(child, tips)
                twin.extend([part] if len(part) or part.tag != "g" else [])
        is_shape = look.get("class") == TIPPED_SHAPE
        if is_shape or element.find(f"{tag}use") is not None:
            for mark, tip in zip(twin, tips, strict=False):
                ElementTree.SubElement(
                    mark, "title"
                ).text = replace_characters_invalid_in_xml(tip)
        return twin

    whole = copy_svg_element(root, [])
    width, height = whole.get("viewBox", "").split()[2:]
    size = {"xmlns": SVG, "width": width, "height": height}
    whole.attrib |= {**size, "class": "drawing", "role": "img", "aria-label": label}
    whole.insert(0, ElementTree.Element("title"))
    whole[0].text = label
    return EscapedHtml(ElementTree.tostring(whole, encoding="unicode"))


def _shorten_numbers_in_svg(text: str) -> str:
    """Round numbers to what an eye can see, and put variables in place of colours."""
    names = {value: name for name, value in _read_css_colors().items()}
    text = re.sub(r"#[0-9a-f]{6}", lambda m: f"var(--{names[m[0]]})", text)
    text = re.sub(r" font-family:[^;]*;", "", text)
    text = re.sub(r"-?\d+\.\d+", lambda m: f"{round(float(m[0]), 1) + 0.0:g}", text)
    return " ".join(text.split())


@cache
def _read_figure_css() -> str:
    return files("cirm.report").joinpath("figures.css").read_text(encoding="utf-8")


@cache
def _read_css_colors() -> dict[str, str]:
    light = _read_figure_css().partition("@media")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))
