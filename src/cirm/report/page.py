"""A self-contained HTML page: a title, a lead and sections of text, tables, figures."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from json import dumps
from typing import Any

from cirm.report.markup import EscapedHtml, escape_and_join_html, render_html_element
from cirm.report.table import SORTED, ReportTable, render_table_as_html

# The page contains all it needs, so the browser need not load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class PageSection:
    """A section of a page.

    Args:
        heading: The heading; empty for none.
        content: What follows: tables, markup, and text, which becomes a paragraph.
    """

    heading: str
    content: Sequence[str | ReportTable]


@dataclass(frozen=True)
class PngPicture:
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
                f"figure {self.caption!r} is not a PNG file: its first bytes are "
                f"{self.png[:8]!r}. Convert the figure to PNG."
            )


def render_html_page(
    title: str,
    lead: str,
    sections: Iterable[PageSection | None],
    script: str = "",
    policy: str = "",
) -> str:
    """Render a whole HTML document that loads nothing from outside.

    Args:
        title: The title of the page.
        lead: The main result in a few sentences.
        sections: The sections in their order; None and empty ones are left out.
        script: JavaScript of the page. Long tables bring their own, which sorts them.
        policy: What the page may do besides, as a content security policy.

    Returns:
        The document as text.

    Example:
        >>> notes = PageSection("Notes", ["Fast."])
        >>> page = render_html_page("A run", "It worked.", [notes])
        >>> "<h2>Notes</h2><p>Fast.</p>" in page
        True
    """
    body = [_render_html_page_section(section) for section in sections if section]
    if any(SORTED in part for part in body):
        script += _read_report_asset("sorting.js")
    css = [_read_report_asset(name) for name in ("figures.css", "page.css")]
    head = render_html_element(
        "head",
        render_html_element("meta", charset="utf-8"),
        render_html_element(
            "meta", name="viewport", content="width=device-width, initial-scale=1"
        ),
        render_html_element("meta", name="color-scheme", content="light dark"),
        render_html_element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=POLICY + policy + _build_content_security_policy(script),
        ),
        render_html_element("title", title),
        render_html_element("style", EscapedHtml("".join(css))),
    )
    header = render_html_element(
        "header", render_html_element("h1", title), render_html_paragraph(lead, "lead")
    )
    code = (
        render_html_element("script", EscapedHtml(script)) if script else EscapedHtml()
    )
    content = render_html_element(
        "body", render_html_element("main", header, *body), code
    )
    return f"<!doctype html>\n{render_html_element('html', head, content, lang='en')}\n"


def _read_report_asset(name: str) -> str:
    return files("cirm.report").joinpath(name).read_text("utf-8")


def _build_content_security_policy(script: str) -> str:
    """Allow this script and no other."""
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"; script-src 'sha256-{digest}'" if script else ""


def render_section_content(content: Sequence[str | ReportTable]) -> EscapedHtml:
    """Render tables and text; markup is not escaped."""
    parts = []
    for part in content:
        if isinstance(part, ReportTable):
            parts.append(render_table_as_html(part))
        else:
            ready = (
                part if isinstance(part, EscapedHtml) else render_html_paragraph(part)
            )
            parts.append(ready)
    return escape_and_join_html(*parts)


def render_html_paragraph(text: str, class_: str | None = None) -> EscapedHtml:
    """Render a paragraph; text between backticks becomes code."""
    return render_html_element("p", *_render_code_spans(text), class_=class_)


def render_notes_as_list(items: Sequence[str]) -> EscapedHtml:
    """Render a list of notes, if any; text between backticks becomes code."""
    notes = [render_html_element("li", *_render_code_spans(item)) for item in items]
    return render_html_element("ul", *notes) if notes else EscapedHtml()


def render_html_figure(
    caption: str, wide: EscapedHtml, narrow: EscapedHtml | None = None
) -> EscapedHtml:
    """Render a figure with its caption, if any; `narrow` replaces it on a phone."""
    below = render_html_element("figcaption", caption) if caption else EscapedHtml()
    if narrow is None:
        return render_html_element("figure", wide, below)
    both = (
        render_html_element("div", wide, class_="wide"),
        render_html_element("div", narrow, class_="narrow"),
    )
    return render_html_element("figure", *both, below)


def render_figures_side_by_side(
    caption: str, figures: Sequence[EscapedHtml]
) -> EscapedHtml:
    """Render small figures side by side, as many to a row as fit."""
    return render_html_figure(
        caption, render_html_element("div", *figures, class_="panels")
    )


def render_inline_png_picture(picture: PngPicture) -> EscapedHtml:
    """Render a picture as part of the page itself."""
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    image = render_html_element("img", src=source, alt=picture.caption)
    return render_html_element(
        "figure",
        image,
        render_html_element("figcaption", picture.caption),
        class_="picture",
    )


def render_collapsible_html_block(
    summary: str, content: EscapedHtml, aside: str = ""
) -> EscapedHtml:
    """Render a block that opens with a click; `aside` follows its name in grey."""
    extra = (
        render_html_element("span", aside, class_="aside") if aside else EscapedHtml()
    )
    return render_html_element(
        "details", render_html_element("summary", summary, extra), content
    )


def render_settings_as_html_lines(settings: Mapping[str, Any]) -> EscapedHtml:
    """Render names and values as preformatted lines."""
    lines = [
        f"{name}: {dumps(value, ensure_ascii=False, default=str)}"
        for name, value in settings.items()
    ]
    return render_html_element("pre", render_html_element("code", "\n".join(lines)))


def render_shell_command(text: str) -> EscapedHtml:
    """Render a command, if any, whose lines break only between its words."""
    words = [render_html_element("span", word) for word in text.split(" ")]
    return (
        render_html_element(
            "pre", render_html_element("code", EscapedHtml(" ".join(words)))
        )
        if text
        else EscapedHtml()
    )


def render_headline_numbers(facts: Sequence[tuple[str, str]]) -> EscapedHtml:
    """Render large numbers, if any, as pairs of number and description."""
    items = [
        render_html_element(
            "div", render_html_element("dt", what), render_html_element("dd", number)
        )
        for number, what in facts
    ]
    return render_html_element("dl", *items, class_="facts") if items else EscapedHtml()


def _render_html_page_section(section: PageSection) -> EscapedHtml:
    heading = (
        render_html_element("h2", section.heading) if section.heading else EscapedHtml()
    )
    content = render_section_content(section.content)
    return (
        render_html_element("section", heading, content) if content else EscapedHtml()
    )


def _render_code_spans(text: str) -> list[str]:
    pieces = text.split("`")
    if isinstance(text, EscapedHtml) or len(pieces) % 2 == 0:
        return [text]
    return [
        render_html_element("code", p) if n % 2 else p
        for n, p in enumerate(pieces)
        if p
    ]
