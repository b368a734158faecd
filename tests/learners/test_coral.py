"""CORAL matches means and covariances, also with those of past environments."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.coral import CORAL
from cirm.learners.vrex import VREx
from cirm.likelihoods import SquaredError
from cirm.networks import MLP
from tests.learners.places import DESCENT, NETWORK, STAGES, make_batch, train

LINEAR = MLP((2, 1))  # its features are the inputs


def make_points(name, points):
    points = torch.tensor(points)
    return Environment(name, points, torch.zeros(len(points)), Task.regression())


SQUARE = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
WIDE = [[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]
MOVED = [[4.0, 1.0], [4.0, -1.0], [2.0, 1.0], [2.0, -1.0]]


def compute_penalty(first, second, **settings):
    learner = CORAL(LINEAR, SquaredError(), **settings)
    state = train(learner)
    batch = make_batch(make_points("a", first), make_points("b", second))
    return learner.compute_loss(state.params, state, batch)["penalty"]


def test_without_a_penalty_it_minimises_the_mean_risk():
    free = train(CORAL(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    mean = train(VREx(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    torch.testing.assert_close(free.params, mean.params)


def test_a_covariance_is_compared_entry_by_entry():
    # Only one variance differs, 4 from 1: 3^2 / (4 * 2^2).
    torch.testing.assert_close(compute_penalty(SQUARE, WIDE), torch.full((2,), 9 / 16))


def test_means_are_compared_if_asked_for():
    # The means differ by 3 in one of two features; the covariances are the same.
    torch.testing.assert_close(compute_penalty(SQUARE, MOVED), torch.full((2,), 4.5))
    without = compute_penalty(SQUARE, MOVED, means=False)
    torch.testing.assert_close(without, torch.zeros(2))


def test_a_past_environment_is_compared_by_its_moments():
    learner = CORAL(LINEAR, SquaredError(), DESCENT, penalty=1.0)
    state = train(learner, (make_points("a", SQUARE),))
    assert state.moments.means.shape == (2, 1, 2)
    batch = make_batch(make_points("b", WIDE))
    penalty = learner.compute_loss(state.params, state, batch)["penalty"]
    torch.testing.assert_close(penalty, torch.full((2,), 9 / 16))


def test_a_strong_penalty_makes_the_features_of_environments_alike():
    gaps = []
    for penalty in (0.0, 1000.0):
        learner = CORAL(NETWORK, descent=DESCENT, penalty=penalty)
        state = train(learner, *[STAGES[0]] * 5)
        batch = make_batch(*STAGES[0])
        free = CORAL(NETWORK, penalty=1.0)
        gaps.append(free.compute_loss(state.params, train(free), batch)["penalty"])
    assert (gaps[1] < gaps[0] / 3).all()


def test_impossible_settings_are_refused():
    with pytest.raises(
        ValueError, match="coral: the setting penalty must be 0 or more"
    ):
        CORAL(penalty=-1.0)
