"""VIRMv1 is IRMv1 where nothing is uncertain, and Bayes' rule without its penalty."""

import dataclasses

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.erm import ERM
from cirm.learners.irmv1 import IRMv1
from cirm.learners.virmv1 import VIRMv1
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.objectives import average_values_by_environment
from cirm.randomness import Randomness
from cirm.training import Descent
from cirm.variational import (
    compute_gaussian_kl,
    create_diagonal_gaussian,
    flatten_gaussian_to_vector,
)

SEEDS = (0, 4)
NETWORK = MLP((4, 8, 2))
QUICK = Descent(epochs=4, batch=16, rate=0.01)


@pytest.fixture
def places():
    """Two environments of one size with two classes."""
    x = Randomness((2,)).normal(80, 4)[0]
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).long()
    task = Task.classification(2)
    return [
        Environment(name, x[rows], y[rows], task)
        for name, rows in (("a", slice(0, 40)), ("b", slice(40, 80)))
    ]


def batch_of(places, progress=1.0):
    noise = Randomness(SEEDS).at("noise").start_draws()
    pieces = [place.take_all(2) for place in places]
    return QUICK.build_batch(pieces, noise, progress)


def train(learner, stream):
    randomness = Randomness(SEEDS)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return state


def point(**settings):
    """A learner that is certain of its parameters and has no prior."""
    return VIRMv1(
        NETWORK, descent=QUICK, beta=0.0, initial_std=1e-7, samples=2, **settings
    )


@pytest.mark.parametrize("progress", [0.0, 0.49, 0.5, 1.0])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 100.0])
def test_without_spread_and_prior_the_loss_is_that_of_irmv1(places, penalty, progress):
    virmv1 = point(penalty=penalty, l2=0.1)
    irmv1 = IRMv1(NETWORK, penalty=penalty, l2=0.1)
    state = virmv1.init(Randomness(SEEDS).at("init"))
    batch = batch_of(places, progress)
    q = create_diagonal_gaussian(state.start, virmv1.initial_std)
    found = virmv1.compute_loss(
        flatten_gaussian_to_vector(q), state, batch, kl_weight=0.0
    )
    wanted = irmv1.compute_loss(state.start, irmv1.init(Randomness(SEEDS)), batch)
    assert found.pop("kl").tolist() == [0, 0]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("penalty", [0.0, 10.0])
def test_without_spread_and_prior_it_learns_what_irmv1_learns(places, penalty, order):
    stream = Stream.from_order(places, order)
    posterior = train(point(penalty=penalty), stream).posterior
    params = train(IRMv1(NETWORK, descent=QUICK, penalty=penalty), stream).params
    torch.testing.assert_close(posterior.mean, params, atol=1e-4, rtol=1e-3)


def test_without_penalty_too_it_learns_what_erm_learns(places):
    posterior = train(point(penalty=0.0), Stream.create_joint(places)).posterior
    params = train(ERM(NETWORK, descent=QUICK), Stream.create_joint(places)).params
    torch.testing.assert_close(posterior.mean, params, atol=1e-4, rtol=1e-3)


def test_the_terms_are_risk_penalty_and_divergence_as_defined(places):
    learner = VIRMv1(NETWORK, samples=3, penalty=7.0, rescale=False)
    state = learner.init(Randomness(SEEDS).at("init"))
    q = create_diagonal_gaussian(state.start, 0.3)
    terms = learner.compute_loss(
        flatten_gaussian_to_vector(q), state, batch_of(places), kl_weight=0.25
    )
    batch = batch_of(places)
    outputs = NETWORK.sample_outputs(q, batch.x, batch.noise, 3)
    factor = torch.ones(2, 2, requires_grad=True)  # [replica, environment]
    by_example = factor.repeat_interleave(40, 1)[:, None, :, None]
    losses = CrossEntropy(2).compute_losses(outputs * by_example, batch.y).mean(1)
    risks = average_values_by_environment(losses, batch.share)
    (slopes,) = torch.autograd.grad(risks.sum(), factor)
    torch.testing.assert_close(terms["risk"], risks.mean(-1).detach())
    torch.testing.assert_close(terms["penalty"], 7 * slopes.square().mean(-1))
    torch.testing.assert_close(
        terms["kl"], 0.25 * compute_gaussian_kl(q, state.posterior)
    )


def test_drawn_sums_and_drawn_weights_have_the_same_expected_loss(places):
    certain = VIRMv1(NETWORK, samples=2000, initial_std=0.3)
    means = NETWORK.init(Randomness(SEEDS))
    q = flatten_gaussian_to_vector(create_diagonal_gaussian(means, 0.3))
    past = certain.init(Randomness(SEEDS))
    found = [
        dataclasses.replace(certain, draws=draws).compute_loss(
            q, past, batch_of(places), 1.0
        )
        for draws in ("sums", "weights")
    ]
    for name in ("risk", "penalty"):
        one, other = (terms[name] for terms in found)
        torch.testing.assert_close(one, other, rtol=0.1, atol=1e-4)
    risks = [terms["risk"] for terms in found]
    torch.testing.assert_close(*risks, rtol=0.02, atol=0)
    torch.testing.assert_close(found[0]["kl"], found[1]["kl"])


@pytest.mark.parametrize("draws", ["sums", "weights"])
def test_however_drawn_without_spread_it_learns_what_irmv1_learns(places, draws):
    stream = Stream.create_joint(places)
    own = train(point(penalty=10.0, draws=draws), stream).posterior.mean
    wanted = train(IRMv1(NETWORK, descent=QUICK, penalty=10.0), stream).params
    torch.testing.assert_close(own, wanted, rtol=1e-3, atol=1e-4)


def test_rescaling_divides_the_whole_loss_by_the_weight(places):
    learner = VIRMv1(NETWORK, penalty=50.0, l2=0.1)
    plain = dataclasses.replace(learner, rescale=False)
    state = learner.init(Randomness(SEEDS).at("init"))
    flat = flatten_gaussian_to_vector(create_diagonal_gaussian(state.start, 0.1))
    scaled, whole = (
        model.compute_loss(flat, state, batch_of(places), kl_weight=0.1)
        for model in (learner, plain)
    )
    assert set(scaled) == {"risk", "penalty", "kl", "l2"}
    for name, term in scaled.items():
        torch.testing.assert_close(50 * term, whole[name])


def test_the_expected_squares_of_the_parameters_are_weighed(places):
    learner = VIRMv1(NETWORK, penalty=0.0, l2=0.5)
    state = learner.init(Randomness(SEEDS).at("init"))
    q = create_diagonal_gaussian(torch.full_like(state.start, 2.0), 3.0)
    terms = learner.compute_loss(
        flatten_gaussian_to_vector(q), state, batch_of(places), kl_weight=0.0
    )
    wanted = torch.full((2,), 0.5 * NETWORK.size * (4.0 + 9.0))
    torch.testing.assert_close(terms["l2"], wanted)


def test_the_last_posterior_is_the_next_prior(places):
    learner = VIRMv1(NETWORK, descent=QUICK, kl_scale="sum", beta=1e4)
    first = train(learner, Stream.create_joint(places[:1]))
    other = first._replace(
        posterior=create_diagonal_gaussian(
            torch.full_like(first.posterior.mean, 0.2), 0.1
        )
    )
    last = learner.observe(other, tuple(places[1:]), Randomness(SEEDS))
    torch.testing.assert_close(
        last.posterior.mean, other.posterior.mean, atol=0.02, rtol=0
    )
    torch.testing.assert_close(
        last.posterior.log_std, other.posterior.log_std, atol=0.05, rtol=0
    )


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_without_penalty_linear_measurements_give_the_exact_posterior(order):
    # Columns orthogonal to each other and to the ones of the bias, noise variance 1/2.
    design = torch.tensor([[1.0, 1], [-1, 1], [1, -1], [-1, -1]]).repeat(3, 1)
    x = torch.cat([design, torch.ones(12, 1)], 1)
    y = 2 * design[:, 0] + 0.5 + 0.7 * Randomness((3,)).normal(12)[0]
    places = [Environment(name, design, y, Task.regression()) for name in "ab"]
    learner = VIRMv1(
        MLP((2, 1)),
        SquaredError(),
        Descent(epochs=300, batch=0, rate=0.05),
        penalty=0.0,
        samples=400,
    )
    q = train(learner, Stream.from_order(places, order)).posterior
    precision = 1 + 2 * 2 * 12  # of the prior and of two measurements of each row
    mean = 2 * 2 * x.T @ y / precision
    assert (precision**0.5 * (q.mean - mean)).abs().max() < 0.1
    assert (q.log_std.exp() * precision**0.5 - 1).abs().max() < 0.05


def test_the_penalty_levels_the_slopes_of_the_expected_risks():
    # y = x1 + noise everywhere; x2 = y + noise of a spread that differs by place.
    places = []
    for name, spread in (("a", 0.3), ("b", 1.5)):
        source = Randomness((1,)).at(name)
        cause = source.at("cause").normal(200)[0]
        y = cause + 0.7 * source.at("target").normal(200)[0]
        effect = y + spread * source.at("effect").normal(200)[0]
        inputs = torch.stack([cause, effect], 1)
        places.append(Environment(name, inputs, y, Task.regression()))
    descent = Descent(epochs=250, batch=0, rate=0.05)
    free, bound = (
        VIRMv1(
            MLP((2, 1)),
            SquaredError(),
            descent,
            penalty=penalty,
            samples=20,
            evaluations=500,
        )
        for penalty in (0.0, 100.0)
    )
    found = []
    for model in (free, bound):
        state = train(model, Stream.create_joint(places))
        outputs = [model.outputs(state, place.take_all(2).x) for place in places]
        slopes = [
            SquaredError()
            .compute_output_scale_gradients(o, place.take_all(2).y)
            .mean((1, 2))
            .abs()
            for o, place in zip(outputs, places, strict=True)
        ]
        found.append(torch.stack(slopes).amax(0))
    assert (found[0] > 0.1).all()
    assert (found[1] < found[0] / 2).all()


def test_the_preset_of_environment_inference_is_that_of_the_original():
    environment = Environment(
        "a", torch.zeros(2, 2, 14, 14), torch.arange(2), Task.classification(2)
    )
    learner = create("c-virmv1", environment, preset="eiil")
    assert learner.network == MLP((392, 390, 390, 1), "relu")
    assert learner.descent.count_steps((environment,)) * learner.descent.epochs == 501
    assert learner.get_penalty_weight(189 / 501) == 1
    assert learner.get_penalty_weight(190 / 501) == learner.penalty > 190_000
    assert (learner.samples, learner.draws) == (3, "weights")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"penalty": -1.0},
            "^virmv1: the setting penalty must not be negative, but is -1",
        ),
        ({"anneal": 1.5}, r"anneal must be from 0 to 1, but is 1\.5\. Change it"),
        ({"l2": -1.0}, "^virmv1: the setting l2 must not be negative, but is -1"),
        (
            {"draws": "both"},
            "^virmv1: the setting draws must be sums or weights, but is 'both'",
        ),
        (
            {"kl_scale": "mean"},
            r"^virmv1: the setting kl_scale must be one of sum, per-example,",
        ),
    ],
)
def test_settings_are_checked(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        VIRMv1(NETWORK, **settings)
