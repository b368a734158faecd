"""Printing and writing the results of commands."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from cirm.report.table import ReportTable


# Characters that steer a terminal: control codes, and those that reverse the direction
# of writing. Names in data and in model files may hold them.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def remove_control_characters(text: str) -> str:
    """Return text as one line that a terminal shows and does not obey."""
    return CONTROL.sub("", text.replace("\n", " ").replace("\t", " "))


def remove_control_characters_in_values(values: Any) -> Any:  # noqa: ANN401  plain values, nested
    """Return the same plain values with all text in them clean."""
    if isinstance(values, str):
        return remove_control_characters(values)
    if isinstance(values, Mapping):
        return {
            remove_control_characters_in_values(
                key
            ): remove_control_characters_in_values(part)
            for key, part in values.items()
        }
    if isinstance(values, list | tuple):
        return [remove_control_characters_in_values(part) for part in values]
    return values


def format_command_line_as_typed() -> str:
    """Return the command as the user typed it."""
    name = Path(sys.argv[0]).name.replace("__main__.py", "cirm")  # of python -m cirm
    return shlex.join([name, *sys.argv[1:]])


def print_lines_to_stderr(*lines: str) -> None:
    """Print lines on standard error, which leaves standard output to the result."""
    for line in lines:
        typer.echo(remove_control_characters(line), err=True)


def print_notes_once(notes: Sequence[str]) -> None:
    """Print each note once, on standard error."""
    print_lines_to_stderr(*(f"note: {note}" for note in dict.fromkeys(notes)))


def write_page(path: Path, page: str) -> None:
    """Write a page; call it before anything is printed, which `head` may end."""
    from cirm.records import write_text_atomically

    write_text_atomically(path, page)


def print_result_json_and_page_path(
    content: Mapping[str, Any], as_json: bool, report: Path | None
) -> None:
    """Print the result as JSON if that is wanted, and where its page is."""
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    if report is not None:
        print_lines_to_stderr(f"Wrote the report to {report.resolve()}")


def print_table(table: ReportTable) -> None:
    """Print a table, and an empty line below it."""
    from rich.console import Console

    from cirm.report.table import render_table_for_terminal

    # Where the output is no terminal, rich would cut tables at 80 columns.
    width = None if Console().is_terminal else 160
    Console(width=width).print(render_table_for_terminal(table), "")


def print_rows_as_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    n_text_columns: int = 1,
) -> None:
    """Print a table whose first columns are text and the others numbers."""
    from cirm.report.table import ReportColumn, ReportTable

    columns: list[ReportColumn | str] = [*map(ReportColumn, headings[:n_text_columns])]
    columns += headings[n_text_columns:]
    print_table(ReportTable(title, columns, rows))
