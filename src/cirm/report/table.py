"""One value for every table, and its renderers: HTML, terminal, Markdown, LaTeX.

A `Table` holds columns and rows of cells. A cell's text is written out already; a
number may have a spread (its standard deviation) and a verdict, and a cell may hold
the same number from several sources, such as ours and the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from cirm.report.markup import Markup, join_markup, tag
from cirm.report.text import format_mean

if TYPE_CHECKING:
    from rich.console import Group

MARKS = {"match": "✓", "better": "▲", "differs": "✗", "no-data": "∅"}
LATEX_MARKS = {"better": r"$^{+}$", "differs": r"$^{\ast}$", "no-data": "---"}
COLOURS = {"match": "green", "better": "cyan", "differs": "red", "no-data": "dim"}
WIDE = 8  # columns of numbers; a page or a screen has no room for many more
LATEX_SPECIAL = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\N{EN DASH}": "--",
        "\N{MINUS SIGN}": "$-$",
    }
)


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Args:
        text: What the cell says; lines are separated by newlines.
        spread: The standard deviation of a number, written out; empty if there is none.
        verdict: How the number compares: "match", "better", "differs" or "no-data".
            Pages colour the cell.
        others: The same number from the table's other sources, in their order.
        markup: HTML that pages show instead of the text, for example a drawing.
        marked: Whether the verdict's mark (such as ✓) is written beside the number.

    Raises:
        ValueError: If the verdict is not one of those above.
    """

    text: str = ""
    spread: str = ""
    verdict: str | None = None
    others: tuple[Cell, ...] = ()
    markup: Markup | None = None
    marked: bool = True

    def __post_init__(self) -> None:
        if self.verdict is not None and self.verdict not in MARKS:
            raise ValueError(
                f"the verdict of a table cell is {self.verdict!r}; use one of "
                f"{', '.join(MARKS)}"
            )

    def __str__(self) -> str:
        """The text with its spread and its mark."""
        mark = MARKS.get(self.verdict or "", "") if self.marked else ""
        spread = f" ± {self.spread}" if self.spread else ""
        return f"{self.text}{spread} {mark}".strip()


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: The heading right above the cells.
        align: "left" for text, "right" for numbers.
        groups: Headings above that one, the outermost first. Neighbouring columns
            with the same group share it.
    """

    heading: str
    align: Literal["left", "right"] = "left"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table, independent of where it is shown.

    Args:
        title: What the table shows.
        columns: The columns, from left to right.
        rows: The rows; each has one cell for each column.
        notes: Sentences that belong below the table.
        row_headings: How many of the first columns name the row.
        sources: Where the numbers of a cell come from, if there are several: the
            cell's own source first, then those of `Cell.others`.

    Raises:
        ValueError: If a row has more or fewer cells than there are columns.

    Example:
        >>> rows = [[Cell("erm"), Cell("86.4", "1.2")]]
        >>> columns = [Column("learner"), *number_columns("accuracy, %")]
        >>> print(render_markdown(Table("", columns, rows)), end="")
        | learner | accuracy, % |
        | :-- | --: |
        | erm | 86.4 ± 1.2 |
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    row_headings: int = 1
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}, row {number}: there are {len(row)} cells "
                    f"for {len(self.columns)} columns; give each column one cell"
                )


def number_columns(*headings: str) -> list[Column]:
    """Return a right-aligned column for each heading."""
    return [Column(heading, "right") for heading in headings]


def statistic_cell(statistic: Mapping[str, Any] | None, metric: str) -> Cell:
    """Return the cell of a mean and its standard deviation over seeds.

    Args:
        statistic: `mean`, `std` (None with one seed) and `seeds`; None, or a mean of
            None, where nothing was measured.
        metric: The metric, which decides how many digits are written.
    """
    if statistic is None or statistic.get("mean") is None:
        seeds = statistic.get("seeds", 0) if statistic else 0
        return Cell("not finite" if seeds else "\N{EN DASH}")
    std = statistic.get("std")
    spread = "" if std is None else format_mean(std, metric)
    return Cell(format_mean(statistic["mean"], metric), spread)


def transpose(table: Table) -> Table:
    """Return the table with rows and columns exchanged; all values align right."""
    heads, values = _split_columns(table)
    names = [(*column.groups, column.heading) for column in values]
    width = len(names[0]) if names else 1
    corner = [*heads, *[Column("")] * width][:width]
    columns = []
    for row in table.rows:
        *groups, heading = (cell.text for cell in row[: len(heads)])
        columns.append(Column(heading, "right", tuple(groups)))
    rows = [
        [*map(Cell, name), *(row[len(heads) + place] for row in table.rows)]
        for place, name in enumerate(names)
    ]
    return replace(table, columns=[*corner, *columns], rows=rows, row_headings=width)


def drop_empty(table: Table) -> Table:
    """Return the table without rows and columns whose cells are all empty."""
    heads = table.row_headings
    rows = [row for row in table.rows if any(cell != Cell() for cell in row[heads:])]
    kept = [
        place
        for place in range(len(table.columns))
        if place < heads or any(row[place] != Cell() for row in rows)
    ]
    columns = [table.columns[place] for place in kept]
    return replace(
        table, columns=columns, rows=[[row[place] for place in kept] for row in rows]
    )


def render_html(table: Table) -> Markup:
    """Render a table for a page; it scrolls sideways where it is too wide.

    The title is not part of it: pages show it as a heading or a sentence.
    """
    heads, values = _split_columns(table)
    has_spread = [any(row[n].spread for row in table.rows) for n in _places(table)]
    body = []
    for row in table.rows:
        cells = [
            _html_cell("td" if n >= len(heads) else "th", cell, column, has_spread[n])
            for n, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        body.append(tag("tr", *cells))
    last = tag("tr", *(_html_heading(column) for column in table.columns))
    groups = [
        tag(
            "tr",
            *(tag("td") for _ in heads),
            *(
                tag("th", name, colspan=str(span), scope="colgroup")
                for name, span in _merge_groups(values, level)
            ),
        )
        for level in range(_depth(values))
    ]
    inside = tag("table", tag("thead", *groups, last), tag("tbody", *body))
    kind = "scroll dense" if len(table.columns) > WIDE else "scroll"
    notes = [tag("p", note, class_="small") for note in table.notes]
    box = tag("div", inside, class_=kind, tabindex="0", role="group")
    return join_markup(box, *notes)


def render_terminal(table: Table) -> Group:
    """Render a table for the terminal, as a value that `rich` prints.

    Example:
        >>> from rich.console import Console
        >>> table = Table("", [Column("a"), Column("b")], [[Cell("1"), Cell("2")]])
        >>> Console().print(render_terminal(table))  # doctest: +SKIP
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    flat = separate_sources(table, beside=False)
    body = RichTable(
        header_style="bold",
        show_header=any(column.heading for column in flat.columns),
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for place, column in enumerate(flat.columns):
        is_name = place < flat.row_headings
        body.add_column(
            Text(_full_heading(column)),
            justify=column.align,
            style="bold" if is_name else "",
            no_wrap=is_name or column.align == "right",
        )
    for row in flat.rows:
        body.add_row(
            *(Text(str(c), style=COLOURS.get(c.verdict or "", "")) for c in row)
        )
    title = [Text(flat.title, "bold")] if flat.title else []
    return Group(*title, body, *map(Text, flat.notes))


def render_markdown(table: Table) -> str:
    """Render a table in Markdown, with its title above and its notes below."""
    count = len(table.columns) - table.row_headings
    sources = max(len(table.sources), 1)
    flat = separate_sources(table, beside=count * sources <= WIDE)
    rule = ["--:" if column.align == "right" else ":--" for column in flat.columns]
    lines = [
        [escape_markdown(_full_heading(column)) for column in flat.columns],
        rule,
        *([escape_markdown(str(cell)) for cell in row] for row in flat.rows),
    ]
    title = f"**{flat.title}**\n\n" if flat.title else ""
    notes = "".join(f"\n{note}\n" for note in flat.notes)
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def render_latex(table: Table, legend: str = "") -> str:
    """Render a table in LaTeX; it needs the packages booktabs and graphicx.

    The title, the notes and the legend, which is LaTeX already, become the caption.
    """
    flat = separate_sources(table, beside=False)
    heads, values = _split_columns(flat)
    letters = "".join(column.align[0] for column in flat.columns)
    title = [f"{escape_latex(flat.title)}."] if flat.title else []
    caption = " ".join([*title, *map(escape_latex, flat.notes), legend]).strip()
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize",
        f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{{letters}}}",
        r"\toprule",
    ]
    for level in range(_depth(values)):
        names = [
            f"\\multicolumn{{{span}}}{{c}}{{{escape_latex(name)}}}"
            for name, span in _merge_groups(values, level)
        ]
        lines.append(_latex_row([*[""] * len(heads), *names]))
    crowded = len(values) > WIDE
    names = [escape_latex(column.heading) for column in values]
    if crowded:
        names = [f"\\rotatebox{{90}}{{{name}}}" for name in names]
    lines.append(_latex_row([*(escape_latex(c.heading) for c in heads), *names]))
    lines.append(r"\midrule")
    for row in flat.rows:
        lines += _latex_rows(row, len(heads), crowded)
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def separate_sources(table: Table, beside: bool) -> Table:
    """Give each source of the numbers columns of its own, or rows of its own.

    The result has the same numbers with one number in each cell.
    """
    if not table.sources:
        return table
    heads, values = _split_columns(table)
    rows: list[list[Cell]] = []
    if beside:
        columns = [
            replace(column, heading=f"{column.heading}, {source}")
            for column in values
            for source in table.sources
        ]
        for row in table.rows:
            numbers = [
                c for cell in row[len(heads) :] for c in _list_sources(cell, table)
            ]
            rows.append([*row[: len(heads)], *numbers])
        return replace(table, columns=[*heads, *columns], rows=rows, sources=())
    for row in table.rows:
        for place, source in enumerate(table.sources):
            names = row[: len(heads)] if place == 0 else [Cell()] * len(heads)
            numbers = [_list_sources(cell, table)[place] for cell in row[len(heads) :]]
            rows.append([*names, Cell(source), *numbers])
    return replace(
        table,
        columns=[*heads, Column(""), *values],
        rows=rows,
        row_headings=len(heads) + 1,
        sources=(),
    )


def escape_markdown(text: str) -> str:
    """Escape text so that it cannot end a cell or a row, nor begin HTML."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return "<br>".join(" ".join(line.split()) for line in escaped.split("\n"))


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX prints it as it is."""
    return text.translate(LATEX_SPECIAL)


def _split_columns(table: Table) -> tuple[Sequence[Column], Sequence[Column]]:
    """The columns that name rows, and the others."""
    return table.columns[: table.row_headings], table.columns[table.row_headings :]


def _places(table: Table) -> range:
    return range(len(table.columns))


def _depth(columns: Sequence[Column]) -> int:
    return max((len(column.groups) for column in columns), default=0)


def _merge_groups(columns: Sequence[Column], level: int) -> list[tuple[str, int]]:
    """Headings of one level of groups, each with the number of columns it spans."""
    names = [column.groups[level] for column in columns]
    return [(name, len(list(same))) for name, same in groupby(names)]


def _full_heading(column: Column) -> str:
    return " ".join([*column.groups, column.heading])


def _list_sources(cell: Cell, table: Table) -> list[Cell]:
    """The cell's own number and those of the other sources, as many as there are."""
    cells = [replace(cell, others=()), *cell.others]
    return [*cells, *[Cell()] * len(table.sources)][: len(table.sources)]


def _html_heading(column: Column) -> Markup:
    kind = "number" if column.align == "right" else None
    return tag("th", column.heading, class_=kind, scope="col")


def _html_cell(name: str, cell: Cell, column: Column, has_spread: bool) -> Markup:
    is_number = column.align == "right"
    classes = [cell.verdict or "", "number" if is_number else ""]
    return tag(
        name,
        _html_content(cell, is_number and has_spread),
        class_=" ".join(filter(None, classes)) or None,
        scope="row" if name == "th" else None,
        title=cell.verdict,
    )


def _html_content(cell: Cell, has_spread: bool) -> Markup:
    """The text; where the column has spreads each takes room, so that means align."""
    if cell.markup is not None:
        return cell.markup
    mark = MARKS.get(cell.verdict or "", "") if cell.marked else ""
    lines = cell.text.split("\n")
    text = lines[0] if len(lines) == 1 else join_markup(*(tag("div", n) for n in lines))
    spread = f" ± {cell.spread}" if cell.spread else ""
    others = [
        tag("div", _html_content(other, has_spread), class_="other")
        for other in cell.others
        if other != Cell()
    ]
    return join_markup(
        f"{mark} " if mark else "",
        text,
        tag("span", spread, class_="spread") if has_spread and cell.text else "",
        *others,
    )


def _latex_rows(row: Sequence[Cell], heads: int, crowded: bool) -> list[str]:
    """One line, or two where the table is crowded: spreads go below the means."""
    start = [escape_latex(cell.text) for cell in row[:heads]]
    means, spreads = [], []
    for cell in row[heads:]:
        mark = LATEX_MARKS.get(cell.verdict or "", "") if cell.marked else ""
        means.append(f"{escape_latex(cell.text)}{mark}")
        spreads.append(f"({escape_latex(cell.spread)})" if cell.spread else "")
    if not crowded:
        pairs = zip(means, spreads, strict=True)
        return [_latex_row([*start, *(f"{a} {b}".strip() for a, b in pairs)])]
    lines = [_latex_row([*start, *means])]
    if any(spreads):
        lines.append(_latex_row([*[""] * heads, *spreads]))
    return lines


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
