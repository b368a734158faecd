"""Records -> tables, figures, and a page that needs nothing but a browser."""

from cirm.report.blocks import Picture
from cirm.report.page import Section, page
from cirm.report.run import run_report
from cirm.report.summary import along_stream, summarise, sweep, training
from cirm.report.text import markdown, rows

__all__ = [
    "Picture",
    "Section",
    "along_stream",
    "markdown",
    "page",
    "rows",
    "run_report",
    "summarise",
    "sweep",
    "training",
]
