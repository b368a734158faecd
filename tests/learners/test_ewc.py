"""EWC holds parameters by the Fisher information of single examples."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cirm.environments import Environment, Examples, Task
from cirm.learners.erm import ERM
from cirm.learners.ewc import EWC
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.memory import measure_state_size
from cirm.networks import MLP, ModuleNetwork
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)
DESCENT = Descent(epochs=4, batch=10, rate=0.02)


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


def examples(classes=2, count=6):
    x = Randomness(SEEDS, ("x",)).normal(count, 4)
    return Examples(x, Randomness(SEEDS, ("y",)).integers(classes, count))


def outer(residuals, x):
    """Gradients [replica, n, p] of a linear model: inputs by residuals, residuals."""
    weights = x.unsqueeze(-1) * residuals.unsqueeze(-2)
    return torch.cat([weights.flatten(2), residuals], -1)


def test_without_strength_it_is_erm_bit_for_bit():
    stages = (classes("a", 0), classes("b", 1)), (classes("c", 2),)
    *_, plain = states(ERM(NETWORK, CrossEntropy(), DESCENT), *stages)
    *_, free = states(EWC(NETWORK, CrossEntropy(), DESCENT, strength=0.0), *stages)
    assert torch.equal(plain.params, free.params)


def test_the_first_stage_is_erm_bit_for_bit():
    stage = (classes("a", 0),)
    (plain,) = states(ERM(NETWORK, CrossEntropy(), DESCENT), stage)
    (held,) = states(EWC(NETWORK, CrossEntropy(), DESCENT, strength=1e3), stage)
    assert torch.equal(plain.params, held.params)


def test_the_information_of_logistic_regression_has_its_closed_form():
    network = MLP((4, 3))
    params = Randomness(SEEDS).normal(network.size)
    x, y = examples(classes=3)
    chances = network(params, x).softmax(-1)
    learner = EWC(network, CrossEntropy(3))
    slopes = outer(chances - F.one_hot(y, 3), x)
    found = learner.compute_fisher_information(params, Examples(x, y))
    torch.testing.assert_close(found, slopes.square().mean(1))


def test_the_information_of_the_model_is_the_mean_over_its_own_labels():
    network = MLP((4, 3))
    params = Randomness(SEEDS).normal(network.size)
    x, y = examples(classes=3)
    chances = network(params, x).softmax(-1)
    expected = 0
    for label in range(3):
        slopes = outer(chances - F.one_hot(torch.tensor(label), 3), x)
        expected += (chances[..., label, None] * slopes.square()).mean(1)
    learner = EWC(network, CrossEntropy(3), fisher="model")
    found = learner.compute_fisher_information(params, Examples(x, y))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_information_of_the_model_in_regression_is_the_inputs_square():
    network = MLP((4, 1))
    params = Randomness(SEEDS).normal(network.size)
    x = examples().x
    y = Randomness(SEEDS, ("y",)).normal(6)
    learner = EWC(network, SquaredError(), fisher="model")
    expected = 2 * torch.cat([x, torch.ones(2, 6, 1)], -1).square().mean(1)
    found = learner.compute_fisher_information(params, Examples(x, y))
    torch.testing.assert_close(found, expected)


def test_the_information_of_any_module_is_the_mean_square_of_its_own_gradients():
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2))
    network = ModuleNetwork(module)
    params = network.init(Randomness(SEEDS))
    drawn = examples()
    found = EWC(network).compute_fisher_information(params, drawn)
    total = torch.zeros(network.size)
    for x, y in zip(drawn.x[1], drawn.y[1], strict=True):
        module.zero_grad()
        F.cross_entropy(module.eval()(x[None]), y[None]).backward()
        first, last = module[0], module[-1]
        slopes = first.weight, first.bias, last.weight, last.bias
        flat = [p.grad.T if p is last.weight else p.grad for p in slopes]
        total += torch.cat([p.reshape(-1) for p in flat]).square()
    # The last replica's initial parameters are still in the module.
    torch.testing.assert_close(found[1], total / 6)


def test_the_pull_is_that_of_one_quadratic_per_past_stage():
    stages = [(classes(name, seed),) for seed, name in enumerate("abc")]
    learner = EWC(NETWORK, CrossEntropy(), DESCENT, strength=50.0)
    found = states(learner, *stages)
    params = Randomness(SEEDS).normal(NETWORK.size)
    expected, before = 0, 0
    for state in found:
        expected += (state.fisher[:, 0] - before) * (params - state.params)
        before = state.fisher[:, 0]
    last = found[-1]
    pull = last.fisher[:, 0] * (params - last.anchor[:, 0])
    torch.testing.assert_close(pull, expected, rtol=1e-4, atol=1e-5)


def test_online_all_curvature_is_at_the_newest_parameters():
    stages = [(classes(name, seed),) for seed, name in enumerate("abc")]
    learner = EWC(NETWORK, CrossEntropy(), DESCENT, strength=50.0, online=True)
    found = states(learner, *stages)
    for state in found:
        assert torch.equal(state.anchor[:, 0], state.params)
    assert (found[2].fisher >= found[1].fisher).all()
    assert (found[1].fisher >= found[0].fisher).all()


def test_a_parameter_without_curvature_is_anchored_at_its_newest_value():
    # The second input is always zero, so its weights are never held.
    stages = [(classes(name, 0),) for name in "ab"]
    for (environment,) in stages:
        environment.inputs[:, 1] = 0
    learner = EWC(MLP((4, 2)), CrossEntropy(), Descent(epochs=2, batch=0))
    last = states(learner, *stages)[-1]
    free = last.fisher[:, 0] == 0
    assert free.sum() == 4
    assert torch.equal(last.anchor[:, 0][free], last.params[free])


def test_with_a_diagonal_hessian_two_stages_give_the_joint_least_squares():
    def centred(name, slope, size, seed):
        x = torch.randn(size, 1, generator=torch.Generator().manual_seed(seed))
        x = x - x.mean()
        noise = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1))
        return Environment(name, x, slope * x[:, 0] + noise, Task.regression())

    first, second = centred("a", 1.0, 30, 0), centred("b", 2.0, 20, 5)
    descent = Descent(epochs=200, batch=0, rate=0.1, optimiser="sgd")
    learner = EWC(
        MLP((1, 1)), SquaredError(), descent, 30 / 20, memory=30, fisher="model"
    )
    last = states(learner, (first,), (second,))[-1]
    x = torch.cat([first.inputs, second.inputs])
    x = torch.cat([x, torch.ones(50, 1)], 1)
    y = torch.cat([first.targets, second.targets]).unsqueeze(1)
    expected = torch.linalg.lstsq(x, y).solution[:, 0]
    torch.testing.assert_close(last.params, expected.expand(2, -1), rtol=0, atol=1e-4)


def test_the_past_is_kept_as_parameters_and_does_not_grow():
    stages = [(classes(name, seed),) for seed, name in enumerate("abc")]
    for state in states(EWC(NETWORK, CrossEntropy(), DESCENT), *stages):
        entries = measure_state_size(state)
        assert list(entries) == ["params", "anchor", "fisher"]
        for entry in entries.values():
            assert entry["examples"] == 0 and entry["parameters"] == NETWORK.size


def test_the_examples_come_evenly_from_the_environments_of_a_stage():
    learner = EWC(NETWORK, memory=7)
    stage = classes("a", 0), classes("b", 1)
    drawn = learner.draw_fisher_examples(stage, Randomness(SEEDS))
    for replica in range(2):
        rows = [r.tolist() for r in drawn.x[replica]]
        counts = [sum(r in e.inputs.tolist() for r in rows) for e in stage]
        assert counts == [4, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strength": -1.0},
            "ewc: the setting strength must be 0 or more, but is -1.0",
        ),
        ({"memory": 0}, "memory must be 1 or more, but is 0"),
        ({"fisher": "all"}, "fisher must be labels or model, but is 'all'"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EWC(NETWORK, **settings)
