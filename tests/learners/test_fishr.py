"""Fishr matches the variances of gradients, also with those of past environments."""

import pytest
import torch

from cirm.learners.fishr import Fishr
from cirm.learners.vrex import VREx
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    make_values,
    train,
)


def test_without_a_penalty_it_minimises_the_mean_risk():
    free = train(Fishr(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    mean = train(VREx(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    torch.testing.assert_close(free.params, mean.params)


@pytest.mark.parametrize(
    ("network", "likelihood", "make"),
    [
        (NETWORK, CrossEntropy(), make_classes),
        (MLP((4, 1)), SquaredError(), make_values),
    ],
)
def test_variances_are_those_of_the_gradients_of_single_examples(
    network, likelihood, make
):
    learner = Fishr(network, likelihood)
    params = train(learner).params.requires_grad_()
    stage = make("a"), make("b")
    batch, found = (
        make_batch(*stage),
        learner.compute_gradient_variances_of_stage(params, stage),
    )
    outputs = network(params, batch.x)
    losses = likelihood.compute_losses(outputs, batch.y)
    gradients = torch.stack(
        [
            torch.autograd.grad(loss.sum(), params, retain_graph=True)[0]
            for loss in losses.unbind(1)
        ],
        1,
    )[..., network.head]
    half = losses.shape[1] // 2
    for place, part in enumerate(gradients.split(half, 1)):
        torch.testing.assert_close(
            found[:, place], part.var(1, correction=0), rtol=1e-3, atol=1e-6
        )


def test_the_penalty_is_the_mean_distance_from_the_mean_variance():
    learner = Fishr(NETWORK, penalty=8.0, anneal=0.0)
    state = train(learner)
    stage = make_classes("a", 0), make_classes("b", 1)
    batch, v = (
        make_batch(*stage),
        learner.compute_gradient_variances_of_stage(state.params, stage),
    )
    terms = learner.compute_loss(state.params, state, batch)
    distance = (v[:, 0] - v[:, 1]).square().sum(-1) / 4
    torch.testing.assert_close(terms["penalty"], distance)  # 8 times, divided by 8


def test_the_variances_of_past_environments_are_kept_and_compared_with():
    learner = Fishr(NETWORK, descent=DESCENT, penalty=10.0)
    state = train(learner, *STAGES)
    assert state.variances.shape == (2, 3, 18)
    batch = make_batch(make_classes("d", 3))
    alone = learner.compute_loss(state.params, train(learner), batch)["penalty"]
    beside = learner.compute_loss(state.params, state, batch)["penalty"]
    assert (alone.abs() < 1e-12).all() and (beside > 1e-6).all()


def test_impossible_settings_are_refused():
    with pytest.raises(
        ValueError, match="fishr: the setting penalty must not be negative"
    ):
        Fishr(penalty=-1.0)
