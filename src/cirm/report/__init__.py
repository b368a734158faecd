"""Records become tables, figures, and pages that a browser shows without a network."""

from cirm.report.page import Picture, Section, render_page
from cirm.report.run_page import build_results_table, build_run_page
from cirm.report.summary import summarise_records
from cirm.report.table import (
    Cell,
    Column,
    Table,
    render_html,
    render_latex,
    render_markdown,
    render_terminal,
)

__all__ = [
    "Cell",
    "Column",
    "Picture",
    "Section",
    "Table",
    "build_results_table",
    "build_run_page",
    "render_html",
    "render_latex",
    "render_markdown",
    "render_page",
    "render_terminal",
    "summarise_records",
]
