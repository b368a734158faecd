"""The board as a page and in Markdown: who leads where, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from cirm.board.figure import BoardPoint, plot_unseen_over_seen_scores
from cirm.board.results import find_best_row_of_column
from cirm.board.rows import OURS
from cirm.report import page
from cirm.report.axes import NARROW
from cirm.report.markup import Markup
from cirm.report.page import Section
from cirm.report.table import (
    Cell,
    Column,
    Table,
    build_statistic_cell,
    render_markdown,
)
from cirm.wording import join_words

Summary = Mapping[str, Any]
RULES = {
    "worst-group": "the worst inferred group of held-out training data",
    "next": "the next place, before it is learned",
    "held-out": "held-out training data",
}


def build_board_page(summary: Summary, command: str) -> str:
    """Build the page of the board as one self-contained HTML document.

    Args:
        summary: What `cirm.board.results.summarise_board` returns.
        command: The command that made the board.
    """
    content = [
        Section(
            "", [page.render_headline_numbers(list_main_numbers_of_board(summary))]
        ),
        Section("Unseen places", [build_board_table(summary)]),
        Section("Seen and unseen", [_render_plot_of_seen_and_unseen_scores(summary)]),
        Section(
            "After adapting to the unseen place",
            [*_build_tables_of_adapted_scores(summary)],
        ),
        Section("How it was made", [*describe_board(summary)]),
        Section("Command to run this again", [page.render_shell_command(command)]),
    ]
    return page.render_page(
        "Board of learners", write_board_lead_paragraph(summary), content
    )


def render_board_markdown(summary: Summary, command: str) -> str:
    """Return the board as a Markdown document.

    Args:
        summary: What `cirm.board.results.summarise_board` returns.
        command: The command that made the board.
    """
    tables = [build_board_table(summary), *_build_tables_of_adapted_scores(summary)]
    parts = [
        "# Board of learners",
        write_board_lead_paragraph(summary),
        *map(render_markdown, tables),
        "## How it was made",
        "\n".join(f"- {text}" for text in describe_board(summary)),
        f"Made by `{command}`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_board_lead_paragraph(summary: Summary) -> str:
    """Say in which columns our learner leads, and who leads in the others."""
    cells, ours = summary["cells"], summary["cells"].get(OURS, {})
    led, behind = [], []
    for column in summary["columns"]:
        name, leader = column["name"], find_best_row_of_column(summary, column["name"])
        if not leader:
            continue
        if leader == OURS or name not in ours:
            led += [column["title"]] if leader == OURS else []
            behind += [] if leader == OURS else [f"{column['title']} ({leader})"]
            continue
        gap = cells[leader][name]["unseen"]["mean"] - ours[name]["unseen"]["mean"]
        behind.append(f"{column['title']} ({leader}, by {gap:.1f} points)")
    if not led and not behind:
        return "No column has results yet."
    text = f"{OURS} has the highest mean in {len(led)} of {len(led) + len(behind)} "
    text += "columns." if not led else f"columns: {join_words(led)}."
    if close := [
        c["title"] for c in summary["columns"] if _is_our_lead_within_noise(summary, c)
    ]:
        text += f" In {join_words(close)} the lead is less than a standard deviation."
    return text + (f" Others lead in {join_words(behind)}." if behind else "")


def _is_our_lead_within_noise(summary: Summary, column: Mapping[str, Any]) -> bool:
    """Whether ours leads a column, but by less than its deviation over seeds."""
    name = column["name"]
    if find_best_row_of_column(summary, name) != OURS:
        return False
    cells = {row: own[name] for row, own in summary["cells"].items() if name in own}
    ours = cells.pop(OURS)["unseen"]
    second = max((cell["unseen"]["mean"] for cell in cells.values()), default=None)
    return second is not None and ours["mean"] - second < (ours["std"] or 0)


def list_main_numbers_of_board(summary: Summary) -> list[tuple[str, str]]:
    """Return the main numbers, each with its description."""
    ranks = summary["ranks"]
    facts = [
        (str(len(summary["cells"])), "rows"),
        (str(len(summary["columns"])), "columns"),
        (str(len(summary["seeds"])), "seeds"),
    ]
    if OURS in ranks:
        place = sum(other["mean"] < ranks[OURS]["mean"] for other in ranks.values())
        facts.append((f"{place + 1} of {len(ranks)}", f"rank of {OURS}"))
    return facts


def build_board_table(summary: Summary) -> Table:
    """Build the table of unseen scores, with the oracle's choice beside each."""
    rows = []
    order = sorted(summary["ranks"], key=lambda row: summary["ranks"][row]["mean"])
    for name in order:
        rank, cells = summary["ranks"][name], summary["cells"][name]
        interval = f"{rank['low']:.0f} to {rank['high']:.0f}"
        row = [Cell(name), Cell(f"{rank['mean']:.0f}"), Cell(interval)]
        for column in summary["columns"]:
            cell = cells.get(column["name"], {})
            row += [_build_score_cell(cell.get(kind)) for kind in ("unseen", "oracle")]
        rows.append(row)
    columns = [Column("learner")]
    columns += [Column(n, "right", ("beaten by, %",)) for n in ("mean", "95 %")]
    for column in summary["columns"]:
        columns += [
            Column(name, "right", (column["title"],)) for name in ("unseen", "oracle*")
        ]
    notes = [
        "Unseen: accuracy in percent (regressions: explained variance in percent) at "
        "the unseen place, mean ± standard deviation over seeds and orders. Beaten "
        "by: the share of the other rows that have a higher score, averaged over "
        "columns, with a bootstrap interval over columns and seeds. * Oracle: the "
        "same search, but with settings chosen by the unseen score of the trials, "
        "which nobody knows in practice: not a result. It can be lower than the honest "
        "choice, since trials have few seeds and less data than the runs.",
    ]
    return Table("Board", columns, rows, notes)


def describe_board(summary: Summary) -> list[str]:
    """Say how settings were chosen, and which columns are left out and why."""
    notes = [
        f"Every row gets {summary['trials']} trials in each column, the first with the "
        "learner's defaults, and the chosen settings are run with "
        f"{len(summary['seeds'])} seeds. No choice sees the unseen place."
    ]
    for rule, words in RULES.items():
        titles = [c["title"] for c in summary["columns"] if c["rule"] == rule]
        if titles:
            notes.append(f"Chosen by {words}: {join_words(titles)}.")
    notes += [
        f"Left out, {title}: {reason}" for title, reason in summary["absent"].items()
    ]
    return notes


def _build_score_cell(statistic: Mapping[str, Any] | None) -> Cell:
    return build_statistic_cell(statistic, "accuracy") if statistic else Cell()


def _build_tables_of_adapted_scores(summary: Summary) -> list[Table]:
    """Return the table of learners that adapt to rows without labels, if any did."""
    columns = summary["columns"]
    adapted = {
        name: [own.get(c["name"], {}).get("adapted") for c in columns]
        for name, own in summary["cells"].items()
    }
    rows = [
        [Cell(name), *map(_build_score_cell, own)]
        for name, own in adapted.items()
        if any(own)
    ]
    if not rows:
        return []
    headings = [Column("learner"), *(Column(c["title"], "right") for c in columns)]
    note = (
        "The same score after adapting to all rows of the unseen place without their "
        "labels. No setting was chosen by it."
    )
    return [Table("Adapted", headings, rows, [note])]


def _render_plot_of_seen_and_unseen_scores(summary: Summary) -> Markup:
    """Render seen against unseen scores, as means over the columns of a row."""
    points = [
        BoardPoint(
            name,
            fmean(cell["seen"]["mean"] for cell in own.values()),
            fmean(cell["unseen"]["mean"] for cell in own.values()),
            name == OURS,
        )
        for name, own in _select_comparable_rows(summary).items()
    ]
    if not points:
        return Markup()
    caption = (
        "Score at the unseen place against that at the places seen, as means over the "
        "classifications. On the line nothing is lost. Rows that did not run on all "
        f"of them are left out. Orange: {OURS}."
    )
    wide, narrow = (
        plot_unseen_over_seen_scores(points),
        plot_unseen_over_seen_scores(points, width=NARROW),
    )
    return page.render_figure(caption, wide, narrow)


def _select_comparable_rows(summary: Summary) -> dict[str, dict[str, Any]]:
    """Return the rows with scores in all classifications, and only these columns."""
    names = [c["name"] for c in summary["columns"] if c["task"] == "classification"]
    return {
        row: {name: own[name] for name in names}
        for row, own in summary["cells"].items()
        if names and all(own.get(name, {}).get("seen") for name in names)
    }
