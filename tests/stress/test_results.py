"""What the stress map says of scores that are known."""

import json

import pytest

from cirm.records import AdaptedScoreRecord, RunRecord, ScoreRecord
from cirm.runs.archive import FinishedJobArchive, pack_job_records
from cirm.stress.cells import list_shortcut_kinds, list_stress_test_cells
from cirm.stress.examples import render_shortcut_examples
from cirm.stress.page import (
    build_stress_test_page,
    build_stress_test_table,
    write_stress_test_summary_paragraph,
)
from cirm.stress.results import StressTestPlan, summarise_stress_test_cells

LEARNER = "steady"


def make_plan(*names, quick=True):
    kinds = [kind for kind in list_shortcut_kinds("digits") if kind.name in names]
    cells = [
        c
        for c in list_stress_test_cells(kinds, "digits", quick)
        if not c.condition.settings
    ]
    return StressTestPlan.from_cells(cells, LEARNER, range(2))


def fill(plan, numbers, metric="accuracy"):
    """An archive in which each role of each cell has the same scores."""
    archive = FinishedJobArchive()
    for _, roles in plan.cells:
        for role, jobs in roles.items():
            for job in jobs:
                rows = []
                for seed, value in zip(job.seeds, numbers[role], strict=True):
                    place = job.name, job.order, seed
                    rows.append(ScoreRecord(*place, 0, "test", "test", metric, -1.0))
                    rows.append(ScoreRecord(*place, 1, "test", "test", metric, value))
                for count in job.adapt:
                    adapted = numbers.get(f"adapted {count}", numbers["adapted"])
                    for seed, value in zip(job.seeds, adapted, strict=True):
                        place = job.name, job.order, seed, str(count)
                        rows.append(
                            AdaptedScoreRecord(*place, "test", "test", metric, value)
                        )
                data = {"name": job.dataset, **job.data}
                rows.append(RunRecord(job.name, job.order, job.seeds, {}, data, ""))
                entry = json.loads(json.dumps(pack_job_records(rows)))
                if job.key not in archive.entries:
                    archive.add_job(job.key, entry)
    return archive


GOOD = {
    "learner": (66.0, 68.0),
    "oracle": (67.0, 69.0),
    "erm": (10.0, 20.0),
    "adapted": (89.0, 90.0),
}


def test_a_cell_compares_seed_by_seed_after_the_last_stage():
    plan = make_plan("corner")
    cell = summarise_stress_test_cells(plan, fill(plan, GOOD))[0]
    assert cell["unseen"]["mean"] == 67 and cell["unseen"]["seeds"] == 2
    assert cell["oracle"]["mean"] == 68 and cell["erm"]["mean"] == 15
    assert cell["gap"] == cell["worst_gap"] == -1
    assert cell["gain"] == cell["worst_gain"] == pytest.approx(22.5)
    assert set(cell["adapted"]) == {"30", "100", "300", "all"}
    assert cell["limit"] == pytest.approx(90) and cell["withstands"]


@pytest.mark.parametrize(
    "change",
    [
        {"learner": (62.0, 63.0)},  # six points below the oracle
        {"learner": (70.0, 58.0)},  # a seed eleven points below it
        {"adapted": (60.0, 66.0)},  # adapting costs four points
        {"adapted 30": (60.0, 66.0)},  # if there are few rows
    ],
)
def test_a_learner_fails_on_average_in_a_seed_or_by_adapting(change):
    plan = make_plan("corner")
    (cell, *_) = summarise_stress_test_cells(plan, fill(plan, GOOD | change))
    assert not cell["withstands"]
    assert "square in a corner" in write_stress_test_summary_paragraph([cell], LEARNER)


def test_more_is_allowed_where_few_labels_contradict_the_shortcut():
    plan = make_plan("figure")
    cells = summarise_stress_test_cells(
        plan, fill(plan, GOOD | {"learner": (61.0, 62.0)})
    )
    (rare,) = [cell for cell in cells if cell["withstands"]]
    assert rare["value"] == "0.05, 0.02"
    page = build_stress_test_page([rare], LEARNER, [], "")
    others = build_stress_test_page(
        [cell for cell in cells if cell is not rare], LEARNER, [], ""
    )
    assert "✗ \N{MINUS SIGN}6" in others and "✗ \N{MINUS SIGN}6" not in page


def test_errors_of_a_regression_become_explained_variance():
    plan = make_plan("table-regression")
    errors = {"learner": (0.5, 0.6), "oracle": (0.5, 0.5), "erm": (2.0, 2.0)}
    archive = fill(plan, errors | {"adapted": (0.3, 0.3)}, "error")
    (cell, *_) = summarise_stress_test_cells(plan, archive)
    assert cell["unseen"]["mean"] == pytest.approx(45)
    assert cell["gap"] == pytest.approx(-5) and cell["worst_gap"] == pytest.approx(-10)
    assert cell["gain"] == pytest.approx(25)


def test_cells_without_results_are_left_out():
    plan = make_plan("corner", "stripes")
    archive = fill(plan, GOOD)
    (job,) = plan.cells[-1][1]["learner"]
    del archive.entries[job.key]
    assert len(summarise_stress_test_cells(plan, archive)) == len(plan.cells) - 1
    assert summarise_stress_test_cells(plan, FinishedJobArchive()) == []
    assert (
        "No combination of shortcut and condition has results"
        in write_stress_test_summary_paragraph([], LEARNER)
    )


def test_jobs_that_cells_share_are_run_once():
    plan = make_plan("none", quick=False)
    keys = [job.key for job in plan.jobs]
    assert len(set(keys)) == len(keys) == 2 * len(plan.cells)


def test_the_page_has_a_number_in_every_cell_and_needs_nothing_else():
    plan = make_plan("figure", "none")
    cells = summarise_stress_test_cells(plan, fill(plan, GOOD))
    page = build_stress_test_page(cells, LEARNER, ["Two seeds."], "cirm stress --quick")
    assert page.count("<svg") == 3
    # The map of all cells, and those under usual conditions at a glance.
    assert page.count(">67</text>") == len(cells) + 2
    assert "colour of the figure: erm " in page  # told when pointed at
    assert "at the unseen place" in page and "Bayes limit" in page
    assert "src=" not in page and "href=" not in page
    assert build_stress_test_page([], LEARNER, [], "").count("<svg") == 0


def test_kinds_of_shortcut_in_images_are_pictured():
    kinds = list_shortcut_kinds("digits")
    picture = render_shortcut_examples(kinds)
    assert (
        picture.png == render_shortcut_examples(kinds[:-1]).png
    )  # a table cannot be pictured
    assert render_shortcut_examples(kinds[-1:]) is None
    page = build_stress_test_page([], LEARNER, [], "", [picture])
    assert page.count("<img") == 1


def test_the_table_has_a_row_for_each_cell():
    plan = make_plan("figure")
    cells = summarise_stress_test_cells(plan, fill(plan, GOOD))
    table = build_stress_test_table(cells, LEARNER)
    assert len(table.rows) == len(cells)
    texts = [str(cell) for cell in table.rows[0]]
    assert texts[0] == "colour of the figure" and texts[-1] == "90.0"
    assert texts[4] == "67.0 ± 1.4 ✓"


def test_a_learner_that_cannot_adapt_has_no_second_map():
    kinds = [kind for kind in list_shortcut_kinds("digits") if kind.name == "corner"]
    cells = list_stress_test_cells(kinds, "digits", True)[:1]
    plan = StressTestPlan.from_cells(cells, "erm", range(2))
    found = summarise_stress_test_cells(
        plan, fill(plan, {**GOOD, "erm": GOOD["learner"]})
    )
    assert found[0]["gain"] is None and found[0]["adapted"] == {}
    page = build_stress_test_page(found, "erm", [], "")
    assert page.count("<svg") == 2
    assert "Adapted:" not in page


def test_the_page_shows_at_a_glance_where_the_learner_fails():
    plan = make_plan("figure")
    cells = summarise_stress_test_cells(
        plan, fill(plan, GOOD | {"learner": (37.0, 39.0)})
    )
    page = build_stress_test_page(cells, LEARNER, [], "")
    assert "✗ \N{MINUS SIGN}30" in page
    lead = f"{LEARNER} withstands the shortcut in 0 of"
    assert page.index(lead) < page.index("<h2>At a glance</h2>") < page.index("<svg")
