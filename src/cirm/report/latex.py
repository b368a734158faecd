"""A reproduction's tables in LaTeX, in the paper's layout; they need booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report.comparison import KINDS, MANY, Cell, Grid, grids, kinds, number

SPECIAL = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\N{EN DASH}": "--",
        "\N{MINUS SIGN}": "$-$",
    }
)
SIGNS = {"match": "", "better": r"$^{+}$", "differs": r"$^{\ast}$"}
ALONE = "Mean (standard deviation)."
BESIDE = (
    "Mean (standard deviation), ours and the paper's. Unmarked: they differ by at most "
    "twice the largest of both standard deviations and 2 points (0.02 for errors); "
    r"$^{+}$ ours is better than that; $^{\ast}$ otherwise different; --- no data."
)


def latex(summary: Mapping[str, Any]) -> str:
    """All tables as LaTeX, with the title and the command that made them."""
    head = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        f"% made by: {' '.join(str(summary['command']).split())}",
    ]
    parts = [_table(grid, str(summary["title"])) for grid in grids(summary)]
    return "\n".join([*head, *parts])


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return text.translate(SPECIAL)


def _table(grid: Grid, title: str) -> str:
    shown, width = kinds(grid), len(grid.lines[0].headings)
    letters = "l" * (width + 1) + "r" * len(grid.columns)
    legend = BESIDE if "paper" in shown else ALONE
    caption = f"{escaped(title)}: {escaped(grid.title)}. {legend}"
    body = []
    for line in grid.lines:
        body += _lines(line.headings, line.cells, shown, len(grid.columns) > MANY)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering\footnotesize",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{{letters}}}",
            r"\toprule",
            *_head(grid, width),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _head(grid: Grid, width: int) -> list[str]:
    """A line for each part of the headings; equal ones side by side are one."""
    parts = len(grid.columns[0])
    lines = []
    for part in range(parts):
        corner = grid.corner if part == parts - 1 else ()
        cells = [*corner, *[""] * (width + 1)][: width + 1]
        last = part == parts - 1
        names = [column[part] for column in grid.columns]
        if last and len(names) > MANY:
            heads = [f"\\rotatebox{{90}}{{{escaped(name)}}}" for name in names]
        elif last:
            heads = [escaped(name) for name in names]
        else:
            heads = _merged(names)
        lines.append(_row([*map(escaped, cells), *heads]))
    return lines


def _merged(names: Sequence[str]) -> list[str]:
    cells: list[str] = []
    start = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[start]:
            cells.append(
                f"\\multicolumn{{{end - start}}}{{c}}{{{escaped(names[start])}}}"
            )
            start = end
    return cells


def _lines(
    headings: Sequence[str],
    cells: Sequence[Cell | None],
    shown: Sequence[str],
    stacked: bool,
) -> list[str]:
    """A line for each kind of number; with many columns the spread has its own."""
    lines = []
    for kind in shown:
        names = [*headings] if kind == shown[0] else [""] * len(headings)
        pairs = [_pair(cell, kind) for cell in cells]
        start = [*map(escaped, names), escaped(KINDS[kind])]
        if not stacked:
            lines.append(_row([*start, *(f"{a} {b}".strip() for a, b in pairs)]))
            continue
        lines.append(_row([*start, *(mean for mean, _ in pairs)]))
        if any(std for _, std in pairs):
            lines.append(_row([*[""] * len(start), *(std for _, std in pairs)]))
    return lines


def _pair(cell: Cell | None, kind: str) -> tuple[str, str]:
    """Mean with its sign, and standard deviation in brackets."""
    mean, _, std = number(cell, kind).partition(" ± ")
    if cell is None or kind != "mean":
        return escaped(mean), f"({escaped(std)})" if std else ""
    if not mean:
        return "---", ""
    sign = SIGNS.get(cell["verdict"], "")
    return f"{escaped(mean)}{sign}", f"({escaped(std)})" if std else ""


def _row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
