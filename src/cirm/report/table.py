"""One value for every table, and its renderers: HTML, terminal, Markdown, LaTeX.

A `ReportTable` holds columns and rows of cells. A cell's text is written out already; a
number may have a spread (its standard deviation) and a verdict, and a cell may hold
the same number from several sources, such as ours and the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from cirm.report.markup import EscapedHtml, escape_and_join_html, render_html_element
from cirm.report.summary import MeanAndStd
from cirm.report.text import format_mean_of_metric

if TYPE_CHECKING:
    from rich.console import Group

MARKS = {"match": "✓", "better": "▲", "differs": "✗", "no-data": "∅"}
LATEX_MARKS = {"better": r"$^{+}$", "differs": r"$^{\ast}$", "no-data": "---"}
COLOURS = {"match": "green", "better": "cyan", "differs": "red", "no-data": "dim"}
CLASSES = {"left": None, "right": "number"}
LONG = 10  # rows; tables with more can be sorted
SORTED = "data-sorted"  # attribute of tables that can be sorted
LINE = 14  # characters after which a heading on the terminal breaks
WIDE = 8  # columns of numbers; a page or a screen has no room for many more
BROAD = 12  # columns above which a table is printed across the page
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
class ReportCell:
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
    others: tuple[ReportCell, ...] = ()
    markup: EscapedHtml | None = None
    marked: bool = True

    def __post_init__(self) -> None:
        if self.verdict is not None and self.verdict not in MARKS:
            raise ValueError(
                f"the verdict of a table cell is {self.verdict!r}; use one of "
                f"{', '.join(MARKS)}"
            )

    @property
    def mark(self) -> str:
        """The verdict whose mark is written beside the number; empty for none."""
        return self.verdict or "" if self.marked else ""

    def __str__(self) -> str:
        """The text with its spread and its mark."""
        spread = f" ± {self.spread}" if self.spread else ""
        return f"{self.text}{spread} {MARKS.get(self.mark, '')}".strip()


Row = Sequence[ReportCell | str]


@dataclass(frozen=True)
class ReportColumn:
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


@dataclass(frozen=True, init=False)
class ReportTable:
    """A table, independent of where it is shown.

    Args:
        title: What the table shows.
        columns: The columns, from left to right. A heading alone makes a column of
            text if it names the row, otherwise a column of numbers.
        rows: The rows; each has one cell, or one text, for each column.
        notes: Sentences that belong below the table.
        row_headings: How many of the first columns name the row.
        sources: Where the numbers of a cell come from, if there are several: the
            cell's own source first, then those of `ReportCell.others`.

    Raises:
        ValueError: If a row has more or fewer cells than there are columns.

    Example:
        >>> rows = [["erm", ReportCell("86.4", "1.2")]]
        >>> table = ReportTable("", ["learner", "accuracy, %"], rows)
        >>> print(render_table_as_markdown(table), end="")
        | learner | accuracy, % |
        | :-- | --: |
        | erm | 86.4 ± 1.2 |
    """

    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[ReportCell, ...], ...]
    notes: tuple[str, ...]
    row_headings: int
    sources: tuple[str, ...]

    def __init__(
        self,
        title: str,
        columns: Iterable[ReportColumn | str],
        rows: Iterable[Row],
        notes: Iterable[str] = (),
        row_headings: int = 1,
        sources: Iterable[str] = (),
    ) -> None:
        self.__dict__.update(  # a frozen class has no other way
            title=title,
            columns=tuple(
                ReportColumn(one, "left" if place < row_headings else "right")
                if isinstance(one, str)
                else one
                for place, one in enumerate(columns)
            ),
            rows=tuple(
                tuple(ReportCell(one) if isinstance(one, str) else one for one in row)
                for row in rows
            ),
            notes=tuple(notes),
            row_headings=row_headings,
            sources=tuple(sources),
        )
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {title!r}, row {number}: there are {len(row)} cells for "
                    f"{len(self.columns)} columns; give each column one cell"
                )

    @property
    def value_columns(self) -> tuple[ReportColumn, ...]:
        """The columns that do not name the row."""
        return self.columns[self.row_headings :]


def build_mean_and_std_cell(
    statistic: MeanAndStd | Mapping[str, Any] | None, metric: str
) -> ReportCell:
    """Return the cell of a mean and standard deviation over seeds, if there are any."""
    if isinstance(statistic, MeanAndStd):
        statistic = statistic._asdict()
    statistic = statistic or {}
    if statistic.get("mean") is None:
        return ReportCell("not finite" if statistic.get("seeds") else "\N{EN DASH}")
    std = statistic.get("std")
    spread = "" if std is None else format_mean_of_metric(std, metric)
    return ReportCell(format_mean_of_metric(statistic["mean"], metric), spread)


def transpose_table(table: ReportTable) -> ReportTable:
    """Return the table with rows and columns exchanged; all values align right."""
    heads = table.row_headings
    names = [(*column.groups, column.heading) for column in table.value_columns]
    width = len(names[0]) if names else 1
    corner = [*table.columns[:heads], *[ReportColumn("")] * width][:width]
    columns = []
    for row in table.rows:
        *groups, heading = (cell.text for cell in row[:heads])
        columns.append(ReportColumn(heading, "right", tuple(groups)))
    rows: list[Row] = [
        [*name, *(row[heads + place] for row in table.rows)]
        for place, name in enumerate(names)
    ]
    columns = [*corner, *columns]
    return ReportTable(table.title, columns, rows, table.notes, width, table.sources)


def drop_empty_rows_and_columns(table: ReportTable) -> ReportTable:
    """Return the table without rows and columns whose cells are all empty."""
    heads = table.row_headings
    rows = [
        row for row in table.rows if any(cell != ReportCell() for cell in row[heads:])
    ]
    places = [
        place
        for place in range(len(table.columns))
        if place < heads or any(row[place] != ReportCell() for row in rows)
    ]
    columns = [table.columns[place] for place in places]
    rows = [tuple(row[place] for place in places) for row in rows]
    return ReportTable(table.title, columns, rows, table.notes, heads, table.sources)


def split_cells_into_paper_and_ours(
    table: ReportTable, side_by_side: bool
) -> ReportTable:
    """Give each source of the numbers columns of its own, or rows of its own."""
    if not table.sources:
        return table
    heads, count = table.columns[: table.row_headings], len(table.sources)
    rows: list[Row] = []
    for row in table.rows:
        names = row[: len(heads)]
        numbers = [
            [replace(cell, others=()), *cell.others, *[ReportCell()] * count][:count]
            for cell in row[len(heads) :]
        ]
        if side_by_side:
            rows.append([*names, *chain.from_iterable(numbers)])
            continue
        for place, source in enumerate(table.sources):
            first = names if place == 0 else [""] * len(heads)
            rows.append([*first, source, *(cells[place] for cells in numbers)])
    columns = [*heads, ReportColumn(""), *table.value_columns]
    if side_by_side:
        columns = [
            replace(column, heading=f"{column.heading}, {source}")
            for column in table.value_columns
            for source in table.sources
        ]
        columns[:0] = heads
    width = len(heads) + (not side_by_side)
    return ReportTable(table.title, columns, rows, table.notes, width)


def render_table_as_html(table: ReportTable) -> EscapedHtml:
    """Render a table for a page, where it scrolls sideways if it is too wide.

    Example:
        >>> table = ReportTable("", ["learner", "rows"], [["erm", "10"]])
        >>> '<td class="number">10</td>' in render_table_as_html(table)
        True
    """
    heads = table.row_headings
    cells_by_column = zip(*table.rows, strict=True)
    has_spread = [any(cell.spread for cell in cells) for cells in cells_by_column]
    headings = [
        render_html_element("th", c.heading, class_=CLASSES[c.align], scope="col")
        for c in table.columns
    ]
    groups = [
        [
            render_html_element("th", n, colspan=str(span), scope="colgroup")
            for n, span in level
        ]
        for level in _merge_groups_of_column_headings(table.value_columns)
    ]
    body = []
    for row in table.rows:
        cells = []
        for place, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            is_name, class_ = place < heads, CLASSES[column.align]
            cells.append(
                render_html_element(
                    "th" if is_name else "td",
                    _render_html_cell(cell, has_spread[place]),
                    class_=" ".join(filter(None, [cell.verdict, class_])) or None,
                    scope="row" if is_name else None,
                    title=cell.verdict,
                )
            )
        body.append(render_html_element("tr", *cells))
    head = [
        *(
            render_html_element("tr", *[render_html_element("td")] * heads, *n)
            for n in groups
        ),
        render_html_element("tr", *headings),
    ]
    inside = render_html_element(
        "table",
        render_html_element("thead", *head),
        render_html_element("tbody", *body),
        **{SORTED: "" if len(body) > LONG else None},
    )
    kind = "scroll dense" if len(table.columns) > WIDE else "scroll"
    kind += " broad" if len(table.columns) > BROAD else ""
    notes = [render_html_element("p", note, class_="small") for note in table.notes]
    return escape_and_join_html(
        render_html_element("div", inside, class_=kind, tabindex="0", role="group"),
        *notes,
    )


def render_table_for_terminal(table: ReportTable) -> Group:
    """Render a table for the terminal.

    Example:
        >>> from rich.console import Console
        >>> table = ReportTable("", ["learner", "rows"], [["erm", "10"]])
        >>> Console().print(render_table_for_terminal(table))  # doctest: +SKIP
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    flat = split_cells_into_paper_and_ours(table, side_by_side=False)
    body = RichTable(
        header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for place, column in enumerate(flat.columns):
        is_name = place < flat.row_headings
        width = max([LINE, *(len(str(row[place])) for row in flat.rows)])
        body.add_column(
            Text(fill(_join_parts_of_column_heading(column), width)),
            justify=column.align,
            style="bold" if is_name else "",
            no_wrap=is_name or column.align == "right",
        )
    for row in flat.rows:
        styles = [COLOURS.get(cell.verdict or "", "") for cell in row]
        body.add_row(*map(Text, map(str, row), styles))
    title = [Text(flat.title, "bold")] if flat.title else []
    return Group(*title, body, *map(Text, flat.notes))


def render_table_as_markdown(table: ReportTable) -> str:
    """Render a table in Markdown, with its title above and its notes below.

    Example:
        >>> table = ReportTable("", ["a", "b"], [["1", "2"]])
        >>> print(render_table_as_markdown(table), end="")
        | a | b |
        | :-- | --: |
        | 1 | 2 |
    """
    count = len(table.value_columns) * max(len(table.sources), 1)
    flat = split_cells_into_paper_and_ours(table, side_by_side=count <= WIDE)
    lines = [
        [
            escape_markdown(_join_parts_of_column_heading(column))
            for column in flat.columns
        ],
        ["--:" if column.align == "right" else ":--" for column in flat.columns],
        *([escape_markdown(str(cell)) for cell in row] for row in flat.rows),
    ]
    title = f"**{flat.title}**\n\n" if flat.title else ""
    notes = "".join(f"\n{note}\n" for note in flat.notes)
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def render_table_as_latex(table: ReportTable, legend: str = "") -> str:
    """Render a table in LaTeX, which needs the packages booktabs and graphicx.

    If there are many columns, headings are rotated and spreads are below the means.

    Example:
        >>> table = ReportTable("", ["learner", "rows"], [["erm", "10"]])
        >>> "erm & 10" in render_table_as_latex(table)
        True
    """
    flat = split_cells_into_paper_and_ours(table, side_by_side=False)
    heads, is_crowded = flat.row_headings, len(flat.value_columns) > WIDE
    title = [f"{escape_latex(flat.title)}."] if flat.title else []
    caption = " ".join([*title, *map(escape_latex, flat.notes), legend]).strip()
    lines = [
        r"\begin{table}",
        r"\centering\footnotesize",
        f"\\caption{{{caption}}}",
        f"\\begin{{tabular}}{{{''.join(c.align[0] for c in flat.columns)}}}",
        r"\toprule",
    ]
    for level in _merge_groups_of_column_headings(flat.value_columns):
        names = [
            f"\\multicolumn{{{span}}}{{c}}{{{escape_latex(name)}}}"
            for name, span in level
        ]
        lines.append(_join_cells_of_latex_row([*[""] * heads, *names]))
    names = [escape_latex(column.heading) for column in flat.columns]
    if is_crowded:
        names[heads:] = [f"\\rotatebox{{90}}{{{name}}}" for name in names[heads:]]
    lines += [_join_cells_of_latex_row(names), r"\midrule"]
    for row in flat.rows:
        start = [escape_latex(cell.text) for cell in row[:heads]]
        means = [
            escape_latex(cell.text) + LATEX_MARKS.get(cell.mark, "")
            for cell in row[heads:]
        ]
        spreads = [
            f"({escape_latex(c.spread)})" if c.spread else "" for c in row[heads:]
        ]
        if is_crowded:
            lines.append(_join_cells_of_latex_row([*start, *means]))
            if any(spreads):
                lines.append(_join_cells_of_latex_row([*[""] * heads, *spreads]))
        else:
            pairs = zip(means, spreads, strict=True)
            lines.append(
                _join_cells_of_latex_row(
                    [*start, *(f"{a} {b}".strip() for a, b in pairs)]
                )
            )
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def escape_markdown(text: str) -> str:
    """Escape text so that it cannot end a cell or a row, nor begin HTML."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return "<br>".join(" ".join(line.split()) for line in escaped.split("\n"))


def escape_latex(text: str) -> str:
    """Escape the characters of a text that are special in LaTeX."""
    return text.translate(LATEX_SPECIAL)


def _join_parts_of_column_heading(column: ReportColumn) -> str:
    return " ".join([*column.groups, column.heading])


def _merge_groups_of_column_headings(
    columns: Sequence[ReportColumn],
) -> list[list[tuple[str, int]]]:
    """The groups of each level, each with the number of columns that it spans."""
    levels = zip(*(column.groups for column in columns), strict=True)
    return [[(name, len(list(same))) for name, same in groupby(n)] for n in levels]


def _render_html_cell(cell: ReportCell, has_spread: bool) -> EscapedHtml:
    """The content; where a column has spreads all take their room, so means align."""
    if cell.markup is not None:
        return cell.markup
    lines = cell.text.split("\n")
    spread = render_html_element(
        "span", f" ± {cell.spread}" if cell.spread else "", class_="spread"
    )
    others = [
        render_html_element("div", _render_html_cell(other, has_spread), class_="other")
        for other in cell.others
        if other != ReportCell()
    ]
    return escape_and_join_html(
        f"{MARKS[cell.mark]} " if cell.mark else "",
        *(
            lines
            if len(lines) == 1
            else [render_html_element("div", line) for line in lines]
        ),
        spread if has_spread and cell.text else "",
        *others,
    )


def _join_cells_of_latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
