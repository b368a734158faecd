"""T3A moves the templates of the classes towards confident inputs."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.erm import ERM
from cirm.learners.t3a import T3A, compute_mean_feature_of_each_class
from tests.learners.places import DESCENT, NETWORK, STAGES, train

ROWS = STAGES[1][0].inputs.expand(2, -1, -1)


def test_before_adapting_it_is_plain_training():
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    learner = T3A(NETWORK, descent=DESCENT)
    state = train(learner, *STAGES)
    torch.testing.assert_close(
        learner.outputs(state, ROWS)[:, 0], NETWORK(plain.params, ROWS)
    )


def test_templates_are_means_of_the_directions_of_the_most_confident_members():
    members = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [4.0, 3.0], [1.0, 1.0]]])
    logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0], [5.0, 0.0], [0.1, 0.0]]])
    found = compute_mean_feature_of_each_class(members, logits, 2, torch.zeros(1, 2, 2))
    # The first class: (1, 0) and (0.8, 0.6), and not the uncertain fourth member.
    first = torch.tensor([1.8, 0.6])
    torch.testing.assert_close(found[0, :, 0], first / first.norm())
    torch.testing.assert_close(found[0, :, 1], torch.tensor([0.0, 1.0]))


def test_a_class_without_members_keeps_its_weights():
    members, logits = torch.ones(1, 3, 2), torch.tensor([[[1.0, 0.0]] * 3])
    weights = torch.tensor([[[1.0, 3.0], [1.0, 4.0]]])
    found = compute_mean_feature_of_each_class(members, logits, 5, weights)
    torch.testing.assert_close(found[0, :, 1], torch.tensor([0.6, 0.8]))


def test_the_order_of_the_inputs_does_not_matter():
    learner = T3A(NETWORK, descent=DESCENT, support=5)
    state = train(learner, *STAGES)
    once, again = (learner.adapt(state, rows) for rows in (ROWS, ROWS.flip(1)))
    torch.testing.assert_close(once.templates, again.templates)


def test_a_shift_of_the_inputs_is_followed():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    x = torch.randn(400, 2, generator=generator) * 0.3
    x[:, 0] += 2 * y - 1
    place = Environment("a", x, y, Task.classification(2))
    turned = x @ torch.tensor([[0.5, 0.87], [-0.87, 0.5]])  # by sixty degrees
    learner = create("t3a", place, {"hidden": (), "epochs": 20, "rate": 0.05})
    state = train(learner, (place,), seeds=(3,))
    adapted = learner.adapt(state, turned[None])
    before, after = (
        (learner.predict(s, turned[None])[0].argmax(-1) == y).float().mean()
        for s in (state, adapted)
    )
    assert after >= before + 0.02


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="t3a: the setting support must be 0 or more"):
        T3A(support=-1)
