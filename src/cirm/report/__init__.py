"""Records become tables, figures, and pages that a browser shows without a network."""

from cirm.report.page import PageSection, PngPicture, render_html_page
from cirm.report.run_page import build_run_page, build_run_results_table
from cirm.report.summary import summarise_records
from cirm.report.table import (
    ReportCell,
    ReportColumn,
    ReportTable,
    render_table_as_html,
    render_table_as_latex,
    render_table_as_markdown,
    render_table_for_terminal,
)

__all__ = [
    "PageSection",
    "PngPicture",
    "ReportCell",
    "ReportColumn",
    "ReportTable",
    "build_run_page",
    "build_run_results_table",
    "render_html_page",
    "render_table_as_html",
    "render_table_as_latex",
    "render_table_as_markdown",
    "render_table_for_terminal",
    "summarise_records",
]
