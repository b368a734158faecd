"""TENT changes normalisation layers so that predictions are more certain."""

import pytest
import torch
from torch import nn

from cirm.learners.tent import TENT
from cirm.networks import MLP, ModuleNetwork, build_network
from tests.learners.places import DESCENT, STAGES, train

SHAPE = {"hidden": (8,), "activation": "relu", "dropout": 0.0}
NETWORK = build_network("layernorm", (4,), 2, SHAPE)
ROWS = 2 + 3 * STAGES[1][0].inputs.expand(2, -1, -1)


@pytest.fixture(scope="module")
def trained():
    learner = TENT(NETWORK, descent=DESCENT, steps=20, step_rate=0.02)
    return learner, train(learner, *STAGES)


def test_without_steps_and_statistics_nothing_changes(trained):
    _, state = trained
    learner = TENT(NETWORK, descent=DESCENT, steps=0)
    adapted = learner.adapt(state, ROWS)
    assert torch.equal(adapted.adapted, state.params)


def test_only_scales_and_shifts_change_and_the_entropy_falls(trained):
    learner, state = trained
    adapted = learner.adapt(state, ROWS)
    mask = NETWORK.find_normalisation_parameters()
    assert mask.sum() == 16
    moved = adapted.adapted != state.params
    assert not moved[:, ~mask].any() and moved[:, mask].any()
    before, after = (
        learner.compute_mean_entropy(params, ROWS)
        for params in (state.params, adapted.adapted)
    )
    assert (after < before - 0.01).all()


def test_a_second_adaptation_starts_anew(trained):
    learner, state = trained
    once = learner.adapt(state, ROWS)
    other = learner.adapt(once, ROWS.flip(0))
    again = learner.adapt(other, ROWS)
    assert torch.equal(once.adapted, again.adapted)


def test_batch_normalisation_gets_the_statistics_of_the_inputs():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(),
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2),
    )  # fmt: skip
    for layer in (module[1], module[4]):
        layer.running_mean.uniform_(-1, 1)
        layer.running_var.uniform_(0.5, 2)
        nn.init.uniform_(layer.weight, 0.5, 1.5)
    network = ModuleNetwork(module)
    learner = TENT(network, steps=0)
    state = train(learner, seeds=(3,))
    adapted = learner.adapt(state, ROWS[:1])
    expected = module.train()(ROWS[0])
    torch.testing.assert_close(
        learner.outputs(adapted, ROWS[:1])[0, 0], expected, rtol=1e-4, atol=1e-4
    )


def test_a_network_without_normalisation_is_refused():
    with pytest.raises(
        ValueError, match="tent: the network has no normalisation layer"
    ):
        TENT(MLP((4, 8, 2)))


@pytest.mark.parametrize(("name", "value"), [("steps", -1), ("step_rate", 0.0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"tent: the setting {name} must be"):
        TENT(**{name: value})
