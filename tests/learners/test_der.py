"""DER++ replays examples with the outputs that they once had."""

import pytest
import torch

from cirm.learners.der import DER
from cirm.learners.erm import ERM
from cirm.likelihoods import CrossEntropy
from cirm.memory import measure_state_size
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    WHOLE,
    make_batch,
    make_classes,
    train,
)


@pytest.mark.parametrize("settings", [{"memory": 0}, {"alpha": 0.0, "beta": 0.0}])
def test_without_replay_it_is_plain_training(settings):
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    found = train(DER(NETWORK, descent=DESCENT, **settings), *STAGES)
    torch.testing.assert_close(found.params, plain.params)


def test_kept_outputs_are_those_of_the_network_when_the_example_arrived():
    learner = DER(NETWORK, descent=WHOLE, memory=99)
    before = train(learner)
    state = train(learner, (make_classes("a"),))
    x, _ = state.memory.kept
    assert x.shape == (2, 25, 4)
    torch.testing.assert_close(state.memory.outputs, NETWORK(before.params, x))


def test_the_terms_are_those_of_the_two_draws():
    learner = DER(NETWORK, descent=WHOLE, memory=99, alpha=2.0, beta=3.0)
    state = train(learner, (make_classes("a"),))
    batch = make_batch(make_classes("b", 1))
    terms = learner.compute_loss(state.params, [state.memory, state.memory], batch)
    (x, y), kept, _ = state.memory
    outputs = NETWORK(state.params, x)
    torch.testing.assert_close(
        terms["outputs"], 2 * (outputs - kept).square().mean((1, 2))
    )
    torch.testing.assert_close(
        terms["replay"], 3 * CrossEntropy().compute_losses(outputs, y).mean(-1)
    )


def test_the_reservoir_has_its_size_and_counts_every_offer():
    state = train(DER(NETWORK, descent=DESCENT, memory=11), *STAGES)
    assert measure_state_size(state)["memory"]["examples"] == 11
    assert state.memory.outputs.shape == (2, 11, 2)
    assert state.memory.seen.tolist() == [4 * 75] * 2  # four epochs


def test_past_outputs_are_remembered():
    places = make_classes("a", 0, 100), make_classes("b", 1, 100)
    descent = DESCENT.__class__(epochs=15, batch=20, rate=0.02)
    drift = []
    for alpha in (0.0, 10.0):
        learner = DER(NETWORK, descent=descent, memory=80, alpha=alpha, beta=0.0)
        first = train(learner, places[:1])
        last = train(learner, places[:1], places[1:])
        x = places[0].inputs.expand(2, -1, -1)
        gap = NETWORK(first.params, x).softmax(-1) - NETWORK(last.params, x).softmax(-1)
        drift.append(gap.abs().mean())
    assert drift[1] < drift[0] / 2


@pytest.mark.parametrize(("name", "value"), [("alpha", -1.0), ("replay", 0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"der: the setting {name} must be"):
        DER(**{name: value})
