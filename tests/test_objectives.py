"""Risks and penalties by environment, held against plain loops and autodiff."""

import pytest
import torch

from cirm.environments import Examples
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.objectives import (
    average_outputs_with_past_models,
    average_risks_over_examples,
    average_values_by_environment,
    compute_environment_risks,
    compute_head_gradients,
    compute_irm_penalties,
    compute_quadratic_penalty,
)
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
SIZES = (6, 1, 4)
SOURCE = Randomness(SEEDS)


def batch_of(targets):
    """A batch of three unequal environments."""
    x = SOURCE.at("x").normal(sum(SIZES), 4)
    pieces = map(Examples, x.split(SIZES, 1), targets.split(SIZES, 1))
    return Descent().build_batch(list(pieces), SOURCE.at("noise").start_draws())


CLASSES = batch_of(SOURCE.at("y").integers(3, sum(SIZES)))
VALUES = batch_of(SOURCE.at("y").normal(sum(SIZES)))
CASES = {
    "classes": (CrossEntropy(3), MLP((4, 5, 3)), CLASSES),
    "values": (SquaredError(), MLP((4, 5, 1)), VALUES),
}
each_case = pytest.mark.parametrize(
    ("likelihood", "network", "batch"), CASES.values(), ids=CASES
)
RANGES = [range(0, 6), range(6, 7), range(7, 11)]


def test_means_are_those_of_each_environment_alone():
    values = SOURCE.normal(sum(SIZES))
    expected = [values[:, list(rows)].mean(1) for rows in RANGES]
    means = average_values_by_environment(values, CLASSES.share)
    torch.testing.assert_close(means, torch.stack(expected, -1))


def test_means_keep_a_sample_axis():
    values = SOURCE.normal(2, sum(SIZES))
    expected = [
        average_values_by_environment(v, CLASSES.share) for v in values.unbind(1)
    ]
    means = average_values_by_environment(values, CLASSES.share)
    torch.testing.assert_close(means, torch.stack(expected, 1))


def test_a_batch_splits_into_its_environments():
    for rows, (x, y) in zip(RANGES, CLASSES.split_by_environment(), strict=True):
        assert torch.equal(x, CLASSES.x[:, list(rows)])
        assert torch.equal(y, CLASSES.y[:, list(rows)])


@each_case
def test_risks_are_mean_losses(likelihood, network, batch):
    params = network.init(SOURCE)
    risks = compute_environment_risks(network, likelihood, params, batch)
    for e, (x, y) in enumerate(batch.split_by_environment()):
        alone = likelihood.compute_losses(network(params, x), y).mean(-1)
        torch.testing.assert_close(risks[:, e], alone)


@each_case
def test_pooled_risk_is_the_mean_over_all_examples(likelihood, network, batch):
    params = network.init(SOURCE)
    risks = compute_environment_risks(network, likelihood, params, batch)
    losses = likelihood.compute_losses(network(params, batch.x), batch.y)
    torch.testing.assert_close(
        average_risks_over_examples(risks, batch), losses.mean(-1)
    )


@each_case
def test_a_slope_penalty_is_a_squared_derivative(likelihood, network, batch):
    outputs = network(network.init(SOURCE), batch.x)
    penalties = compute_irm_penalties(likelihood, outputs, batch)
    for e, rows in enumerate(RANGES):
        rows = list(rows)
        factor = torch.ones(2, 1, 1, requires_grad=True)
        losses = likelihood.compute_losses(factor * outputs[:, rows], batch.y[:, rows])
        (slope,) = torch.autograd.grad(losses.mean(-1).sum(), factor)
        torch.testing.assert_close(penalties[:, e], slope[:, 0, 0] ** 2)


@each_case
def test_halves_multiply_the_slopes_of_every_second_example(likelihood, network, batch):
    outputs = network(network.init(SOURCE), batch.x)
    penalties = compute_irm_penalties(likelihood, outputs, batch, use_halves=True)
    slopes = likelihood.compute_output_scale_gradients(outputs, batch.y)
    expected = slopes[:, 0:6:2].mean(1) * slopes[:, 1:6:2].mean(1)
    torch.testing.assert_close(penalties[:, 0], expected)
    # One example has no second half.
    assert not penalties[:, 1].any()


def test_the_product_of_halves_is_unbiased_and_the_square_is_not():
    source, size, draws = Randomness(tuple(range(400))), 4, 20
    likelihood = SquaredError()
    true = 2 * (1.5**2 - 1.5 * 0.5)  # slope of the mean of (f z - t)^2 at f = 1
    estimates = {False: [], True: []}
    for index in range(draws):
        noise = source.at(index).normal(size)
        outputs, targets = torch.full((400, size, 1), 1.5), 0.5 + noise
        piece = Examples(torch.zeros(400, size, 1), targets)
        made = Descent().build_batch([piece], source.start_draws())
        for halves, found in estimates.items():
            found.append(compute_irm_penalties(likelihood, outputs, made, halves))
    product, square = (torch.stack(estimates[key]).mean() for key in (True, False))
    spread = torch.stack(estimates[True]).std() / (400 * draws) ** 0.5
    assert abs(product - true**2) < 4 * spread
    # The variance of a slope is 4 * 1.5^2, here that of a mean of four.
    torch.testing.assert_close(square, torch.tensor(true**2 + 9 / 4), rtol=0.05, atol=0)


@each_case
def test_head_gradients_are_derivatives_in_the_head(likelihood, network, batch):
    params = network.init(SOURCE).requires_grad_()
    features = network.compute_features(params, batch.x)
    outputs = network(params, batch.x)
    found = compute_head_gradients(likelihood, features, outputs, batch.y, batch.share)
    risks = average_values_by_environment(
        likelihood.compute_losses(outputs, batch.y), batch.share
    )
    for e in range(len(SIZES)):
        (slope,) = torch.autograd.grad(risks[:, e].sum(), params, retain_graph=True)
        torch.testing.assert_close(found[:, e], slope[:, network.head])


def test_the_past_answers_as_one_more_whatever_its_number():
    answers = list(SOURCE.normal(5, 4).unbind(1))
    alone, past = answers[:2], answers[2:]
    torch.testing.assert_close(
        average_outputs_with_past_models(alone, []), (alone[0] + alone[1]) / 2
    )
    expected = (alone[0] + alone[1] + sum(past) / 3) / 3
    torch.testing.assert_close(average_outputs_with_past_models(alone, past), expected)
    torch.testing.assert_close(
        average_outputs_with_past_models([], past), sum(past) / 3
    )


def test_a_pull_and_its_gradients_are_those_of_the_quadratic():
    params, anchor, curvature = (
        SOURCE.at(name).normal(4).double() for name in ("p", "anchor", "curvature")
    )
    params.requires_grad_()
    found = compute_quadratic_penalty(params, anchor, curvature)
    wanted = (curvature * (params - anchor).square()).sum(-1) / 2
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(
        lambda p: compute_quadratic_penalty(p, anchor, curvature), params
    )
    assert torch.autograd.gradgradcheck(
        lambda p: compute_quadratic_penalty(p, anchor, curvature), params
    )
