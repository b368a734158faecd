"""Transfer, forgetting and the worst environment, on matrices made by hand."""

import pytest

from cirm.records import ScoreRecord
from cirm.report.measures import (
    build_transfer_measures_section,
    collect_transfer_measures,
    compute_backward_transfer,
    compute_forgetting,
    compute_forward_transfer,
)

# Rows: three environments; columns: no training, then after each of three stages.
MATRIX = {
    "a": [50.0, 90.0, 95.0, 70.0],
    "b": [40.0, 60.0, 85.0, 80.0],
    "c": [30.0, 35.0, 45.0, 75.0],
}
SCORES = {name: dict(enumerate(row)) for name, row in MATRIX.items()}
IN_TURN = {"a": 1, "b": 2, "c": 3}


def test_backward_transfer_is_the_mean_change_since_arrival():
    found = compute_backward_transfer(SCORES, IN_TURN)
    assert found == pytest.approx(((70 - 90) + (80 - 85)) / 2)


def test_forward_transfer_is_what_earlier_stages_gave():
    found = compute_forward_transfer(SCORES, IN_TURN)
    assert found == pytest.approx(((60 - 40) + (45 - 30)) / 2)


def test_forgetting_counts_from_the_best_stage():
    found = compute_forgetting(SCORES, IN_TURN)
    assert found == pytest.approx(((95 - 70) + (85 - 80)) / 2)


@pytest.mark.parametrize(
    "measure",
    [compute_backward_transfer, compute_forward_transfer, compute_forgetting],
)
def test_a_single_stage_has_no_transfer(measure):
    joint = {name: {0: row[0], 1: row[3]} for name, row in MATRIX.items()}
    assert measure(joint, dict.fromkeys(MATRIX, 1)) is None


def make_records(order="sequential", metric="accuracy", seed=0, shift=0.0):
    records = []
    for name, row in MATRIX.items():
        for stage, value in enumerate(row):
            split = "train" if stage else "untrained"
            where = "erm", order, seed, max(0, stage - 1), name
            records.append(ScoreRecord(*where, split, metric, value + shift))
    for name, value in (("x", 55.0), ("y", 65.0)):
        where = "erm", order, seed, 2, name
        records.append(ScoreRecord(*where, "test", metric, value + shift))
        records.append(ScoreRecord(*where, "measures", "F1", value + shift))
    records.append(ScoreRecord("erm", order, seed, 2, "a", "measures", "F1", 99.0))
    return records


def test_measures_are_collected_from_records_over_seeds():
    records = make_records() + make_records(seed=1, shift=2.0)
    found = collect_transfer_measures(records)["erm"]
    assert found["backward transfer"].mean == pytest.approx(-12.5)
    assert found["forward transfer"].mean == pytest.approx(17.5)
    assert found["forgetting"].mean == pytest.approx(15.0)
    assert found["worst training environment"].mean == pytest.approx(71.0)
    assert found["worst unseen environment"].mean == pytest.approx(56.0)
    assert found["worst unseen environment"].seeds == 2
    assert found["F1"].mean == pytest.approx(61.0)  # of the unseen environments


def test_of_errors_less_is_better():
    found = collect_transfer_measures(make_records(metric="error"))["erm"]
    assert found["backward transfer"].mean == pytest.approx(12.5)
    # The best, that is lowest, stages before the last one are 90 and 85.
    forgetting = ((70 - 90) + (80 - 85)) / 2
    assert found["forgetting"].mean == pytest.approx(forgetting)
    assert found["worst training environment"].mean == 80.0
    assert found["worst unseen environment"].mean == 65.0


def test_stages_of_several_environments_follow_from_the_order():
    records = [r for r in make_records("2+1") if r.stage < 2]
    found = collect_transfer_measures(records)["erm"]
    # Two environments arrive first, and the third in the second stage.
    assert found["backward transfer"].mean == pytest.approx((5 + 25) / 2)
    assert found["forward transfer"].mean == pytest.approx(35 - 30)


def test_the_section_has_a_row_for_each_learner():
    measures = collect_transfer_measures(make_records())
    section = build_transfer_measures_section(measures, "accuracy")
    table = section.content[1]
    assert [column.heading for column in table.columns][:2] == ["learner", "F1"]
    assert table.rows[0][0].text == "erm"
    assert build_transfer_measures_section({"erm": {}}, "accuracy") is None
