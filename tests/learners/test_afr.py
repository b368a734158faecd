"""AFR retrains the last layer on what plain training gets wrong."""

import pytest
import torch

from cirm.environments import Examples
from cirm.learners.afr import AFR
from cirm.likelihoods import CrossEntropy
from cirm.memory import PastExampleMemory
from tests.learners.places import DESCENT, NETWORK, STAGES, train

OUTPUTS = torch.tensor([[[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 3.0]]])


def compute_example_weights(gamma):
    y = torch.tensor([[0, 0, 1, 1]])
    owner = torch.zeros(1, 4, dtype=torch.int64)
    memory = PastExampleMemory(Examples(torch.zeros(1, 4, 4), y), owner)
    return AFR(NETWORK, CrossEntropy(), gamma=gamma).compute_example_weights(
        OUTPUTS, memory
    )


def test_without_reweighting_the_classes_count_the_same():
    torch.testing.assert_close(compute_example_weights(0.0), torch.full((1, 4), 0.25))


def test_weights_fall_exponentially_with_the_probability_of_the_class():
    p = OUTPUTS.softmax(-1)[0, range(4), [0, 0, 1, 1]]
    expected = (-3 * p).exp() / 2
    found = compute_example_weights(3.0)
    torch.testing.assert_close(found[0], expected / expected.sum())
    assert found.argmax() == 2  # the only error


def test_a_strong_penalty_leaves_the_last_layer_as_it_was():
    learner = AFR(NETWORK, descent=DESCENT, memory=5, l2=1e9)
    state = train(learner, *STAGES)
    weights = state.params[:, NETWORK.head][:, :-2]
    torch.testing.assert_close(state.head[:, :-2], weights, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("gamma", -1.0), ("memory", 0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"afr: the setting {name} must be"):
        AFR(**{name: value})
