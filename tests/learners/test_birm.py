import dataclasses

import pytest
import torch
from torch import nn

from cirm.data.scm import SCM, compute_squared_errors_of_coefficients
from cirm.environments import Environment, Examples, Stream, Task
from cirm.learners import create
from cirm.learners.birm import BIRM
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP, ModuleNetwork
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (2, 7)
TRUTH = torch.tensor([1.0, -2.0, 0.5])


def invariant(scales=(0.7, 1.0), size=60):
    """Environments whose least squares have the same solution, TRUTH and 0.3."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for scale in scales:
        x = torch.randn(size, 3, generator=generator) * scale
        noise = torch.randn(size, generator=generator)
        whole = torch.cat([x, torch.ones(size, 1)], 1)
        # What a regression would explain of the noise is taken out of it.
        noise = noise - whole @ torch.linalg.lstsq(whole, noise[:, None]).solution[:, 0]
        targets = x @ TRUTH + 0.3 + noise
        made.append(Environment(f"scale {scale}", x, targets, Task.regression()))
    return made


def conflicting():
    """Environments whose least squares differ."""
    first, second = invariant()
    return first, dataclasses.replace(
        second, targets=second.targets + second.inputs[:, 0]
    )


def linear(**settings):
    full = {"epochs": 60, "batch": 0, "rate": 0.1, "optimiser": "sgd"}
    own = {name: settings.pop(name) for name in list(settings) if name in full}
    settings = {"rounds": 1, "inner": 10, **settings}
    return BIRM(MLP((3, 1)), SquaredError(), Descent(**{**full, **own}), **settings)


def trained(learner, stages, watch=lambda *_: None):
    randomness = Randomness(SEEDS)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, randomness.at("stage", index), watch)
    return state


def least_squares(x, y, pull=0.0, centre=None):
    """argmin of the mean squared error plus pull/2 |w - centre|^2."""
    whole = torch.cat([x, torch.ones(len(x), 1)], 1)
    products = 2 * whole.T @ whole / len(x) + pull * torch.eye(4)
    right = 2 * whole.T @ y / len(x) + (0 if centre is None else pull * centre)
    return torch.linalg.solve(products, right)


def test_on_a_convex_problem_both_residuals_vanish():
    numbers = []
    learner = linear()
    trained(learner, [tuple(invariant())], lambda a, b, n: numbers.append(n))
    for name in ("consensus", "constraint"):
        assert numbers[-1][name].max() < 1e-3
        assert numbers[0][name].min() > 0.05


def test_the_solution_meets_the_linear_invariance_condition_of_every_environment():
    state = trained(linear(), [tuple(invariant())])
    w = state.params[0]
    for environment in invariant():
        x = torch.cat([environment.inputs, torch.ones(len(environment), 1)], 1)
        n = len(environment)
        left, right = x.T @ x @ w / n, x.T @ environment.targets / n
        torch.testing.assert_close(left, right, rtol=0, atol=1e-3)


def test_so_does_a_head_on_linear_features():
    network = ModuleNetwork(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    descent = Descent(epochs=100, batch=0, rate=0.05, optimiser="sgd")
    learner = BIRM(network, SquaredError(), descent, rho1=0.1, rounds=1, inner=10)
    stage = tuple(
        dataclasses.replace(environment, targets=environment.targets / 4)
        for environment in invariant()
    )
    state = trained(learner, [stage])
    for environment in stage:
        inputs = environment.take_all(2).x
        with torch.no_grad():
            z, values = (
                f(state.params, inputs) for f in (network.compute_features, network)
            )
        off = values - environment.targets[:, None]
        assert (z.mT @ off / len(environment)).abs().max() < 5e-3


def test_of_a_linear_network_the_head_is_the_whole():
    stages = [tuple(invariant())[:1], tuple(conflicting())]
    head, network = (
        trained(linear(constraint=constraint, epochs=10), stages)
        for constraint in ("head", "network")
    )
    torch.testing.assert_close(head.params, network.params, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.last, network.last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("likelihood", [CrossEntropy(3), SquaredError()])
def test_the_gradients_of_the_head_are_those_of_autodiff(likelihood):
    outputs = 3 if isinstance(likelihood, CrossEntropy) else 1
    network = MLP((4, 5, outputs))
    learner = BIRM(network, likelihood)
    draws = Randomness(SEEDS).start_draws()
    pieces = []
    for n in (6, 9):
        y = draws.integers(3, n) if outputs == 3 else draws.normal(n)
        pieces.append(Examples(draws.normal(n, 4), y))
    batch = learner.descent.build_batch(pieces, draws)
    features = network.init(Randomness(SEEDS))[:, : network.head.start]
    local = draws.normal(2, network.size - network.head.start).requires_grad_()
    terms, gradients = learner.compute_head_objectives(features, batch).gradients(local)
    risks = []
    for own, (x, y) in zip(local.unbind(1), pieces, strict=True):
        whole = torch.cat([features, own], 1)
        risks.append(likelihood.compute_losses(network(whole, x), y).mean(-1))
    expected = torch.stack(risks, 1)
    torch.testing.assert_close(terms["risk"], expected)
    (slopes,) = torch.autograd.grad(expected.sum(), local, create_graph=True)
    torch.testing.assert_close(gradients, slopes)
    direction = draws.normal(*local.shape[1:])
    curves = [torch.autograd.grad(g, local, direction)[0] for g in (gradients, slopes)]
    torch.testing.assert_close(*curves)


def test_one_environment_without_the_constraint_gives_least_squares():
    environment = conflicting()[1]
    state = trained(linear(rho1=0.0), [(environment,)])
    expected = least_squares(environment.inputs, environment.targets)
    torch.testing.assert_close(state.params, expected.expand(2, -1), rtol=0, atol=1e-3)


def test_several_without_the_constraint_minimise_the_sum_of_their_risks():
    environments = conflicting()
    state = trained(linear(rho1=0.0, epochs=80), [environments])
    x, y = (
        torch.cat([getattr(e, name) for e in environments])
        for name in ("inputs", "targets")
    )
    expected = least_squares(x, y).expand(2, -1)
    torch.testing.assert_close(state.params, expected, rtol=0, atol=1e-3)


def test_on_a_sequence_the_past_pulls_with_the_weight_of_the_consensus():
    first, second = conflicting()
    learner = linear(rho0=2.0, rho1=0.0, epochs=60)
    state = trained(learner, [(first,), (second,)])
    past = least_squares(first.inputs, first.targets)
    expected = least_squares(second.inputs, second.targets, 2.0, past)
    torch.testing.assert_close(state.params, expected.expand(2, -1), rtol=0, atol=1e-3)


def test_a_constraint_that_cannot_hold_leaves_the_mean_of_the_solutions():
    environments = conflicting()
    state = trained(linear(rho0=0.01, epochs=80), [environments])
    alone = [least_squares(e.inputs, e.targets) for e in environments]
    expected = torch.stack(alone).mean(0).expand(2, -1)
    torch.testing.assert_close(state.params, expected, rtol=0, atol=0.02)


@pytest.mark.integration
def test_in_table_5_birm_beats_irmv1_and_irmv1_beats_erm():
    seeds = (0, 1, 2)
    problem = SCM(scales=(0.2, 2.0), examples=200).draw_problem(seeds)
    shared = {"hidden": (), "batch": 0, "rate": 0.03}
    settings = {
        "birm": {"epochs": 60, "inner": 25},
        "irmv1": {"epochs": 600, "penalty": 10.0},
        "erm": {"epochs": 300},
    }
    errors = {}
    for key, own in settings.items():
        preset = "scm" if key == "birm" else ""
        learner = create(key, problem.train[0], {**shared, **own}, preset)
        state = learner.init(Randomness(seeds))
        for stage in Stream.create_joint(problem.train):
            state = learner.observe(state, stage, Randomness(seeds))
        found = compute_squared_errors_of_coefficients(
            state.params[:, :-1], problem.truth
        )
        errors[key] = found.mean().item()
    assert errors["birm"] < 0.25 < errors["irmv1"] < 0.42 < errors["erm"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"constraint": "body"},
            "birm: the setting constraint must be head or network, but is .*",
        ),
        ({"rho0": 0.0}, "birm: the setting rho0 must be positive"),
        ({"threshold": 2.0}, r"birm: the setting threshold must be from 0 to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        linear(**settings)
