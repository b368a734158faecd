"""DFR retrains the last layer, with the same weight for every group."""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from cirm.environments import Examples
from cirm.learners.dfr import DFR
from cirm.learners.linear_models import fit_linear_head_of_each_replica
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.memory import PastExampleMemory, measure_state_size
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_classes,
    make_values,
    train,
)


def test_the_heads_are_those_of_weighted_logistic_regression():
    place = make_classes("a", 0, 200, flip=0.2)
    weights = torch.linspace(0.2, 3, 200).expand(1, -1)
    examples = Examples(place.inputs[None], place.targets[None])
    start = torch.zeros(1, 5)  # one output: the logit of the second class
    found = fit_linear_head_of_each_replica(
        CrossEntropy(), examples, weights, 2.0, start
    )
    model = LogisticRegression(C=0.5, tol=1e-8, max_iter=1000)
    model.fit(place.inputs, place.targets, sample_weight=weights[0])
    expected = [*model.coef_[0], *model.intercept_]
    torch.testing.assert_close(
        found[0], torch.tensor(expected, dtype=torch.float32), rtol=1e-3, atol=1e-4
    )


def test_the_heads_are_those_of_ridge_regression():
    place = make_values("a")
    examples = Examples(place.inputs[None], place.targets[None])
    args = SquaredError(), examples, torch.ones(1, 40), 6.0, torch.ones(1, 5)
    found = fit_linear_head_of_each_replica(*args, towards_start=False)[0]
    x = place.inputs - place.inputs.mean(0)
    # The loss is the square, without a half, so that the penalty 6 / 2 counts as 3.
    expected = torch.linalg.solve(x.T @ x + 3 * torch.eye(4), x.T @ place.targets)
    torch.testing.assert_close(found[:4], expected, rtol=1e-3, atol=1e-4)


def test_every_group_has_the_same_sum_of_weights():
    y = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0]])
    owner = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    memory = PastExampleMemory(Examples(torch.zeros(1, 8, 4), y), owner)
    weights = DFR(NETWORK).compute_example_weights(torch.zeros(1, 8, 2), memory)
    expected = [2 / 3, 2 / 3, 2 / 3, 2, 2 / 3, 2 / 3, 2 / 3, 2]
    torch.testing.assert_close(weights, torch.tensor([expected]))


def test_a_strong_penalty_leaves_the_last_layer_as_it_was():
    learner = DFR(NETWORK, descent=DESCENT, memory=5, l2=1e9)
    state = train(learner, *STAGES)
    weights = state.params[:, NETWORK.head][:, :-2]
    torch.testing.assert_close(state.head[:, :-2], weights, atol=1e-4, rtol=1e-3)


def test_the_network_below_does_not_learn_from_held_out_rows():
    learner, place = DFR(NETWORK, descent=DESCENT, memory=5), make_classes("a")
    first = train(learner, (place,), seeds=(3,))
    assert measure_state_size(first)["memory"]["examples"] == 5
    kept = (place.inputs[:, None] == first.memory.kept.x[0]).all(-1).any(-1)
    assert kept.sum() == 5
    flipped = torch.where(kept, 1 - place.targets, place.targets)
    second = train(learner, (replace(place, targets=flipped),), seeds=(3,))
    assert torch.equal(second.params, first.params)
    assert not torch.equal(second.head, first.head)


def test_examples_of_all_environments_are_kept_and_used():
    state = train(DFR(NETWORK, descent=DESCENT, memory=5), *STAGES)
    assert state.memory.sizes == (5, 5, 5)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="dfr: the setting memory must be 1 or more"):
        DFR(memory=0)
