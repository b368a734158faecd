"""VCL is Bayes' rule where that is exact, and plain risk where nothing is uncertain."""

import dataclasses

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.erm import ERM
from cirm.learners.vcl import VCL
from cirm.likelihoods import SquaredError
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

# Orthogonal columns that are also orthogonal to the ones of the bias: the exact
# posterior of a linear model is then a diagonal Gaussian.
DESIGN = torch.tensor([[1.0, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]])
SEEDS = (0, 4)


def measured(name, scale, coefficients, repeats=3):
    x = DESIGN.repeat(repeats, 1) * torch.tensor(scale)
    noise = Randomness((1,)).at(name).normal(len(x))[0]
    y = x @ torch.tensor(coefficients) + 0.3 + 0.7 * noise
    return Environment(name, x, y, Task.regression())


@pytest.fixture
def places():
    return [
        measured("a", [1.0, 0.5, 2.0], [1.0, -2.0, 0.5]),
        measured("b", [0.5, 0.5, 1.0], [1.5, -1.0, 0.0], repeats=2),
    ]


def bayes(environments, prior_std):
    """Mean and standard deviation of the exact posterior under noise variance 1/2."""
    x = torch.cat([e.inputs for e in environments])
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    y = torch.cat([e.targets for e in environments])
    precision = torch.eye(4) / prior_std**2 + 2 * x.T @ x
    torch.testing.assert_close(precision, precision.diag().diag())
    return 2 * x.T @ y / precision.diag(), precision.diag().rsqrt()


def train(learner, stream):
    randomness = Randomness(SEEDS)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return state


def exact(**settings):
    descent = Descent(epochs=300, batch=0, rate=0.05)
    return VCL(MLP((3, 1)), SquaredError(), descent, samples=400, **settings)


def assert_posterior(q, mean, std):
    """Means within a tenth of their spread, spreads within 5 percent."""
    assert ((q.mean - mean) / std).abs().max() < 0.1
    assert (q.log_std - std.log()).abs().max() < 0.05


@pytest.mark.parametrize("prior_std", [1.0, 0.3])
def test_one_stage_gives_the_exact_posterior(places, prior_std):
    state = train(exact(prior_std=prior_std), Stream.create_joint(places[:1]))
    assert_posterior(state.posterior, *bayes(places[:1], prior_std))


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_stages_in_sequence_give_the_joint_posterior(places, order):
    state = train(exact(), Stream.from_order(places, order))
    assert_posterior(state.posterior, *bayes(places, 1.0))


def test_a_trained_start_is_where_plain_risk_minimisation_ends(places):
    settings = {"descent": Descent(epochs=20, batch=0, rate=0.05)}
    untouched = {"beta": 0.0, "initial_std": 1e-9, "samples": 1}
    learner = VCL(MLP((3, 1)), SquaredError(), **settings, **untouched, start="trained")
    random = dataclasses.replace(learner, start="random")
    plain = ERM(MLP((3, 1)), SquaredError(), **settings)
    stage, source = (places[0],), Randomness(SEEDS)
    params = plain.init(source.at("init")).params
    for index in range(2):  # what VCL without a prior or uncertainty adds is as long
        inner = source.at("stage", 0, "trained") if not index else source.at("stage", 0)
        params = plain.observe(
            plain.init(source)._replace(params=params), stage, inner
        ).params
    found = train(learner, [stage]).posterior.mean
    torch.testing.assert_close(found, params, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, train(random, [stage]).posterior.mean, atol=1e-2)


def test_random_means_have_the_spread_that_is_set():
    learner = VCL(MLP((30, 30, 1)), mean_std=0.1)
    means = learner.init(Randomness(SEEDS)).start
    torch.testing.assert_close(means.std(-1), torch.full((2,), 0.1), rtol=0.1, atol=0.0)
    assert means.mean(-1).abs().max() < 0.02


def test_a_restart_changes_the_way_and_not_the_end(places):
    state = train(exact(restart=True), Stream.create_sequential(places))
    assert_posterior(state.posterior, *bayes(places, 1.0))


def test_the_posterior_does_not_move_when_the_prior_is_all_that_counts(places):
    learner = exact(kl_scale="sum", beta=1e4)
    state = train(learner, Stream.create_joint(places))
    prior = learner.init(Randomness(SEEDS)).posterior
    torch.testing.assert_close(state.posterior.mean, prior.mean, atol=0.02, rtol=0)
    torch.testing.assert_close(
        state.posterior.log_std, prior.log_std, atol=0.02, rtol=0
    )


def test_predictions_average_the_posterior(places):
    learner = exact(evaluations=4000)
    state = train(learner, Stream.create_joint(places))
    x = places[0].take_all(2).x
    mean, std = bayes(places, 1.0)
    predicted = learner.predict(state, x)[..., 0]
    torch.testing.assert_close(predicted, x @ mean[:3] + mean[3], atol=0.1, rtol=0)
    outputs = learner.outputs(state, x)[..., 0]
    wanted = (x.square() @ std[:3].square() + std[3] ** 2).sqrt()
    torch.testing.assert_close(outputs.std(1), wanted, atol=0, rtol=0.1)


def blobs():
    """Two environments with two classes."""
    x = Randomness((2,)).normal(60, 4)[0]
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).long()
    task = Task.classification(2)
    return [
        Environment("a", x[:40], y[:40], task),
        Environment("b", x[40:], y[40:], task),
    ]


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_without_spread_and_prior_it_is_erm(order):
    descent = Descent(epochs=5, batch=16, rate=0.01)
    vcl = VCL(MLP((4, 8, 2)), descent=descent, beta=0.0, initial_std=1e-7, samples=2)
    erm = ERM(MLP((4, 8, 2)), descent=descent)
    stream = Stream.from_order(blobs(), order)
    posterior, params = train(vcl, stream).posterior, train(erm, stream).params
    torch.testing.assert_close(posterior.mean, params, atol=1e-4, rtol=1e-3)
    x = stream.stages[0][0].take_all(2).x
    outputs = erm.outputs(train(erm, stream), x).expand(-1, vcl.evaluations, -1, -1)
    torch.testing.assert_close(
        vcl.outputs(train(vcl, stream), x), outputs, atol=1e-3, rtol=1e-3
    )


def test_scaling_per_example_is_the_sum_with_a_smaller_weight():
    descent = Descent(epochs=3, batch=0, rate=0.01)
    scaled = VCL(MLP((4, 8, 2)), descent=descent, kl_scale="per-example", beta=60.0)
    summed = dataclasses.replace(scaled, kl_scale="sum", beta=1.0)
    stream = Stream.create_joint(blobs())  # 60 examples in all
    one, other = train(scaled, stream), train(summed, stream)
    torch.testing.assert_close(one.posterior, other.posterior)


def test_the_risk_and_the_scaled_divergence_are_watched():
    learner = VCL(MLP((4, 8, 2)), descent=Descent(epochs=2, batch=16))
    seen = []
    learner.observe(
        learner.init(Randomness(SEEDS)),
        tuple(blobs()),
        Randomness(SEEDS),
        lambda step, steps, numbers: seen.append((step, steps, numbers)),
    )
    assert [(step, steps) for step, steps, _ in seen] == [(3, 6), (6, 6)]
    assert set(seen[0][2]) == {"risk", "kl"}
    # Each of 58 parameters with log-variance near -6 is about 2.5 from a normal.
    divergence = 60 * seen[0][2]["kl"]
    assert ((divergence > 58 * 2.3) & (divergence < 58 * 3.0)).all()


def test_nothing_but_the_posterior_is_kept_after_a_stage():
    learner = VCL(MLP((4, 8, 2)), descent=Descent(epochs=1))
    state = train(learner, Stream.create_sequential(blobs()))
    assert state.start.shape == (2, 0)


def test_settings_are_checked():
    with pytest.raises(
        ValueError, match=r"^vcl: the setting beta must not be negative, but is -1"
    ):
        VCL(MLP((4, 2)), beta=-1.0)
