"""Anchor regression lies between fixed effects, least squares and equal residuals."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.anchor import Anchor
from cirm.likelihoods import SquaredError
from cirm.memory import measure_state_size
from cirm.networks import MLP
from tests.learners.places import train

LINEAR = MLP((2, 1))


def make_place(name, shift, size):
    """A hidden cause shifts the second input and the target, more at some places."""
    generator = torch.Generator().manual_seed(ord(name))
    hidden = torch.randn(size, generator=generator) + shift
    x = torch.randn(size, 2, generator=generator)
    x[:, 1] += 2 * shift + hidden
    y = x[:, 0] + 0.5 * x[:, 1] + hidden + 0.3 * torch.randn(size, generator=generator)
    return Environment(name, x, y, Task.regression())


PLACES = make_place("a", 0.0, 50), make_place("b", 1.0, 80), make_place("c", -0.5, 30)


def fit(gamma, order="joint"):
    learner = Anchor(LINEAR, SquaredError(), gamma=gamma)
    return train(learner, *Stream.from_order(PLACES, order), seeds=(3,))


def stack(centre):
    x = torch.cat([centre(place.inputs) for place in PLACES]).double()
    y = torch.cat([centre(place.targets) for place in PLACES]).double()
    return x, y


def test_with_gamma_one_it_is_least_squares():
    x, y = stack(lambda values: values)
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    expected = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    torch.testing.assert_close(fit(1.0).params[0], expected.float())


def test_with_gamma_zero_only_differences_within_environments_count():
    x, y = stack(lambda values: values - values.mean(0))
    expected = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    torch.testing.assert_close(fit(0.0).params[0, :2], expected.float())


def test_for_large_gamma_the_mean_residuals_are_equal():
    params = fit(1e9).params[0]
    means = torch.stack(
        [(p.targets - p.inputs @ params[:2] - params[2]).mean() for p in PLACES]
    )
    assert means.abs().max() < 1e-3


def test_on_a_sequence_it_is_exactly_the_joint_regression():
    joint, late = fit(5.0), fit(5.0, "sequential")
    torch.testing.assert_close(joint.params, late.params)
    assert sum(e["examples"] for e in measure_state_size(late).values()) == 0


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="anchor: the setting gamma must be 0 or more"):
        Anchor(gamma=-1.0)
    with pytest.raises(ValueError, match="anchor: the network must be linear"):
        Anchor(MLP((2, 3, 1)))
