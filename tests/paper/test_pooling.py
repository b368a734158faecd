"""Runs of two colourings taken together, as the paper's spreads suggest."""

import statistics

import pytest

from cirm.paper import get_paper_experiment
from cirm.paper.experiment import read_published_table
from cirm.paper.pooling import (
    pool_means_and_deviations,
    pool_test_scores_by_learner,
)
from cirm.paper.reproduction import (
    combine_experiment_summaries,
    plan_paper_reproduction,
)
from cirm.paper.verdicts import summarise_verdicts_of_experiment
from cirm.report.paper_page import ExperimentReport, count_paper_verdicts

PAPER_RUNS = 5
FIRST, SECOND = [14.0, 15.5, 16.0], [9.0, 9.5, 10.5, 11.0]


def pooled_deviation(learner):
    """That of the paper's rows c = b01 and c = b11 taken together."""
    rows = read_published_table("table2")["rows"]
    cells = [row["cells"][learner] for row in rows if row["group"] == "c"]
    parts = [(cell["mean"], cell["std"], PAPER_RUNS) for cell in cells]
    return pool_means_and_deviations(parts)[1]


def summary_of(values):
    test = {"mean": statistics.mean(values), "std": statistics.stdev(values)}
    entry = {"test": {**test, "seeds": len(values)}, "train": {"mean": 1.0}}
    return {**entry, "seconds": 2.0, "selection": "by hand"}


def test_statistics_of_parts_are_those_of_all_values():
    parts = [
        (statistics.mean(values), statistics.stdev(values), len(values))
        for values in (FIRST, SECOND)
    ]
    both = FIRST + SECOND
    expected = statistics.mean(both), statistics.stdev(both)
    assert pool_means_and_deviations(parts) == pytest.approx(expected)


def test_rows_are_pooled_for_learners_that_all_of_them_have():
    rows = [
        {"erm": summary_of(FIRST), "gem": summary_of(FIRST)},
        {"erm": summary_of(SECOND)},
    ]
    pooled = pool_test_scores_by_learner(rows)
    assert list(pooled) == ["erm"]
    both = FIRST + SECOND
    assert pooled["erm"]["test"] == pytest.approx(summary_of(both)["test"])
    assert pooled["erm"]["seconds"] == 4.0


@pytest.mark.parametrize(
    "learner", ["erm", "ewc", "gem", "irmg", "irmv1", "mer", "vcl"]
)
def test_the_spreads_of_reference_methods_in_table_1_are_pooled_ones(learner):
    printed = read_published_table("table1")["test"][learner]
    assert pooled_deviation(learner) == pytest.approx(printed["std"], abs=0.07)


def test_the_spreads_of_proposed_methods_in_table_1_are_not():
    for learner in ("c-bvirm", "c-virmg", "c-virmv1"):
        printed = read_published_table("table1")["test"][learner]
        assert abs(pooled_deviation(learner) - printed["std"]) > 1


def test_both_colourings_share_the_runs_of_table_2():
    rows = {row.name: row for row in get_paper_experiment("colourings").rows}
    keys = [
        {job.key
         for jobs in plan_paper_reproduction(get_paper_experiment(n), 5).jobs.values()
         for job in jobs}
        for n in ("colourings", "table2")
    ]  # fmt: skip
    planned = 4 * 11 * 5
    assert len(keys[0]) in (planned, 0)  # none without the images
    new = {t.data["scheme"] for t in rows["Fashion-MNIST b11"].trials}
    assert new == {"b11"} and len(keys[0] - keys[1]) in (11 * 5, 0)
    pooled = rows["MNIST b01 and b11"]
    assert pooled.trials == () and pooled.pools == ("MNIST b01", "MNIST b11")
    values = {cell.learner: cell.paper.mean for cell in pooled.cells}
    assert values["erm"] == 12.7  # table 1


def test_numbers_that_repeat_a_table_are_not_counted_again():
    cells = {
        name: [
            {"row": name, "learner": "erm", "split": "test", "mean": 1.0,
             "paper": {"mean": 1.0, "std": 0.1}, "verdict": verdict}
        ]
        for name, verdict in (("table1", "match"), ("parts", "differs"))
    }  # fmt: skip
    parts = [
        ExperimentReport(
            summarise_verdicts_of_experiment(get_paper_experiment(n), c, "", ()), ()
        )
        for n, c in cells.items()
    ]
    counts = {"match": 1, "better": 0, "differs": 0, "no-data": 0}
    assert combine_experiment_summaries(parts)["verdicts"] == counts
    assert count_paper_verdicts(parts) == counts
    assert count_paper_verdicts(parts[1:])["differs"] == 1
