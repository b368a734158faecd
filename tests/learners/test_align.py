"""Alignment compares features with the statistics that were kept at insertion."""

import pytest
import torch

from cirm.learners.align import Align
from cirm.learners.coral import CORAL
from cirm.learners.replay import Replay
from cirm.memory import measure_state_size
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)


def test_without_a_penalty_it_is_replay():
    plain = train(Replay(NETWORK, descent=DESCENT, memory=5), *STAGES)
    found = train(Align(NETWORK, descent=DESCENT, penalty=0.0, memory=5), *STAGES)
    torch.testing.assert_close(found.params, plain.params)


def test_on_a_joint_stream_it_is_coral():
    plain = train(CORAL(NETWORK, descent=DESCENT, penalty=3.0), STAGES[0])
    found = train(Align(NETWORK, descent=DESCENT, penalty=3.0), STAGES[0])
    torch.testing.assert_close(found.params, plain.params)


def test_with_one_past_environment_the_naive_form_is_coral():
    stages = (make_classes("a", 0),), (make_classes("b", 1),)
    plain = train(CORAL(NETWORK, descent=DESCENT, penalty=3.0), *stages)
    learner = Align(NETWORK, descent=DESCENT, penalty=3.0, form="naive")
    state = train(learner, *stages)
    torch.testing.assert_close(state.params, plain.params)
    assert measure_state_size(state)["moments"]["examples"] == 0
    assert "memory" not in measure_state_size(state)


def test_the_features_of_replayed_examples_are_held_where_they_were_kept():
    learner = Align(NETWORK, descent=DESCENT, memory=25)
    state = train(learner, (make_classes("a", 0),))
    batch = make_batch(make_classes("b", 1))
    naive = Align(NETWORK, form="naive")
    same, moved = (
        learner.compute_loss(p, state, batch)["penalty"]
        for p in (state.params, 1.5 * state.params)
    )
    alone = naive.compute_loss(
        state.params, train(naive)._replace(moments=state.moments), batch
    )
    # All examples are kept: their moments are the kept ones, and the distance is zero.
    torch.testing.assert_close(same, alone["penalty"] / 2)
    assert (moved > same).all()


@pytest.mark.parametrize(
    ("name", "value"), [("penalty", -1.0), ("form", "other"), ("memory", -1)]
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"align: the setting {name} must be"):
        Align(**{name: value})
