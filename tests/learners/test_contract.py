"""What must hold for every learner, in whatever form it is given."""

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
import torch

from cirm import registry
from cirm.environments import Environment, Stream, Task
from cirm.learners import CONTINUAL, LEARNERS, create, get_learner_class
from cirm.learners.vrex import VREx
from cirm.memory import list_state_tensors, measure_state_size
from cirm.randomness import Randomness

SEEDS = (3, 5, 8)
QUICK = {"hidden": (8,), "epochs": 15, "batch": 64, "rate": 0.02}
BRIEF = {"epochs": 6, "rate": 0.05}
SPECIAL = {  # settings under which so few steps suffice
    "irmv1": {"penalty": 1.0},
    "mer": {"memory": 10, "epochs": 2},
    "vclc": {"coreset": 20},
    **dict.fromkeys(("groupdro", "coral", "eqrm", "ib-irm", "align"), BRIEF),
    **dict.fromkeys(("jtt", "lff", "dfr", "afr", "agem", "si"), BRIEF),
    **dict.fromkeys(("t3a", "label-shift", "tent"), BRIEF),
    "mmd": {**BRIEF, "memory": 10, "kernels": (1.0,)},
    "fishr": {**BRIEF, "penalty": 1.0},
    "der": {**BRIEF, "memory": 20, "replay": 20},
    "sfb": {**BRIEF, "memory": 20},
    "boosting": {"iterations": 10, "shrinkage": 0.3, "leaves": 8},
}
INSTANCE = VREx(penalty=1.0)
OFFERED = EntryPoint("offered", "cirm.learners.ewc:EWC", "cirm.learners")
FORMS = [*LEARNERS, "offered", INSTANCE]


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Another package offers a learner by an entry point."""
    offers = {"cirm.learners": [OFFERED]}
    monkeypatch.setattr(
        registry, "list_entry_points", lambda group: offers.get(group, [])
    )


def list_forms(task):
    """The forms that can learn a task; the one that is offered only in a test can."""
    known = [form for form in FORMS if form != "offered"]
    able = [form for form in known if task in get_learner_class(form).tasks]
    return [*able, "offered"]


def name_form(form):
    return form if isinstance(form, str) else "instance"


def classes(count=2):
    """Two environments where the label is the sign of the first input."""
    generator = torch.Generator().manual_seed(2)  # nothing differs by chance (p > 0.05)
    made = []
    for name, size in (("a", 300), ("b", 200)):
        x = torch.randn(size, 4, generator=generator)
        task = Task.classification(count)
        made.append(Environment(name, x, (x[:, 0] > 0).long(), task))
    return made


def values():
    """Two environments where the target is the first input plus a little noise."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for name, size, scale in (("a", 300, 1.0), ("b", 200, 1.5)):
        x = scale * torch.randn(size, 4, generator=generator)
        y = x[:, 0] + 0.1 * torch.randn(size, generator=generator)
        made.append(Environment(name, x, y, Task.regression()))
    return made


def learner_for(form, environments, **settings):
    special = SPECIAL.get(form, {}) if isinstance(form, str) else {}
    return create(form, environments[0], {**QUICK, **special, **settings})


def train(learner, stream, seeds=SEEDS, state=None, start=0):
    randomness = Randomness(seeds)
    if state is None:
        state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stream, start):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return state


@pytest.fixture(params=FORMS, ids=name_form)
def case(request, offered):
    tasks = get_learner_class(request.param).tasks
    environments = classes() if "classification" in tasks else values()
    # What these tests check needs steps and later stages, but no accuracy.
    return learner_for(request.param, environments, epochs=2), environments


def test_the_state_has_a_replica_axis(case):
    learner, _ = case
    state = learner.init(Randomness(SEEDS))
    assert all(len(leaf) == 3 for leaf in list_state_tensors(state))


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("form", list_forms("classification"), ids=name_form)
def test_predictions_are_probabilities(form, order):
    environments = classes()
    learner = learner_for(form, environments)
    state = train(learner, Stream.from_order(environments, order))
    p = learner.predict(state, environments[0].take_all(3).x)
    assert p.shape == (3, 300, 2)
    torch.testing.assert_close(p.sum(-1), torch.ones(3, 300))
    right = (p.argmax(-1) == environments[0].targets).float().mean(-1)
    assert (right > 0.75).all()


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("form", list_forms("regression"), ids=name_form)
def test_values_are_learned(form, order):
    environments = values()
    learner = learner_for(form, environments)
    state = train(learner, Stream.from_order(environments, order))
    p = learner.predict(state, environments[0].take_all(3).x)
    assert p.shape == (3, 300, 1)
    error = (p[..., 0] - environments[0].targets).square().mean(-1)
    assert (error < 0.7 * environments[0].targets.var()).all()


def test_observe_leaves_the_old_state_alone(case):
    learner, environments = case
    before = train(learner, Stream.create_sequential(environments[:1]))
    copies = [leaf.clone() for leaf in list_state_tensors(before)]
    learner.observe(before, (environments[1],), Randomness(SEEDS))
    for leaf, copy in zip(list_state_tensors(before), copies, strict=True):
        assert torch.equal(leaf, copy)


def test_a_replica_learns_the_same_alone_as_beside_others(case):
    learner, environments = case
    stream = Stream.create_sequential(environments)
    beside, alone = train(learner, stream), train(learner, stream, SEEDS[1:2])
    for many, one in zip(
        list_state_tensors(beside), list_state_tensors(alone), strict=True
    ):
        torch.testing.assert_close(many[1:2], one, rtol=1e-3, atol=1e-4)


def test_same_seeds_give_the_same_state(case):
    learner, environments = case
    first, second = (
        train(learner, Stream.create_joint(environments)) for _ in range(2)
    )
    for a, b in zip(list_state_tensors(first), list_state_tensors(second), strict=True):
        assert torch.equal(a, b)


def test_a_saved_state_goes_on_bit_for_bit(case):
    learner, environments = case
    whole = train(learner, Stream.create_sequential(environments))
    first = train(learner, Stream.create_sequential(environments[:1]))
    saved = rebuilt(first, iter([leaf.clone() for leaf in list_state_tensors(first)]))
    later = train(
        learner, Stream.create_sequential(environments[1:]), state=saved, start=1
    )
    for a, b in zip(list_state_tensors(whole), list_state_tensors(later), strict=True):
        assert torch.equal(a, b)


def test_its_own_states_pass_the_check_of_a_file(case):
    learner, environments = case
    state = None
    for count, size in enumerate((2, 1, 2)):
        stage = tuple(
            replace(environment, name=f"{environment.name}{count}")
            for environment in environments[:size]
        )
        state = train(learner, [stage], (3,), state, count)
        learner.check_state(state, tuple(environments[0].inputs.shape[1:]))


def rebuilt(part, tensors):
    """The same nested tuples with other tensors."""
    if isinstance(part, torch.Tensor):
        return next(tensors)
    return type(part)(*(rebuilt(piece, tensors) for piece in part))


def test_the_ledger_counts_every_byte_of_the_state(case):
    learner, environments = case
    state = train(learner, Stream.create_sequential(environments))
    total = sum(leaf[0].nbytes for leaf in list_state_tensors(state))
    assert sum(entry["bytes"] for entry in measure_state_size(state).values()) == total


def test_every_preset_can_be_made(case):
    learner, environments = case
    for form in (type(learner), replace(learner, network=None)):
        for preset in learner.presets:
            create(form, environments[0], {}, preset)


@pytest.mark.parametrize("key", CONTINUAL)
def test_a_continual_name_stands_for_the_joint_learner(key):
    assert get_learner_class(key) is get_learner_class(key.removeprefix("c-"))
