"""The game between beliefs: its limits are the plain game and plain VCL."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from cirm.environments import Environment, Stream, Task
from cirm.learners.irmg import IRMG
from cirm.learners.vcl import VCL
from cirm.learners.virmg import VIRMG, VIRMGState, average_player_posteriors
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent
from cirm.variational import DiagonalGaussian

SEEDS = (3, 5)
NETWORK = MLP((4, 6, 2))
ONE_STEP = Descent(epochs=1, batch=0, rate=0.1, optimiser="sgd")


def labelled(name, size, seed):
    x = Randomness((seed,)).normal(size, 4)[0]
    return Environment(name, x, (x[:, 0] > 0).long(), Task.classification(2))


A, B = labelled("a", 60, 1), labelled("b", 40, 2)


def trained(learner, stream, watch=lambda *news: None):
    source = Randomness(SEEDS)
    state = learner.init(source.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, source.at("stage", index), watch)
    return state


@pytest.mark.parametrize("representation", ["fixed", "variable"])
@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_without_spread_and_kl_it_is_the_game_between_networks(representation, order):
    descent = Descent(epochs=3, batch=16, rate=0.1, optimiser="sgd")
    settings = {"descent": descent, "representation": representation}
    beliefs = VIRMG(NETWORK, **settings, beta=0.0, initial_std=1e-9, samples=2)
    networks = IRMG(NETWORK, **settings)
    stream = Stream.from_order([A, B], order)
    found, expected = trained(beliefs, stream), trained(networks, stream)
    for mine, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.mean, plain, rtol=1e-4, atol=1e-5)
    x = A.take_all(2).x
    torch.testing.assert_close(
        beliefs.predict(found, x),
        networks.predict(expected, x),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("kl_scale", ["sum", "per-example"])
def test_alone_and_without_a_past_a_player_is_variational_learning(kl_scale):
    settings = {"descent": Descent(epochs=3), "samples": 3, "kl_scale": kl_scale}
    game = trained(VIRMG(NETWORK, **settings), [(A,)])
    plain = trained(VCL(NETWORK, **settings), [(A,)])
    torch.testing.assert_close(game.players.mean[:, 0], plain.posterior.mean)
    torch.testing.assert_close(game.players.log_std[:, 0], plain.posterior.log_std)


def heard_by(learner, stream):
    """The numbers of each epoch."""
    heard = []
    trained(learner, stream, lambda step, steps, numbers: heard.append(numbers))
    return heard


def test_the_first_prior_is_normal_around_zero():
    learner = VIRMG(NETWORK, descent=ONE_STEP, beta=2.0, prior_std=0.5, initial_std=0.1)
    (numbers,) = heard_by(learner, [(A, B)])
    assert list(numbers) == ["risk a", "kl a", "risk b", "kl b"]
    start = learner.init(Randomness(SEEDS).at("init")).past.mean[:, 0]
    expected = kl_divergence(Normal(start, 0.1), Normal(0.0, 0.5)).sum(-1)
    torch.testing.assert_close(numbers["kl a"], 2 * expected / 60)


@pytest.mark.parametrize("representation", ["fixed", "variable"])
def test_on_a_sequence_the_prior_is_the_last_posterior(representation):
    learner = VIRMG(
        NETWORK,
        descent=Descent(epochs=2, batch=0, rate=0.05, optimiser="sgd"),
        kl_scale="sum",
        beta=0.01,
        representation=representation,
    )
    first = trained(learner, [(A,)])
    heard = []
    after = learner.observe(
        first, (B,), Randomness(SEEDS), lambda *news: heard.append(news[2])
    )
    names = ["b"] if representation == "fixed" else ["b", "representation"]
    for name in names:
        # Nobody has moved yet when the first step is taken.
        assert heard[0][f"kl {name}"].tolist() == [0.0, 0.0]
        assert (heard[1][f"kl {name}"] > 0).all()
    for mine, last in zip(after.past, first.players, strict=True):
        assert torch.equal(mine, last)


def test_a_player_without_a_last_posterior_starts_from_the_first_prior():
    learner = VIRMG(NETWORK, descent=ONE_STEP, kl_scale="sum")
    first = trained(learner, [(A,)])
    heard = []
    learner.observe(
        first,
        (B, labelled("c", 30, 3)),
        Randomness(SEEDS),
        lambda *news: heard.append(news[2]),
    )
    assert not heard[0]["kl b"].any() and (heard[0]["kl c"] > 100).all()


def test_kl_counts_in_full_or_per_example_of_its_environment():
    full, shared = (
        heard_by(VIRMG(NETWORK, descent=ONE_STEP, kl_scale=scale), [(A, B)])[0]
        for scale in ("sum", "per-example")
    )
    torch.testing.assert_close(full["kl a"], 60 * shared["kl a"])


def test_the_representation_counts_its_kl_per_example_of_the_stage():
    full, shared = (
        heard_by(
            VIRMG(
                NETWORK,
                descent=Descent(epochs=1, batch=0, rate=1e-9),
                kl_scale=scale,
                representation="variable",
            ),
            [(A, B)],
        )[0]
        for scale in ("sum", "per-example")
    )
    torch.testing.assert_close(
        full["kl representation"], 100 * shared["kl representation"]
    )


def belief(seed, players, size):
    mean = Randomness((seed,)).normal(players, size)
    return DiagonalGaussian(mean, Randomness((seed + 1,)).normal(players, size) / 4)


def test_the_average_of_heads_has_the_moments_of_independent_draws():
    q = belief(1, 4, 5)
    players = [DiagonalGaussian(q.mean[:, i], q.log_std[:, i]) for i in range(4)]
    found = average_player_posteriors(players[:2], players[2:])
    weights = torch.tensor([1 / 3, 1 / 3, 1 / 6, 1 / 6])[:, None]
    torch.testing.assert_close(found.mean, (weights * q.mean).sum(1))
    variance = (weights.square() * (2 * q.log_std).exp()).sum(1)
    torch.testing.assert_close(found.log_std, variance.log() / 2)


@pytest.mark.parametrize("representation", ["fixed", "variable"])
def test_a_prediction_draws_players_and_past_independently(representation):
    network = MLP((4, 1)) if representation == "fixed" else MLP((4, 3, 1))
    learner = VIRMG(network, representation=representation, evaluations=2000)
    cut = network.head.start if representation == "variable" else 0
    players, past = belief(1, 1, network.size - cut), belief(3, 2, network.size - cut)
    body = DiagonalGaussian(torch.ones(1, cut), torch.full((1, cut), -20.0))
    x = Randomness((9,)).normal(6, 4)
    outputs = learner.outputs(VIRMGState(players, past, body), x)[..., 0]
    features = network.compute_features(torch.ones(1, network.size), x)
    inputs = torch.cat([features, torch.ones(1, 6, 1)], -1)
    half, quarter = (inputs / 2, inputs / 4)
    mean = half @ players.mean.mT + (quarter @ past.mean.mT).sum(-1, keepdim=True)
    spread = half.square() @ (2 * players.log_std).exp().mT
    spread += (quarter.square() @ (2 * past.log_std).exp().mT).sum(-1, keepdim=True)
    spread = spread[..., 0].sqrt()
    torch.testing.assert_close(outputs.std(1), spread, rtol=0.08, atol=0)
    shift = (outputs.mean(1) - mean[..., 0]) / spread
    assert shift.abs().max() < 5 / 2000**0.5


@pytest.mark.parametrize(("evaluations", "count"), [(1, 1), (2, 3)])
def test_players_and_past_share_no_draw_however_few_there_are(evaluations, count):
    learner = VIRMG(MLP((4, 1)), evaluations=evaluations)
    none, x = (
        DiagonalGaussian(torch.zeros(1, 0), torch.zeros(1, 0)),
        torch.ones(1, 1, 4),
    )
    draws = []
    for member in range(2 * count):  # the only uncertain one of players and past
        log_std = torch.full((1, 2 * count, 5), -20.0)
        log_std[:, member] = 0.0
        pair = [
            DiagonalGaussian(torch.zeros(1, count, 5), s) for s in log_std.chunk(2, 1)
        ]
        weight = 1 if member < count else 1 / count  # the past counts as one player
        draws += (
            (learner.outputs(VIRMGState(*pair, none), x) / weight).flatten().tolist()
        )
    assert len({round(draw, 4) for draw in draws}) == 2 * count * evaluations


def test_a_game_ends_below_the_accuracy_after_the_warm_start():
    descent = Descent(epochs=20, batch=0, rate=1e-9)
    rule = {"warm_start": 7, "stop_accuracy": 1.0, "evaluations": 5}
    learner = VIRMG(NETWORK, descent=descent, **rule, initial_std=1.0)
    heard = heard_by(learner, [(A,)])
    assert len(heard) == 8  # an untrained network is not right everywhere
    assert not heard[-1]["playing"].any() and heard[0]["playing"].all()
    assert (heard[-1]["accuracy"] < 100).all()
    never = VIRMG(NETWORK, descent=descent, initial_std=1.0)
    assert len(heard_by(never, [(A,)])) == 20


def test_memory_does_not_grow_with_the_sequence():
    learner = VIRMG(NETWORK, descent=ONE_STEP)
    arriving = [labelled(f"e{index}", 20, index) for index in range(5)]
    state = trained(learner, Stream.create_sequential(arriving))
    for part in (*state.players, *state.past):
        assert part.shape == (2, 1, NETWORK.size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"representation": "none"},
            "representation must be fixed or variable, but is 'none'",
        ),
        (
            {"kl_scale": "mean"},
            "virmg: the setting kl_scale must be one of sum, per-example",
        ),
        ({"samples": 0}, "virmg: the setting samples must be 1 or more, but is 0"),
        ({"warm_start": -1}, "warm_start must be 0 or more, but is -1"),
        ({"stop_accuracy": 60}, "stop_accuracy must be from 0 to 1, or None, but is 6"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        VIRMG(NETWORK, **settings)
