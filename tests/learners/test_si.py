"""SI holds the parameters that lowered the loss."""

import pytest
import torch

from cirm.learners.erm import ERM
from cirm.learners.si import SI
from cirm.training import Descent
from tests.learners.places import DESCENT, NETWORK, STAGES, make_batch, train


def test_without_strength_it_is_plain_training():
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    found = train(SI(NETWORK, descent=DESCENT, strength=0.0), *STAGES)
    torch.testing.assert_close(found.params, plain.params)


def test_contributions_add_up_to_the_fall_of_the_loss():
    # With small plain steps on all examples, the path integral is the fall itself.
    descent = Descent(epochs=200, batch=0, rate=0.02, optimiser="sgd")
    learner = SI(NETWORK, descent=descent, damping=0.1)
    before, after = train(learner), train(learner, STAGES[0])
    moved = (after.params - before.params).square() + 0.1
    batch = make_batch(*STAGES[0])
    fall = [learner.compute_loss(s.params, s, batch)["risk"] for s in (before, after)]
    found = (after.importance * moved).sum(-1)
    torch.testing.assert_close(found, fall[0] - fall[1], rtol=0.05, atol=0)


def test_the_penalty_is_the_importance_times_the_squared_distance():
    learner = SI(NETWORK, descent=DESCENT)
    state = train(learner, STAGES[0])
    shifted = state.params + 0.5
    found = learner.compute_importance_weighted_penalty(shifted, state)
    torch.testing.assert_close(found, state.importance.sum(-1) / 4)


def test_a_strong_penalty_keeps_important_parameters_in_place():
    free, held = (
        train(SI(NETWORK, descent=DESCENT, strength=strength, damping=1e-3), *STAGES)
        for strength in (0.0, 1e4)
    )
    first = train(SI(NETWORK, descent=DESCENT, damping=1e-3), STAGES[0])
    important = first.importance > first.importance.quantile(0.9)
    moved = [
        (s.params - first.params).abs()[important].mean().item() for s in (free, held)
    ]
    assert moved[1] < moved[0] / 2


@pytest.mark.parametrize(("name", "value"), [("strength", -1.0), ("damping", 0.0)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"si: the setting {name} must be"):
        SI(**{name: value})
