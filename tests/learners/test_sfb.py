"""SFB relearns unstable features from the labels of a stable network."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.irmv1 import IRMv1
from cirm.learners.replay import Replay
from cirm.learners.sfb import (
    SFB,
    correct_probabilities_for_confusion,
    create_empty_unstable_feature_head,
)
from cirm.networks import MLP
from cirm.training import Descent
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)


def test_the_stable_network_is_that_of_irmv1():
    settings = {"penalty": 5.0, "anneal": 0.5}
    learner = SFB(NETWORK, descent=DESCENT, memory=0, **settings)
    plain = train(IRMv1(NETWORK, descent=DESCENT, **settings), *STAGES)
    state = train(learner, *STAGES)
    torch.testing.assert_close(state.params, plain.params)
    x = STAGES[0][0].inputs.expand(2, -1, -1)
    torch.testing.assert_close(
        learner.outputs(state, x)[:, 0], NETWORK(plain.params, x)
    )


def test_on_a_sequence_the_stable_network_is_that_of_replay():
    settings = {"penalty": 5.0, "anneal": 0.0, "memory": 6}
    state = train(SFB(NETWORK, descent=DESCENT, **settings), *STAGES)
    replay = Replay(NETWORK, descent=DESCENT, penalty_kind="irmv1", **settings)
    torch.testing.assert_close(state.params, train(replay, *STAGES).params)


def test_the_correction_is_the_papers_for_two_classes():
    a, b, p = 0.9, 0.7, torch.tensor([0.2, 0.5, 0.6])
    labels = torch.stack([1 - p, p], -1)[None]
    found = correct_probabilities_for_confusion(
        labels, torch.tensor([[[a, 1 - a], [1 - b, b]]])
    )
    torch.testing.assert_close(found[0, :, 1], (p + a - 1) / (a + b - 1))


def test_labels_without_errors_need_no_correction():
    labels = torch.tensor([[[0.2, 0.5, 0.3]]])
    torch.testing.assert_close(
        correct_probabilities_for_confusion(labels, torch.eye(3)[None]), labels
    )


def test_dependence_is_the_squared_covariance_within_classes():
    learner = SFB(NETWORK)
    batch = make_batch(make_classes("a", 0, 60))
    outputs, features = batch.x[..., :2], batch.x[..., 2:]
    found = learner.compute_squared_covariance_within_classes(outputs, features, batch)
    expected = []
    for label in (0, 1):
        inside = batch.y[0] == label
        x = batch.x[0, inside] - batch.x[0, inside].mean(0)
        expected.append(((x[:, :2].T @ x[:, 2:]) / len(x)).square().mean())
    torch.testing.assert_close(found[0], sum(expected) / 2)


def make_place(name, agreement, size=1500):
    """A weak stable input, and a strong one whose meaning depends on the place."""
    generator = torch.Generator().manual_seed(ord(name))
    y = torch.arange(size) % 2
    stable = 1.2 * (2 * y - 1) + torch.randn(size, generator=generator)
    agrees = torch.rand(size, generator=generator) < agreement
    shortcut = torch.where(agrees, y, 1 - y) * 2.0 - 1
    task = Task.classification(2)
    return Environment(name, torch.stack([stable, shortcut], 1), y, task)


def test_a_shortcut_that_turned_round_is_relearned_from_inputs_alone():
    stage = make_place("a", 0.95), make_place("b", 0.7)
    learner = SFB(
        MLP((2, 8, 2)),
        descent=Descent(epochs=25, batch=250, rate=0.02),
        penalty=300.0,
        anneal=0.1,
    )
    state = train(learner, stage, seeds=(3,))
    unseen = make_place("c", 0.05)
    adapted = learner.adapt(state, unseen.inputs[None])
    before, after = (
        (learner.predict(s, unseen.inputs[None])[0].argmax(-1) == unseen.targets)
        .float()
        .mean()
        for s in (state, adapted)
    )
    # The stable input alone classifies 88.5 % correctly at best.
    assert after > before + 0.05 and after > 0.885


@pytest.mark.parametrize(("name", "value"), [("independence", -1.0), ("memory", -1)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"sfb: the setting {name} must be"):
        SFB(**{name: value})


def test_a_boost_that_is_not_there_has_the_axes_of_one_that_is():
    empty = create_empty_unstable_feature_head(torch.zeros(3, 7))
    assert [part.ndim for part in empty] == [2, 3, 2]
    assert [part.shape[:2] for part in empty] == [(3, 0)] * 3
