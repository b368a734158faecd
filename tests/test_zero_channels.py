"""Images with empty channels: packed inputs give what dense ones give."""

import pytest
import torch

from cirm.networks import MLP, zero_channels
from cirm.networks.zero_channels import (
    PackedImages,
    pack_images,
    split_into_packed_chunks,
)
from cirm.randomness import Randomness
from cirm.variational import create_diagonal_gaussian


def coloured(count=60, side=20, seed=0):
    """Images [count, 2, side, side] in one of two colours, with an empty border."""
    source = Randomness((seed,))
    images = source.at("images").normal(count, 2, side, side)[0]
    images[:, :, :3] = 0
    colours = source.at("colours").integers(2, count)[0]
    images[torch.arange(count), 1 - colours] = 0
    return images


def pack(images):
    packed = pack_images(images)
    assert packed is not None
    return packed


@pytest.mark.parametrize("both", [0, 5])
def test_products_and_their_derivatives_are_those_of_dense_inputs(both):
    images = coloured().double()
    images[:both, :, 3:] = 1.0  # these have no empty channel
    packed, dense = pack(images), images.flatten(1)
    weight = Randomness((1,)).normal(dense.shape[1], 5).double().requires_grad_()
    results = []
    for multiply in (packed.multiply, lambda weight: dense @ weight):
        products = multiply(weight)
        (first,) = torch.autograd.grad(products.pow(3).sum(), weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), weight)
        results.append((products, first, second))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(
        packed.square().multiply(weight), dense.square() @ weight
    )


def test_at_most_half_of_the_inputs_are_kept():
    images = coloured()
    kept = sum(values.numel() for _, values in pack(images).blocks)
    assert kept == (images != 0).sum() < images.numel() / 2


@pytest.mark.parametrize("fill", ["every channel", "one channel of all"])
def test_images_that_are_alike_are_not_packed(fill):
    images = coloured()
    images = torch.ones_like(images) if fill == "every channel" else images[:, :1]
    (chunk,) = split_into_packed_chunks(images.unsqueeze(0), len(images))
    torch.testing.assert_close(chunk, images.flatten(1).unsqueeze(0))


def test_chunks_are_packed_once_and_again_after_a_change():
    inputs = coloured().unsqueeze(0)
    first, again = (split_into_packed_chunks(inputs, 40) for _ in range(2))
    assert len(first) == 2 and first[0] is again[0]
    assert isinstance(first[0], PackedImages)
    inputs.mul_(2)
    torch.testing.assert_close(
        split_into_packed_chunks(inputs, 40)[0].blocks[0][1],
        2 * first[0].blocks[0][1],
    )


def test_a_network_predicts_the_same_for_images_and_for_vectors():
    network, inputs = MLP((800, 6, 2)), coloured().unsqueeze(0)
    q = create_diagonal_gaussian(network.init(Randomness((0,))), 0.1)
    for sample in (
        lambda x: network(q.mean, x),
        lambda x: network.compute_features(q.mean, x),
        lambda x: network.sample_outputs_with_fixed_noise(q, x, 3),
        lambda x: network.sample_outputs(q, x, Randomness((1,)).start_draws(), 3),
    ):
        torch.testing.assert_close(sample(inputs), sample(inputs.flatten(2)))


def test_no_example_gives_no_output():
    network = MLP((800, 6, 2))
    q = create_diagonal_gaussian(network.init(Randomness((0,))), 0.1)
    none = torch.zeros(1, 0, 2, 20, 20)
    assert network.sample_outputs_with_fixed_noise(q, none, 3).shape == (1, 3, 0, 2)


def test_a_batch_is_kept_no_longer_than_it_is_used():
    images = Randomness((0,)).normal(60, 3, 20, 20)[0]
    images[0, 0] = 0  # may be packed, but is not worth it
    inputs = torch.cat([images[None]])
    kept = len(zero_channels._packed)
    split_into_packed_chunks(inputs, 60)
    assert len(zero_channels._packed) == kept + 1
    del inputs
    assert len(zero_channels._packed) == kept


def test_images_of_very_many_kinds_are_not_packed():
    codes = torch.arange(1, 33)
    filled = codes[:, None].bitwise_right_shift(torch.arange(6)) % 2
    images = filled[:, :, None, None] * torch.ones(1, 1, 20, 20)
    assert pack_images(images) is None


def test_networks_work_in_inference_mode_and_with_gradients_afterwards():
    network = MLP((800, 4, 2))
    q = create_diagonal_gaussian(network.init(Randomness((0,))), 0.1)
    images = coloured()[None]
    with torch.inference_mode():
        first = network.sample_outputs_with_fixed_noise(q, images.clone(), 2)
    mean = q.mean.clone().requires_grad_()
    again = network.sample_outputs_with_fixed_noise(q._replace(mean=mean), images, 2)
    again.sum().backward()
    torch.testing.assert_close(first, again.detach())
