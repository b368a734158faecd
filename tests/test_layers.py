"""Layers give the outputs and derivatives of single operations."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from cirm.networks.layers import (
    LayerSizesAndActivation,
    compute_layer_outputs,
    run_layers_with_sampled_weights,
)
from cirm.randomness import Randomness

SEEDS = (3, 5)
SIZES = (2, 3, 2, 2)
SIZE = 2 * 3 + 3 + 3 * 2 + 2 + 2 * 2 + 2
EXAMPLES, SAMPLES = 3, 2
SOURCE = Randomness(SEEDS, ("passes",))
USUAL = {"elu": F.elu, "relu": F.relu, "linear": lambda x: x}

each_case = pytest.mark.parametrize(
    ("activation", "dropout"),
    [("elu", False), ("elu", True), ("relu", False), ("relu", True), ("linear", True)],
)


def plan_of(activation, layers=3):
    kinds = (activation, activation, "linear")[:layers]
    return LayerSizesAndActivation(SIZES[: layers + 1], kinds)


def flat(name, size=SIZE, scale=1.0):
    return (scale * SOURCE.at(name).normal(size).double()).requires_grad_()


def inputs():
    return SOURCE.at("x").normal(EXAMPLES, SIZES[0]).double().requires_grad_()


def masks_of(dropout, *lead):
    if not dropout:
        return [None] * 3
    draws = SOURCE.at("masks").start_draws()
    return [2 * draws.bernoulli(0.5, *lead, EXAMPLES, n) for n in SIZES[1:3]] + [None]


def single(plan, params, x, masks):
    """The same pass by operations that autograd knows."""
    for (weight, bias), kind, mask in zip(
        plan.split_parameters_into_layers(params), plan.activations, masks, strict=True
    ):
        x = USUAL[kind](x @ weight + bias)
        x = x if mask is None else x * mask
    return x


def single_sums(plan, mean, log_std, x, draws, masks):
    x = x.unsqueeze(1)
    layers = zip(
        plan.split_parameters_into_layers(mean),
        plan.split_parameters_into_layers((2 * log_std).exp()),
        strict=True,
    )
    for i, ((weight, bias), (variance, bias_variance)) in enumerate(layers):
        middle = x @ weight.unsqueeze(1) + bias.unsqueeze(1)
        spread = x.square() @ variance.unsqueeze(1) + bias_variance.unsqueeze(1)
        x = USUAL[plan.activations[i]](middle + spread.sqrt() * draws[i])
        x = x if masks[i] is None else x * masks[i]
    return x


def sums_case(activation, dropout):
    source = SOURCE.at("draws").start_draws()
    draws = [source.normal(SAMPLES, EXAMPLES, n).double() for n in SIZES[1:]]
    leaves = flat("mean"), flat("log_std", scale=0.3), inputs()
    return plan_of(activation), leaves, draws, masks_of(dropout, SAMPLES)


def agree(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs)
    slopes = [
        torch.autograd.grad(outputs.square().sum(), leaves)
        for outputs in (ours, theirs)
    ]
    torch.testing.assert_close(*slopes)


@each_case
def test_a_pass_and_its_gradient_are_those_of_single_operations(activation, dropout):
    plan, masks, leaves = plan_of(activation), masks_of(dropout), (flat("p"), inputs())
    agree(
        compute_layer_outputs(plan, *leaves, masks),
        single(plan, *leaves, masks),
        leaves,
    )


@each_case
def test_sums_and_their_gradient_are_those_of_single_operations(activation, dropout):
    plan, leaves, draws, masks = sums_case(activation, dropout)
    ours = run_layers_with_sampled_weights(plan, *leaves, draws, masks)
    agree(ours, single_sums(plan, *leaves, draws, masks), leaves)


@each_case
def test_a_pass_can_be_differentiated_twice(activation, dropout):
    plan, masks = plan_of(activation), masks_of(dropout)

    def work(params, x):
        return compute_layer_outputs(plan, params, x, masks)

    assert gradcheck(work, (flat("p"), inputs()))
    assert gradgradcheck(work, (flat("p"), inputs()))


@each_case
def test_sums_can_be_differentiated_twice(activation, dropout):
    plan, leaves, draws, masks = sums_case(activation, dropout)

    def work(mean, log_std, x):
        return run_layers_with_sampled_weights(plan, mean, log_std, x, draws, masks)

    assert gradcheck(work, leaves)
    assert gradgradcheck(work, leaves)


@pytest.mark.parametrize("again", [False, True])
def test_parameters_after_the_last_layer_have_no_gradient(again):
    plan, params, x = plan_of("elu", 2), flat("p"), inputs()
    outputs = compute_layer_outputs(plan, params, x, masks_of(dropout=True)[:2])
    (slope,) = torch.autograd.grad(outputs.sum(), params, create_graph=again)
    head = SIZES[2] * SIZES[3] + SIZES[3]
    assert slope[:, :-head].any() and not slope[:, -head:].any()
