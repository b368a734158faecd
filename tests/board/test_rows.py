"""The rows of the board: every learner, and some with inferred or true groups."""

import pytest

from cirm.board.rows import SLOW, TIERS, list_leaderboard_learners
from cirm.learners import LEARNERS


def test_every_built_in_learner_has_a_row():
    rows = list_leaderboard_learners()
    assert {row.learner for row in rows} == set(LEARNERS)
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)


def test_a_learner_brings_all_of_its_rows():
    rows = list_leaderboard_learners(["dfr", "groupdro, true groups"])
    assert [row.name for row in rows] == [
        "dfr",
        "dfr after eiil",
        "groupdro, true groups",
    ]
    assert [row.infer for row in rows] == ["", "eiil", ""]
    assert rows[-1].has_true_groups and rows[-1].settings == {"groups": "classes"}


def test_a_learner_of_your_own_is_a_row_too():
    (row,) = list_leaderboard_learners(["cirm.learners.erm:ERM"])
    assert row.family == "your own"
    with pytest.raises(ValueError, match="no learner 'nope'"):
        list_leaderboard_learners(["nope"])


def test_rows_are_run_in_tiers_and_slow_ones_last():
    assert {*SLOW, *(name for tier in TIERS for name in tier)} <= set(LEARNERS)
    rows = sorted(list_leaderboard_learners(), key=lambda row: row.priority)
    assert rows[0].name == "steady"
    assert {row.learner for row in rows[-len(SLOW) :]} == set(SLOW)
