"""V-REx penalises the variance of risks, which one environment does not have."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners.base import PointState
from cirm.learners.erm import ERM
from cirm.learners.vrex import VREx
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.objectives import compute_environment_risks
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)
DESCENT = Descent(epochs=4, batch=10, rate=0.02)


def classes(name, seed, size=25):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    return Environment(name, x, (x[:, seed] > 0).long(), Task.classification(2))


def trained(learner, *stages):
    state = learner.init(Randomness(SEEDS))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, Randomness(SEEDS).at(index))
    return state.params


def test_without_a_penalty_it_is_erm_bit_for_bit():
    stages = (classes("a", 0), classes("b", 1)), (classes("c", 2),)
    plain = trained(ERM(NETWORK, CrossEntropy(), DESCENT), *stages)
    free = trained(VREx(NETWORK, CrossEntropy(), DESCENT, penalty=0.0), *stages)
    assert torch.equal(plain, free)


@pytest.mark.parametrize("anneal", [0.0, 1.0])
def test_on_a_sequence_it_is_erm_bit_for_bit(anneal):
    stages = [(classes(name, seed),) for seed, name in enumerate("ab")]
    plain = trained(ERM(NETWORK, CrossEntropy(), DESCENT), *stages)
    learner = VREx(NETWORK, CrossEntropy(), DESCENT, penalty=1.0, anneal=anneal)
    assert torch.equal(plain, trained(learner, *stages))


def test_on_a_sequence_a_weight_above_one_only_divides_the_risk():
    learner = VREx(NETWORK, penalty=64.0, anneal=0.5)
    params = learner.init(Randomness(SEEDS)).params.requires_grad_()
    (batch,) = Descent(epochs=1, batch=0).iterate_batches(
        (classes("a", 0),), Randomness(SEEDS)
    )
    slopes = []
    for progress in (0.0, 0.5):
        noise = Randomness(SEEDS, ("noise",)).start_draws()
        here = batch._replace(progress=progress, noise=noise)
        loss = sum(learner.compute_loss(params, PointState(params), here).values())
        slopes.append(torch.autograd.grad(loss.sum(), params)[0])
    torch.testing.assert_close(slopes[0], 64 * slopes[1])


@pytest.mark.parametrize(("penalty", "scale"), [(0.5, 1.0), (8.0, 1 / 8)])
def test_the_loss_is_mean_and_variance_of_the_risks(penalty, scale):
    network = MLP((4, 8, 2))
    learner = VREx(network, penalty=penalty, anneal=0.0, l2=0.1)
    params = learner.init(Randomness(SEEDS)).params
    stage = classes("a", 0), classes("b", 1, 12), classes("c", 2)
    (batch,) = Descent(epochs=1, batch=0).iterate_batches(stage, Randomness(SEEDS))
    risks = compute_environment_risks(network, learner.likelihood, params, batch)
    middle = risks.mean(-1, keepdim=True)
    spread = (risks - middle).square().mean(-1)
    terms = learner.compute_loss(params, PointState(params), batch)
    torch.testing.assert_close(terms["risk"], scale * middle[:, 0])
    torch.testing.assert_close(terms["penalty"], scale * penalty * spread)
    torch.testing.assert_close(terms["l2"], scale * 0.1 * params.square().sum(-1))


def test_a_strong_penalty_makes_the_risks_equal():
    # One coefficient of 1 in one place and 3 in the other, where inputs are larger.
    x = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    stage = (
        Environment("a", x, x[:, 0], Task.regression()),
        Environment("b", 2 * x, 6 * x[:, 0], Task.regression()),
    )
    network, descent = MLP((1, 1)), Descent(epochs=300, batch=0, rate=0.05)
    gaps = []
    for penalty in (0.0, 1000.0):
        learner = VREx(network, SquaredError(), descent, penalty=penalty)
        params = trained(learner, stage)
        (batch,) = Descent(epochs=1, batch=0).iterate_batches(stage, Randomness(SEEDS))
        risks = compute_environment_risks(network, SquaredError(), params, batch)
        gaps.append((risks[:, 0] - risks[:, 1]).abs())
    assert (gaps[0] > 1).all() and (gaps[1] < 0.05).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "penalty must not be negative, but is -1"),
        ({"anneal": 1.5}, r"anneal must be from 0 to 1, but is 1.5"),
        ({"l2": -1.0}, "l2 must not be negative, but is -1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^vrex: the setting {message}"):
        VREx(NETWORK, **settings)
