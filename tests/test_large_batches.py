"""Large batches give the outputs and gradients of small ones, with fewer products."""

import pytest
import torch

from cirm.networks import MLP
from cirm.networks.large_batches import (
    CHUNK,
    LARGE,
    get_cached_packed_inputs,
    pack_nonzero_inputs,
    pad_hidden_layers_with_zero_units,
)
from cirm.randomness import Randomness

SEEDS = (3, 5)
COUNT = 2 * CHUNK + 37
HALF = 6  # inputs of a colour
NETWORK = MLP((2 * HALF, 5, 7, 2), "relu")


def draw_colours():
    """Inputs that are zero in one half, as coloured digits are, and at one place."""
    x = Randomness(SEEDS).normal(COUNT, 2, HALF)
    colour = Randomness(SEEDS, ("colour",)).integers(2, COUNT)
    x = x * torch.nn.functional.one_hot(colour, 2).unsqueeze(-1)
    x[..., 2] = 0
    return x


def run_in_small_batches(params, x):
    return torch.cat([NETWORK(params, part) for part in x.split(LARGE - 1, 1)], 1)


@pytest.mark.parametrize("sparse", [True, False])
def test_outputs_and_gradients_are_those_of_small_batches(sparse):
    x = draw_colours() if sparse else Randomness(SEEDS).normal(COUNT, 2 * HALF)
    params = NETWORK.init(Randomness(SEEDS)).requires_grad_()
    assert (get_cached_packed_inputs(x) is not None) == sparse
    pairs = []
    for outputs in (NETWORK(params, x), run_in_small_batches(params, x)):
        loss = (outputs * torch.linspace(-1, 1, COUNT)[:, None]).square().sum()
        pairs.append((outputs, *torch.autograd.grad(loss, params)))
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-4)


def test_examples_of_one_colour_are_multiplied_without_the_other():
    packed = pack_nonzero_inputs(draw_colours().flatten(2))
    sizes = [len(kept) for kept, _ in packed.chunks]
    assert min(sizes) == HALF - 1 and max(sizes) == 2 * (HALF - 1)


def test_inputs_that_were_changed_are_packed_anew():
    x = draw_colours()
    params = NETWORK.init(Randomness(SEEDS)).requires_grad_()
    NETWORK(params, x)
    x.mul_(2)
    torch.testing.assert_close(
        NETWORK(params, x), run_in_small_batches(params, x), rtol=1e-4, atol=1e-5
    )


def test_gradients_of_the_inputs_themselves_are_kept():
    x = draw_colours().requires_grad_()
    params = NETWORK.init(Randomness(SEEDS)).requires_grad_()
    slopes = [
        torch.autograd.grad(run(params, x).square().sum(), x)
        for run in (NETWORK, run_in_small_batches)
    ]
    torch.testing.assert_close(*slopes)


def test_padded_layers_have_widths_that_are_multiples_of_eight():
    params = NETWORK.init(Randomness(SEEDS))
    shapes = [
        tuple(weight.shape[1:])
        for weight, _ in pad_hidden_layers_with_zero_units(
            NETWORK.split_parameters_into_layers(params)
        )
    ]
    assert shapes == [(2 * HALF, 8), (8, 8), (8, 2)]
