"""MER's steps, one example at a time and many together."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.erm import ERM
from cirm.learners.mer import MER
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.memory import list_state_tensors, measure_state_size
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)


def classes(name, seed, size=20):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    return Environment(name, x, (x[:, seed] > 0).long(), Task.classification(2))


def learner(network=NETWORK, epochs=2, batch=10, rate=0.05, decay=0.0, **settings):
    descent = Descent(epochs, batch, rate, decay, optimiser="sgd")
    return MER(network, CrossEntropy(), descent, **settings)


def states(learner, *stages):
    """The state after each of the stages."""
    found = [learner.init(Randomness(SEEDS))]
    for index, stage in enumerate(stages):
        at = Randomness(SEEDS).at(index)
        found.append(learner.observe(found[-1], stage, at))
    return found[1:]


STAGES = [(classes("a", 0),), (classes("b", 1),)]


@pytest.mark.parametrize("batches", [1, 3])
def test_one_at_a_time_both_forms_are_the_same_bit_for_bit(batches):
    rest = {"memory": 6, "batches": batches, "replay": 2, "gamma": 0.5}
    stages = [(classes("a", 0, 8),), (classes("b", 1, 8),)]
    one = states(learner(batch=1, literal=False, **rest), *stages)[-1]
    literal = states(learner(batch=3, literal=True, **rest), *stages)[-1]
    for a, b in zip(list_state_tensors(one), list_state_tensors(literal), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("settings", [{"beta": 1.0}, {"beta": 0.5, "batches": 2}])
def test_a_single_example_takes_the_steps_of_algorithm_1(settings):
    network = MLP((1, 1))
    x, y, rate, gamma, replay = 1.5, 0.7, 0.04, 0.3, 4
    data = Environment("a", torch.tensor([[x]]), torch.tensor([y]), Task.regression())
    descent = Descent(epochs=3, batch=0, rate=rate)
    mer = MER(network, SquaredError(), descent, replay=replay, gamma=gamma, **settings)
    start = mer.init(Randomness(SEEDS))
    error = mer.predict(start, torch.full((2, 1, 1), x))[:, 0, 0] - y
    # Every step multiplies the error of the only example by the same factor.
    step = 1 - 2 * rate * (x**2 + 1)
    for epoch in range(3):
        steps = 1 if epoch == 0 else replay + 1  # at first nothing is remembered
        within = 1 + settings["beta"] * (step**steps - 1)
        across = 1 + gamma * (within ** settings.get("batches", 1) - 1)
        error = error * across
    end = mer.observe(start, (data,), Randomness(SEEDS))
    found = mer.predict(end, torch.full((2, 1, 1), x))[:, 0, 0] - y
    torch.testing.assert_close(found, error)


@pytest.mark.parametrize(
    ("together", "beta", "literal"), [(1, 1.0, False), (4, 0.25, False), (1, 1.0, True)]
)
def test_without_memory_and_all_the_way_it_is_erm_bit_for_bit(together, beta, literal):
    descent = Descent(2, together, 0.05, 0.01, "sgd")
    *_, plain = states(ERM(NETWORK, CrossEntropy(), descent), *STAGES)
    batch = 7 if literal else together
    rest = {"memory": 0, "beta": beta, "gamma": 1.0, "literal": literal}
    *_, free = states(learner(batch=batch, decay=0.01, **rest), *STAGES)
    assert torch.equal(plain.params, free.params)


def together_and_apart(rate, beta, memory):
    """How far the two forms end apart, as a part of the way, with a fixed memory."""
    start = states(learner(MLP((4, 8, 2)), memory=memory), STAGES[0])[0]
    # After so many arrivals the reservoir takes none of the next few.
    start = start._replace(seen=start.seen + 10**15)
    ways = []
    for literal in (False, True):
        rest = {"memory": memory, "beta": beta, "literal": literal}
        mer = learner(MLP((4, 8, 2)), epochs=1, rate=rate, **rest)
        end = mer.observe(start, STAGES[1], Randomness(SEEDS))
        assert torch.equal(end.memory.y, start.memory.y)
        ways.append(end.params - start.params)
    return ((ways[0] - ways[1]).norm() / ways[1].norm()).item()


@pytest.mark.parametrize("memory", [5, 20])  # fewer and more than arrive at once
def test_to_first_order_a_minibatch_goes_where_its_examples_go_one_by_one(memory):
    coarse = together_and_apart(0.02, 0.1, memory)
    fine = together_and_apart(0.002, 0.01, memory)
    assert coarse < 0.1 and fine < 0.2 * coarse


def test_the_reservoir_stays_within_its_size_and_holds_no_example_twice():
    for literal in (False, True):
        mer = learner(memory=6, replay=1, literal=literal)
        first, last = states(mer, *STAGES)
        assert first.memory.y.shape == last.memory.y.shape == (2, 6)
        assert first.seen.tolist() == [20, 20] and last.seen.tolist() == [40, 40]
        known = torch.cat([stage[0].inputs for stage in STAGES]).tolist()
        for replica in last.memory.x.tolist():
            rows = [known.index(row) for row in replica]
            assert len(set(rows)) == 6
        assert measure_state_size(last)["memory"]["examples"] == 6


def test_replay_keeps_what_another_environment_would_overwrite():
    # The second environment contradicts the first on an input they share.
    a = classes("a", 0, 60)
    b = Environment("b", -a.inputs + 0.01, a.targets, a.task)
    risks = []
    for memory in (0, 40):
        mer = learner(MLP((4, 8, 2)), 10, 10, 0.05, memory=memory, beta=0.2)
        last = states(mer, (a,), (b,))[-1]
        p = mer.predict(last, a.take_all(2).x)
        risks.append((p.argmax(-1) == a.targets).float().mean())
    assert risks[1] > risks[0] + 0.1


def test_its_settings_show_the_descent_that_it_does():
    mer = MER(NETWORK, CrossEntropy(), Descent(optimiser="adam", rate=0.5))
    assert mer.descent == Descent(optimiser="sgd", rate=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, "mer: the setting memory must be 0 or more, but is -1"),
        ({"batches": 0}, "batches must be 1 or more, but is 0"),
        ({"beta": 0.0}, "mer: the setting beta must be above 0, but is 0.0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MER(NETWORK, **settings)
