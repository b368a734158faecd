"""GEM's gradient is the nearest one that opposes no past environment's."""

from itertools import chain, combinations

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.erm import ERM
from cirm.learners.gem import (
    GEM,
    project_gradient_onto_constraints,
    stack_example_memories,
)
from cirm.likelihoods import CrossEntropy
from cirm.memory import measure_state_size
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent, DivergenceError

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)
PLAIN = MLP((4, 8, 2))
DESCENT = Descent(epochs=4, batch=10, rate=0.02)
CPU = torch.device("cpu")


def classes(name, seed, size=25):
    """The label is the sign of another input for each seed: the past is in the way."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    sign = 1 - 2 * (seed % 2)
    return Environment(name, x, (sign * x[:, 0] > 0).long(), Task.classification(2))


def states(learner, *stages):
    """The state after each of the stages."""
    found = [learner.init(Randomness(SEEDS))]
    for index, stage in enumerate(stages):
        at = Randomness(SEEDS).at(index)
        found.append(learner.observe(found[-1], stage, at))
    return found[1:]


def memory_risks(learner, params, memory):
    """Risk of each past environment's kept examples, [replica, e]."""
    risks = [
        learner.likelihood.compute_losses(
            learner.network(params, piece.x), piece.y
        ).mean(1)
        for piece in memory.split_by_environment()
    ]
    return torch.stack(risks, 1)


def nearest(slope, guards):
    """The nearest permitted vector, by trying every set of active guards."""
    places = range(len(guards))
    sets = chain.from_iterable(combinations(places, n) for n in range(len(guards) + 1))
    best = None
    for active in sets:
        rows = guards[list(active)]
        found = slope - torch.linalg.pinv(rows) @ (rows @ slope)
        permitted = (guards @ found).min() > -1e-9
        if permitted and (
            best is None or (found - slope).norm() < (best - slope).norm()
        ):
            best = found
    return best


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("environments", [1, 2, 4])
def test_the_projection_is_the_nearest_permitted_vector(environments, seed):
    draws = Randomness((seed,)).start_draws()
    slope = draws.normal(6)[0].double()
    guards = draws.normal(environments, 6)[0].double()
    found = project_gradient_onto_constraints(slope, guards)
    assert (guards @ found).min() > -1e-6
    torch.testing.assert_close(found, nearest(slope, guards), rtol=0, atol=1e-6)


def test_a_permitted_vector_stays_as_it_is():
    slope = torch.tensor([1.0, 2.0, -1.0])
    guards = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert torch.equal(project_gradient_onto_constraints(slope, guards), slope)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_repeated_and_zero_guards_do_no_harm(scale):
    slope = torch.tensor([-1.0, 2.0, 0.5])
    guard = scale * torch.tensor([1.0, 1.0, -4.0])
    guards = torch.stack([guard, guard, 0 * guard, 3 * guard])
    expected = slope - (slope @ guard) / (guard @ guard) * guard
    torch.testing.assert_close(
        project_gradient_onto_constraints(slope, guards), expected
    )


def test_nearly_opposite_guards_leave_no_more_than_rounding():
    draws = Randomness((1,)).start_draws()
    slope, guard = draws.normal(8)[0], draws.normal(8)[0]
    guards = torch.stack([guard, -guard + 1e-4 * draws.normal(8)[0]])
    found = project_gradient_onto_constraints(slope, guards)
    assert (guards @ found).min() > -1e-5 * slope.norm() * guard.norm()


def test_a_margin_is_the_least_weight_of_each_guard():
    draws = Randomness((1,)).start_draws()
    slope, guards = draws.normal(6)[0].double(), draws.normal(3, 6)[0].double()
    found = project_gradient_onto_constraints(slope, guards, margin=0.5)
    weights = torch.linalg.lstsq(guards.T, (found - slope).unsqueeze(1)).solution
    products = guards @ found
    assert weights.min() > 0.5 - 1e-6
    # Either the weight is at its least, or the product is at zero.
    assert ((weights[:, 0] - 0.5).abs().minimum(products.abs()) < 1e-6).all()
    assert (
        guards @ found
        >= guards @ project_gradient_onto_constraints(slope, guards) - 1e-6
    ).all()


def test_no_past_environment_is_opposed_and_the_step_is_the_nearest_such():
    learner = GEM(PLAIN, CrossEntropy(), DESCENT, memory=6)
    stages = [(classes(name, seed),) for seed, name in enumerate("abc")]
    last = states(learner, *stages)[-1]
    past = stack_example_memories(last.memory, CPU)
    params = last.params.clone().requires_grad_()
    batch = next(learner.descent.iterate_batches((classes("d", 3),), Randomness(SEEDS)))
    plain = torch.autograd.grad(
        learner.compute_loss(params, past, batch)["risk"].sum(), params
    )[0]
    guards = learner.compute_gradients_of_past_environments(params, past)
    bent, numbers = learner.compute_projected_gradient(params, past, batch)
    products = (guards @ plain.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(numbers["opposed"], (products < 0).sum(-1).float())
    assert (products < 0).any(-1).all()
    for replica in range(2):
        assert (guards[replica] @ bent[replica]).min() > -1e-5
        expected = nearest(plain[replica].double(), guards[replica].double())
        torch.testing.assert_close(bent[replica].double(), expected, rtol=0, atol=1e-5)


def test_past_gradients_are_those_of_each_memory_alone():
    learner = GEM(PLAIN, CrossEntropy(), DESCENT, memory=20)
    stages = [
        (classes(n, s, size),) for s, (n, size) in enumerate([("a", 25), ("b", 9)])
    ]
    last = states(learner, *stages)[-1]
    assert last.memory.sizes == (20, 9)
    params = last.params.clone().requires_grad_()
    found = learner.compute_gradients_of_past_environments(
        params, stack_example_memories(last.memory, CPU)
    )
    risks = memory_risks(learner, params, last.memory)
    for place in range(2):
        (slope,) = torch.autograd.grad(risks[:, place].sum(), params, retain_graph=True)
        torch.testing.assert_close(found[:, place], slope)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_without_memory_it_is_erm_bit_for_bit(optimiser):
    descent = Descent(epochs=4, batch=10, rate=0.02, optimiser=optimiser)
    stages = (classes("a", 0), classes("b", 1)), (classes("c", 2),)
    *_, plain = states(ERM(NETWORK, CrossEntropy(), descent), *stages)
    *_, free = states(GEM(NETWORK, CrossEntropy(), descent, memory=0), *stages)
    assert torch.equal(plain.params, free.params)


def test_small_plain_steps_hardly_raise_the_risk_of_what_is_kept():
    descent = Descent(epochs=30, batch=0, rate=0.02, optimiser="sgd")
    learner = GEM(PLAIN, CrossEntropy(), descent, memory=25)
    before, after = states(learner, (classes("a", 0),), (classes("b", 1),))
    risks = memory_risks(learner, before.params, before.memory)
    bent = memory_risks(learner, after.params, before.memory)
    erm = ERM(PLAIN, CrossEntropy(), descent)
    *_, free = states(erm, (classes("a", 0),), (classes("b", 1),))
    plain = memory_risks(erm, free.params, before.memory)
    # What is left is of second order in the rate.
    assert (plain > risks).all() and (bent - risks < 0.02 * (plain - risks)).all()


def test_a_past_gradient_that_is_not_finite_is_reported_as_divergence():
    learner = GEM(PLAIN, CrossEntropy(), DESCENT, memory=6)
    last = states(learner, (classes("a", 0),), (classes("b", 1),))[-1]
    x = last.memory.kept.x.clone()
    x[1, :6] = 3e38
    wild = last.memory._replace(kept=last.memory.kept._replace(x=x))
    with pytest.raises(DivergenceError, match="training diverged") as raised:
        learner.observe(
            last._replace(memory=wild), (classes("c", 2),), Randomness(SEEDS)
        )
    assert raised.value.args[1] == [1]


@pytest.mark.parametrize(("budget", "kept"), [("each", 18), ("total", 6)])
def test_the_budget_is_of_each_environment_or_of_all(budget, kept):
    learner = GEM(NETWORK, CrossEntropy(), DESCENT, memory=6, budget=budget)
    stages = (classes("a", 0), classes("b", 1)), (classes("c", 2),)
    last = states(learner, *stages)[-1]
    assert measure_state_size(last)["memory"]["examples"] == kept
    assert last.memory.sizes == (kept // 3,) * 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": -1}, "gem: the setting memory must be 0 or more, but is -1"),
        ({"margin": -0.5}, "gem: the setting margin must be 0 or more, but is -0.5"),
        ({"budget": "all"}, "budget must be each or total, but is 'all'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        GEM(NETWORK, **settings)
