"""GroupDRO weighs groups by their risks, between the mean and the worst one."""

import pytest
import torch

from cirm.learners.groupdro import GroupDRO
from cirm.learners.vrex import VREx
from cirm.likelihoods import CrossEntropy
from cirm.objectives import compute_environment_risks
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)


def compute_gradient(learner, *stage):
    """The gradient at the first step, and the risks of the environments."""
    state = train(learner)
    params = state.params.requires_grad_()
    batch = make_batch(*stage)
    risks = compute_environment_risks(NETWORK, CrossEntropy(), params, batch)
    gradient, terms = learner.create_gradient_function()(params, state, batch)
    return gradient, terms, params, risks


def test_without_growth_of_the_weights_it_minimises_the_mean_risk():
    free = train(GroupDRO(NETWORK, descent=DESCENT, step=0.0, memory=0), *STAGES)
    mean = train(VREx(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    torch.testing.assert_close(free.params, mean.params)


def test_with_fast_growth_it_follows_the_gradient_of_the_worst_environment():
    learner = GroupDRO(NETWORK, step=1e6)
    places = make_classes("a", 0), make_classes("b", 1, 12), make_classes("c", 2)
    gradient, terms, params, risks = compute_gradient(learner, *places)
    worst = risks.max(-1).values
    torch.testing.assert_close(terms["risk"], worst.detach())
    expected = torch.autograd.grad(worst.sum(), params)[0]
    torch.testing.assert_close(gradient, expected)


def test_the_weights_are_those_of_exponentiated_gradient_ascent():
    learner = GroupDRO(NETWORK, step=0.5)
    places = make_classes("a", 0), make_classes("b", 1)
    state, batch = train(learner), make_batch(*places)
    params = state.params.requires_grad_()
    gradient = learner.create_gradient_function()
    for _ in range(3):
        _, terms = gradient(params, state, batch)
    risks = compute_environment_risks(NETWORK, CrossEntropy(), params, batch).detach()
    weights = (3 * 0.5 * risks).softmax(-1)
    torch.testing.assert_close(terms["risk"], (weights * risks).sum(-1))


def test_classes_within_environments_are_groups():
    learner = GroupDRO(NETWORK, groups="classes")
    places = make_classes("a", 0), make_classes("b", 1)
    state, batch = train(learner), make_batch(*places)
    risks = learner.compute_group_risks(state.params, state, batch)
    losses = CrossEntropy().compute_losses(NETWORK(state.params, batch.x), batch.y)
    for group, (place, label) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        inside = torch.arange(50) // 25 == place
        inside = inside & (batch.y[0] == label)
        torch.testing.assert_close(risks[:, group], losses[:, inside].mean(-1))


def test_past_environments_stay_groups():
    learner = GroupDRO(NETWORK, descent=DESCENT, memory=25)
    state = train(learner, *STAGES)
    assert state.memory.sizes == (25, 25, 25)
    batch = make_batch(make_classes("d", 3))
    assert learner.compute_group_risks(state.params, state, batch).shape == (2, 4)


def test_impossible_settings_are_refused():
    with pytest.raises(
        ValueError, match="groupdro: the setting step must be 0 or more"
    ):
        GroupDRO(step=-1.0)
    with pytest.raises(ValueError, match="groups must be environments or classes"):
        GroupDRO(groups="colours")
