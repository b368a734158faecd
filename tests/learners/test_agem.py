"""A-GEM removes from gradients what opposes the mean gradient of the past."""

import pytest
import torch

from cirm.learners.agem import AGEM, remove_conflict_with_reference_gradient
from cirm.learners.erm import ERM
from cirm.learners.gem import GEM
from tests.learners.places import DESCENT, NETWORK, STAGES, make_classes, train


def test_without_memory_it_is_plain_training_bit_for_bit():
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    found = train(AGEM(NETWORK, descent=DESCENT, memory=0), *STAGES)
    assert torch.equal(found.params, plain.params)


def test_with_one_past_environment_it_is_gem():
    stages = (make_classes("a", 0),), (make_classes("b", 0, flip=1.0),)
    settings = {"descent": DESCENT, "memory": 25}
    gem = train(GEM(NETWORK, **settings), *stages)
    found = train(AGEM(NETWORK, **settings), *stages)
    plain = train(ERM(NETWORK, descent=DESCENT), *stages)
    torch.testing.assert_close(found.params, gem.params, rtol=1e-3, atol=1e-4)
    assert (found.params - plain.params).abs().max() > 0.01


def test_a_gradient_that_opposes_the_past_becomes_orthogonal_to_it():
    reference = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0]])
    gradient = torch.tensor([[-3.0, 1.0], [3.0, 1.0], [-3.0, 1.0]])
    expected = torch.tensor([[0.0, 1.0], [3.0, 1.0], [-3.0, 1.0]])
    torch.testing.assert_close(
        remove_conflict_with_reference_gradient(gradient, reference), expected
    )


def test_the_reference_is_drawn_from_all_past_environments():
    learner = AGEM(NETWORK, descent=DESCENT, memory=7, reference=4)
    state = train(learner, *STAGES)
    assert state.memory.sizes == (7, 7, 7)


@pytest.mark.parametrize(("name", "value"), [("memory", -1), ("reference", 0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"agem: the setting {name} must be"):
        AGEM(**{name: value})
