"""The game moves as its equation says, and ends as its rule says."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from cirm.environments import Environment, Stream, Task
from cirm.learners.erm import ERM
from cirm.learners.irmg import IRMG
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP, ModuleNetwork
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
CLASSES = Task.classification(2)
ONE_STEP = Descent(epochs=1, batch=0, rate=0.1, optimiser="sgd")


def labelled(name, size, seed):
    x = Randomness((seed,)).normal(size, 4)[0]
    return Environment(name, x, (x[:, 0] > 0).long(), CLASSES)


A, B = labelled("a", 60, 1), labelled("b", 40, 2)


def trained(learner, stream, seeds=SEEDS, watch=lambda *news: None):
    source = Randomness(seeds)
    state = learner.init(source.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, source.at("stage", index), watch)
    return state


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_alone_and_without_a_past_a_player_is_plain_risk_minimisation(order):
    network = MLP((4, 6, 2), dropout=0.5)
    descent = Descent(epochs=3, batch=16, rate=0.01, decay=0.01)
    stream = Stream.create_sequential([A, B] if order == "sequential" else [A])
    game = trained(IRMG(network, descent=descent, past=False), stream)
    plain = trained(ERM(network, descent=descent), stream)
    torch.testing.assert_close(game.players[:, 0], plain.params)


def risk(network, players, example, past=()):
    """Risk of the average of networks, the past's being one more."""
    x, y = example.take_all(2)
    answers = [network(player, x) for player in players]
    if past:
        answers.append(sum(network(player, x) for player in past) / len(past))
    outputs = sum(answers) / len(answers)
    return CrossEntropy().compute_losses(outputs, y).mean(-1)


def moved(network, players, turn, example, past=()):
    """The player after one step down its environment's risk."""
    leaves = [player.clone().requires_grad_() for player in players]
    loss = risk(network, leaves, example, past).sum()
    return players[turn] - 0.1 * torch.autograd.grad(loss, leaves[turn])[0]


def test_players_move_in_turn_each_down_its_own_environments_risk():
    network = MLP((4, 6, 2))
    learner = IRMG(network, descent=ONE_STEP)
    state = learner.init(Randomness(SEEDS))
    source = Randomness(SEEDS).at("stage")
    after = learner.observe(state, (A, B), source)
    first, second = state.past[:, 0], network.init(source.at("player", 1))
    first = moved(network, [first, second], 0, A)
    second = moved(network, [first, second], 1, B)
    torch.testing.assert_close(after.players, torch.stack([first, second], 1))
    assert after.past.shape[1] == 0


def test_the_last_stages_players_take_part_as_one_that_stays():
    network = MLP((4, 6, 2))
    learner = IRMG(network, descent=ONE_STEP)
    source = Randomness(SEEDS)
    last = learner.observe(learner.init(source), (A, B), source.at("first"))
    after = learner.observe(last, (B,), source.at("second"))
    past = list(last.players.unbind(1))
    expected = moved(network, past[:1], 0, B, past)
    torch.testing.assert_close(after.players[:, 0], expected)
    assert torch.equal(after.past, last.players)


def test_on_a_sequence_half_of_the_average_is_the_last_environments():
    network = MLP((4, 6, 2))
    learner = IRMG(network, descent=Descent(epochs=2))
    stages = [trained(learner, Stream.create_sequential(e)) for e in ([A], [A, B])]
    x = B.take_all(2).x
    ours, last = (network(state.players[:, 0], x) for state in reversed(stages))
    outputs = learner.outputs(stages[1], x)
    torch.testing.assert_close(outputs[:, 0], (ours + last) / 2)


def test_memory_does_not_grow_with_the_sequence():
    learner = IRMG(MLP((4, 6, 2)), descent=ONE_STEP)
    arriving = [labelled(f"e{index}", 20, index) for index in range(5)]
    state = trained(learner, Stream.create_sequential(arriving))
    assert state.players.shape == state.past.shape == (2, 1, learner.network.size)


@pytest.mark.parametrize(
    "network",
    [
        MLP((4, 6, 2)),
        ModuleNetwork(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))),
    ],
    ids=["mlp", "module"],
)
def test_heads_and_then_their_common_representation_move(network):
    learner = IRMG(network, descent=ONE_STEP, representation="variable")
    state = learner.init(Randomness(SEEDS))
    source = Randomness(SEEDS).at("stage")
    after = learner.observe(state, (A, B), source)
    cut = network.head.start
    body = state.representation
    heads = [state.past[:, 0], network.init(source.at("player", 1))[:, cut:]]
    for turn, example in enumerate((A, B)):
        networks = [torch.cat([body, head], -1) for head in heads]
        heads[turn] = moved(network, networks, turn, example)[:, cut:]
    torch.testing.assert_close(after.players, torch.stack(heads, 1))
    leaf = body.clone().requires_grad_()
    networks = [torch.cat([leaf, head], -1) for head in heads]
    loss = (risk(network, networks, A) + risk(network, networks, B)).sum() / 2
    (slope,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(after.representation, body - 0.1 * slope)


def test_heads_on_one_representation_answer_with_the_average_of_their_outputs():
    network = MLP((4, 6, 2))
    learner = IRMG(network, descent=Descent(epochs=2), representation="variable")
    state = trained(learner, Stream.from_order([A, B, labelled("c", 30, 3)], "2+1"))
    assert (state.players.shape[1], state.past.shape[1]) == (1, 2)
    x = A.take_all(2).x

    def answer(head):
        return network(torch.cat([state.representation, head], -1), x)

    (ours,) = map(answer, state.players.unbind(1))
    past = torch.stack([answer(head) for head in state.past.unbind(1)]).mean(0)
    outputs = learner.outputs(state, x)
    torch.testing.assert_close(outputs[:, 0], (ours + past) / 2)


def test_the_game_settles_where_one_predictor_is_best_everywhere():
    truth = torch.tensor([1.0, -2.0])
    stage = []
    for index, spread in enumerate((0.5, 2.0)):
        x = spread * Randomness((index,)).normal(100, 2)[0]
        stage.append(Environment(f"e{index}", x, x @ truth, Task.regression()))
    descent = Descent(epochs=400, batch=0, rate=0.05)
    learner = IRMG(MLP((2, 1)), SquaredError(), descent)
    state = trained(learner, [tuple(stage)])
    values = learner.predict(state, torch.eye(2).expand(2, 2, 2))[..., 0]
    torch.testing.assert_close(values, truth.expand(2, 2), rtol=0, atol=1e-3)


def noisy(right):
    """One replica for each part of labels that follow the only input's sign."""
    x = Randomness((7,)).normal(200, 1)[0].expand(len(right), -1, -1)
    turned = Randomness((8,)).uniform(200) >= torch.tensor(right)[:, None]
    labels = ((x[..., 0] > 0) ^ turned).long()
    return (Environment("a", x.contiguous(), labels, CLASSES, replicated=True),)


def played(learner, stage, seeds):
    """The state after a stage, and all that the watcher heard."""
    heard = []
    source = Randomness(seeds)
    state = learner.observe(
        learner.init(source), stage, source, lambda *news: heard.append(news)
    )
    return state, heard


QUICK = {"network": MLP((1, 2)), "descent": Descent(epochs=20, batch=50, rate=0.05)}


def test_the_game_ends_when_accuracy_falls_below_the_rule_after_the_warm_start():
    learner = IRMG(**QUICK, warm_start=30, stop_accuracy=0.95)
    _, heard = played(learner, noisy([0.75]), (3,))
    steps = [step for step, _, _ in heard]
    # Four steps an epoch; labels that are wrong in a quarter end it at once.
    assert steps == [4, 8, 12, 16, 20, 24, 28, 31]
    numbers = heard[-1][2]
    assert numbers["accuracy"].item() < 95 and numbers["playing"].item() == 0
    assert set(numbers) == {"risk a", "accuracy", "playing"}


def test_the_game_goes_on_without_the_rule_and_while_it_is_kept():
    for rule in (None, 0.5):
        learner = IRMG(**QUICK, warm_start=0, stop_accuracy=rule)
        _, heard = played(learner, noisy([0.75]), (3,))
        assert [step for step, _, _ in heard] == list(range(4, 84, 4))
        accuracy = torch.stack([numbers["accuracy"] for _, _, numbers in heard])
        assert 65 < accuracy[-5:].mean() < 85


def test_an_accuracy_that_equals_the_rule_does_not_end_the_game():
    (stage,) = noisy([1.0])
    alike = replace(stage, targets=torch.ones_like(stage.targets))
    learner = IRMG(**QUICK, warm_start=40, stop_accuracy=1.0)
    _, heard = played(learner, (alike,), (3,))
    assert heard[-1][0] == 80
    assert heard[-1][2]["accuracy"].item() == 100


def test_a_replica_whose_game_has_ended_stays_while_others_play():
    learner = IRMG(**QUICK, warm_start=10, stop_accuracy=0.9)
    both, heard = played(learner, noisy([1.0, 0.6]), (3, 5))
    assert heard[-1][0] == 80
    assert heard[-1][2]["playing"].tolist() == [1.0, 0.0]
    x, y = noisy([1.0, 0.6])[0].take_all(2)
    for row, seed in enumerate((3, 5)):
        one = Environment(
            "a", x[row : row + 1], y[row : row + 1], CLASSES, replicated=True
        )
        state, _ = played(learner, (one,), (seed,))
        torch.testing.assert_close(both.players[row : row + 1], state.players)


def test_values_have_no_accuracy_and_their_game_does_not_end():
    x = Randomness((1,)).normal(40, 1)[0]
    stage = (Environment("a", x, x[:, 0], Task.regression()),)
    learner = IRMG(
        MLP((1, 1)), SquaredError(), Descent(epochs=3), warm_start=0, stop_accuracy=1.0
    )
    _, heard = played(learner, stage, (3,))
    assert [step for step, _, _ in heard] == [1, 2, 3]
    assert "error" in heard[0][2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"representation": "none"},
            "representation must be fixed or variable, but is 'none'",
        ),
        ({"warm_start": -1}, "warm_start must be 0 or more, but is -1"),
        (
            {"stop_accuracy": 60.0},
            "stop_accuracy must be from 0 to 1, or None, but is 60.0",
        ),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        IRMG(MLP((1, 2)), **settings)
