"""A setting chosen where nothing was trained, without a look at the truth."""

from dataclasses import replace

import pytest

from cirm.data.scm import SCM
from cirm.records import RunRecord, ScoreRecord
from cirm.runs.archive import pack_job_records
from cirm.runs.choice import (
    ChooseSettingValueJob,
    hold_out_last_training_environments,
    pick_best_setting_value,
)
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.local import read_records_of_finished_jobs, run_jobs_locally

DATA = {"dimension": 4, "examples": 60, "sweep": ()}
QUICK = {"epochs": 30, "hidden": (), "batch": 0, "rate": 0.05}
VALUES = (0.0, 10.0, 1000.0)
JOB = ChooseSettingValueJob(
    "scm",
    "irmv1",
    "joint",
    (0, 1, 2),
    data=DATA,
    settings=QUICK,
    selection="by the third",
    setting="penalty",
    values=VALUES,
)


def plain(value):
    """The job that trains on the first two environments with one value."""
    data = {**DATA, "scales": (0.2, 2.0), "unseen": 5.0}
    settings = {**QUICK, "penalty": value}
    return TrainingJob("scm", "irmv1", "joint", JOB.seeds, data=data, settings=settings)


def scores(records, split, environment):
    return {
        r.seed: r.value
        for r in records
        if isinstance(r, ScoreRecord)
        and (r.split, r.environment) == (split, environment)
    }


def silent(done):
    pass


def test_each_seed_keeps_the_value_that_errs_least_in_the_held_environment():
    found = run_job_and_return_records(JOB, silent)
    each = {value: run_job_and_return_records(plain(value), silent) for value in VALUES}
    chosen = scores(found, "validation", "chosen")
    for seed in JOB.seeds:
        errors = {v: scores(each[v], "test", "scale 5")[seed] for v in VALUES}
        best = min(errors, key=lambda v: errors[v])
        assert chosen[seed] == best
        assert scores(found, "validation", "scale 5")[seed] == errors[best]
        for kind in ("causal", "noncausal"):
            own = scores(found, "truth", kind)[seed]
            assert own == scores(each[best], "truth", kind)[seed]


def test_the_held_environment_is_neither_trained_on_nor_a_test():
    found = run_job_and_return_records(JOB, silent)
    places = {(r.split, r.environment) for r in found if isinstance(r, ScoreRecord)}
    assert {e for s, e in places if s == "train"} == {"scale 0.2", "scale 2"}
    assert {e for s, e in places if s == "test"} == {"scale 10"}


def test_a_job_leaves_one_closing_row_with_all_values_and_can_be_archived(tmp_path):
    reports = []
    run_jobs_locally([JOB], tmp_path, 1, lambda job, done: reports.append(done))
    found = read_records_of_finished_jobs([JOB], tmp_path)
    (last,) = [r for r in found if isinstance(r, RunRecord)]
    assert found[-1] == last
    assert last.settings["penalty"] == list(VALUES)
    assert (last.seeds, last.selection) == (JOB.seeds, "by the third")
    assert last.seconds > 0
    assert pack_job_records(found)["seeds"] == [0, 1, 2]
    assert reports == sorted(reports)


def test_other_values_make_another_job():
    assert replace(JOB, values=VALUES[:2]).key != JOB.key


def test_the_best_is_the_least_error_or_the_highest_accuracy_after_the_last_stage():
    def rows(metric, *values):
        return [
            ScoreRecord("a", "joint", 0, stage, "e", "validation", metric, value)
            for stage, value in enumerate(values)
        ]

    errors = {1.0: rows("error", 0.1, 3.0), 2.0: rows("error", 9.0, 2.0)}
    assert pick_best_setting_value(errors, 0) == 2.0
    accuracies = {1.0: rows("accuracy", 50.0), 2.0: rows("accuracy", 40.0)}
    assert pick_best_setting_value(accuracies, 0) == 1.0
    assert (
        pick_best_setting_value({5.0: rows("error", 1.0), 6.0: rows("error", 1.0)}, 0)
        == 5.0
    )


@pytest.mark.parametrize("held", [0, 3])
def test_something_must_be_held_and_something_left(held):
    with pytest.raises(
        ValueError,
        match=rf"{held} training environments would be held out, but .* has 3",
    ):
        hold_out_last_training_environments(SCM(**DATA).draw_problem((0,)), held)
