"""Printing and writing the results of commands."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from cirm.report.table import Table


def get_command_line() -> str:
    """Return the command as the user typed it."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def print_to_stderr(*lines: str) -> None:
    """Print lines on standard error, which leaves standard output to the result."""
    for line in lines:
        typer.echo(line, err=True)


def print_notes(notes: Sequence[str]) -> None:
    """Print each note once, on standard error."""
    print_to_stderr(*(f"note: {note}" for note in dict.fromkeys(notes)))


def write_result(
    content: Mapping[str, Any], as_json: bool, report: Path | None, page: str = ""
) -> None:
    """Write the result as a page and print it as JSON, where the user wants that."""
    from cirm.records import write_text

    if report is not None:
        write_text(report, page)
    print_result(content, as_json, report)


def print_result(
    content: Mapping[str, Any], as_json: bool, report: Path | None
) -> None:
    """Print the result as JSON if that is wanted, and where its page is."""
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    if report is not None:
        print_to_stderr(f"Wrote the report to {report.resolve()}")


def print_table(table: Table) -> None:
    """Print a table, and an empty line below it."""
    from rich.console import Console

    from cirm.report.table import render_terminal

    # Where the output is no terminal, rich would cut tables at 80 columns.
    width = None if Console().is_terminal else 160
    Console(width=width).print(render_terminal(table), "")


def print_rows(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    text_columns: int = 1,
) -> None:
    """Print a table whose first columns are text and the others numbers."""
    from cirm.report.table import Column, Table

    columns: list[Column | str] = [*map(Column, headings[:text_columns])]
    columns += headings[text_columns:]
    print_table(Table(title, columns, rows))
