import pytest
import torch

from cirm.data.colored import Colored
from cirm.data.scm import SCM
from cirm.environments import Environment, Problem, Task
from cirm.evaluation import run
from cirm.evaluation.diagnostics import (
    MAX_EXAMPLES,
    DiagnosticsCalculator,
    PredictionsWithTargets,
    iterate_diagnostic_metrics,
    take_evenly_spaced_examples,
)
from cirm.evaluation.groups import GroupOfEachExample
from cirm.learners import create
from cirm.likelihoods import CrossEntropy
from cirm.records import ScoreRecord, format_record_as_json
from cirm.runs.archive import pack_job_records, unpack_job_records

QUICK = {"hidden": (8,), "epochs": 3}
SEEDS = (0, 1)


class Trap:
    """Inputs that no one may take."""

    def __init__(self, shape):
        self.shape = shape

    def take(self, rows):
        raise AssertionError("the test environment was looked at")


def environment(name, flip, rows=200, seed=0):
    """A label that the second input tells in 1 - flip of the cases."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=generator)
    wrong = torch.rand(rows, generator=generator) < flip
    x = torch.randn(rows, 2, generator=generator)
    x[:, 0] += y
    x[:, 1] += 4.0 * torch.where(wrong, 1 - y, y)
    return Environment(name, x, y, Task.classification(2))


def problem(fresh=False):
    train = (environment("a", 0.2, seed=1), environment("b", 0.1, seed=2))
    more = (environment("a", 0.2, seed=3), environment("b", 0.1, seed=4))
    task = Task.classification(2)
    trap = Trap((len(SEEDS), 30, 2))
    y = torch.zeros(len(SEEDS), 30, dtype=torch.int64)
    test = Environment("test", trap, y, task, replicated=True)
    return Problem(train, test=(test,), fresh=more if fresh else ())


def records(given, learner="erm", order="sequential", seeds=SEEDS, diagnose=True):
    made = create(learner, given.train[0], QUICK)
    return list(run(made, given, order, seeds, label=learner, diagnose=diagnose))


def diagnostic(rows):
    return [r for r in rows if isinstance(r, ScoreRecord) and "diagnostic" in r.split]


def digits(**settings):
    data = Colored(examples=100, sweep=(), **settings)
    return data.draw_problem(SEEDS)


def test_the_test_environment_is_not_looked_at():
    given = problem(fresh=True)
    learner = create("erm", given.train[0], QUICK)
    recorder = DiagnosticsCalculator(learner, given, "joint", SEEDS, "erm")
    state = learner.init(recorder.randomness)
    assert list(recorder.iterate_diagnostics_after_stage(0, state))
    with pytest.raises(AssertionError, match="looked at"):
        given.test[0].take_all(2)


def test_environments_are_judged_once_they_have_arrived():
    rows = diagnostic(records(digits()))
    seen = {
        stage: {
            r.environment for r in rows if r.stage == stage and r.metric == "agreement"
        }
        for stage in (0, 1)
    }
    assert seen == {0: {"all", "train-1"}, 1: {"all", "train-1", "train-2"}}
    groups = {r.stage for r in rows if r.metric == "group score"}
    assert groups == {1}


def test_diagnostics_change_no_other_number():
    given = digits()
    plain = [r for r in records(given, diagnose=False) if r.kind != "run"]
    with_them = [r for r in records(given) if r.kind != "run"]
    added = ("measures", "untrained")
    rest = [r for r in with_them if getattr(r, "split", "") not in added]
    rest = [r for r in rest if r not in diagnostic(with_them)]
    assert [format_record_as_json(r) for r in rest] == [
        format_record_as_json(r) for r in plain
    ]
    assert len(with_them) > len(plain)


def test_spare_examples_serve_where_there_are_some():
    spare, whole = (
        digits(environments=2),
        Colored(examples="all", sweep=()).draw_problem(SEEDS),
    )
    assert spare.fresh and not whole.fresh
    assert {r.split for r in diagnostic(records(spare))} == {"diagnostic"}
    (split,) = {r.split for r in diagnostic(records(whole))}
    assert split == "diagnostic on training data"


def test_a_replica_has_the_same_diagnostics_alone_as_beside_others():
    data = Colored(examples=100, sweep=())
    beside = diagnostic(records(data.draw_problem((0, 1))))
    alone = diagnostic(records(data.draw_problem((1,)), seeds=(1,)))
    ours = {(r.stage, r.environment, r.metric): r.value for r in beside if r.seed == 1}
    for r in alone:
        expected = ours[r.stage, r.environment, r.metric]
        assert r.value == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("order", ["joint", "sequential", "1+2"])
def test_values_are_diagnosed_too_and_every_number_can_be_packed(order):
    given = SCM(examples=60).draw_problem(SEEDS)
    made = create("erm", given.train[0], QUICK)
    rows = list(run(made, given, order, SEEDS, label="erm", diagnose=True))
    found = diagnostic(rows)
    assert {r.seed for r in found} == set(SEEDS)
    assert all(torch.tensor([r.value for r in found]).isfinite())
    again = diagnostic(unpack_job_records(pack_job_records(rows)))
    assert len(again) == len(found)


def test_a_model_that_goes_by_the_shortcut_agrees_with_the_reference():
    given = problem(fresh=True)
    learner = create("erm", given.train[0], {"hidden": (), "epochs": 60, "rate": 0.02})
    recorder = DiagnosticsCalculator(learner, given, "joint", SEEDS, "erm")
    state = learner.init(recorder.randomness)
    early = {
        r.metric: r.value for r in recorder.iterate_diagnostics_after_stage(0, state)
    }
    state = learner.observe(state, given.train, recorder.randomness)
    late = {
        r.metric: r.value for r in recorder.iterate_diagnostics_after_stage(0, state)
    }
    assert late["agreement"] > max(85.0, early["agreement"])
    assert late["worst group"] < 25.0


def test_no_more_examples_than_needed_are_looked_at():
    large = environment("large", 0.1, rows=MAX_EXAMPLES + 500)
    assert len(take_evenly_spaced_examples(large, 2)) == MAX_EXAMPLES
    small = environment("small", 0.1)
    assert take_evenly_spaced_examples(small, 2) is small


def test_the_examples_that_are_looked_at_are_spread_over_all():
    rows = torch.arange(101.0)[:, None]
    whole = Environment("a", rows, torch.zeros(101), Task.regression())
    thin = take_evenly_spaced_examples(whole, 2, 11).take_all(2).x[..., 0]
    assert torch.equal(thin, torch.arange(0.0, 101.0, 10.0).expand(2, -1))


def test_spare_examples_and_not_those_trained_on_are_scored():
    given = problem(fresh=True)
    learner = create("erm", given.train[0], QUICK)
    recorder = DiagnosticsCalculator(learner, given, "joint", SEEDS, "erm")
    list(recorder.iterate_diagnostics_after_stage(0, learner.init(recorder.randomness)))
    for spare in given.fresh:
        held_out, groups = recorder.seen[spare.name]
        assert torch.equal(held_out.take_all(2).x, spare.take_all(2).x)
        assert torch.equal(groups.indices // 2, spare.targets.expand(2, -1))


def test_the_calibration_of_each_group_is_recorded_beside_its_score():
    y = torch.tensor([[0] * 10 + [1] * 10])
    answers = torch.tensor([[0] * 8 + [1] * 2 + [1] * 6 + [0] * 4])
    sure = torch.tensor([[0.9] * 10 + [0.2] * 10])
    names = ("0, wrong", "0, right", "1, wrong", "1, right")
    groups = GroupOfEachExample(2 * y + (answers == y), names, answers)
    one = PredictionsWithTargets(torch.stack([sure, 1 - sure], -1), y, groups)
    rows = {
        (where, metric): values.item()
        for where, metric, values in iterate_diagnostic_metrics(
            CrossEntropy(2), Task.classification(2), {"a": one}, is_last_stage=True
        )
    }
    # Class 0 is predicted with 90 % and class 1 with 80 %, and both are always right.
    for group, gap in zip(names, (10, 10, 20, 20), strict=True):
        assert rows[f"a: {group}", "group calibration"] == pytest.approx(gap, abs=1e-3)
        assert rows[f"a: {group}", "group score"] == 100
    assert rows["a", "calibration"] == pytest.approx(15, abs=1e-3)
    assert rows["all", "calibration spread"] == pytest.approx(10, abs=1e-3)
