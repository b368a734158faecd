import dataclasses

import pytest
import torch

from cirm.environments import Environment, Problem, Task
from cirm.evaluation.groups import GroupReferenceModel
from cirm.evaluation.run import compute_mean_score
from cirm.evaluation.selection import (
    RULES,
    Rule,
    TrainedLearner,
    TrainingAndTestData,
    TrainingData,
    get_selection_rule,
    remove_environment_from_order,
    train_without_held_out_examples,
)
from cirm.learners import create
from cirm.randomness import Randomness

SEEDS = (0, 1)
LINEAR = {"hidden": (), "epochs": 2, "batch": 0}
NONE = torch.empty(len(SEEDS), 0)
WORST = f"{__name__}:WorstEnvironment"


class Trap:
    """Inputs that no one may take."""

    shape = (len(SEEDS), 30, 2)

    def take(self, rows):
        raise AssertionError("the test environment was looked at")


def environment(name, flip=0.1, rows=400, seed=0):
    """The first input tells the label in 3/4 of the cases, the second in 1 - flip."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=generator)
    noise = torch.rand(2, rows, generator=generator)
    shape = torch.where(noise[0] < 0.25, 1 - y, y)
    color = torch.where(noise[1] < flip, 1 - y, y)
    x = torch.stack([shape - 0.5, 5.0 * (color - 0.5)], 1)
    return Environment(name, x, y, Task.classification(2))


def problem():
    y = torch.zeros(len(SEEDS), 30, dtype=torch.int64)
    test = Environment("test", Trap(), y, Task.classification(2), replicated=True)
    train = (environment("a", 0.2, seed=1), environment("b", 0.1, seed=2))
    return Problem(train, test=(test,))


def split(part=0.25):
    return TrainingData.split(problem().train, SEEDS, part)


def rule_score(rule, model, data):
    return get_selection_rule(rule).score(model, data)


def by_input(index):
    """A linear model that goes by one of the inputs alone."""
    learner = create("erm", problem().train[0], LINEAR)
    state = learner.init(Randomness(SEEDS))
    weights = torch.zeros(len(SEEDS), 2, 2)
    weights[:, index] = torch.tensor([-1.0, 1.0])
    flat = torch.cat([weights.flatten(1), torch.zeros(len(SEEDS), 2)], 1)
    return TrainedLearner(learner, state._replace(params=flat), SEEDS, NONE)


def test_an_offer_has_no_place_for_a_test_environment():
    assert {f.name for f in dataclasses.fields(TrainingData)} == {
        "whole",
        "learn",
        "held_out",
    }
    given = split()
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(given, "test", problem().test)
    with pytest.raises(TypeError):
        TrainingData(given.whole, given.learn, given.held_out, test=problem().test)


def test_no_rule_but_the_oracle_looks_at_the_test_environment():
    given, seen = problem(), split()
    learner = create("erm", given.train[0], LINEAR)
    model = train_without_held_out_examples(learner, seen, "sequential", SEEDS)
    assert rule_score("held-out", model, seen).isfinite().all()
    assert rule_score("next", model, seen).isfinite().all()
    assert rule_score("worst-group", model, seen).isfinite().all()
    for left in (0, 1):
        model = train_without_held_out_examples(
            learner, seen, "sequential", SEEDS, left
        )
        assert rule_score("leave-one-out", model, seen).isfinite().all()
    with pytest.raises(AssertionError, match="looked at"):
        both = TrainingAndTestData(seen.whole, seen.learn, seen.held_out, given.test)
        rule_score("oracle", model, both)
    with pytest.raises(TypeError, match="needs the test environments"):
        rule_score("oracle", model, seen)


def test_what_is_learned_and_what_is_held_out_make_up_the_whole():
    rows = torch.arange(40.0)[:, None]
    given = Environment("a", rows, torch.zeros(40), Task.regression())
    seen = TrainingData.split((given,), SEEDS, 0.25)
    learn, held = seen.learn[0].take_all(2).x, seen.held_out[0].take_all(2).x
    assert held.shape[1] == 10
    both = torch.cat([learn, held], 1)[..., 0].sort(-1).values
    assert torch.equal(both, rows.T.expand(2, -1))
    assert not torch.equal(held[0], held[1])


def test_a_part_that_leaves_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"400 examples, so a fraction of 0\.001 would leave none"
    ):
        split(0.001)


def test_the_worst_group_prefers_what_lasts_and_held_out_examples_the_shortcut():
    seen = split()
    lasting, shortcut = by_input(0), by_input(1)
    worst = [rule_score("worst-group", m, seen) for m in (lasting, shortcut)]
    mean = [rule_score("held-out", m, seen) for m in (lasting, shortcut)]
    assert (worst[0] > 50).all() and (worst[1] == 0).all()
    assert (mean[1] > mean[0]).all()


def test_environments_count_alike_in_a_mean_score_whatever_their_size():
    model = by_input(1)
    places = [environment("a", 0.4, rows=50), environment("b", 0.0, rows=500, seed=3)]
    each = [compute_mean_score(model.learner, model.state, e, 2) for e in places]
    assert (each[0] < each[1]).all()
    torch.testing.assert_close(
        model.compute_mean_score(places), (each[0] + each[1]) / 2
    )


def test_the_reference_of_the_worst_group_has_not_seen_the_held_out_examples(
    monkeypatch,
):
    seen, fitted = split(), []

    def fit(environment, randomness):
        fitted.append((environment, randomness.seeds))
        return original(environment, randomness)

    original = GroupReferenceModel.fit
    monkeypatch.setattr(GroupReferenceModel, "fit", fit)
    rule_score("worst-group", by_input(0), seen)
    assert [one for one, _ in fitted] == list(seen.learn)
    assert {seeds for _, seeds in fitted} == {SEEDS}


def test_a_constant_has_no_worst_group_above_zero():
    model = by_input(0)
    params = torch.zeros_like(model.state.params)
    params[:, -1] = 1.0
    flat = model._replace(state=model.state._replace(params=params))
    assert rule_score("worst-group", flat, split()).tolist() == [0, 0]


def test_the_next_environment_is_scored_whole_and_before_it_is_learned():
    seen = split()
    learner = create("erm", problem().train[0], LINEAR)
    model = train_without_held_out_examples(learner, seen, "sequential", SEEDS)
    source = Randomness(SEEDS)
    state = learner.init(source.at("init"))
    state = learner.observe(state, seen.learn[:1], source.at("stage", 0))
    expected = compute_mean_score(learner, state, problem().train[1], 2)
    torch.testing.assert_close(rule_score("next", model, seen), expected)


def test_an_environment_that_is_left_out_plays_no_part_in_training():
    seen = split()
    other = environment("b", 0.9, seed=7)
    changed = TrainingData.split((problem().train[0], other), SEEDS, 0.25)
    learner = create("erm", other, LINEAR)
    states = [
        train_without_held_out_examples(learner, o, "joint", SEEDS, left_out=1).state
        for o in (seen, changed)
    ]
    assert torch.equal(states[0].params, states[1].params)


def test_errors_count_as_negative_scores():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    given = Environment("a", x, x[:, 0], Task.regression())
    learner = create("erm", given, LINEAR)
    state = learner.init(Randomness(SEEDS))
    model = TrainedLearner(learner, state, SEEDS, NONE)
    expected = -compute_mean_score(learner, state, given, 2)
    torch.testing.assert_close(model.compute_mean_score([given]), expected)
    seen = TrainingData.split((given,), SEEDS, 0.25)
    assert (rule_score("worst-group", model, seen) < 0).all()


@pytest.mark.parametrize(
    ("order", "left", "expected"),
    [
        ("joint", 0, "joint"),
        ("sequential", 2, "sequential"),
        ("2+1+3", 1, "1+1+3"),
        ("2+1+3", 2, "2+3"),
        ("2+1+3", 5, "2+1+2"),
    ],
)
def test_an_order_loses_the_place_of_what_is_left_out(order, left, expected):
    assert remove_environment_from_order(order, left) == expected


def test_rules_say_what_they_need():
    rules = [get_selection_rule(key) for key in RULES]
    assert [rule.name for rule in rules] == list(RULES)
    lacking = {
        rule.name: rule.find_obstacle(
            n_stages=1, n_training_environments=1, n_test_environments=0
        )
        for rule in rules
    }
    assert {name for name, why in lacking.items() if why} == {
        "next",
        "leave-one-out",
        "oracle",
    }
    assert lacking["next"] == "this rule needs two or more stages, but there is only 1"
    assert not any(
        rule.find_obstacle(n_stages=2, n_training_environments=2, n_test_environments=1)
        for rule in rules
    )
    assert all(rule.description for rule in rules)
    with pytest.raises(ValueError, match=r"no selection rule 'best'.*held-out"):
        get_selection_rule("best")


class WorstEnvironment(Rule):
    """A rule of a user's own."""

    name = "worst-environment"
    description = "score on the worst environment"

    def score(self, trained, data):
        return torch.stack(
            [trained.compute_mean_score([e]) for e in data.held_out]
        ).amin(0)


def test_a_rule_of_ones_own_works_as_an_instance_and_by_its_import_path():
    seen, model = split(), by_input(1)
    found = [rule_score(r, model, seen) for r in (WorstEnvironment(), WORST)]
    each = [model.compute_mean_score([part]) for part in seen.held_out]
    expected = torch.minimum(*each)
    assert torch.equal(found[0], expected) and torch.equal(found[1], expected)


def test_leave_one_out_says_if_no_environment_was_left_out():
    with pytest.raises(ValueError, match="trained without one"):
        rule_score("leave-one-out", by_input(0), split())
