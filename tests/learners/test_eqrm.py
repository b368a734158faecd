"""EQRM minimises a quantile of the risks over environments."""

import math

import pytest
import torch

from cirm.learners.eqrm import EQRM, compute_risk_quantile
from cirm.learners.vrex import VREx
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)

MEDIAN = math.log(2)


def test_while_it_anneals_it_minimises_the_mean_risk():
    free = train(EQRM(NETWORK, descent=DESCENT, anneal=1.0, memory=0), *STAGES)
    mean = train(VREx(NETWORK, descent=DESCENT, penalty=0.0), *STAGES)
    torch.testing.assert_close(free.params, mean.params)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.75, 0.999])
def test_so_much_of_the_estimated_distribution_is_below_the_quantile(level):
    risks = torch.tensor([[0.2, 0.5, 0.9]], dtype=torch.float64)
    found = compute_risk_quantile(risks, -math.log(1 - level))
    bandwidth = 1.06 * risks.std() * 3**-0.2
    below = torch.special.ndtr((found[:, None] - risks) / bandwidth).mean()
    assert below.item() == pytest.approx(level, abs=1e-6)


def test_the_median_of_two_risks_is_their_mean():
    found = compute_risk_quantile(torch.tensor([[1.0, 3.0], [0.0, 0.5]]), MEDIAN)
    torch.testing.assert_close(found, torch.tensor([2.0, 0.25]))


def test_the_quantile_of_equal_risks_is_that_risk():
    found = compute_risk_quantile(torch.full((2, 3), 0.7), 5.0)
    torch.testing.assert_close(found, torch.full((2,), 0.7))


@pytest.mark.parametrize("tail", [0.3, 1.386, 1000.0])
def test_the_gradient_is_that_of_finite_differences(tail):
    risks = torch.tensor([[0.2, 0.5, 0.9]], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda values: compute_risk_quantile(values, tail), risks, eps=1e-5, atol=1e-4
    )


def test_a_high_quantile_is_the_mean_and_a_multiple_of_the_spread():
    # In the far tail the kernel of the highest risk is alone: max + h sqrt(2 tail).
    risks = torch.tensor([[0.2, 0.6]], dtype=torch.float64)
    bandwidth = float(1.06 * risks.std() * 2**-0.2)
    found = compute_risk_quantile(risks, 1000.0).item()
    assert found == pytest.approx(0.6 + bandwidth * math.sqrt(2000), rel=0.01)


def test_a_single_environment_has_only_its_risk_and_past_ones_count():
    learner = EQRM(NETWORK, descent=DESCENT, anneal=0.0, memory=5)
    batch = make_batch(make_classes("d", 3), progress=1.0)
    state = train(learner)
    assert list(learner.compute_loss(state.params, state, batch)) == ["risk"]
    state = train(learner, *STAGES)
    assert list(learner.compute_loss(state.params, state, batch)) == ["quantile"]


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="eqrm: the setting tail must be above 0"):
        EQRM(tail=0.0)
