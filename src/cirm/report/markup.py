"""HTML and SVG as text in which nothing unescaped can hide."""

from __future__ import annotations

import re
from html import escape

VOID = {"img", "meta"}
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class EscapedHtml(str):
    """Text that is markup already; every other text is escaped where it enters."""

    __slots__ = ()


def escape_and_join_html(*parts: str) -> EscapedHtml:
    """Join parts; text that is not markup is escaped."""
    return EscapedHtml(
        "".join(p if isinstance(p, EscapedHtml) else _escape_html(p) for p in parts)
    )


def render_html_element(
    name: str, /, *children: str, **attributes: str | float | None
) -> EscapedHtml:
    """An element; _ in attribute names is -, at the end nothing; None is left out."""
    pairs = "".join(
        f" {key.rstrip('_').replace('_', '-')}="
        f'"{_escape_html(_format_attribute_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return EscapedHtml(f"<{name}{pairs}>")
    return EscapedHtml(f"<{name}{pairs}>{escape_and_join_html(*children)}</{name}>")


def _format_attribute_value(value: str | float) -> str:
    # A tenth of a pixel is finer than any screen, and keeps the page small.
    return value if isinstance(value, str) else f"{round(value, 1) + 0.0:g}"


def _escape_html(text: str) -> str:
    return escape(UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
