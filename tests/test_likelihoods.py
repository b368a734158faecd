"""Losses, their derivatives and what is predicted, held against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from cirm.environments import Task
from cirm.likelihoods import CrossEntropy, SquaredError, choose_likelihood
from cirm.randomness import Randomness

SEEDS = (3, 5)
SOURCE = Randomness(SEEDS)
VALUES = SOURCE.at("targets").normal(7)


def outputs(*shape):
    return 2 * SOURCE.at("outputs").normal(*shape)


CASES = {
    "three classes": (CrossEntropy(3), outputs(7, 3), SOURCE.integers(3, 7)),
    "two logits": (CrossEntropy(2), outputs(7, 2), SOURCE.integers(2, 7)),
    "one logit": (CrossEntropy(2), outputs(7, 1), SOURCE.integers(2, 7)),
    "values": (SquaredError(), outputs(7, 1), VALUES),
}
SAMPLED = {
    f"sampled {name}": (likelihood, outputs(4, *plain.shape[1:]), targets)
    for name, (likelihood, plain, targets) in CASES.items()
}
ALL = {**CASES, **SAMPLED}
each_case = pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"), ALL.values(), ids=ALL
)


def test_classes_are_scored_by_cross_entropy():
    likelihood, logits, targets = CASES["three classes"]
    expected = F.cross_entropy(logits.mT, targets, reduction="none")
    torch.testing.assert_close(likelihood.compute_losses(logits, targets), expected)


def test_one_logit_is_scored_by_binary_cross_entropy():
    likelihood, logits, targets = CASES["one logit"]
    expected = F.binary_cross_entropy_with_logits(
        logits[..., 0], targets.float(), reduction="none"
    )
    torch.testing.assert_close(likelihood.compute_losses(logits, targets), expected)


def test_values_are_scored_by_squared_error():
    likelihood, values, targets = CASES["values"]
    expected = F.mse_loss(values[..., 0], targets, reduction="none")
    torch.testing.assert_close(likelihood.compute_losses(values, targets), expected)


def test_losses_stay_exact_for_extreme_logits():
    logits = torch.tensor([[[1000.0, 0.0], [-1000.0, 0.0]]])
    targets = torch.tensor([[1, 1]])
    expected = torch.tensor([[1000.0, 0.0]])
    assert torch.equal(CrossEntropy(2).compute_losses(logits, targets), expected)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "targets"), SAMPLED.values(), ids=SAMPLED
)
def test_each_sample_is_scored_as_if_alone(likelihood, outputs, targets):
    for function in (
        likelihood.compute_losses,
        likelihood.compute_output_gradients,
        likelihood.compute_output_scale_gradients,
    ):
        together = function(outputs, targets)
        for sample in range(4):
            alone = function(outputs[:, sample], targets)
            torch.testing.assert_close(together[:, sample], alone)


@each_case
def test_residuals_are_derivatives_in_the_outputs(likelihood, outputs, targets):
    outputs = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        likelihood.compute_losses(outputs, targets).sum(), outputs
    )
    torch.testing.assert_close(
        likelihood.compute_output_gradients(outputs, targets), slope
    )


@each_case
def test_slopes_are_derivatives_in_a_factor(likelihood, outputs, targets):
    factor = torch.ones(outputs.shape[:-1], requires_grad=True)
    losses = likelihood.compute_losses(factor.unsqueeze(-1) * outputs, targets)
    (slope,) = torch.autograd.grad(losses.sum(), factor)
    torch.testing.assert_close(
        likelihood.compute_output_scale_gradients(outputs, targets), slope
    )


def test_one_logit_is_the_second_of_two_with_the_first_at_zero():
    likelihood, second, targets = SAMPLED["sampled one logit"]
    both = torch.cat([torch.zeros_like(second), second], -1)
    for function in (
        likelihood.compute_losses,
        likelihood.compute_output_scale_gradients,
    ):
        torch.testing.assert_close(function(second, targets), function(both, targets))
    torch.testing.assert_close(
        likelihood.compute_output_gradients(second, targets),
        likelihood.compute_output_gradients(both, targets)[..., 1:],
    )
    torch.testing.assert_close(
        likelihood.convert_outputs_to_predictions(second),
        likelihood.convert_outputs_to_predictions(both),
    )


@pytest.mark.parametrize("name", ["three classes", "two logits", "one logit"])
def test_predicted_classes_are_mean_probabilities(name):
    likelihood, logits, _ = SAMPLED[f"sampled {name}"]
    chances = likelihood.convert_outputs_to_predictions(logits)
    assert chances.shape == (2, 7, likelihood.classes)
    torch.testing.assert_close(chances.sum(-1), torch.ones(2, 7))
    single = [
        likelihood.convert_outputs_to_predictions(logits[:, [sample]])
        for sample in range(4)
    ]
    torch.testing.assert_close(chances, torch.stack(single).mean(0))


def test_a_predicted_value_is_the_mean_of_the_samples():
    likelihood, values, _ = SAMPLED["sampled values"]
    torch.testing.assert_close(
        likelihood.convert_outputs_to_predictions(values), values.mean(1)
    )


def test_the_score_of_classes_is_accuracy_in_percent():
    chances = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]])
    scores = CrossEntropy(2).compute_scores(chances, torch.tensor([[0, 0, 1]]))
    assert scores.tolist() == [[100.0, 0.0, 100.0]]


def test_the_score_of_values_is_their_squared_error():
    scores = SquaredError().compute_scores(
        torch.tensor([[[1.0], [3.0]]]), torch.ones(1, 2)
    )
    assert scores.tolist() == [[0.0, 4.0]]


def test_the_task_decides_the_likelihood():
    assert choose_likelihood(Task.classification(5)) == CrossEntropy(5)
    assert choose_likelihood(Task.regression()) == SquaredError()
