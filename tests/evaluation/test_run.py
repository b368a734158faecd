import pytest
import torch

from cirm.data.planted import PlantedShortcutTable
from cirm.environments import Environment, Problem, Task
from cirm.evaluation import compute_mean_score, run
from cirm.evaluation.diagnostics import DiagnosticsCalculator
from cirm.learners import create
from cirm.randomness import Randomness
from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord
from cirm.training import DivergenceError

LINEAR = {"hidden": (), "epochs": 3, "batch": 0}


def environment(name, slope, rows=40, offset=0.0):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 2, generator=generator)
    y = slope * x[:, 0] + offset
    return Environment(name, x, y, Task.regression())


def problem(**parts):
    train = (environment("a", 1.0), environment("b", 1.0, 50))
    return Problem(train, test=(environment("c", -1.0, 60),), **parts)


def records(learner_settings=LINEAR, order="sequential", seeds=(0, 1), **parts):
    given = problem(**parts)
    learner = create("erm", given.train[0], learner_settings)
    return list(run(learner, given, order, seeds, label="erm"))


def test_one_score_per_stage_environment_and_seed():
    found = [
        (r.stage, r.environment, r.split, r.seed)
        for r in records()
        if isinstance(r, ScoreRecord)
    ]
    names = (("a", "train"), ("b", "train"), ("c", "test"))
    assert found == [(t, *n, s) for t in (0, 1) for n in names for s in (0, 1)]


def test_the_sweep_is_scored_after_the_last_stage_only():
    sweep = ((0.25, environment("s", 0.5)),)
    rows = [r for r in records(sweep=sweep) if getattr(r, "split", "") == "sweep"]
    assert [(r.stage, r.position) for r in rows] == [(1, 0.25), (1, 0.25)]


def test_records_say_which_columns_a_learner_found_unstable():
    data = PlantedShortcutTable(examples=400, columns=2, flips=(0.05, 0.4))
    rows = [
        r
        for r in run("steady", data.draw_problem((0, 1)), "sequential", (0, 1))
        if getattr(r, "split", "") == "unstable"
    ]
    found = {(r.seed, r.environment): r.value for r in rows}
    assert found == {(s, e): 1.0 for s in (0, 1) for e in ("all", "column 3")}
    assert {(r.metric, r.stage) for r in rows} == {("found", 1)}
    assert not [r for r in records() if getattr(r, "split", "") == "unstable"]


def test_curves_and_a_closing_row_with_settings_and_memory_are_left():
    rows = records()
    assert (
        sum(isinstance(r, TrainingCurveRecord) for r in rows)
        == 2 * 2 * LINEAR["epochs"]
    )
    (last,) = [r for r in rows if isinstance(r, RunRecord)]
    assert last is rows[-1]
    assert last.settings["epochs"] == 3
    assert last.memory["params"] == {"examples": 0, "parameters": 3, "bytes": 12}


def test_a_score_is_the_mean_over_all_examples_whatever_the_chunks():
    given = problem().train[0]
    learner = create("erm", given, LINEAR)
    state = learner.init(Randomness((0, 1)))
    whole = compute_mean_score(learner, state, given, 2)
    torch.testing.assert_close(
        compute_mean_score(learner, state, given, 2, chunk_size=7), whole
    )
    predicted = learner.predict(state, given.take_all(2).x)[..., 0]
    expected = (predicted - given.targets).square().mean(-1)
    torch.testing.assert_close(whole, expected)


def test_coefficients_are_compared_with_the_truth():
    truth = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).expand(2, -1, -1)
    settings = {"hidden": (), "epochs": 400, "batch": 0, "rate": 0.05}
    rows = [r for r in records(settings, truth=truth) if r.kind == "score"]
    found = {r.environment: r.value for r in rows if r.metric == "coefficients"}
    assert set(found) == {"causal", "noncausal"}
    assert max(found.values()) < 1e-3


def test_trees_have_no_coefficients():
    truth = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    given = Problem((environment("a", 1.0, 60),), truth=truth)
    rows = run("boosting", given, "joint", (0,))
    assert not [r for r in rows if getattr(r, "metric", "") == "coefficients"]


def test_an_intercept_is_no_part_of_the_coefficients():
    truth = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    given = Problem((environment("a", 1.0, offset=5.0),), truth=truth)
    settings = {"hidden": (), "epochs": 600, "batch": 0, "rate": 0.1}
    learner = create("erm", given.train[0], settings)
    rows = list(run(learner, given, "joint", (0,), label="erm"))
    found = [r.value for r in rows if getattr(r, "metric", "") == "coefficients"]
    assert len(found) == 2 and max(found) < 1e-3


def test_the_time_recorded_is_without_the_diagnostics(monkeypatch):
    def take_an_hour(self, index, state):
        self.seconds += 3600.0
        return iter(())

    monkeypatch.setattr(
        DiagnosticsCalculator, "iterate_diagnostics_after_stage", take_an_hour
    )
    given = problem()
    learner = create("erm", given.train[0], LINEAR)
    *_, last = run(learner, given, "sequential", (0,), label="erm", diagnose=True)
    assert -7200 < last.seconds < -3600


def test_a_transform_changes_what_the_learner_sees():
    given = problem()
    seen = []

    def keep_first(stage, randomness, watch):
        seen.append((len(stage), randomness.path))
        watch(1, 2, {})
        return stage[:1]

    learner = create("erm", given.train[0], LINEAR)
    told = []
    found = list(
        run(
            learner,
            given,
            "joint",
            (0,),
            label="erm",
            transform=keep_first,
            progress=told.append,
        )
    )
    assert seen == [(2, ("stage", 0, "inference"))]
    scores = {
        split: [r for r in found if r.kind == "score" and r.split == split]
        for split in ("train", "inferred")
    }
    # What the learner saw is scored, beside all training environments.
    assert len(scores["train"]) == 2
    assert [s.environment for s in scores["inferred"]] == [given.train[0].name]
    assert scores["inferred"][0].value == scores["train"][0].value
    # Half of the way is the inference, then come three epochs.
    assert told == pytest.approx([1 / 4, 4 / 6, 5 / 6, 1.0])


def test_divergence_names_learner_stage_step_and_seeds():
    settings = {"hidden": (), "epochs": 200, "rate": 1e30, "optimiser": "sgd"}
    with pytest.raises(
        DivergenceError, match=r"learner erm, stage 0: .*step \d+: .*seeds 0, 1"
    ):
        records(settings)
