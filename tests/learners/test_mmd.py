"""The maximum mean discrepancy is a distance between distributions of features."""

import math

import pytest
import torch

from cirm.learners.mmd import MMD, compute_squared_mmd
from cirm.learners.vrex import VREx
from cirm.training import build_averaging_weights
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)

PAIR = ([0], [1])


def weigh(*sizes):
    return build_averaging_weights(sizes, torch.device("cpu"))[None]


def test_without_a_penalty_it_minimises_the_mean_risk():
    free = train(MMD(NETWORK, descent=DESCENT, penalty=0.0, memory=0), *STAGES)
    mean = train(VREx(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    torch.testing.assert_close(free.params, mean.params)


def test_two_points_differ_by_twice_one_less_the_kernel():
    points = torch.tensor([[[0.0], [2.0]]])
    found = compute_squared_mmd(points, weigh(1, 1), PAIR, (0.5, 0.1))
    expected = 2 * (2 - math.exp(-0.5 * 4) - math.exp(-0.1 * 4))
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_the_same_points_in_another_number_do_not_differ():
    points = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0))
    twice = torch.cat([points, points, points], 1)
    found = compute_squared_mmd(twice, weigh(5, 10), PAIR, (1.0,))
    torch.testing.assert_close(found, torch.zeros(1, 1), atol=1e-5, rtol=0)


def test_past_examples_take_part_as_an_environment():
    learner = MMD(NETWORK, descent=DESCENT, memory=7)
    state = train(learner, *STAGES)
    assert state.memory.sizes == (7, 7, 7)
    batch = make_batch(make_classes("d", 3))
    assert (learner.compute_loss(state.params, state, batch)["penalty"] > 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "penalty must be 0 or more"),
        ({"kernels": ()}, "kernels must be one or more positive numbers"),
        ({"memory": -1}, "memory must be 0 or more"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^mmd: the setting {message}"):
        MMD(**settings)
