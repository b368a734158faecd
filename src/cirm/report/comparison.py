"""A reproduction's summary as tables in the paper's layout, ours beside theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.report.text import format_statistic, join_words

Cell = Mapping[str, Any]
KINDS = {"mean": "ours", "paper": "paper", "elsewhere": "IRM's runs"}
MARKS = {"match": "✓", "better": "▲", "differs": "✗", "no-data": "∅"}
NUMBERS = "Mean ± standard deviation over seeds."
VERDICTS = (
    "✓ match: both differ by at most twice the largest of their standard deviations "
    "and 2 points (0.02 for errors). ▲ better than that, ✗ otherwise different, ∅ no "
    "data."
)
MANY = 8  # columns; a table with more of them and few lines is turned on its side


class Line(NamedTuple):
    """A line of a table: its headings, and its cells, None where there is none."""

    headings: tuple[str, ...]
    cells: tuple[Cell | None, ...]


class Grid(NamedTuple):
    """A printed table; each column has a heading of one or more parts."""

    title: str
    corner: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[Line, ...]


def grids(summary: Mapping[str, Any]) -> list[Grid]:
    """The tables of a summary; lines and columns without any cell are left out."""
    cells = {(c["row"], c["learner"], c["split"]): c for c in summary["cells"]}
    found = []
    for table in summary["tables"]:
        lines = [
            Line(
                tuple(line["headings"]),
                tuple(cells.get(tuple(place)) for place in line["places"]),
            )
            for line in table["lines"]
        ]
        columns = tuple(tuple(column) for column in table["columns"])
        grid = Grid(table["title"], tuple(table["corner"]), columns, tuple(lines))
        found.append(_filled(turned(_filled(turned(grid)))))
    return [grid for grid in found if grid.lines]


def turned(grid: Grid) -> Grid:
    """The table with its columns as lines."""
    lines = [
        Line(column, tuple(line.cells[n] for line in grid.lines))
        for n, column in enumerate(grid.columns)
    ]
    columns = tuple(line.headings for line in grid.lines)
    return Grid(grid.title, grid.corner, columns, tuple(lines))


def readable(grid: Grid) -> Grid:
    """The table as it is, or turned where it would be wide and low."""
    wide = len(grid.columns) > MANY and len(grid.lines) < 4
    return turned(grid) if wide else grid


def kinds(grid: Grid) -> list[str]:
    """The kinds of numbers that a table has: ours (`mean`), the paper's, others'."""
    cells = [cell for line in grid.lines for cell in line.cells if cell]
    return [kind for kind in KINDS if any(cell.get(kind) for cell in cells)]


def number(cell: Cell | None, kind: str) -> str:
    """A number of a cell as text; nothing where there is none."""
    if cell is None or cell.get(kind) is None:
        return ""
    statistic = cell if kind == "mean" else {"seeds": 1, **cell[kind]}
    return format_statistic(statistic, cell["metric"])


def marked(cell: Cell | None, kind: str) -> str:
    """A number of a cell as text, ours with the mark of its verdict."""
    mark = MARKS.get(cell["verdict"], "") if cell and kind == "mean" else ""
    return f"{number(cell, kind)} {mark}".strip()


def markdown(summary: Mapping[str, Any]) -> str:
    """All tables in Markdown, with a legend and what is missing."""
    parts = [_markdown(readable(grid)) for grid in grids(summary)]
    parts.append(f"{legend(summary)}\n")
    notes = missing(summary)
    if notes:
        parts.append("".join(f"- {safe(note)}\n" for note in notes))
    return "\n".join(parts)


def legend(summary: Mapping[str, Any]) -> str:
    """What the numbers are and, where there are verdicts, what their marks mean."""
    judged = any(cell["verdict"] for cell in summary["cells"])
    return f"{NUMBERS} {VERDICTS}" if judged else NUMBERS


def missing(summary: Mapping[str, Any]) -> list[str]:
    """Why cells have no data, each reason once with those it concerns."""
    reasons: dict[str, dict[str, dict[str, None]]] = {}
    for cell in summary["cells"]:
        if "note" in cell:
            rows = reasons.setdefault(cell["note"], {})
            rows.setdefault(cell["row"], {})[cell["learner"]] = None
    return [
        "; ".join(f"{row} ({_few(list(who))})" for row, who in rows.items())
        + f": {reason}"
        for reason, rows in reasons.items()
    ]


def safe(text: str) -> str:
    """Text that cannot end a Markdown cell or row, nor begin HTML."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split())


def _markdown(grid: Grid) -> str:
    """Kinds of numbers stand beside one another, or below in a wide table."""
    shown = kinds(grid)
    names = [" ".join(column) for column in grid.columns]
    beside = len(names) * len(shown) <= MANY
    if beside:
        head = [f"{name}, {KINDS[kind]}" for name in names for kind in shown]
        body = [
            [*line.headings, *(marked(c, kind) for c in line.cells for kind in shown)]
            for line in grid.lines
        ]
    else:
        head = ["", *names]
        body = [
            [
                *(line.headings if kind == shown[0] else [""] * len(line.headings)),
                KINDS[kind],
                *(marked(cell, kind) for cell in line.cells),
            ]
            for line in grid.lines
            for kind in shown
        ]
    width = len(grid.lines[0].headings)
    corner = [*grid.corner, *[""] * width][:width]
    rule = [":--"] * (width + (not beside)) + ["--:"] * (len(head) - (not beside))
    return f"**{grid.title}**\n\n" + _rows([[*corner, *head], rule, *body])


def _rows(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(map(safe, line))} |\n" for line in lines)


def _filled(grid: Grid) -> Grid:
    """The table without lines that have no cell."""
    lines = tuple(line for line in grid.lines if any(line.cells))
    return grid._replace(lines=lines)


def _few(names: list[str]) -> str:
    return join_words(names) if len(names) < 4 else f"{len(names)} learners"
