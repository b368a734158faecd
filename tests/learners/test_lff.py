"""LfF weighs examples by how hard they are for a biased network."""

import pytest
import torch
from torch.nn import functional as F

from cirm.learners.lff import (
    LfF,
    compute_generalised_cross_entropy,
    compute_relative_difficulty,
)
from tests.learners.places import NETWORK, make_batch, make_classes, train


def test_for_equal_networks_the_risk_is_half_the_plain_one():
    learner = LfF(NETWORK)
    params = train(learner).params
    batch = make_batch(make_classes("a"))
    losses = learner.compute_cross_entropy_of_examples(params, batch)
    terms = learner.compute_loss(torch.cat([params, params], 1), (), batch)
    torch.testing.assert_close(terms["risk"], losses.mean(-1) / 2)


def test_the_difficulty_lies_between_zero_and_one():
    biased = torch.tensor([0.0, 1.0, 3.0, 0.0])
    debiased = torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = compute_relative_difficulty(biased, debiased)
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 0.75, 0.5]))


@pytest.mark.parametrize("exponent", [0.3, 0.7, 1.0])
def test_the_generalised_cross_entropy_and_its_gradient(exponent):
    logits = torch.tensor([[2.0, -1.0], [0.3, 0.1]], requires_grad=True)
    losses = F.cross_entropy(logits, torch.tensor([1, 0]), reduction="none")
    p = (-losses).exp()
    found = compute_generalised_cross_entropy(losses, exponent)
    torch.testing.assert_close(found, (1 - p**exponent) / exponent)
    # Its gradient is that of the cross-entropy times p^q: easy examples lead.
    (slope,) = torch.autograd.grad(found.sum(), logits, retain_graph=True)
    (plain,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(slope, p.detach()[:, None] ** exponent * plain)


def test_a_small_exponent_gives_the_cross_entropy():
    losses = torch.tensor([0.1, 1.0, 4.0])
    found = compute_generalised_cross_entropy(losses, 1e-5)
    torch.testing.assert_close(found, losses, rtol=1e-4, atol=0)


def test_each_network_follows_its_own_loss_only():
    learner = LfF(NETWORK)
    state = train(learner)
    both = torch.cat(state, 1).requires_grad_()
    terms = learner.compute_loss(both, (), make_batch(make_classes("a")))
    slope = torch.autograd.grad(terms["risk"].sum(), both, retain_graph=True)[0]
    assert (slope[:, NETWORK.size :] == 0).all() and (slope != 0).any()
    slope = torch.autograd.grad(terms["biased risk"].sum(), both)[0]
    assert (slope[:, : NETWORK.size] == 0).all() and (slope != 0).any()


def test_impossible_settings_are_refused():
    with pytest.raises(
        ValueError, match="lff: the setting amplification must be above 0"
    ):
        LfF(amplification=0.0)
