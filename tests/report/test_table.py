"""One table in four forms: HTML, terminal, Markdown, LaTeX."""

from io import StringIO

import pytest
from rich.console import Console

from cirm.report.table import (
    ReportCell,
    ReportColumn,
    ReportTable,
    build_mean_and_std_cell,
    drop_empty_rows_and_columns,
    render_table_as_html,
    render_table_as_latex,
    render_table_as_markdown,
    render_table_for_terminal,
    transpose_table,
)

DASH = "\N{EN DASH}"


def print_table(table):
    stream = StringIO()
    Console(file=stream, width=120).print(render_table_for_terminal(table))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def compare():
    """Our numbers and the paper's, with a verdict on ours."""
    paper = ReportCell("20.0", "1.0")
    rows = [
        ["erm", ReportCell("12.5", "0.5", "better", (paper,)), "50.0"],
        ["gem", ReportCell("", "", "no-data", (paper,)), ""],
    ]
    columns = ["learner", "test", "chance"]
    return ReportTable(
        "Accuracy, %", columns, rows, ["A note."], sources=("ours", "paper")
    )


def test_markdown_puts_sources_beside_each_other_and_marks_verdicts():
    assert render_table_as_markdown(compare()).splitlines() == [
        "**Accuracy, %**",
        "",
        "| learner | test, ours | test, paper | chance, ours | chance, paper |",
        "| :-- | --: | --: | --: | --: |",
        "| erm | 12.5 ± 0.5 ▲ | 20.0 ± 1.0 | 50.0 |  |",
        "| gem | ∅ | 20.0 ± 1.0 |  |  |",
        "",
        "A note.",
    ]


def test_markdown_cells_cannot_break_the_table_or_hold_html():
    text = render_table_as_markdown(ReportTable("", ["a|b"], [["<i>\\ \n  two"]]))
    assert text.splitlines() == ["| a\\|b |", "| :-- |", "| &lt;i>\\\\<br>two |"]


def test_a_terminal_has_a_row_for_each_source_and_takes_brackets_literally():
    lines = print_table(compare())
    assert lines[0] == "Accuracy, %"
    assert lines[1].split() == ["learner", "test", "chance"]
    assert lines[3].split() == ["erm", "ours", "12.5", "±", "0.5", "▲", "50.0"]
    assert lines[4].split() == ["paper", "20.0", "±", "1.0"]
    assert lines[-1] == "A note."
    (_, _, row) = print_table(ReportTable("", ["x"], [["[bold]"]]))
    assert row.strip() == "[bold]"


def test_html_shows_other_sources_in_the_same_cell_and_colours_the_verdict():
    text = render_table_as_html(compare())
    assert '<th scope="row">erm</th>' in text
    assert '<td class="better number" title="better">▲ 12.5' in text
    assert '<div class="other">20.0<span class="spread"> ± 1.0</span></div>' in text
    assert '<p class="small">A note.</p>' in text


def test_html_escapes_text_and_takes_markup_as_it_is():
    from cirm.report.markup import render_html_element

    drawing = ReportCell("x", markup=render_html_element("svg"))
    text = render_table_as_html(ReportTable("", ["<a>"], [["<i>"], [drawing]]))
    assert "&lt;a&gt;" in text
    assert '<th scope="row">&lt;i&gt;</th>' in text
    assert '<th scope="row"><svg></svg></th>' in text


def test_latex_marks_verdicts_and_escapes_text():
    lines = render_table_as_latex(compare(), r"$^{+}$ better.").splitlines()
    assert lines[2] == r"\caption{Accuracy, \%. A note. $^{+}$ better.}"
    assert lines[3] == r"\begin{tabular}{llrr}"
    assert r"erm & ours & 12.5$^{+}$ (0.5) & 50.0 \\" in lines
    assert r"gem & ours & --- &  \\" in lines
    assert r" & paper & 20.0 (1.0) &  \\" in lines


def test_shared_headings_span_their_columns():
    columns = ["", *(ReportColumn(s, "right", ("A",)) for s in ("Train", "Test"))]
    table = ReportTable("", columns, [["x", "1", "2"]])
    assert r" & \multicolumn{2}{c}{A} \\" in render_table_as_latex(table).splitlines()
    assert '<th colspan="2" scope="colgroup">A</th>' in render_table_as_html(table)
    assert "|  | A Train | A Test |" in render_table_as_markdown(table)


def test_transposing_twice_gives_the_same_table():
    rows = [["k", n, n, "", n + n] for n in "12"]
    table = ReportTable("T", ["n", "", "a", "b", "c"], rows, row_headings=2)
    turned = transpose_table(table)
    assert [c.heading for c in turned.columns] == ["n", "1", "2"]
    assert turned.columns[1].groups == ("k",)
    assert [[str(c) for c in row] for row in turned.rows][2] == ["c", "11", "22"]
    assert transpose_table(turned).rows == table.rows
    assert len(drop_empty_rows_and_columns(table).columns) == 4


def test_a_row_of_another_length_and_an_unknown_verdict_are_refused():
    with pytest.raises(ValueError, match=r"table 'T', row 1: there are 2 cells for 1"):
        ReportTable("T", ["a"], [["", ""]])
    with pytest.raises(ValueError, match="is 'fine'; use one of match, better"):
        ReportCell("1", verdict="fine")


def test_statistics_show_their_spread_and_say_what_is_missing():
    assert (
        str(build_mean_and_std_cell({"mean": 12.34, "std": 1.0}, "accuracy"))
        == "12.3 ± 1.0"
    )
    assert str(build_mean_and_std_cell({"mean": 1.5, "std": None}, "error")) == "1.50"
    assert str(build_mean_and_std_cell(None, "accuracy")) == DASH
    nothing = {"mean": None, "std": None, "seeds": 3}
    assert str(build_mean_and_std_cell(nothing, "error")) == "not finite"


def test_long_headings_break_on_the_terminal_and_numbers_do_not():
    heading = "a heading that is much longer than its numbers"
    lines = print_table(
        ReportTable("", ["learner", heading], [["erm", ReportCell("1.0", "0.5")]])
    )
    assert max(map(len, lines)) < 30
    assert lines[-1].endswith("1.0 ± 0.5")
