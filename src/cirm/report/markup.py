"""HTML and SVG as text in which nothing unescaped can hide."""

from __future__ import annotations

import re
from html import escape

VOID = {"img", "meta"}
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is markup already; every other text is escaped where it enters."""

    __slots__ = ()


def join_escaped_markup(*parts: str) -> Markup:
    """Join parts; text that is not markup is escaped."""
    return Markup(
        "".join(p if isinstance(p, Markup) else _escape_html(p) for p in parts)
    )


def render_html_element(
    name: str, /, *children: str, **attributes: str | float | None
) -> Markup:
    """An element; _ in attribute names is -, at the end nothing; None is left out."""
    pairs = "".join(
        f" {key.rstrip('_').replace('_', '-')}="
        f'"{_escape_html(_format_attribute_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join_escaped_markup(*children)}</{name}>")


def _format_attribute_value(value: str | float) -> str:
    # A tenth of a pixel is finer than any screen, and keeps the page small.
    return value if isinstance(value, str) else f"{round(value, 1) + 0.0:g}"


def _escape_html(text: str) -> str:
    return escape(UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
