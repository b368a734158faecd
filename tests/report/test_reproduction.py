import json
import re

import pytest

from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord
from cirm.report.markup import render_html_element
from cirm.report.paper_page import (
    DatasetRecords,
    ExperimentReport,
    FigureWithCaption,
    build_paper_comparison_tables,
    build_paper_page,
    describe_missing_numbers,
    render_paper_tables_as_latex,
    render_paper_tables_as_markdown,
    render_results_document,
    render_sweep_of_experiment,
    summarise_learners_of_row,
    transpose_table_if_wide,
    write_comparison_lead_paragraph,
)
from cirm.report.table import transpose_table
from tests.browser import OVERLAPS, SIZES

LEARNERS = ("c-bvirm", "erm", "ewc", "gem", "irmg", "irmv1", "mer", "vcl", "vclc")
VERDICTS = ("match", "better", "differs")


def cell(row, learner, split, mean, verdict, paper=20.0, metric="accuracy", **more):
    stated = None if paper is None else {"mean": paper, "std": 1.0}
    numbers = {"mean": mean, "std": 0.5, "seeds": 3}
    chosen = {"verdict": verdict, "selection": "the paper's", "seconds": 4.0}
    place = {"row": row, "learner": learner, "split": split, "metric": metric}
    return {**place, **numbers, "paper": stated, **chosen, **more}


def claim(holds):
    answer = {"claim": "a < b", "holds": holds, "in_paper": True}
    return {**answer, "figures": ["erm 10 | gem 20"]}


def summary(learners=LEARNERS, cells=None):
    columns = [[name.upper()] for name in (*learners, "nobody")]
    lines = [
        {
            "headings": [split],
            "places": [("mnist", name, split) for name in (*learners, "nobody")],
        }
        for split in ("train", "test")
    ]
    made = cells or [
        cell("mnist", name, split, 20.0 + n, VERDICTS[n % 3])
        for split in ("train", "test")
        for n, name in enumerate(learners)
    ]
    table = {"title": "Accuracy, %", "corner": [""], "columns": columns}
    return {
        "experiment": "table1",
        "title": "Table 1: two environments",
        "command": "cirm reproduce table1 --seeds 3",
        "commits": ["abc123", "def456"],
        "cells": made,
        "claims": [claim(True), claim(False), claim(None)],
        "tables": [{**table, "lines": lines}],
    }


@pytest.fixture(scope="module")
def part(records):
    residuals = [
        TrainingCurveRecord(
            "c-bvirm", "sequential", seed, stage, step, metric, 1 / (step + 1)
        )
        for seed in range(3)
        for stage in range(2)
        for step in range(0, 100, 10)
        for metric in ("consensus", "constraint")
    ]
    data = [DatasetRecords("MNIST, b01", [*residuals, *records], (0.2, 0.1))]
    axis = "colour flip of the unseen environment"
    return ExperimentReport(summary(), data, 50.0, axis)


def test_the_errors_of_coefficients_are_measured_beside_the_scores():
    rows = [
        ScoreRecord("erm", "joint", seed, 0, kind, split, metric, value + seed)
        for seed in (0, 1)
        for kind, split, metric, value in (
            ("a", "train", "error", 3.0),
            ("causal", "truth", "coefficients", 0.5),
            ("noncausal", "truth", "coefficients", 7.0),
        )
    ]
    entry = summarise_learners_of_row(
        [*rows, RunRecord("erm", "joint", (0, 1), {}, {}, "s", {}, 2.0)]
    )["erm"]
    assert entry["train"]["mean"] == 3.5
    assert entry["causal"] == {"mean": 1.0, "std": pytest.approx(0.5**0.5), "seeds": 2}
    assert entry["noncausal"]["mean"] == 7.5


def test_scores_of_inferred_environments_are_averaged_without_weights():
    rows = [
        ScoreRecord("erm", "joint", 0, 0, name, split, "accuracy", value)
        for name, split, value in (
            ("a", "train", 90.0),
            ("inferred 0", "inferred", 60.0),
            ("inferred 1", "inferred", 80.0),
        )
    ]
    entry = summarise_learners_of_row(
        [*rows, RunRecord("erm", "joint", (0,), {}, {}, "s", {}, 2.0)]
    )
    assert entry["erm"]["inferred"]["mean"] == 70.0
    assert entry["erm"]["train"]["mean"] == 90.0


def test_a_table_in_which_nothing_was_measured_says_so_in_each_cell():
    cells = [
        cell("mnist", name, split, None, "no-data", paper=None, note="not run")
        for split in ("train", "test")
        for name in LEARNERS[:2]
    ]
    text = render_paper_tables_as_markdown(summary(LEARNERS[:2], cells))
    assert text.count("| ∅ | ∅ |") == 2


def test_a_wide_and_low_table_is_turned_and_empty_columns_are_left_out():
    (table,) = build_paper_comparison_tables(summary())
    assert len(table.columns) == 1 + 9
    assert len(table.rows) == 2
    assert transpose_table_if_wide(table) == transpose_table(table)
    assert transpose_table(transpose_table(table)) == table
    (few,) = build_paper_comparison_tables(summary(LEARNERS[:3]))
    assert transpose_table_if_wide(few) == few


def test_markdown_has_ours_beside_the_papers_with_the_verdict():
    text = render_paper_tables_as_markdown(summary())
    assert "| ERM | 21.0 ± 0.5 ▲ | 20.0 ± 1.0 | 21.0 ± 0.5 ▲ | 20.0 ± 1.0 |" in text
    assert "|  | train, ours | train, paper | test, ours | test, paper |" in text
    assert "✓ match" in text


def test_a_table_that_stays_wide_has_the_papers_numbers_below():
    cells = [
        cell(f"n={n}", name, "test", 30.0, "match")
        for n in range(5)
        for name in LEARNERS
    ]
    made = summary(cells=cells)
    made["tables"][0]["columns"] = [[name] for name in LEARNERS]
    made["tables"][0]["lines"] = [
        {"headings": ["n", str(n)], "places": [(f"n={n}", k, "test") for k in LEARNERS]}
        for n in range(5)
    ]
    rows = render_paper_tables_as_markdown(made).splitlines()
    assert rows[4].startswith("| n | 0 | ours | 30.0 ± 0.5 ✓ | 30.0 ± 0.5 ✓ |")
    assert rows[5].startswith("|  |  | paper | 20.0 ± 1.0 | 20.0 ± 1.0 |")
    assert {row.count("|") for row in rows[2:14]} == {13}


def test_what_is_missing_is_said_with_its_reason():
    gone = {"mean": None, "std": None, "seeds": 0}
    cells = [
        {**cell("d=kmnist", name, "test", None, "no-data"), **gone, "note": "fetch it"}
        for name in LEARNERS
    ]
    made = summary(cells=cells)
    assert describe_missing_numbers(made) == ["d=kmnist (9 learners): fetch it"]
    assert describe_missing_numbers(summary(cells=cells[:2])) == [
        "d=kmnist (c-bvirm and erm): fetch it"
    ]


def test_a_number_without_the_papers_may_stand_beside_another_published_one():
    some = cell("homo", "erm", "causal", 0.01, None, None, "coefficients")
    cells = [{**some, "elsewhere": {"mean": 0.0091, "std": None}}]
    table = {"title": "Errors", "corner": ["set-up"], "columns": [["ERM", "causal"]]}
    lines = [{"headings": ["homo"], "places": [("homo", "erm", "causal")]}]
    made = {**summary(), "cells": cells, "tables": [{**table, "lines": lines}]}
    (table,) = build_paper_comparison_tables(made)
    assert table.sources == ("ours", "IRM's runs")
    assert "| homo | 0.010 ± 0.500 | 0.009 |" in render_paper_tables_as_markdown(made)


def test_numbers_with_no_verdict_come_without_the_meaning_of_verdicts():
    cells = [cell("mnist", name, "test", 20.0, None, None) for name in LEARNERS]
    alone = summary(cells=cells)
    for render in (render_paper_tables_as_markdown, render_paper_tables_as_latex):
        assert "at most twice" in " ".join(render(summary()).split())
        assert "at most twice" not in " ".join(render(alone).split())
        assert "tandard deviation" in render(alone)


def test_latex_is_in_the_papers_layout_and_escaped():
    made = summary()
    made["title"] = "100 % of_it & more"
    text = render_paper_tables_as_latex(made)
    assert r"100 \% of\_it \& more" in text
    assert r"\begin{tabular}{ll" + "r" * 9 + "}" in text
    lines = text.splitlines()
    first = lines.index(r"\midrule") + 1
    assert lines[first].startswith(r"train & ours & 20.0 & 21.0$^{+}$ & 22.0$^{\ast}$")
    assert lines[first + 1].startswith(" &  & (0.5) & (0.5)")
    assert lines[first + 2].startswith(" & paper & 20.0 & 20.0")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1
    ends = [line for line in lines[first : first + 8] if line.endswith(r"\\")]
    assert {line.count("&") for line in ends} == {10}


def test_headings_that_repeat_in_latex_span_their_columns():
    places = [("r", name, split) for name in ("a", "b") for split in ("train", "test")]
    cells = [cell(*place, 30.0, "match") for place in places]
    columns = [["A", "Train"], ["A", "Test"], ["B", "Train"], ["B", "Test"]]
    table = {"title": "T", "corner": [""], "columns": columns}
    lines = [{"headings": ["EIIL"], "places": places}]
    made = {**summary(), "cells": cells, "tables": [{**table, "lines": lines}]}
    text = render_paper_tables_as_latex(made)
    assert r" &  & \multicolumn{2}{c}{A} & \multicolumn{2}{c}{B} \\" in text
    assert r"EIIL & ours & 30.0 (0.5) & 30.0 (0.5) & 30.0 (0.5) & 30.0 (0.5)" in text


def test_the_lead_counts_verdicts_and_claims(part):
    assert write_comparison_lead_paragraph([part], part.summary["claims"]) == (
        "Of 18 numbers in the paper, 6 match ours, 6 of ours are better and 6 differ. "
        "Claim 1 holds. Claim 2 does not hold."
    )


def test_what_the_paper_does_not_print_is_not_held_against_it(part):
    own = {**cell("r", "erm", "test", 30.0, None, paper=None)}
    silent = [{**claim(None), "figures": []}]
    made = ExperimentReport({**part.summary, "cells": [own], "claims": silent}, ())
    assert (
        write_comparison_lead_paragraph([made], silent)
        == "The paper reports none of these numbers."
    )
    text = build_paper_page("Beyond", [made], silent)
    assert re.findall("<h2>(.*?)</h2>", text)[0] == "Our numbers"
    assert "| claim |" not in render_results_document([made], silent, {}, "cirm report")


def test_the_page_has_every_section_and_colours_the_verdicts(part, png):
    from cirm.report import PngPicture

    figure = render_html_element(
        "svg", render_html_element("title", "sets"), class_="drawing"
    )
    text = build_paper_page(
        "Table 1",
        [part],
        part.summary["claims"],
        [PngPicture(png, "Dots.")],
        [FigureWithCaption(figure, "Sets.")],
    )
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Our numbers and the paper&#x27;s",
        "Scores across unseen environments",
        "Scores after each stage",
        "Training scores and unseen scores",
        "Residuals of ADMM",
        "The paper&#x27;s claims",
        "Example images",
        "Theory",
        "Settings, and the command that repeats this run",
    ]
    body = text.partition("</style>")[2]
    for verdict in VERDICTS:
        assert body.count(f'<td class="{verdict} number"') == 6
    assert "a &lt; b" in text
    assert "abc123 and def456" in text
    assert "loss against training steps" not in text


@pytest.mark.integration
def test_several_experiments_share_a_page_and_their_data_is_folded(part):
    text = build_paper_page("All", [part, part], part.summary["claims"])
    assert text.count("<h2>Table 1: two environments</h2>") == 2
    assert text.count("<summary>MNIST, b01") == 2


@pytest.mark.integration
def test_further_rows_of_one_experiment_are_folded(part):
    rows = [
        *part.data,
        DatasetRecords("Fashion, b01", part.data[0].records, (0.2, 0.1)),
    ]
    text = build_paper_page("T", [ExperimentReport(part.summary, rows, 50.0)], [])
    assert text.count("<h2>Scores across unseen environments</h2>") == 1
    assert text.count("<summary>Fashion, b01") == 1


def test_the_sweep_is_a_figure_of_its_own(part):
    drawing = render_sweep_of_experiment(part, part.data[0])
    assert "ceiling, without colour" in drawing
    assert "chance, 50 %" in drawing
    scores = [r for r in part.data[0].records if getattr(r, "split", "") != "sweep"]
    assert render_sweep_of_experiment(part, DatasetRecords("x", scores)) is None


def test_the_document_says_where_each_number_comes_from(part):
    images = {"table1": [("MNIST, b01", "results/table1/sweep.svg")]}
    text = render_results_document(
        [part], part.summary["claims"], images, "cirm report x"
    )
    assert text.startswith("# Results\n\nMade by `cirm report x`; do not edit.\n")
    assert "    cirm reproduce table1 --seeds 3\n" in text
    assert "N = 3; source code `abc123` and `def456`; 36.0 s of computing" in text
    assert "Settings: the paper's." in text
    assert "![MNIST, b01](results/table1/sweep.svg)" in text
    assert "| 2. a &lt; b | does not hold | holds | erm 10 \\| gem 20 |" in text


def test_a_summary_may_come_from_its_file(part):
    again = json.loads(json.dumps(part.summary))
    assert render_paper_tables_as_markdown(again) == render_paper_tables_as_markdown(
        part.summary
    )
    assert render_paper_tables_as_latex(again) == render_paper_tables_as_latex(
        part.summary
    )


@pytest.mark.integration
@pytest.mark.parametrize("width", [1100, 390])
def test_a_browser_shows_the_page_without_a_request_or_complaint(
    browser, tmp_path, part, png, width
):
    from cirm.report import PngPicture

    path = tmp_path / "report.html"
    pictures = [PngPicture(png, "Dots.")]
    made = build_paper_page("Table 1", [part], part.summary["claims"], pictures)
    path.write_text(made, encoding="utf-8")
    browser.open(path, width)
    asked = {
        sent["request"]["url"].split(",")[0]
        for sent in browser.reported("Network.requestWillBeSent")
    }
    assert asked == {path.as_uri(), "data:image/png;base64"}
    assert not browser.reported("Log.entryAdded", "Runtime.exceptionThrown")
    sizes = browser.run(SIZES)
    assert len(sizes) == 1 + 13 + 1 + 2 + 1
    assert all(size > 0 for figure in sizes for size in figure)
    assert browser.run(OVERLAPS) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
