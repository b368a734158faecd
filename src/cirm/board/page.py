"""The board as a page and in Markdown: who leads where, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from cirm.board.figure import SeenAndUnseenScore, plot_unseen_over_seen_scores
from cirm.board.results import find_best_learner_of_dataset
from cirm.board.rows import OURS
from cirm.report import page
from cirm.report.axes import NARROW
from cirm.report.markup import EscapedHtml
from cirm.report.page import PageSection
from cirm.report.table import (
    ReportCell,
    ReportColumn,
    ReportTable,
    build_mean_and_std_cell,
    render_table_as_markdown,
)
from cirm.wording import join_words

Summary = Mapping[str, Any]
RULES = {
    "worst-group": "the worst inferred group of held-out training data",
    "next": "the next place, before it is learned",
    "held-out": "held-out training data",
}
SCORE_NOTE = (
    "Unseen: accuracy at the unseen place in percent (regressions: by how many percent "
    "the squared error is lower than that of predicting the mean of all training "
    "examples), mean ± standard deviation over seeds and orders. * Oracle: settings "
    "chosen by their score at the unseen place. This score is unknown in practice, so "
    "the oracle is not a fair result. The oracle can be below the fair choice, because "
    "trials have fewer seeds and less data than the final runs."
)
RANK_NOTE = (
    "Beaten by: the share of the other learners with a higher score, averaged over the "
    "data sets, with a bootstrap interval over data sets and seeds. Learners are "
    "compared on the data sets where both have a score. The interval of a learner with "
    "a single data set is unknown."
)


def build_leaderboard_page(summary: Summary, command: str) -> str:
    """Build the page of the board as one self-contained HTML document.

    Args:
        summary: What `cirm.board.results.summarise_leaderboard` returns.
        command: The command that made the board.
    """
    content = [
        PageSection(
            "",
            [page.render_headline_numbers(list_leaderboard_headline_numbers(summary))],
        ),
        PageSection("Unseen places", build_tables_of_leaderboard_groups(summary)),
        PageSection(
            "Seen and unseen", [_render_plot_of_seen_and_unseen_scores(summary)]
        ),
        PageSection(
            "After adapting to the unseen place",
            [*_build_tables_of_scores_after_adapting(summary)],
        ),
        PageSection(
            "How these scores were computed", [*describe_leaderboard_settings(summary)]
        ),
        PageSection(
            "Command that repeats this run", [page.render_shell_command(command)]
        ),
    ]
    return page.render_html_page(
        "Leaderboard of learners", write_leaderboard_summary_paragraph(summary), content
    )


def render_leaderboard_markdown(summary: Summary, command: str) -> str:
    """Return the board as a Markdown document.

    Args:
        summary: What `cirm.board.results.summarise_leaderboard` returns.
        command: The command that made the board.
    """
    tables = [
        *build_tables_of_leaderboard_groups(summary),
        *_build_tables_of_scores_after_adapting(summary),
    ]
    parts = [
        "# Board of learners",
        write_leaderboard_summary_paragraph(summary),
        *map(render_table_as_markdown, tables),
        "## How these scores were computed",
        "\n".join(f"- {text}" for text in describe_leaderboard_settings(summary)),
        f"Made by `{command}`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_leaderboard_summary_paragraph(summary: Summary) -> str:
    """Say in which columns our learner leads, and who leads in the others.

    Columns in which it has no other learner beside it are not counted.
    """
    led: list[str] = []
    tied: list[str] = []
    behind: list[str] = []
    for column in summary["columns"]:
        title, name = column["title"], column["name"]
        lead = _compute_lead_of_steady(summary, name)
        if lead is None:
            continue
        if lead < 0:
            leader = find_best_learner_of_dataset(summary, name)
            behind.append(f"{title} ({leader}, by {-lead:.1f} points)")
        else:
            (led if lead else tied).append(title)
    count = len(led) + len(tied) + len(behind)
    if not count:
        return f"No data set has results of {OURS} and of another learner yet."
    text = f"{OURS} has the highest mean on {len(led)} of {count} "
    text += "data sets." if not led else f"data sets: {join_words(led)}."
    if close := [
        c["title"]
        for c in summary["columns"]
        if c["title"] in led and _is_lead_of_steady_within_noise(summary, c)
    ]:
        text += (
            f" On {join_words(close)}, {OURS} leads by less than a standard deviation."
        )
    text += f" Another learner has the same mean on {join_words(tied)}." * bool(tied)
    return text + (f" Another learner leads on {join_words(behind)}." if behind else "")


def _compute_lead_of_steady(summary: Summary, column: str) -> float | None:
    """Return by how much ours leads the best other row; None without both."""
    means = {
        row: own[column]["unseen"]["mean"]
        for row, own in summary["cells"].items()
        if column in own
    }
    ours = means.pop(OURS, None)
    return None if ours is None or not means else ours - max(means.values())


def _is_lead_of_steady_within_noise(
    summary: Summary, column: Mapping[str, Any]
) -> bool:
    """Whether ours leads a column, but by less than its deviation over seeds."""
    lead = _compute_lead_of_steady(summary, column["name"])
    if lead is None or lead <= 0:
        return False
    deviation = summary["cells"][OURS][column["name"]]["unseen"]["std"]
    return bool(lead < (deviation or 0))


def list_leaderboard_headline_numbers(summary: Summary) -> list[tuple[str, str]]:
    """Return the main numbers, each with its description."""
    ranks = summary["ranks"]
    facts = [
        (str(len(summary["cells"])), "learners"),
        (str(len(summary["columns"])), "data sets"),
        (str(len(summary["seeds"])), "seeds"),
    ]
    if OURS in ranks:
        place = sum(other["mean"] < ranks[OURS]["mean"] for other in ranks.values())
        facts.append((f"{place + 1} of {len(ranks)}", f"rank of {OURS}"))
    return facts


def build_tables_of_leaderboard_groups(summary: Summary) -> list[ReportTable]:
    """Build a table of ranks, and of the scores on images, on PACS and on tables.

    A board whose data sets are all of one group has a single table.
    """
    groups = list(dict.fromkeys(c["group"] for c in summary["columns"]))
    if len(groups) < 2:
        return [build_leaderboard_table(summary)]
    everything = build_leaderboard_table(summary)
    counts = [str(len(summary["cells"][row[0].text])) for row in everything.rows]
    ranks = [
        [*row[:3], ReportCell(count)]
        for row, count in zip(everything.rows, counts, strict=True)
    ]
    headings = ("learner", "beaten by, %", "95 %", "data sets")
    tables = [ReportTable("Ranks", headings, ranks, [RANK_NOTE])]
    for group in groups:
        own = [c["title"] for c in summary["columns"] if c["group"] == group]
        places = [
            place
            for place, column in enumerate(everything.columns)
            if place == 0 or (column.groups and column.groups[0] in own)
        ]
        rows = [[row[place] for place in places] for row in everything.rows]
        known = [row for row in rows if any(cell != ReportCell() for cell in row[1:])]
        columns = [everything.columns[place] for place in places]
        notes = [SCORE_NOTE] if group == groups[-1] else []
        tables.append(ReportTable(group, columns, known, notes))
    return tables


def build_leaderboard_table(summary: Summary) -> ReportTable:
    """Build the table of unseen scores, with the oracle's choice beside each."""
    rows = []
    order = sorted(summary["ranks"], key=lambda row: summary["ranks"][row]["mean"])
    for name in order:
        rank, cells = summary["ranks"][name], summary["cells"][name]
        row = [
            ReportCell(name),
            ReportCell(f"{rank['mean']:.0f}"),
            ReportCell(format_rank_interval(summary, name)),
        ]
        for column in summary["columns"]:
            cell = cells.get(column["name"], {})
            row += [
                _build_leaderboard_score_cell(cell.get(kind))
                for kind in ("unseen", "oracle")
            ]
        rows.append(row)
    columns = [ReportColumn("learner")]
    columns += [ReportColumn(n, "right", ("beaten by, %",)) for n in ("mean", "95 %")]
    for column in summary["columns"]:
        columns += [
            ReportColumn(name, "right", (column["title"],))
            for name in ("unseen", "oracle*")
        ]
    return ReportTable("Board", columns, rows, [f"{SCORE_NOTE} {RANK_NOTE}"])


def format_rank_interval(summary: Summary, name: str) -> str:
    """Format the interval of a rank; a single data set shows no spread over these."""
    rank = summary["ranks"][name]
    is_known = len(summary["cells"][name]) > 1
    return f"{rank['low']:.0f} to {rank['high']:.0f}" if is_known else "unknown"


def describe_leaderboard_settings(summary: Summary) -> list[str]:
    """Say how settings were chosen, and which columns are left out and why."""
    notes = [
        f"On each data set, {summary['trials']} settings of every learner are tried, "
        "starting with its defaults. The chosen settings are then run with "
        f"{len(summary['seeds'])} seeds. The unseen place is never used to choose "
        "them."
    ]
    for rule, words in RULES.items():
        titles = [c["title"] for c in summary["columns"] if c["rule"] == rule]
        if titles:
            notes.append(
                f"Settings chosen by the score on {words}: {join_words(titles)}."
            )
    if ranked := [
        c["title"]
        for c in summary["columns"]
        if c.get("measure") == "average precision"
    ]:
        notes.append(
            f"On {join_words(ranked)}, scores are average precision in percent, since "
            "the accuracy of every learner there is that of always predicting the "
            "more frequent class. Settings are still chosen by accuracy."
        )
    notes += [
        f"{column['part']}." for column in summary["columns"] if column.get("part")
    ]
    notes += [
        f"{title} is left out: {reason}" for title, reason in summary["absent"].items()
    ]
    return notes


def _build_leaderboard_score_cell(statistic: Mapping[str, Any] | None) -> ReportCell:
    return build_mean_and_std_cell(statistic, "accuracy") if statistic else ReportCell()


def _build_tables_of_scores_after_adapting(summary: Summary) -> list[ReportTable]:
    """Return the table of learners that adapt to rows without labels, if any did."""
    adapted = {
        name: {c: cell["adapted"] for c, cell in own.items() if cell.get("adapted")}
        for name, own in summary["cells"].items()
    }
    adapted = {name: own for name, own in adapted.items() if own}
    rows = [
        [ReportCell(column["title"]), *map(_build_leaderboard_score_cell, scores)]
        for column in summary["columns"]
        if any(scores := [own.get(column["name"]) for own in adapted.values()])
    ]
    if not rows:
        return []
    headings = [ReportColumn("data set")]
    headings += [ReportColumn(name, "right") for name in adapted]
    note = (
        "The same score, after the learner was adapted to all rows of the unseen "
        "place without their labels. It was not used to choose settings."
    )
    return [ReportTable("Adapted", headings, rows, [note])]


def _render_plot_of_seen_and_unseen_scores(summary: Summary) -> EscapedHtml:
    """Render seen against unseen scores, as means over the columns of a row."""
    cells = _select_learners_with_all_scores(summary)
    points = [
        SeenAndUnseenScore(
            name,
            fmean(cell["seen"]["mean"] for cell in own.values()),
            fmean(cell["unseen"]["mean"] for cell in own.values()),
            name == OURS,
        )
        for name, own in cells.items()
    ]
    if not points:
        return EscapedHtml()
    used = next(iter(cells.values()))
    titles = [c["title"] for c in summary["columns"] if c["name"] in used]
    caption = (
        f"Mean score over {join_words(titles)}, at the unseen place (vertical) and at "
        "the places seen (horizontal). On the line, both are equal. Learners without a "
        "score on all of these data sets are left out. "
        f"Orange: {OURS}."
    )
    wide, narrow = (
        plot_unseen_over_seen_scores(points),
        plot_unseen_over_seen_scores(points, width=NARROW),
    )
    return page.render_html_figure(caption, wide, narrow)


def _select_learners_with_all_scores(summary: Summary) -> dict[str, dict[str, Any]]:
    """Return the classifications by row, without a gap.

    On a board that is not complete these are the columns, most complete ones first,
    for which the number of cells is largest.
    """
    known = {
        column["name"]: {
            row
            for row, own in summary["cells"].items()
            if own.get(column["name"], {}).get("seen")
        }
        for column in summary["columns"]
        if column["task"] == "classification"
    }
    names = sorted(known, key=lambda name: -len(known[name]))
    blocks = [
        (names[:count], set.intersection(*(known[name] for name in names[:count])))
        for count in range(1, len(names) + 1)
    ]
    chosen, rows = max(
        blocks, key=lambda block: len(block[0]) * len(block[1]), default=([], set())
    )
    return {
        row: {name: own[name] for name in chosen}
        for row, own in summary["cells"].items()
        if row in rows
    }
