"""One self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from cirm.report import blocks
from cirm.report.markup import Markup, tag

# The page needs nothing from anywhere, so that is all it may ask for.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Section:
    """A heading, which may be empty, and what stands under it.

    Markup is taken as it is; any other text becomes a paragraph.
    """

    heading: str
    content: tuple[str, ...]


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """A whole HTML document that asks for nothing outside itself."""
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
    body = tag(
        "body",
        tag(
            "main",
            tag("header", tag("h1", title), tag("p", lead, class_="lead")),
            *(_section(section) for section in sections),
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _section(section: Section) -> Markup:
    heading = tag("h2", section.heading) if section.heading else Markup()
    content = (
        part if isinstance(part, Markup) else blocks.paragraph(part)
        for part in section.content
    )
    return tag("section", heading, *content)
