"""The page of the board: who leads where, and figures that can be read."""

import copy

import pytest

from cirm.board.figure import SeenAndUnseenScore, choose_plot_points_to_label
from cirm.board.page import (
    build_leaderboard_page,
    build_tables_of_leaderboard_groups,
    render_leaderboard_markdown,
    write_leaderboard_summary_paragraph,
)
from cirm.board.results import compute_percentage_of_learners_ahead
from tests.browser import OUTSIDE, OVERLAPS


def make_cell(unseen, adapted=None):
    def statistic(mean):
        return mean and {"mean": mean, "std": 1.0, "seeds": 2}

    return {
        "settings": [{}],
        "unseen": statistic(unseen),
        "seen": statistic(90.0 - unseen / 10),
        "oracle": statistic(unseen + 3),
        "adapted": statistic(adapted),
    }


@pytest.fixture
def summary():
    rows = {f"learner {n}": (20.0 + n, 50.0 + n) for n in range(12)}
    rows |= {"erm": (15.0, 70.0), "steady": (65.0, 68.0)}
    columns = [
        ("d", "digits", "worst-group", "Images"),
        ("t", "a table", "next", "Tables"),
    ]
    cells = {
        name: {
            column: make_cell(value, 80.0 if name == "steady" else None)
            for (column, *_), value in zip(columns, values, strict=True)
        }
        for name, values in rows.items()
    }
    scores = {
        name: {c: {"0": cell["unseen"]["mean"]} for c, cell in own.items()}
        for name, own in cells.items()
    }
    return {
        "rows": [{"name": name, "family": "some"} for name in rows],
        "columns": [
            {
                **{"name": n, "title": t, "rule": r, "group": g},
                **{"task": "classification", "orders": 1},
            }
            for n, t, r, g in columns
        ],
        "seeds": [0, 1],
        "trials": 3,
        "cells": cells,
        "ranks": compute_percentage_of_learners_ahead(scores),
        "absent": {"PACS": "the data set is not in the cache."},
    }


def test_the_lead_says_where_ours_leads_and_where_not(summary):
    assert write_leaderboard_summary_paragraph(summary) == (
        "steady has the highest mean on 1 of 2 data sets: digits. Another learner "
        "leads on a table (erm, by 2.0 points)."
    )
    near = copy.deepcopy(summary)
    near["cells"]["erm"]["d"]["unseen"]["mean"] = 64.5
    assert (
        "On digits, steady leads by less than a standard deviation."
        in write_leaderboard_summary_paragraph(near)
    )
    same = copy.deepcopy(summary)
    same["cells"]["erm"]["d"]["unseen"]["mean"] = 65.0
    assert write_leaderboard_summary_paragraph(same) == (
        "steady has the highest mean on 0 of 2 data sets. Another learner has the same "
        "mean on digits. Another learner leads on a table (erm, by 2.0 points)."
    )
    without = copy.deepcopy(summary)
    del without["cells"]["steady"]
    assert write_leaderboard_summary_paragraph(without) == (
        "No data set has results of steady and of another learner yet."
    )
    alone = copy.deepcopy(summary)
    for row, own in alone["cells"].items():
        if row != "steady":
            own.pop("d", None)
    assert write_leaderboard_summary_paragraph(alone) == (
        "steady has the highest mean on 0 of 1 data sets. Another learner leads on a "
        "table (erm, by 2.0 points)."
    )


def test_markdown_has_the_oracle_marked_and_what_is_left_out(summary):
    text = render_leaderboard_markdown(summary, "cirm board --quick")
    assert "| learner | beaten by, % | 95 % | data sets |" in text
    assert "| learner | digits unseen | digits oracle* |" in text
    assert "| learner | a table unseen | a table oracle* |" in text
    assert (
        "This score is unknown in practice, so the oracle is not a fair result." in text
    )
    assert "- PACS is left out: the data set is not in the cache." in text
    assert (
        "Settings chosen by the score on the worst inferred group of held-out training "
        "data: digits." in text
    )
    assert text.count("| steady | 65.0 ± 1.0 | 68.0 ± 1.0 |") == 1
    assert "| data set | steady |" in text and text.count("| 80.0 ± 1.0 |") == 2
    assert "Made by `cirm board --quick`." in text


def test_learners_are_listed_only_where_they_have_a_score(summary):
    del summary["cells"]["erm"]["d"]
    ranks, images, tables = build_tables_of_leaderboard_groups(summary)
    assert [table.title for table in (ranks, images, tables)] == [
        *("Ranks", "Images", "Tables"),
    ]
    assert len(images.rows) == len(tables.rows) - 1 == len(ranks.rows) - 1
    counts = {row[0].text: row[3].text for row in ranks.rows}
    assert counts["erm"] == "1" and counts["steady"] == "2"
    for column in summary["columns"]:
        column["group"] = "Tables"
    (only,) = build_tables_of_leaderboard_groups(summary)
    assert len(only.columns) == 7


def test_the_figure_shows_the_largest_part_of_a_board_without_a_gap(summary):
    page = build_leaderboard_page(summary, "cirm board")
    assert "Mean score over digits and a table, at the unseen place" in page
    for row, own in summary["cells"].items():
        if row not in ("steady", "erm"):
            del own["t"]
    page = build_leaderboard_page(summary, "cirm board")
    assert "Mean score over digits, at the unseen place" in page
    for own in summary["cells"].values():
        own.clear()
    assert "Mean score over" not in build_leaderboard_page(summary, "cirm board")


def test_names_in_the_figure_do_not_lie_on_one_another():
    near = [SeenAndUnseenScore(f"n{n}", 80.0, 60.0 + n / 100) for n in range(5)]
    points = [
        *near,
        SeenAndUnseenScore("far", 60.0, 20.0),
        SeenAndUnseenScore("steady", 70.0, 10, True),
    ]
    named = choose_plot_points_to_label(points, (50, 100), (0, 100))
    assert [point.name for point in named] == ["steady", "n4", "far"]


@pytest.mark.integration
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_can_be_read_and_sorted(browser, summary, tmp_path, width):
    path = tmp_path / "report.html"
    path.write_text(
        build_leaderboard_page(summary, "cirm board --quick"), encoding="utf-8"
    )
    browser.open(path, width, "light")
    assert not browser.reported("Log.entryAdded", "Runtime.exceptionThrown")
    assert browser.run(OVERLAPS) == []
    assert browser.run(OUTSIDE) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.querySelectorAll('table[data-sorted]').length") == 3
