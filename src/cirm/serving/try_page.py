"""The page to try a row by hand. Its script asks the server for the model's columns."""

from __future__ import annotations

from importlib.resources import files

from cirm.report.markup import EscapedHtml
from cirm.report.page import PageSection, render_html_page

LEAD = "Fill in a row and see what the model predicts for it. Nothing is stored."


def build_prediction_form_page() -> str:
    """Build the page, which holds nothing of the model and needs no token itself."""
    folder = files("cirm.serving")
    form, script = (
        folder.joinpath(name).read_text("utf-8") for name in ("form.html", "form.js")
    )
    return render_html_page(
        "Try a row",
        LEAD,
        [PageSection("", [EscapedHtml(form)])],
        script,
        "; connect-src 'self'",
    )
