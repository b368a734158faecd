"""Pieces of a page: paragraphs, tables, figures, pictures, folded blocks."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from cirm.report.markup import Markup, joined, tag

PNG = b"\x89PNG\r\n\x1a\n"
DENSE = 8  # columns; a table with more is set smaller, and printed on a broad page
VERDICTS = ("match", "better", "differs", "no-data")


@dataclass(frozen=True)
class Cell:
    """A table's cell: text or markup, right-aligned if numeric, and its verdict."""

    content: str
    numeric: bool = False
    verdict: str | None = None

    def __post_init__(self) -> None:
        if self.verdict is not None and self.verdict not in VERDICTS:
            raise ValueError(
                f"cell: verdict must be one of {', '.join(VERDICTS)}; "
                f"got {self.verdict!r}"
            )


@dataclass(frozen=True)
class Picture:
    """A PNG picture with its caption."""

    png: bytes
    caption: str

    def __post_init__(self) -> None:
        if not self.png.startswith(PNG):
            raise ValueError(
                f"picture {self.caption!r}: it must be the bytes of a PNG file; "
                f"got {self.png[:8]!r}"
            )


def paragraph(text: str, class_: str | None = None) -> Markup:
    """A paragraph; what stands between backticks is set as code."""
    return tag("p", *_prose(text), class_=class_)


def table(headings: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> Markup:
    """A table that scrolls sideways where it is too wide; rows begin with a name."""
    head = tag("tr", *(_cell("th", cell, scope="col") for cell in headings))
    body = [
        tag(
            "tr",
            *(_cell("th", cell, scope="row") for cell in row[:1]),
            *(_cell("td", cell) for cell in row[1:]),
        )
        for row in rows
    ]
    inside = tag("table", tag("thead", head), tag("tbody", *body))
    kind = "scroll dense" if len(headings) > DENSE else "scroll"
    return tag("div", inside, class_=kind, tabindex="0", role="group")


def figure(caption: str, wide: Markup, narrow: Markup | None = None) -> Markup:
    """A figure with its caption, if any; `narrow` takes its place on a phone."""
    below = tag("figcaption", caption) if caption else Markup()
    if narrow is None:
        return tag("figure", wide, below)
    shown = tag("div", wide, class_="wide"), tag("div", narrow, class_="narrow")
    return tag("figure", *shown, below)


def panels(caption: str, figures: Sequence[Markup]) -> Markup:
    """Small figures side by side, as many to a row as fit."""
    return figure(caption, tag("div", *figures, class_="panels"))


def picture(content: Picture) -> Markup:
    """A picture inside the page itself."""
    source = f"data:image/png;base64,{b64encode(content.png).decode()}"
    image = tag("img", src=source, alt=content.caption)
    return tag("figure", image, tag("figcaption", content.caption), class_="picture")


def folded(summary: str, content: Markup, aside: str = "") -> Markup:
    """A block that opens with a click; `aside` stands quietly after its name."""
    quiet = tag("span", aside, class_="aside") if aside else Markup()
    return tag("details", tag("summary", summary, quiet), content)


def code(text: str) -> Markup:
    """A file's text as it is."""
    return tag("pre", tag("code", text))


def command(text: str) -> Markup:
    """A command, in lines that break between its words only."""
    pieces = [tag("span", word) for word in text.split(" ")]
    return tag("pre", tag("code", Markup(" ".join(pieces))))


def facts(items: Sequence[tuple[str, str]]) -> Markup:
    """Large figures, each with what it is."""
    return tag(
        "dl",
        *(tag("div", tag("dt", what), tag("dd", amount)) for amount, what in items),
        class_="facts",
    )


def listing(items: Sequence[str]) -> Markup:
    """A list of notes; what stands between backticks is set as code."""
    return tag("ul", *(tag("li", *_prose(item)) for item in items))


def number(text: str) -> Markup:
    """A mean and its spread, set so that means stand under one another."""
    mean, sign, spread = text.partition(" ± ")
    if not sign:
        return tag("span", mean, class_="mean")
    return joined(
        tag("span", mean, class_="mean"), tag("span", f" ± {spread}", class_="spread")
    )


def _cell(name: str, cell: Cell, scope: str | None = None) -> Markup:
    classes = [cell.verdict or "", "number" if cell.numeric else ""]
    return tag(
        name,
        cell.content,
        class_=" ".join(filter(None, classes)) or None,
        scope=scope,
        title=cell.verdict,
    )


def _prose(text: str) -> list[str]:
    pieces = text.split("`")
    if isinstance(text, Markup) or len(pieces) % 2 == 0:
        return [text]
    return [tag("code", p) if n % 2 else p for n, p in enumerate(pieces) if p]
