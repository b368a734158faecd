"""JTT counts the errors of a first model more often."""

import pytest
import torch

from cirm.learners.base import PointState
from cirm.learners.erm import ERM
from cirm.learners.jtt import JTT
from cirm.likelihoods import CrossEntropy
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)


def test_with_the_weight_one_it_is_plain_training():
    learner = JTT(NETWORK, descent=DESCENT, upweight=1.0)
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    torch.testing.assert_close(train(learner, *STAGES).params, plain.params)


def test_the_risk_is_that_of_data_in_which_errors_are_repeated():
    learner = JTT(NETWORK, upweight=3.0)
    first, params = (train(learner, seeds=seeds).params for seeds in ((3,), (5,)))
    batch = make_batch(make_classes("a"), seeds=(3,))
    wrong = NETWORK(first, batch.x).argmax(-1) != batch.y
    repeated = torch.where(wrong, 3, 1)[0]
    losses = CrossEntropy().compute_losses(NETWORK(params, batch.x), batch.y)
    expected = losses[0].repeat_interleave(repeated).mean()
    found = learner.compute_loss(params, PointState(first), batch)["risk"]
    assert 0 < wrong.sum() < len(wrong[0])
    torch.testing.assert_close(found[0], expected)


def test_examples_that_contradict_a_shortcut_count_more():
    # A shortcut that fails in one of ten examples; the label also has a weak cause.
    place = make_classes("a", 0, 400, flip=0.1)
    descent = DESCENT.__class__(epochs=30, batch=50, rate=0.02)
    against = (place.inputs[:, 0] > 0) != place.targets.bool()
    wrong = []
    for upweight in (1.0, 20.0):
        learner = JTT(NETWORK, descent=descent, first_epochs=5, upweight=upweight)
        state = train(learner, (place,))
        p = learner.predict(state, place.inputs.expand(2, -1, -1))
        right = p.argmax(-1) == place.targets
        wrong.append(right[:, against].float().mean())
    assert wrong[1] > wrong[0] + 0.3


@pytest.mark.parametrize("name", ["first_epochs", "upweight"])
def test_impossible_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"jtt: the setting {name} must be"):
        JTT(**{name: 0})
