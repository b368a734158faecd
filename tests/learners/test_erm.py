"""Empirical risk minimisation finds what closed forms say."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.base import PointState
from cirm.learners.erm import ERM
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)


def line(name, size, seed):
    """A noisy linear target of three inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator)
    noise = torch.randn(size, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 + noise
    return Environment(name, x, y, Task.regression())


def design(environments):
    """All inputs with a column of ones, and all targets."""
    x = torch.cat([e.inputs for e in environments])
    return torch.cat([x, torch.ones(len(x), 1)], 1), torch.cat(
        [e.targets for e in environments]
    )


def regression(**settings):
    descent = Descent(epochs=150, batch=0, rate=0.1, optimiser="sgd", **settings)
    return ERM(MLP((3, 1)), SquaredError(), descent)


def trained(learner, stage):
    state = learner.init(Randomness(SEEDS))
    return learner.observe(state, stage, Randomness(SEEDS)).params


def test_linear_regression_ends_at_least_squares():
    stage = (line("a", 40, 0),)
    x, y = design(stage)
    expected = torch.linalg.lstsq(x, y.unsqueeze(1)).solution[:, 0]
    params = trained(regression(), stage)
    torch.testing.assert_close(params, expected.expand(2, -1), rtol=0, atol=1e-4)


def test_unequal_environments_count_by_their_examples():
    stage = line("a", 40, 0), line("b", 15, 1)
    x, y = design(stage)
    expected = torch.linalg.lstsq(x, y.unsqueeze(1)).solution[:, 0]
    params = trained(regression(), stage)
    torch.testing.assert_close(params, expected.expand(2, -1), rtol=0, atol=1e-4)


def test_decay_gives_ridge_regression():
    stage, decay = (line("a", 40, 0),), 0.7
    x, y = design(stage)
    ridge = 0.5 * decay * len(y) * torch.eye(4)
    expected = torch.linalg.solve(x.T @ x + ridge, x.T @ y)
    params = trained(regression(decay=decay), stage)
    torch.testing.assert_close(params, expected.expand(2, -1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("likelihood", [CrossEntropy(3), SquaredError()])
def test_the_risk_of_unequal_environments_is_that_of_the_pooled_examples(likelihood):
    learner = ERM(MLP((3, 4, 3 if likelihood == CrossEntropy(3) else 1)), likelihood)
    params = learner.init(Randomness(SEEDS)).params
    pieces = [line("a", 40, 0).take_all(2), line("b", 15, 1).take_all(2)]
    if likelihood == CrossEntropy(3):
        pieces = [e._replace(y=(e.y > 0).long() + (e.y > 1)) for e in pieces]
    batch = learner.descent.build_batch(pieces, Randomness(SEEDS).start_draws())
    losses = likelihood.compute_losses(learner.network(params, batch.x), batch.y)
    risk = learner.compute_loss(params, PointState(params), batch)["risk"]
    torch.testing.assert_close(risk, losses.mean(-1))


def test_in_a_sequence_training_goes_on_with_what_arrives():
    learner = regression()
    state = learner.init(Randomness(SEEDS))
    for stage in ((line("a", 40, 0),), (line("b", 15, 1),)):
        state = learner.observe(state, stage, Randomness(SEEDS))
    x, y = design([line("b", 15, 1)])
    expected = torch.linalg.lstsq(x, y.unsqueeze(1)).solution[:, 0]
    torch.testing.assert_close(state.params, expected.expand(2, -1), rtol=0, atol=1e-4)
