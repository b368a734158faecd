"""A self-contained HTML page: a title, a lead and sections of text, tables, figures."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from json import dumps
from typing import Any

from cirm.report.markup import Markup, join_markup, tag
from cirm.report.table import Table, render_html

# The page contains all it needs, so the browser need not load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Args:
        heading: The heading; empty for none.
        content: What follows: tables, markup, and text, which becomes a paragraph.
    """

    heading: str
    content: Sequence[str | Table]


@dataclass(frozen=True)
class Picture:
    """A PNG picture with its caption.

    Args:
        png: The bytes of a PNG file.
        caption: The sentence below the picture.

    Raises:
        ValueError: If the bytes are not those of a PNG file.
    """

    png: bytes
    caption: str

    def __post_init__(self) -> None:
        if not self.png.startswith(PNG_SIGNATURE):
            raise ValueError(
                f"picture {self.caption!r} is not a PNG file: it begins with "
                f"{self.png[:8]!r}. Convert it to PNG."
            )


def render_page(title: str, lead: str, sections: Iterable[Section | None]) -> str:
    """Render a whole HTML document that loads nothing from outside.

    Args:
        title: The title of the page.
        lead: The main result in a few sentences.
        sections: The sections in their order; None and empty ones are left out.

    Returns:
        The document as text.

    Example:
        >>> page = render_page("A run", "It worked.", [Section("Notes", ["Fast."])])
        >>> "<h2>Notes</h2><p>Fast.</p>" in page
        True
    """
    folder = files("cirm.report")
    css = [folder.joinpath(n).read_text("utf-8") for n in ("figures.css", "page.css")]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", title),
        tag("style", Markup("".join(css))),
    )
    header = tag("header", tag("h1", title), render_paragraph(lead, "lead"))
    body = [_render_section(section) for section in sections if section]
    content = tag("body", tag("main", header, *body))
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def render_content(content: Sequence[str | Table]) -> Markup:
    """Render tables and text; markup stays as it is."""
    parts = []
    for part in content:
        if isinstance(part, Table):
            parts.append(render_html(part))
        else:
            ready = part if isinstance(part, Markup) else render_paragraph(part)
            parts.append(ready)
    return join_markup(*parts)


def render_paragraph(text: str, class_: str | None = None) -> Markup:
    """Render a paragraph; text between backticks becomes code."""
    return tag("p", *_render_code_spans(text), class_=class_)


def render_list(items: Sequence[str]) -> Markup:
    """Render a list of notes, if any; text between backticks becomes code."""
    notes = [tag("li", *_render_code_spans(item)) for item in items]
    return tag("ul", *notes) if notes else Markup()


def render_figure(caption: str, wide: Markup, narrow: Markup | None = None) -> Markup:
    """Render a figure with its caption, if any; `narrow` replaces it on a phone."""
    below = tag("figcaption", caption) if caption else Markup()
    if narrow is None:
        return tag("figure", wide, below)
    both = tag("div", wide, class_="wide"), tag("div", narrow, class_="narrow")
    return tag("figure", *both, below)


def render_panels(caption: str, figures: Sequence[Markup]) -> Markup:
    """Render small figures side by side, as many to a row as fit."""
    return render_figure(caption, tag("div", *figures, class_="panels"))


def render_picture(picture: Picture) -> Markup:
    """Render a picture as part of the page itself."""
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    image = tag("img", src=source, alt=picture.caption)
    return tag("figure", image, tag("figcaption", picture.caption), class_="picture")


def render_details(summary: str, content: Markup, aside: str = "") -> Markup:
    """Render a block that opens with a click; `aside` follows its name in grey."""
    extra = tag("span", aside, class_="aside") if aside else Markup()
    return tag("details", tag("summary", summary, extra), content)


def render_settings(settings: Mapping[str, Any]) -> Markup:
    """Render names and values as preformatted lines."""
    lines = [
        f"{name}: {dumps(value, ensure_ascii=False, default=str)}"
        for name, value in settings.items()
    ]
    return tag("pre", tag("code", "\n".join(lines)))


def render_command(text: str) -> Markup:
    """Render a command, if any, whose lines break only between its words."""
    words = [tag("span", word) for word in text.split(" ")]
    return tag("pre", tag("code", Markup(" ".join(words)))) if text else Markup()


def render_facts(facts: Sequence[tuple[str, str]]) -> Markup:
    """Render large numbers, if any, as pairs of number and description."""
    items = [tag("div", tag("dt", what), tag("dd", number)) for number, what in facts]
    return tag("dl", *items, class_="facts") if items else Markup()


def _render_section(section: Section) -> Markup:
    heading = tag("h2", section.heading) if section.heading else Markup()
    content = render_content(section.content)
    return tag("section", heading, content) if content else Markup()


def _render_code_spans(text: str) -> list[str]:
    pieces = text.split("`")
    if isinstance(text, Markup) or len(pieces) % 2 == 0:
        return [text]
    return [tag("code", p) if n % 2 else p for n, p in enumerate(pieces) if p]
