"""How inputs of networks are centred and scaled."""

import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady import Steady
from cirm.learners.steady.directions_inputs import (
    SPREAD,
    create_identity_input_scale,
    fit_input_scale,
    scale_inputs,
)
from cirm.networks import ModuleNetwork
from cirm.randomness import Randomness


def test_channels_are_centred_and_keep_their_ratio():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 30, 3, 4, 4, generator=generator)
    images = images * torch.tensor([1.0, 2.0, 5.0])[:, None, None] + 7
    scaled = scale_inputs(images, fit_input_scale(images))
    assert scaled.mean((1, 3, 4)).abs().max() < 1e-5
    torch.testing.assert_close(
        scaled.square().mean((1, 2, 3, 4)).sqrt(),
        0 * scaled.mean((1, 2, 3, 4)) + SPREAD,
    )
    ratio = scaled.std((1, 3, 4)) / images.std((1, 3, 4))
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))


def test_inputs_stay_as_they_are_before_any_data():
    inputs = torch.ones(2, 5, 4)
    assert scale_inputs(inputs, create_identity_input_scale(2)) is inputs


def train(inputs, targets, network=None):
    """A learner after one environment, and its probabilities."""
    task = Task.classification(2)
    environment = Environment("a", inputs, targets, task)
    learner = create(Steady(view="directions", network=network), environment)
    randomness = Randomness((0,))
    state = learner.init(randomness)
    for stage in Stream.create_sequential([environment]):
        state = learner.observe(state, stage, randomness)
    return state, learner.predict(state, environment.take_all(1).x)


def draw_vectors():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (200,), generator=generator)
    inputs = torch.randn(200, 6, generator=generator)
    inputs[:, 0] += 2 * targets
    return inputs, targets


def test_predictions_do_not_depend_on_the_unit_of_inputs():
    inputs, targets = draw_vectors()
    _, first = train(inputs, targets)
    _, second = train(255 * inputs + 1000, targets)
    torch.testing.assert_close(first, second, atol=1e-2, rtol=0)


def test_a_module_of_the_user_gets_inputs_as_they_are():
    inputs, targets = draw_vectors()
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )
    state, _ = train(inputs, targets, ModuleNetwork(module))
    assert not state.inputs.shift.numel()
