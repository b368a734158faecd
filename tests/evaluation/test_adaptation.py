"""Adaptation to unlabelled rows of unseen environments, from the run to the page."""

import json
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from cirm.environments import Environment, Problem, Task
from cirm.evaluation import run
from cirm.evaluation.adaptation import (
    draw_unlabelled_inputs,
    parse_adaptation_row_counts,
)
from cirm.learners import create
from cirm.learners.erm import ERM
from cirm.records import (
    AdaptedScoreRecord,
    RunRecord,
    ScoreRecord,
    format_record_as_json,
    parse_record,
)
from cirm.report.run_page import (
    RunFigureData,
    build_run_page,
    build_run_results_table,
    prepare_sweep_figure,
)
from cirm.report.summary import collect_adapted_sweep_scores, summarise_records
from cirm.runs.archive import pack_job_records, unpack_job_records
from cirm.runs.choice import VALIDATION, ChooseSettingValueJob, pick_best_setting_value
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.local import run_jobs_locally
from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner
from cirm.runs.search import SearchTrialJob

SETTINGS = {"hidden": (), "epochs": 3, "batch": 0}


class State(NamedTuple):
    params: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Centring(ERM):
    """Subtracts the mean of the rows that it adapted to."""

    adapts = True

    def init(self, randomness):
        return State(super().init(randomness).params, torch.zeros(1))

    def observe(self, state, *args):
        return State(super().observe(state, *args).params, torch.zeros(1))

    def outputs(self, state, inputs):
        return super().outputs(state, inputs - state.shift)

    def adapt(self, state, inputs):
        return state._replace(shift=inputs.mean(1, keepdim=True))


@dataclass(frozen=True)
class Refusing(Centring):
    """Fails as soon as it is asked to adapt."""

    def adapt(self, state, inputs):
        raise AssertionError("rows of an unseen environment were looked at")


def environment(name, shift=0.0, rows=40):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 2, generator=generator)
    return Environment(name, x + shift, 3 * x[:, 0], Task.regression())


def problem():
    train = (environment("a"), environment("b", rows=50))
    sweep = ((0.5, environment("s", 2.0)), (0.7, environment("t", 5.0)))
    return Problem(train, test=(environment("c", 9.0, rows=60),), sweep=sweep)


def records(adapt, cls=Centring, seeds=(0, 1), label="own"):
    given = problem()
    learner = create(cls, given.train[0], SETTINGS)
    rows = list(run(learner, given, "sequential", seeds, label=label, adapt=adapt))
    return rows, [r for r in rows if isinstance(r, AdaptedScoreRecord)]


def test_numbers_of_rows_are_positive_or_all():
    assert parse_adaptation_row_counts((300, "all", "30")) == (300, "all", 30)
    for wrong in (0, -1, 2.5, "many", "", "0", True):
        with pytest.raises(ValueError, match=r"number of rows to adapt to, 1 or more"):
            parse_adaptation_row_counts([wrong])


def test_rows_are_nested_and_depend_on_seed_and_environment_alone():
    place = environment("c", rows=60)
    few, many = (draw_unlabelled_inputs(place, count, (4, 7)) for count in (10, 30))
    assert few.shape == (2, 10, 2)
    assert (many[:, :10] == few).all()
    assert (draw_unlabelled_inputs(place, 10, (7,)) == few[1:]).all()
    assert not (few[0] == few[1]).all()
    every = draw_unlabelled_inputs(place, "all", (4,))[0]
    assert sorted(every.tolist()) == sorted(place.inputs.tolist())
    assert (draw_unlabelled_inputs(place, 1000, (4,))[0] == every).all()


def test_each_unseen_environment_is_adapted_to_by_its_own_rows_and_scored_whole():
    rows, adapted = records((10, "all"))
    places = [("c", "test", None), ("s", "sweep", 0.5), ("t", "sweep", 0.7)]
    found = [(r.rows, r.environment, r.split, r.position, r.seed) for r in adapted]
    assert found == [(n, *p, s) for n in ("10", "all") for p in places for s in (0, 1)]
    plain = {
        (r.environment, r.seed): r.value
        for r in rows
        if isinstance(r, ScoreRecord) and r.stage == 1
    }
    for score in adapted:
        if score.rows == "all":
            # Centred inputs are those of the training environment b, c, or s alike.
            assert score.value < plain[score.environment, score.seed]
    given = problem()
    learner = create(Centring, given.train[0], SETTINGS)
    state = learner.init(__import__("cirm").Randomness((0, 1)))
    centre = given.test[0].inputs.mean(0)
    centred = replace(given.test[0], inputs=given.test[0].inputs - centre)
    moved = learner.adapt(state, draw_unlabelled_inputs(given.test[0], "all", (0, 1)))
    one = learner.predict(moved, given.test[0].take_all(2).x)
    other = learner.predict(state, centred.take_all(2).x)
    torch.testing.assert_close(one, other)


def test_scores_without_adaptation_stay_as_they_are():
    rows, _ = records((10,))
    plain, none = records(())
    kept = [r for r in rows if not isinstance(r, AdaptedScoreRecord | RunRecord)]
    assert kept == [r for r in plain if not isinstance(r, RunRecord)]
    assert none == []


def test_a_learner_that_cannot_adapt_has_no_such_scores():
    assert records((10,), ERM)[1] == []
    with pytest.raises(ValueError, match="number of rows"):
        records((0,), ERM)


def test_a_record_is_read_as_it_was_written_and_packed():
    rows, adapted = records((10, "all"))
    assert [parse_record(format_record_as_json(r)) for r in adapted] == adapted
    packed = json.loads(json.dumps(pack_job_records(rows)))
    back = [r for r in unpack_job_records(packed) if isinstance(r, AdaptedScoreRecord)]
    assert [replace(r, value=0.0) for r in back] == [
        replace(r, value=0.0) for r in adapted
    ]
    assert [r.value for r in back] == pytest.approx([r.value for r in adapted], 1e-5)
    assert "adapted" not in pack_job_records(records(())[0])


def test_only_jobs_that_adapt_have_another_key():
    on = create_and_draw_dataset("colored", {"examples": "50", "sweep": ""})
    for learner, is_same in (("erm", True), (Centring, False)):
        (plain,) = plan_jobs_of_learner(on, learner, "joint", (0,))
        (job,) = plan_jobs_of_learner(on, learner, "joint", (0,), adapt=(300, "all"))
        assert (plain.key == job.key) == is_same
        assert job.adapt == (() if is_same else (300, "all"))


def test_workers_adapt_as_this_process_does(tmp_path):
    on = create_and_draw_dataset("colored", {"examples": "50", "sweep": "0.1"})
    jobs = plan_jobs_of_learner(
        on, Centring, "joint", (0,), setting_texts=["epochs=1"], adapt=(20,)
    )
    assert run_jobs_locally(jobs, tmp_path, 1) == {}
    (path,) = (tmp_path / "jobs").iterdir()
    found = [parse_record(line) for line in path.read_text().splitlines()]
    expected = [r for r in run_job_and_return_records(jobs[0], lambda done: None)]
    assert [r for r in found if not isinstance(r, RunRecord)] == expected[:-1]
    assert {r.rows for r in found if isinstance(r, AdaptedScoreRecord)} == {"20"}


def test_no_selection_rule_adapts_or_meets_an_adapted_score():
    job = SearchTrialJob(
        dataset="colored",
        learner=f"{__name__}:Refusing",
        order="sequential",
        seeds=(0,),
        data={"examples": 50, "sweep": ()},
        settings={"epochs": 1},
        adapt=("all",),
        oracle=True,
    )
    rows = run_job_and_return_records(job, lambda done: None)
    assert {r.split for r in rows if isinstance(r, ScoreRecord)} == {"selection"}
    with pytest.raises(AssertionError, match="looked at"):
        run_job_and_return_records(
            TrainingJob(
                **{k: getattr(job, k) for k in TrainingJob.__dataclass_fields__}
            ),
            print,
        )


def test_a_choice_of_settings_is_the_same_whatever_adapted_scores_say():
    def score(kind, value, *where):
        return kind("own", "joint", 0, *where, "v", VALIDATION, "accuracy", value)

    options = {
        0.1: [score(ScoreRecord, 80.0, 0), score(AdaptedScoreRecord, 1.0, "all")],
        0.2: [score(ScoreRecord, 70.0, 0), score(AdaptedScoreRecord, 99.0, "all")],
    }
    assert pick_best_setting_value(options, 0) == 0.1
    job = ChooseSettingValueJob(
        dataset="scm",
        learner=f"{__name__}:Centring",
        order="sequential",
        seeds=(0,),
        data={"examples": 50, "sweep": ()},
        settings={"epochs": 1},
        adapt=("all",),
        setting="rate",
        values=(0.1, 0.2),
    )
    rows = [
        r
        for r in run_job_and_return_records(job, print)
        if isinstance(r, AdaptedScoreRecord)
    ]
    assert [r.split for r in rows] == [VALIDATION, "test"]


def test_summary_table_and_figure_show_adapted_scores_apart():
    rows = records((10, "all"))[0] + records((), ERM, label="erm")[0]
    summary = summarise_records(rows)["learners"]
    tested = [
        r for r in rows if isinstance(r, AdaptedScoreRecord) and r.split == "test"
    ]
    values = [r.value for r in tested if r.rows == "all"]
    found = summary["own"]["adapted"]
    assert list(found) == ["10", "all"] and found["all"]["seeds"] == 2
    assert found["all"]["mean"] == pytest.approx(sum(values) / 2)
    assert summary["erm"]["adapted"] == {}
    table = build_run_results_table(summarise_records(rows))
    headings = [column.heading for column in table.columns]
    assert headings[3:5] == ["unseen, adapted (10 rows)", "unseen, adapted (all rows)"]
    assert [str(cell) for cell in table.rows[1][3:5]] == ["", ""]
    points = collect_adapted_sweep_scores(rows)["own"]["all"]
    assert [point.x for point in points] == [0.5, 0.7]
    figure = prepare_sweep_figure(RunFigureData(rows, summary), "shift")
    assert "own, adapted (10)" in figure()
    page = build_run_page(rows, "A run")
    assert "After adapting to all unlabelled rows there, own reaches" in page
    assert "unseen, adapted (all rows)" in page


def test_records_without_adaptation_have_the_tables_of_before():
    rows = records(())[0]
    headings = [
        c.heading for c in build_run_results_table(summarise_records(rows)).columns
    ]
    assert not any("adapted" in heading for heading in headings)
