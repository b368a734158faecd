import math

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.birm import BIRM
from cirm.learners.bvirm import BVIRM
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP, Network
from cirm.randomness import Randomness
from cirm.training import Descent
from cirm.variational import (
    DiagonalGaussian,
    create_diagonal_gaussian,
    flatten_gaussian_to_vector,
)

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


def linear(epochs=60, rate=0.1, **settings):
    settings = {"rounds": 1, "inner": 10, "samples": 20, **settings}
    descent = Descent(epochs=epochs, batch=0, rate=rate, optimiser="sgd")
    return BVIRM(MLP((3, 1)), SquaredError(), descent, **settings)


def trained(learner, stages, watch=lambda *_: None):
    randomness = Randomness(SEEDS)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, randomness.at("stage", index), watch)
    return state


def test_without_kl_the_means_meet_the_invariance_condition_of_every_environment():
    numbers = []
    learner = linear(beta=0.0, samples=50)
    stage = tuple(invariant())
    state = trained(learner, [stage], lambda a, b, n: numbers.append(n))
    mean = state.posterior.mean[0]
    for environment in stage:
        x = torch.cat([environment.inputs, torch.ones(len(environment), 1)], 1)
        n = len(environment)
        left, right = x.T @ x @ mean / n, x.T @ environment.targets / n
        torch.testing.assert_close(left, right, rtol=0, atol=0.01)
    for name in ("consensus", "constraint"):
        assert numbers[-1][name].max() < 0.05 * numbers[0][name].max()


def test_a_past_at_zero_takes_part_in_the_first_stage_only():
    stage = tuple(invariant((1.0,)))
    settings = {"beta": 0.0, "rho1": 0.0, "samples": 50, "past_at_zero": True}
    weak, strong = (linear(rho0=rho0, **settings) for rho0 in (0.1, 10.0))
    assert weak.init(Randomness(SEEDS)).last.abs().sum() == 0
    states = [trained(each, [stage]) for each in (weak, strong)]
    means = [state.posterior.mean[:, :3] for state in states]
    # The pull of a past has the weight rho0: with a large one the means end at zero.
    assert (means[0] - TRUTH).abs().max() < 0.3
    assert means[1].abs().max() < 0.6
    last = states[1].last
    assert last.shape == (2, 1, 8) and last.abs().min() > 0


class LinearFeatures(Network):
    """Two linear features, without a bias, and a linear head."""

    size, outputs, head = 9, 1, slice(6, 9)
    build = describe = restore = None  # neither chosen by name nor stored

    def init(self, randomness):
        return randomness.normal(9)

    def compute_features(self, params, inputs, noise=None):
        return inputs @ params[:, :6].unflatten(-1, (3, 2))

    def __call__(self, params, inputs, noise=None):
        z = self.compute_features(params, inputs)
        return z @ params[:, 6:8].unsqueeze(-1) + params[:, None, 8:]


def test_with_uncertain_features_the_condition_is_that_of_their_expectation():
    network = LinearFeatures()
    learner = BVIRM(network, SquaredError(), beta=0.0, samples=2000)
    q = create_diagonal_gaussian(network.init(Randomness((5,))), 0.5)
    features, own = learner.split_posterior_at_head(q)
    environment = invariant()[1]
    noise = Randomness((1,)).start_draws()
    batch = learner.descent.build_batch([environment.take_all(1)], noise)
    view = learner.compute_posterior_objectives(
        flatten_gaussian_to_vector(features), batch, (features, own), 0.0
    )
    local = flatten_gaussian_to_vector(own).unsqueeze(1).requires_grad_()
    _, gradients = view.gradients(local)

    x, y = environment.inputs, environment.targets
    z = x @ features.mean[0].view(3, 2)  # the mean features
    spread = 0.5**2 * x.square().sum(1).mean()  # the mean variance of either feature
    second = z.T @ z / len(x) + spread * torch.eye(2)
    weights, bias = own.mean[0].split([2, 1])
    expected = 2 * (second @ weights + z.mean(0) * bias - z.T @ y / len(x))
    assert spread * weights.norm() > 0.5  # the test would see it if this were left out
    torch.testing.assert_close(gradients[0, 0, :2], expected, rtol=0, atol=0.15)


@pytest.mark.parametrize("constraint", ["head", "network"])
def test_without_spread_and_kl_it_is_birm(constraint):
    generator = torch.Generator().manual_seed(1)
    stages = []
    for name, size in (("a", 30), ("b", 20), ("c", 25)):
        x = torch.randn(size, 3, generator=generator)
        labels = (x[:, 0] + 0.3 * torch.randn(size, generator=generator) > 0).long()
        stages.append(Environment(name, x, labels, Task.classification(2)))
    stream = [tuple(stages[:2]), (stages[2],)]
    shared = {
        "network": MLP((3, 4, 2)),
        "likelihood": CrossEntropy(2),
        "descent": Descent(epochs=5, batch=10, rate=0.05, optimiser="sgd"),
        "constraint": constraint,
        "inner": 2,
    }
    point = trained(BIRM(**shared), stream)
    spread = trained(
        BVIRM(**shared, beta=0.0, initial_std=1e-9, samples=2, evaluations=2), stream
    )
    torch.testing.assert_close(spread.posterior.mean, point.params, rtol=0, atol=1e-5)
    means = spread.last.chunk(2, -1)[0]
    torch.testing.assert_close(means, point.last, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rho1", [0.0, 1.0])
def test_one_environment_gives_the_mean_field_posterior_of_bayes(rho1):
    environment = invariant(size=10)[0]
    learner = linear(rho1=rho1, prior_std=0.5, samples=100, epochs=80, initial_std=0.3)
    state = trained(learner, [(environment,)])
    x = torch.cat([environment.inputs, torch.ones(10, 1)], 1)
    # Squared error is normal noise of variance one half; the prior's precision is 4.
    precision = 2 * x.T @ x + 4 * torch.eye(4)
    mean = torch.linalg.solve(precision, 2 * x.T @ environment.targets)
    std = precision.diagonal().rsqrt()
    q = state.posterior
    torch.testing.assert_close(q.mean, mean.expand(2, -1), rtol=0, atol=0.03)
    torch.testing.assert_close(q.log_std.exp(), std.expand(2, -1), rtol=0.05, atol=0)


def test_on_a_sequence_the_last_posterior_is_the_prior_and_takes_part():
    learner = linear(epochs=1, rounds=1, inner=1, samples=2)
    first, second = invariant()
    state = trained(learner, [(first,)])
    assert state.start.shape == (2, 0)
    torch.testing.assert_close(
        state.last[:, 0], flatten_gaussian_to_vector(state.posterior), rtol=0, atol=1e-6
    )
    still = linear(epochs=1, rate=1e-12, inner=1, kl_scale="sum")
    numbers = {}
    after = still.observe(
        state, (second,), Randomness(SEEDS), lambda a, b, n: numbers.update(n)
    )
    # A step that goes nowhere is at no distance from its prior, the last posterior.
    assert numbers["kl"].abs().max() < 1e-3
    torch.testing.assert_close(after.posterior.mean, state.posterior.mean)


@pytest.mark.parametrize(("scale", "factor"), [("sum", 1.0), ("per-example", 1 / 60)])
def test_the_kl_counts_in_full_or_by_example(scale, factor):
    learner = linear(epochs=1, inner=1, kl_scale=scale, beta=2.0, initial_std=0.5)
    numbers = {}
    trained(learner, [(invariant()[0],)], lambda a, b, n: numbers.update(n))
    means = MLP((3, 1)).init(Randomness(SEEDS).at("init").at("params"))
    each = 0.5 * (0.5**2 + means.square() - 1) - math.log(0.5)
    torch.testing.assert_close(numbers["kl"], 2 * factor * each.sum(-1))


def test_features_and_w_are_parts_of_one_belief():
    network = MLP((3, 4, 2))
    q = create_diagonal_gaussian(network.init(Randomness(SEEDS)), 0.1)
    features, own = BVIRM(network).split_posterior_at_head(q)
    assert isinstance(own, DiagonalGaussian)
    assert features.mean.shape == (2, 16)
    torch.testing.assert_close(torch.cat([features.mean, own.mean], 1), q.mean)
    whole = BVIRM(network, constraint="network").split_posterior_at_head(q)
    assert whole[0].mean.shape == (2, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"constraint": "body"},
            "bvirm: the setting constraint must be head or network, but is 'body'",
        ),
        ({"rho1": -1.0}, "bvirm: the setting rho1 must be 0 or more, but is -1"),
        ({"beta": -1.0}, "bvirm: the setting beta must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        linear(**settings)
