"""CIRM: a planted shortcut is dropped, anything else is kept, and little is carried."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.cirm.learner import CIRM
from cirm.memory import count_memory
from cirm.networks import MLP, ModuleNetwork
from cirm.randomness import Randomness
from cirm.training import Descent, DivergenceError

SEEDS = (0, 1, 2)
NETWORK = {"hidden": (32,), "batch": 128, "rate": 0.01}
QUICK = {**NETWORK, "epochs": 10, "plain_epochs": 10, "dropout": 0.5, "prior_std": 1.0}
BRIEF = {**QUICK, "epochs": 1, "plain_epochs": 1, "rounds": 1, "members": 2}
LINEAR = {"hidden": (), "epochs": 100, "batch": 0, "rate": 0.05}
SMALL = {"hidden": (20,), "epochs": 100, "rate": 0.01}
CURVED = {**SMALL, "plain_epochs": 100}
VALUES = {**LINEAR, "plain_epochs": 100, "prior_std": 1.0}


def place(name, agree, size=400, classes=2, noise=0.25):
    """Inputs of a loud shortcut that agrees so often, and of quiet stable columns.

    The stable ones show the class before part of the labels was changed.
    """
    source = Randomness((7,)).at(name)
    truth = source.at("truth").integers(classes, size)[0]
    labels = changed(truth, 1 - noise, source.at("label"), classes)
    cue = changed(labels, agree, source.at("cue"), classes)
    loud, quiet = (F.one_hot(part, classes) for part in (cue, truth))
    x = torch.cat([2.5 * loud, quiet, quiet], 1)
    x = x + 0.5 * source.at("inputs").normal(*x.shape)[0]
    return Environment(name, x, labels, Task.classification(classes))


def changed(labels, keep, source, classes):
    """Labels of which so many are kept, and the others are the next class."""
    right = source.uniform(len(labels))[0] < keep
    return torch.where(right, labels, (labels + 1) % classes)


def blinded(environment):
    """The same examples without the shortcut's columns."""
    inputs = environment.inputs.clone()
    inputs[:, : len(environment.task.classes)] = 0.0
    return replace(environment, inputs=inputs)


def train(learner, stream, seeds=SEEDS, watch=None):
    randomness = Randomness(seeds)
    state = learner.init(randomness.at("init"))
    more = () if watch is None else (watch,)
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, randomness.at("stage", index), *more)
    return state


def accuracy(learner, state, environment, replicas=3):
    x, y = environment.take_all(replicas)
    return learner.likelihood.scores(learner.predict(state, x), y).mean(-1)


def erm_accuracy(train_on, unseen):
    erm = create("erm", unseen, {**NETWORK, "epochs": 20})
    return accuracy(erm, train(erm, Stream.sequential(train_on)), unseen)


@pytest.fixture(scope="module")
def places():
    return [place("a", 0.85), place("b", 0.85)]


@pytest.fixture(scope="module")
def inverted():
    return place("unseen", 0.15, 2000)


@pytest.fixture(scope="module")
def learned(places):
    """The learner, and its state after two environments, one after the other."""
    learner = create("cirm", places[0], QUICK)
    return learner, train(learner, Stream.sequential(places))


def test_where_the_shortcut_is_inverted_it_is_near_a_model_without_it(
    places, inverted, learned
):
    learner, state = learned
    ours = accuracy(learner, state, inverted)
    blind = erm_accuracy(map(blinded, places), blinded(inverted))
    assert learner.drops_shortcut(state).all()
    assert (ours > erm_accuracy(places, inverted) + 30).all()
    assert (ours > blind - 5).all()


def test_one_environment_suffices(places, inverted):
    learner = create("cirm", places[0], QUICK)
    state = train(learner, Stream.joint(places[:1]))
    assert (accuracy(learner, state, inverted) > 60).all()
    assert (erm_accuracy(places[:1], inverted) < 40).all()


def evidence(learner, environments, order):
    """What is told of a disagreement, its chance, comparisons, and who was taught."""
    return train(learner, Stream.from_order(environments, order)).evidence.unbind(1)


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_environments_in_which_the_shortcut_differs_are_evidence(order):
    both = place("a", 0.95, 600), place("b", 0.7, 600)
    learner = create("cirm", both[0], QUICK)
    told, chance, count, taught = evidence(learner, both, order)
    # The reference goes by the shortcut alone, so it need not be taught anything.
    assert (told < 1e-6).all() and torch.equal(told, chance) and not taught.any()
    assert (count == 1).all()


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_environments_alike_are_no_evidence(places, order):
    learner = create("cirm", places[0], QUICK)
    _, chance, count, taught = evidence(learner, places, order)
    assert (chance > 0.01).all() and (count == 1).all() and not taught.any()


def test_one_environment_is_no_evidence(places):
    learner = create("cirm", places[0], BRIEF)
    state = train(learner, Stream.joint(places[:1]))
    assert state.evidence.tolist() == [[1, 1, 0, 0]] * 3


@pytest.mark.parametrize("classes", [(0,), (0, 1, 2)])
def test_environments_of_other_classes_are_not_compared(classes):
    first, other = place("a", 0.85, 600, 3), place("b", 0.7, 600, 3)
    those = torch.isin(first.targets, torch.tensor([0, 1]))
    two = Environment("a", first.inputs[those], first.targets[those], first.task)
    these = torch.isin(other.targets, torch.tensor(classes))
    rest = Environment("b", other.inputs[these], other.targets[these], other.task)
    learner = create("cirm", two, BRIEF)
    _, chance, count, _ = evidence(learner, [two, rest], "sequential")
    assert (chance == 1).all() and not count.any()


def test_each_of_many_environments_is_compared_with_the_others():
    three = [place(name, 0.85, 200) for name in "abc"]
    learner = create("cirm", three[0], BRIEF)
    assert (evidence(learner, three, "joint")[2] == 3).all()
    assert (evidence(learner, three, "sequential")[2] == 2).all()


def test_many_comparisons_ask_for_more_evidence(learned):
    learner, state = learned
    few, many = (
        torch.tensor([[0.002, 0.002, count, 0.0]]).expand(3, 4) for count in (1, 9)
    )
    assert (learner.margin(state._replace(evidence=few)) < 0).all()
    assert (learner.margin(state._replace(evidence=many)) > 0).all()


def test_what_is_kept_is_not_taken_for_a_new_environment():
    both = [place("a", 0.85, 400), place("b", 0.85, 400)]
    learner = create("cirm", both[0], {**QUICK, "memory": 1.0})
    _, chance, count, taught = evidence(learner, both, "sequential")
    # With the past, and with the examples of it that are kept.
    assert (count == 2).all() and (chance > 0.01).all() and not taught.any()


def clinic(name, agree, size=1000, classes=2):
    """A shortcut no easier than the stable column; the last two columns say nothing."""
    source = Randomness((7,)).at("clinic", name)
    labels = source.at("label").integers(classes, size)[0]
    cue = changed(labels, agree, source.at("cue"), classes)
    x = torch.cat([F.one_hot(part, classes) for part in (cue, labels)], 1).float()
    noise = source.at("inputs").normal(size, 2 * classes + 2)[0]
    noise[:, :classes] = 0.0
    x = torch.cat([x, torch.zeros(size, 2)], 1) + 0.6 * noise
    return Environment(name, x, labels, Task.classification(classes))


@pytest.mark.integration
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_what_environments_disagree_on_is_dropped_though_it_is_not_the_easiest(
    order, classes
):
    seen = [clinic("a", 0.95, 1500, classes), clinic("b", 0.8, 1500, classes)]
    unseen = clinic("unseen", 0.1, 2000, classes)
    learner = create("cirm", unseen, QUICK)
    state = train(learner, Stream.from_order(seen, order))
    assert state.evidence[:, 3].all() and learner.drops_shortcut(state).all()
    strongest = F.normalize(state.directions[:, :, 0], dim=-1)
    assert (strongest[..., :classes].norm(dim=-1) > 0.9).all()
    blind = erm_accuracy(map(blinded, seen), blinded(unseen))
    assert (accuracy(learner, state, unseen) > blind - 5).all()
    assert (erm_accuracy(seen, unseen) < blind - 5).all()


@pytest.mark.integration
def test_what_it_was_taught_it_knows_in_later_environments():
    seen = [clinic("a", 0.95), clinic("b", 0.75), clinic("c", 0.75), clinic("d", 0.75)]
    unseen = clinic("unseen", 0.1, 2000)
    learner = create("cirm", unseen, QUICK)
    states = [
        train(learner, Stream.sequential(seen[:count]), (0, 1)) for count in (2, 4)
    ]
    assert torch.equal(states[0].reference, states[1].reference)
    blind = erm_accuracy(map(blinded, seen), blinded(unseen))[:2]
    assert (accuracy(learner, states[1], unseen, 2) > blind - 3).all()


def test_other_frequencies_of_the_classes_are_no_evidence():
    first, other = clinic("a", 0.7), clinic("b", 0.7, 2000)
    ill = other.targets == 1
    ill[::4] = True  # all of one class, a quarter of the other
    fewer = Environment("b", other.inputs[ill], other.targets[ill], other.task)
    learner = create("cirm", first, QUICK)
    assert (evidence(learner, [first, fewer], "sequential")[1] > 0.01).all()


def test_without_a_shortcut_and_without_noise_it_is_as_good_as_erm():
    clean = [blinded(place(name, 0.5, noise=0.0)) for name in "ab"]
    unseen = blinded(place("unseen", 0.5, 2000, noise=0.0))
    learner = create("cirm", clean[0], QUICK)
    state = train(learner, Stream.sequential(clean))
    plain = erm_accuracy(clean, unseen)
    assert (plain > 90).all()
    assert (accuracy(learner, state, unseen) > plain - 2).all()


def test_the_choice_can_be_forced(inverted, learned):
    learner, state = learned
    drop, keep = (replace(learner, shortcut=s) for s in ("drop", "keep"))
    assert drop.drops_shortcut(state).all() and not keep.drops_shortcut(state).any()
    assert (accuracy(drop, state, inverted) > 60).all()
    assert (accuracy(keep, state, inverted) < 40).all()


def test_each_replica_makes_its_own_choice(inverted, learned):
    learner, state = learned
    tally = state.tally.clone()
    tally[1, 1] = tally[1, 0]  # here the plain model was always right
    mixed, x = state._replace(tally=tally), inverted.take_all(3).x
    keep = replace(learner, shortcut="keep")
    assert learner.drops_shortcut(mixed).tolist() == [True, False, True]
    both = learner.predict(mixed, x)
    torch.testing.assert_close(both[1], keep.predict(state, x)[1])
    torch.testing.assert_close(both[::2], learner.predict(state, x)[::2])


def test_the_hidden_direction_is_that_of_the_shortcut(learned):
    _, state = learned
    strongest = F.normalize(state.directions[:, :, 0], dim=-1)
    assert (strongest[..., :2].norm(dim=-1) > 0.95).all()


def test_moving_along_the_shortcut_moves_the_prediction_less_than_with_erm(
    places, inverted, learned
):
    learner, state = learned
    erm = create("erm", inverted, {**NETWORK, "epochs": 20})
    x = inverted.take_all(3).x
    other = x.clone()
    other[..., :2] = other[..., :2].flip(-1)

    def moves(model, known):
        change = model.predict(known, other) - model.predict(known, x)
        return change.abs().mean((1, 2))

    plain = moves(erm, train(erm, Stream.sequential(places)))
    assert (moves(learner, state) < plain / 3).all()


def test_three_classes_come_near_a_model_without_the_shortcut():
    seen, unseen = place("a", 0.85, 600, 3), place("unseen", 0.1, 2000, 3)
    learner = create("cirm", seen, QUICK)
    state = train(learner, Stream.joint([seen]))
    assert state.directions.shape == (3, 4, 4, 9)
    ours, plain = accuracy(learner, state, unseen), erm_accuracy([seen], unseen)
    assert (plain < 45).all()
    assert (ours > erm_accuracy([blinded(seen)], blinded(unseen)) - 5).all()


def test_a_single_output_is_the_logit_of_the_second_class(places, inverted):
    learner = create("cirm", places[0], {**QUICK, "outputs": 1})
    state = train(learner, Stream.joint(places[:1]))
    assert (accuracy(learner, state, inverted) > 60).all()


def test_dropout_eases_with_the_examples_and_is_never_more_than_is_set():
    strong, mild = (CIRM(MLP((4, 8, 2), dropout=d)) for d in (0.9, 0.3))
    left = [1 - strong.network_for(count).dropout for count in (10, 1000, 4000, 10**6)]
    assert left == pytest.approx([0.1, 0.1, 0.2, 0.5])
    assert {mild.network_for(count).dropout for count in (10, 10**6)} == {0.3}


def test_any_module_can_be_the_network(places, inverted):
    module = nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 2))
    learner = CIRM(
        ModuleNetwork(module),
        descent=Descent(epochs=10, batch=64, rate=0.02),
        members=2,
        prior_std=1.0,
        plain_epochs=10,
        shortcut="drop",
    )
    state = train(learner, Stream.joint(places[:1]), seeds=(0,))
    assert (accuracy(learner, state, inverted, 1) > 60).all()


@pytest.mark.parametrize("part", ["hide", "correct", "carry"])
def test_parts_can_be_turned_off(places, part):
    learner = create("cirm", places[0], {**BRIEF, part: False})
    state = train(learner, Stream.sequential(places))
    assert state.directions.shape[2] == (0 if part == "hide" else 4)
    drop = replace(learner, shortcut="drop")
    assert torch.isfinite(drop.predict(state, places[0].take_all(3).x)).all()


def test_without_carrying_a_stage_has_its_own_directions_only(places):
    learner = create("cirm", places[0], BRIEF)
    states = [
        train(replace(learner, carry=carry), Stream.sequential(places))
        for carry in (True, False)
    ]
    found = [(s.directions.norm(dim=-1) > 1e-4).sum(-1) for s in states]
    assert (found[0] == 2).all() and (found[1] == 1).all()


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_a_part_of_each_environment_is_kept(order):
    both = [place("a", 0.85, 100), place("b", 0.85, 60)]
    learner = create("cirm", both[0], {**BRIEF, "memory": 0.1})
    state = train(learner, Stream.from_order(both, order))
    assert state.memory.sizes == (10, 6)
    assert count_memory(state)["memory"]["examples"] == 16
    for environment, kept in zip(both, state.memory.split(), strict=True):
        same = (kept.x.unsqueeze(2) == environment.inputs).all(-1)
        assert (same.sum(-1) == 1).all() and same.any(1).sum(-1).eq(same.shape[1]).all()
        assert torch.equal(kept.y, environment.targets[same.int().argmax(-1)])


def test_kept_examples_are_learned_from(places):
    forgets, keeps = (
        create("cirm", places[0], {**QUICK, "memory": part, "shortcut": "keep"})
        for part in (0.0, 1.0)
    )
    # The second environment says the opposite of the first.
    other = replace(places[1], targets=1 - places[1].targets)
    stream = Stream.sequential([places[0], other])
    scores = [
        accuracy(learner, train(learner, stream, (0,)), places[0], 1)
        for learner in (forgets, keeps)
    ]
    assert scores[0] < 30 and scores[1] > scores[0] + 10


def test_no_example_is_kept_unless_asked_for(learned):
    _, state = learned
    assert not sum(entry["examples"] for entry in count_memory(state).values())
    assert "memory" not in count_memory(state)


def test_the_state_does_not_grow_with_the_number_of_environments():
    places = [place(name, 0.85, 60) for name in "abcd"]
    learner = create("cirm", places[0], {**BRIEF, "rank": 2})
    sizes = [
        count_memory(train(learner, Stream.sequential(places[:count])))
        for count in (1, 2, 4)
    ]
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_handful_of_examples_is_enough_to_go_on(size, kind):
    few = [
        place(name, 0.85, size) if kind == "classes" else scm(name, 1.0, size)
        for name in "ab"
    ]
    learner = create("cirm", few[0], {**BRIEF, "members": 4})
    for order in ("joint", "sequential"):
        state = train(learner, Stream.from_order(few, order))
        for shortcut in ("auto", "drop"):
            model = replace(learner, shortcut=shortcut)
            assert torch.isfinite(model.predict(state, few[0].take_all(3).x)).all()


def test_every_replica_may_have_examples_of_its_own():
    draws = [place(name, 0.85, 60) for name in "abc"]
    inputs, targets = (
        torch.stack([getattr(e, part) for e in draws]) for part in ("inputs", "targets")
    )
    apart = Environment("own", inputs, targets, draws[0].task, replicated=True)
    learner = create("cirm", apart, BRIEF)
    state = train(learner, Stream.joint([apart]))
    torch.testing.assert_close(state.centre, inputs.mean(1))


def test_a_watcher_sees_the_plain_models_go_by_and_then_a_number_for_each_replica(
    places,
):
    told = []
    learner = create("cirm", places[0], {**BRIEF, "epochs": 3})
    train(
        learner,
        Stream.joint(places[:1]),
        watch=lambda step, steps, numbers: told.append((step, steps, numbers)),
    )
    assert [step / steps for step, steps, _ in told] == [1 / 4, 2 / 4, 3 / 4, 1]
    assert not told[0][2]
    for _, _, numbers in told[1:]:
        assert set(numbers) == {"risk", "kl"}
        assert all(value.shape == (3,) for value in numbers.values())


def test_when_a_member_is_lost_its_replica_is_named(places):
    x = places[0].inputs
    values = Environment("a", x, 1e3 * x[:, 0], Task.regression())
    learner = create("cirm", values, {**BRIEF, "optimiser": "sgd", "rate": 1e30})
    with pytest.raises(DivergenceError) as caught:
        train(learner, Stream.joint([values]))
    assert caught.value.args[1] == [0, 1, 2]


def scm(name, scale, size=600):
    """A cause, its effect as the target, and an effect of that, [n, 2]."""
    source = Randomness((7,)).at(name)
    cause, noise, more = (source.at(n).normal(size)[0] for n in ("x", "y", "z"))
    target = cause + scale * noise
    x = torch.stack([cause, target + more], 1)
    return Environment(name, x, target, Task.regression())


def influences(learner, state):
    """What the prediction gains per unit of each input, [replica, 2]."""
    values = learner.predict(state, torch.cat([torch.zeros(1, 2), torch.eye(2)])[None])
    return (values[:, 1:] - values[:, :1]).squeeze(-1)


@pytest.mark.integration
def test_an_effect_of_the_target_hardly_counts_after_two_environments():
    stream = Stream.sequential([scm("a", 0.5), scm("b", 2.0)])
    learner = create("cirm", stream.stages[0][0], VALUES)
    erm = create("erm", stream.stages[0][0], LINEAR)
    cause, effect = influences(learner, train(learner, stream, (0,)))[0]
    _, plain = influences(erm, train(erm, stream, (0,)))[0]
    assert plain > 0.7  # 4 / 5 in the second environment alone
    assert abs(effect) < 0.1 and abs(cause - 1) < 0.2


def site(name, strength, size=400, away=0.0):
    """Causes of a value, in a curve, and a reading of it on a site's scale."""
    source = Randomness((7,)).at(name)
    causes = source.at("x").normal(size, 3)[0] + away
    target = causes[:, 0] - causes[:, 1] + causes[:, 1] * causes[:, 2] / 2
    target = target + 0.4 * source.at("y").normal(size)[0]
    reading = strength * target + 0.3 * source.at("z").normal(size)[0]
    x = torch.cat([causes, reading.unsqueeze(1)], 1)
    return Environment(name, x, target, Task.regression())


def explained(learner, state, environment):
    """Part of the variance of an environment's target that is explained."""
    x, y = environment.take_all(1)
    misses = y - learner.predict(state, x).squeeze(-1)
    return float(1 - misses.square().mean() / y.var())


@pytest.mark.integration
@pytest.mark.parametrize("order", ["sequential", "joint"])
def test_a_reading_that_each_site_scales_otherwise_is_found_and_hidden(order):
    sites, unseen = [site("a", 1.0), site("b", 0.5)], site("c", -0.5)
    stream = Stream.from_order(sites, order)
    learner = create("cirm", sites[0], CURVED)
    erm = create("erm", sites[0], SMALL)
    state = train(learner, stream, (0,))
    axes = torch.nn.functional.normalize(state.directions[0, :, 0], dim=-1)
    torch.testing.assert_close(axes.abs(), torch.eye(4)[3].expand(4, -1))
    plain = explained(erm, train(erm, stream, (0,)), unseen)
    assert plain < 0.7 < 0.8 < explained(learner, state, unseen)


def test_sites_that_lie_elsewhere_give_no_reason_to_drop_anything():
    sites = [site("a", 1.0), site("b", 1.0, away=0.7)]
    learner = create("cirm", sites[0], CURVED)
    state = train(learner, Stream.sequential(sites), (0,))
    assert not learner.drops_shortcut(state).any()
    assert explained(learner, state, site("c", 1.0, away=0.4)) > 0.9


@pytest.mark.parametrize("scales", [(0.5,), (1.0, 1.0)])
def test_environments_that_do_not_differ_give_no_reason_to_drop_anything(scales):
    seen = [scm(name, scale) for name, scale in zip("ab", scales, strict=False)]
    learner = create("cirm", seen[0], VALUES)
    state = train(learner, Stream.sequential(seen), (0,))
    assert not learner.drops_shortcut(state).any()
    wanted = scales[-1] ** 2 / (1 + scales[-1] ** 2)
    assert abs(influences(learner, state)[0, 1] - wanted) < 0.1


@pytest.mark.integration
def test_a_cause_is_not_dropped_because_a_model_does_not_quite_fit():
    seen = []
    for name, scale in (("a", 1.0), ("b", 1.5)):
        x = scale * Randomness((7,)).at(name).normal(300, 4)[0]
        noise = 0.1 * Randomness((7,)).at(name, "noise").normal(300)[0]
        seen.append(Environment(name, x, x[:, 0] + noise, Task.regression()))
    learner = create("cirm", seen[0], {**QUICK, "hidden": (8,), "plain_epochs": 40})
    state = train(learner, Stream.sequential(seen))
    error = (
        learner.predict(state, seen[0].take_all(3).x)[..., 0] - seen[0].targets
    ).square()
    assert (error.mean(-1) < 0.1).all()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"members": 1}, "members must be 2 or more, but is 1"),
        ({"rounds": 0}, "rounds must be 1 or more, but is 0"),
        ({"reference_steps": 0}, "reference_steps must be 1 or more, but is 0"),
        ({"plain_epochs": 0}, "plain_epochs must be 1 or more, but is 0"),
        ({"rank": 0}, "rank must be 1 or more, but is 0"),
        ({"cap": 0.5}, "cap must be 1 or more, but is 0.5"),
        ({"beta": -1.0}, "beta must be 0 or more, but is -1.0"),
        ({"memory": 1.5}, "memory must be from 0 to 1, but is 1.5"),
        ({"prior_std": 0.0}, "prior_std must be above 0, but is 0.0"),
        ({"initial_std": -1.0}, "initial_std must be above 0, but is -1.0"),
        ({"shortcut": "maybe"}, "shortcut must be auto, drop or keep, but is 'maybe'"),
    ],
)
def test_settings_are_checked(settings, complaint):
    pattern = "^cirm: " + re.escape(complaint) + r"\.$"
    with pytest.raises(ValueError, match=pattern):
        CIRM(MLP((4, 8, 2)), **settings)
