"""The jobs of the board: the same budget for each row, and no choice that leaks."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from cirm.board.archive import archive_finished_jobs, restore_records_of_archived_jobs
from cirm.board.columns import (
    EnvironmentOrderVariant,
    LeaderboardDataset,
    list_leaderboard_datasets,
    prepare_leaderboard_datasets,
)
from cirm.board.plan import QUICK, plan_leaderboard
from cirm.board.results import (
    compute_percentage_of_learners_ahead,
    summarise_leaderboard,
)
from cirm.board.rows import list_leaderboard_learners
from cirm.data.planted import PlantedShortcutTable
from cirm.learners import create
from cirm.randomness import Randomness
from cirm.records import (
    AdaptedScoreRecord,
    RunRecord,
    ScoreRecord,
    read_records,
    write_records,
)
from cirm.runs.archive import load_job_archive, save_job_archive
from cirm.runs.jobs import run_job_and_return_records
from cirm.runs.local import get_records_path

TABLE = LeaderboardDataset(
    "t",
    "a table",
    "planted",
    (EnvironmentOrderVariant({"examples": "60"}),),
    "worst-group",
)
DIGITS = LeaderboardDataset(
    "d",
    "digits",
    "colored",
    (EnvironmentOrderVariant({"examples": "60", "sweep": ""}),),
)
EFFORT = replace(QUICK, seeds=(0, 1), trials=3)


def prepare(*columns):
    prepared, absent = prepare_leaderboard_datasets(columns, lambda what, part: None)
    assert not absent
    return prepared


def write_trial(folder, job, **scores):
    """Records of a trial with these scores by rule."""
    rows = [
        ScoreRecord(job.name, job.order, seed, 0, "all", "selection", rule, value)
        for rule, value in scores.items()
        for seed in job.seeds
    ]
    data = {"name": job.dataset, **job.data}
    run = RunRecord(job.name, job.order, job.seeds, {}, data, "")
    path = get_records_path(job, folder)
    path.parent.mkdir(exist_ok=True)
    write_records(path, [*rows, run])


def write_run(folder, job, unseen, seen=90.0, adapted=None):
    """Records of a run with these scores, the same for all seeds but for the seed."""
    rows = []
    for seed in job.seeds:
        place = job.name, job.order, seed
        rows.append(ScoreRecord(*place, 0, "test", "test", "accuracy", 1.0))
        rows.append(ScoreRecord(*place, 1, "a", "train", "accuracy", seen))
        rows.append(ScoreRecord(*place, 1, "b", "train", "accuracy", seen - 10))
        rows.append(ScoreRecord(*place, 1, "test", "test", "accuracy", unseen + seed))
        if adapted is not None:
            score = AdaptedScoreRecord(
                *place, "all", "test", "test", "accuracy", adapted
            )
            rows.append(score)
    data = {"name": job.dataset, **job.data}
    write_records(
        get_records_path(job, folder),
        [*rows, RunRecord(job.name, job.order, job.seeds, {}, data, "")],
    )


def test_every_row_gets_the_same_number_of_trials():
    rows = list_leaderboard_learners(["erm", "logistic", "steady", "jtt"])
    plan = plan_leaderboard(rows, prepare(TABLE), {}, EFFORT)
    assert [len(task.search.plan_jobs()) for task in plan.tasks] == [3] * len(rows)
    first, *others = plan.tasks[0].search.plan_jobs()
    assert first.settings == {"epochs": 30}
    assert all("rate" in job.settings for job in others)
    assert {job.seeds for job in plan.list_trials()} == {(0,)}


def test_a_row_runs_only_on_the_tasks_that_it_takes():
    regression = replace(
        TABLE,
        variants=(EnvironmentOrderVariant({"examples": "60", "task": "regression"}),),
    )
    rows = list_leaderboard_learners(["logistic", "ridge"])
    plan = plan_leaderboard(
        rows, prepare(TABLE, replace(regression, name="r")), {}, EFFORT
    )
    ran = {(task.row.learner, task.column.name) for task in plan.tasks}
    assert ran == {("logistic", "t"), ("ridge", "r")}


def test_the_rule_chooses_and_the_oracle_stands_beside(tmp_path):
    (row,) = list_leaderboard_learners(["erm"])
    plan = plan_leaderboard([row], prepare(TABLE), {}, EFFORT)
    (task,) = plan.tasks
    trials = task.search.plan_jobs()
    for job, honest, oracle in zip(trials, (50, 70, 60), (40, 30, 80), strict=True):
        write_trial(tmp_path, job, **{"worst-group": honest, "oracle": oracle})
    runs = task.plan_runs_of_chosen_settings(tmp_path)
    (honest,), (oracle,) = runs["honest"], runs["oracle"]
    assert honest.settings == trials[1].settings
    assert oracle.settings == trials[2].settings
    assert honest.selection == "3 trials, chosen by the rule worst-group"
    assert oracle.selection == "3 trials, chosen by the rule oracle"
    write_run(tmp_path, honest, 60.0)
    write_run(tmp_path, oracle, 66.0)
    summary = summarise_leaderboard(plan, tmp_path)
    cell = summary["cells"]["erm"]["t"]
    assert cell["unseen"]["mean"] == 60.5 and cell["unseen"]["seeds"] == 2
    assert cell["oracle"]["mean"] == 66.5
    assert cell["seen"]["mean"] == 85
    assert cell["adapted"] is None
    assert cell["settings"] == [honest.settings]


def test_cells_that_say_most_are_run_first_and_each_of_them_once():
    names = ["tent", "erm", "groupdro", "logistic", "steady"]
    plan = plan_leaderboard(
        list_leaderboard_learners(names),
        prepare(TABLE, DIGITS),
        {},
        replace(EFFORT, block=3),
    )
    blocks = plan.split_plan_by_learner_blocks()
    cells = [[(t.row.name, t.column.name) for t in block.tasks] for block in blocks]
    assert sorted(cells[0]) == [("erm", "t"), ("logistic", "t"), ("steady", "t")]
    assert [{column for _, column in cell} for cell in cells] == [
        *[{"t"}] * 2, *[{"d"}] * 3, {"t"}, {"d"},
    ]  # fmt: skip
    assert cells[-2:] == [[("tent", "t")], [("tent", "d")]]
    every = [cell for block in cells for cell in block]
    assert len(every) == len(set(every)) == len(plan.tasks)
    whole = plan_leaderboard(
        list_leaderboard_learners(names), prepare(TABLE), {}, EFFORT
    )
    assert whole.split_plan_by_learner_blocks() == [whole]


def test_archived_jobs_are_restored_unless_their_learner_has_changed(tmp_path):
    (row,) = list_leaderboard_learners(["erm"])
    (task,) = plan_leaderboard([row], prepare(TABLE), {}, EFFORT).tasks
    first, second, third = task.search.plan_jobs()
    write_trial(tmp_path, first, **{"worst-group": 50.0})
    write_trial(tmp_path, second, **{"worst-group": 60.0})
    archive_finished_jobs(task.search.plan_jobs(), tmp_path, "abc")
    before = {
        job.key: read_records(get_records_path(job, tmp_path))
        for job in (first, second)
    }
    shutil.rmtree(tmp_path / "jobs")
    restore_records_of_archived_jobs(tmp_path)
    for key, records in before.items():
        assert read_records(get_records_path(key, tmp_path)) == records
    assert not get_records_path(third, tmp_path).exists()
    archive = load_job_archive(tmp_path)
    archive.entries[first.key]["revision"] = -1
    save_job_archive(archive, tmp_path)
    archive_finished_jobs([], tmp_path, "abc")
    assert list(load_job_archive(tmp_path).entries) == [second.key]


def test_a_cell_is_shown_once_all_its_runs_have_finished(tmp_path):
    orders = tuple(
        EnvironmentOrderVariant({"examples": "60", "sweep": "", "flips": f})
        for f in ("0.2,0.1", "0.1,0.2")
    )
    plan = plan_leaderboard(
        list_leaderboard_learners(["erm"]),
        prepare(replace(DIGITS, variants=orders)),
        {},
        EFFORT,
    )
    for job in plan.list_trials():
        write_trial(tmp_path, job, **{"worst-group": 50.0, "oracle": 50.0})
    first, *others = plan.list_runs(tmp_path)
    write_run(tmp_path, first, 60.0)
    assert others and summarise_leaderboard(plan, tmp_path)["cells"] == {"erm": {}}
    for job in others:
        write_run(tmp_path, job, 60.0)
    assert (
        summarise_leaderboard(plan, tmp_path)["cells"]["erm"]["d"]["unseen"]["seeds"]
        == 4
    )


def test_a_cell_does_not_wait_for_the_runs_of_the_oracle(tmp_path):
    (row,) = list_leaderboard_learners(["erm"])
    plan = plan_leaderboard([row], prepare(TABLE), {}, EFFORT)
    (task,) = plan.tasks
    first, second, third = task.search.plan_jobs()
    for job, honest in ((first, 50), (second, 70), (third, 60)):
        write_trial(tmp_path, job, **{"worst-group": honest, "oracle": -honest})
    (job,) = plan.list_runs(tmp_path, ["honest"])
    (oracle,) = plan.list_runs(tmp_path, ["oracle"])
    assert (job.settings, oracle.settings) == (second.settings, first.settings)
    write_run(tmp_path, job, 60.0)
    cell = summarise_leaderboard(plan, tmp_path)["cells"]["erm"]["t"]
    assert cell["unseen"]["mean"] == 60.5 and cell["oracle"] is None


def test_errors_of_a_regression_are_relative_to_those_of_the_training_mean(tmp_path):
    regression = EnvironmentOrderVariant({"examples": "60", "task": "regression"})
    (row,) = list_leaderboard_learners(["anchor"])
    plan = plan_leaderboard(
        [row],
        prepare(replace(TABLE, variants=(regression,))),
        {},
        replace(EFFORT, trials=1),
    )
    for job in plan.list_trials():
        write_trial(tmp_path, job, **{"worst-group": 50.0, "oracle": 50.0})
    (job,) = plan.list_runs(tmp_path)
    write_records(
        get_records_path(job, tmp_path), run_job_and_return_records(job, lambda _: None)
    )
    cell = summarise_leaderboard(plan, tmp_path)["cells"]["anchor"]["t"]
    dataset = PlantedShortcutTable(examples=60, task="regression")
    learner, scores = create("anchor", dataset.draw_problem((0,)).train[0]), []
    for seed in EFFORT.seeds:
        problem, at = dataset.draw_problem((seed,)), Randomness((seed,))
        state = learner.init(at)
        for environment in problem.train:
            state = learner.observe(state, (environment,), at)
        (unseen,) = problem.test
        x, y = unseen.take_all(1)
        error = (learner.predict(state, x)[..., 0] - y).square().mean()
        mean = torch.cat([e.take_all(1).y for e in problem.train], 1).mean()
        scores.append(float(100 * (1 - error / (y - mean).square().mean())))
    assert cell["unseen"]["mean"] == pytest.approx(np.mean(scores), abs=1e-3)


def test_without_finished_trials_there_is_nothing_to_run(tmp_path):
    plan = plan_leaderboard(
        list_leaderboard_learners(["erm"]), prepare(TABLE), {}, EFFORT
    )
    assert plan.list_runs(tmp_path) == []
    assert summarise_leaderboard(plan, tmp_path)["cells"] == {"erm": {}}


def test_true_groups_arrive_together_and_only_where_the_data_have_them():
    rows = list_leaderboard_learners(["groupdro, true groups"])
    plan = plan_leaderboard(rows, prepare(TABLE, DIGITS), {}, EFFORT)
    (task,) = plan.tasks
    assert task.column.name == "d" and task.order == "2+2"
    names = [environment.name for environment in task.data.problem.train]
    assert names[:2] == ["train-1 agree", "train-1 contradict"]


def test_inferred_environments_belong_to_trials_and_runs():
    rows = list_leaderboard_learners(["groupdro after eiil"])
    effort = replace(EFFORT, trial_seeds=(0, 1))
    (task,) = plan_leaderboard(rows, prepare(DIGITS), {}, effort).tasks
    trial = task.search.plan_jobs()[0]
    assert (trial.infer, trial.seeds) == ("eiil", (0,))
    assert trial.inference == {"epochs": 30, "steps": 0}


def test_columns_whose_data_are_not_there_are_named_with_the_reason():
    columns = [c for c in list_leaderboard_datasets() if c.name == "mnist-b01"]
    prepared, absent = prepare_leaderboard_datasets(columns, lambda what, part: None)
    assert prepared == []
    assert "cirm data fetch mnist" in absent["MNIST b01"]


def test_pacs_has_each_domain_unseen_in_three_orders():
    columns = [c for c in list_leaderboard_datasets() if c.dataset == "pacs"]
    assert [c.variants[0].data["test"] for c in columns] == [
        *("photo", "art_painting", "cartoon", "sketch")
    ]
    orders = [variant.data["train"] for variant in columns[0].variants]
    assert orders == [
        "art_painting,cartoon,sketch",
        "cartoon,sketch,art_painting",
        "sketch,art_painting,cartoon",
    ]


def test_a_table_of_the_user_is_a_column(clinic, tmp_path):
    for number in range(3):
        path = tmp_path / f"clinic-{number}.csv"
        clinic(40, 0.9, number).to_csv(path, index=False)
    *_, column = list_leaderboard_datasets(
        quick=True, user_tables=[f"{tmp_path}:outcome"]
    )
    (prepared,) = prepare(column)
    assert prepared.task == "classification" and column.rule == "next"
    (problem,) = (data.problem for data in prepared.data)
    assert [e.name for e in problem.test] == ["clinic-2"]


def test_ranks_count_columns_alike_and_ties_half():
    scores = {
        "a": {"x": {"0": 3.0, "1": 1.0}, "y": {"0": 5.0}},
        "b": {"x": {"0": 2.0, "1": 2.0}, "y": {"0": 5.0}},
        "c": {"x": {"0": 1.0, "1": 3.0}},
    }
    ranks = compute_percentage_of_learners_ahead(scores)
    # x: a is beaten by 0 and 2 of 2 rows; y: it ties with one of one.
    assert ranks["a"]["mean"] == pytest.approx((50 + 50) / 2)
    assert ranks["b"]["mean"] == pytest.approx((50 + 50) / 2)
    assert ranks["c"]["mean"] == pytest.approx(50)
    assert ranks["a"]["low"] < 50 < ranks["a"]["high"]
    assert ranks["b"]["low"] == ranks["b"]["high"] == 50


def test_a_column_of_few_positives_shows_average_precision(tmp_path):
    (row,) = list_leaderboard_learners(["logistic"])[:1]
    column = replace(TABLE, measure="average precision")
    plan = plan_leaderboard([row], prepare(column), {}, replace(EFFORT, trials=1))
    (task,) = plan.tasks
    for job in task.search.plan_jobs():
        write_trial(tmp_path, job, **{"worst-group": 50.0, "oracle": 50.0})
    jobs = plan.list_runs(tmp_path)
    for job in jobs:
        records = run_job_and_return_records(job, lambda done: None)
        write_records(get_records_path(job, tmp_path), records)
    cell = summarise_leaderboard(plan, tmp_path)["cells"]["logistic"]["t"]
    problem = task.data.problem
    (unseen,) = problem.test
    learner = create("logistic", problem.train[0], jobs[0].settings)
    areas = []
    for seed in EFFORT.seeds:
        problem = PlantedShortcutTable(examples=60).draw_problem((seed,))
        state = learner.init(Randomness((seed,)))
        for environment in problem.train:
            state = learner.observe(state, (environment,), Randomness((seed,)))
        (unseen,) = problem.test
        x, y = unseen.take_all(1)
        scores = learner.predict(state, x)[0, :, 1]
        areas.append(100 * average_precision_score(y[0].numpy(), scores.numpy()))
    assert cell["unseen"]["mean"] == pytest.approx(np.mean(areas), abs=1e-3)
    assert cell["adapted"] is None


def test_the_number_of_examples_can_be_set_for_all_columns():
    columns = list_leaderboard_datasets(examples=70)
    assert {v.data["examples"] for c in columns for v in c.variants} == {"70"}
    usual = {c.name: c.variants[0].data for c in list_leaderboard_datasets()}
    assert usual["gusto"]["examples"] == usual["mnist-b01"]["examples"] == "1000"
    assert [c.name for c in columns] == list(usual)
