"""Replay lets kept examples take part as further environments."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.erm import ERM
from cirm.learners.irmv1 import IRMv1
from cirm.learners.replay import Replay
from cirm.learners.vrex import VREx
from cirm.likelihoods import CrossEntropy
from cirm.memory import measure_state_size
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)
PLAIN = MLP((4, 8, 2))
DESCENT = Descent(epochs=4, batch=10, rate=0.02)
WHOLE = Descent(epochs=1, batch=0)


def classes(name, seed, size=25):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    return Environment(name, x, (x[:, seed] > 0).long(), Task.classification(2))


def states(learner, *stages):
    """The state after each of the stages."""
    found = [learner.init(Randomness(SEEDS))]
    for index, stage in enumerate(stages):
        at = Randomness(SEEDS).at(index)
        found.append(learner.observe(found[-1], stage, at))
    return found[1:]


SEQUENCE = [(classes(name, seed),) for seed, name in enumerate("abc")]


def test_without_memory_and_penalty_it_is_erm_bit_for_bit():
    *_, plain = states(ERM(NETWORK, CrossEntropy(), DESCENT), *SEQUENCE)
    learner = Replay(NETWORK, CrossEntropy(), DESCENT, memory=0)
    *_, free = states(learner, *SEQUENCE)
    assert torch.equal(plain.params, free.params)


@pytest.mark.parametrize("kind", ["irmv1", "vrex"])
def test_a_penalty_without_weight_changes_nothing(kind):
    learner = Replay(NETWORK, CrossEntropy(), DESCENT, memory=6)
    *_, plain = states(learner, *SEQUENCE)
    free = Replay(
        NETWORK, CrossEntropy(), DESCENT, memory=6, penalty_kind=kind, penalty=0.0
    )
    *_, free = states(free, *SEQUENCE)
    assert torch.equal(plain.params, free.params)


@pytest.mark.parametrize(
    ("kind", "joint"),
    [
        ("none", VREx(PLAIN, penalty=0.0)),
        ("irmv1", IRMv1(PLAIN, penalty=30.0, anneal=0.0)),
        ("vrex", VREx(PLAIN, penalty=30.0, anneal=0.0)),
    ],
)
def test_if_all_is_kept_the_loss_is_that_of_all_environments_at_once(kind, joint):
    learner = Replay(
        PLAIN, descent=WHOLE, memory=99, penalty_kind=kind, penalty=30.0, anneal=0.0
    )
    *_, past = states(learner, *SEQUENCE[:2])
    (batch,) = WHOLE.iterate_batches(SEQUENCE[2], Randomness(SEEDS))
    together = [SEQUENCE[2][0], SEQUENCE[0][0], SEQUENCE[1][0]]
    (whole,) = WHOLE.iterate_batches(tuple(together), Randomness(SEEDS))
    found = learner.compute_loss(past.params, past, batch)
    expected = joint.compute_loss(past.params, None, whole)
    for name, term in found.items():
        torch.testing.assert_close(term, expected[name])


def test_every_environment_counts_the_same_however_few_examples_are_kept():
    learner = Replay(PLAIN, descent=WHOLE, memory=3)
    *_, past = states(learner, *SEQUENCE[:2])
    (batch,) = WHOLE.iterate_batches(SEQUENCE[2], Randomness(SEEDS))
    pieces = [*batch.split_by_environment(), *past.memory.split_by_environment()]
    assert [piece.y.shape[1] for piece in pieces] == [25, 3, 3]
    risks = [
        CrossEntropy().compute_losses(PLAIN(past.params, x), y).mean(-1)
        for x, y in pieces
    ]
    found = learner.compute_loss(past.params, past, batch)["risk"]
    torch.testing.assert_close(found, sum(risks) / 3)


def test_the_penalty_is_annealed_and_the_loss_divided_by_its_weight():
    learner = Replay(
        PLAIN, descent=WHOLE, memory=5, penalty_kind="irmv1", penalty=20.0, anneal=0.5
    )
    *_, past = states(learner, *SEQUENCE[:1])
    (batch,) = WHOLE.iterate_batches(SEQUENCE[1], Randomness(SEEDS))
    early, late = (
        learner.compute_loss(past.params, past, batch._replace(progress=progress))
        for progress in (0.49, 0.5)
    )
    torch.testing.assert_close(late["risk"], early["risk"] / 20)
    torch.testing.assert_close(late["penalty"], early["penalty"])


@pytest.mark.parametrize(("budget", "kept"), [("each", 18), ("total", 6)])
def test_the_budget_is_of_each_environment_or_of_all(budget, kept):
    learner = Replay(NETWORK, CrossEntropy(), DESCENT, memory=6, budget=budget)
    *_, last = states(learner, *SEQUENCE)
    assert measure_state_size(last)["memory"]["examples"] == kept
    assert last.memory.sizes == (kept // 3,) * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, "replay: the setting memory must be 0 or more, but is -1"),
        ({"anneal": 2.0}, "anneal must be from 0 to 1, but is 2.0"),
        ({"budget": "all"}, "budget must be each or total, but is 'all'"),
        (
            {"penalty_kind": "irm"},
            "penalty_kind must be none, irmv1 or vrex, but is 'irm'",
        ),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Replay(NETWORK, **settings)
