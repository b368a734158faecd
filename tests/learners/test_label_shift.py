"""Label shift finds the class frequencies of a new environment."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.erm import ERM
from cirm.learners.label_shift import LabelShift, estimate_class_frequencies
from tests.learners.places import DESCENT, NETWORK, STAGES, train


def make_place(name, rate, size=2000):
    """Two normal classes, one apart by two, of which the second has a rate."""
    generator = torch.Generator().manual_seed(ord(name))
    y = (torch.rand(size, generator=generator) < rate).long()
    x = torch.randn(size, 1, generator=generator) + 2.0 * y[:, None]
    return Environment(name, x, y, Task.classification(2))


def compute_bayes_probabilities(x, rate):
    odds = torch.logit(torch.tensor(rate)) + 2 * (x - 1)
    return torch.stack([(-odds).sigmoid(), odds.sigmoid()], -1)


def test_before_adapting_it_is_plain_training():
    plain = train(ERM(NETWORK, descent=DESCENT), *STAGES)
    learner = LabelShift(NETWORK, descent=DESCENT)
    state = train(learner, *STAGES)
    torch.testing.assert_close(state.params, plain.params)
    x = STAGES[0][0].inputs.expand(2, -1, -1)
    torch.testing.assert_close(
        learner.outputs(state, x)[:, 0], NETWORK(plain.params, x)
    )


def test_the_frequencies_are_found_from_exact_probabilities():
    place = make_place("b", 0.8, 20_000)
    p = compute_bayes_probabilities(place.inputs[None, :, 0], 0.3)
    known = torch.tensor([[0.7, 0.3]])
    found = estimate_class_frequencies(p, known, 1000)
    assert found[0, 1].item() == pytest.approx(0.8, abs=0.02)


def test_certain_classes_are_counted():
    p = torch.eye(2)[[0, 1, 1, 1]][None]
    found = estimate_class_frequencies(p, torch.tensor([[0.5, 0.5]]), 10)
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75]], dtype=torch.float64))


def test_adapting_recovers_the_best_threshold_at_a_new_place():
    first, second = make_place("a", 0.5), make_place("b", 0.9)
    learner = create("label-shift", first, {"hidden": (), "epochs": 40, "rate": 0.05})
    state = train(learner, (first,), seeds=(3,))
    assert state.frequencies[0, 1].item() == pytest.approx(0.5, abs=0.03)
    adapted = learner.adapt(state, second.inputs[None])
    grid = torch.linspace(-1, 3, 9)[None, :, None]
    found = learner.predict(adapted, grid)[0]
    expected = compute_bayes_probabilities(grid[0, :, 0], 0.9)
    torch.testing.assert_close(found, expected, atol=0.06, rtol=0)
    again = learner.adapt(adapted, first.inputs[None])
    torch.testing.assert_close(again.shift, torch.zeros(1, 2), atol=0.1, rtol=0)


def test_learning_on_forgets_the_adaptation():
    learner = LabelShift(NETWORK, descent=DESCENT)
    state = train(learner, *STAGES)
    adapted = learner.adapt(state, STAGES[1][0].inputs.expand(2, -1, -1))
    assert (adapted.shift != 0).any()
    later = train(learner, *STAGES)
    assert torch.equal(later.shift, torch.zeros(2, 2))
