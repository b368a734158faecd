"""Fully connected layers, with fixed weights or with normally distributed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.networks.products import add_product
from cirm.networks.zero_channels import PackedImages

Layers = list[tuple[Tensor, Tensor]]
"""Weights [replica, in, out] and biases [replica, 1, out] of each layer."""

ACTIVATIONS = ("elu", "relu", "linear")
"""Names of the activations."""

NARROW = 8  # outputs; for 2 to 8, products with transposed weights take a third to a
# fifth of the time (`benchmarks.notes.table1_steps` has layers of 2 outputs)
MIN_ROWS = 200  # with fewer, transposing and its derivative take up to twice as long


class LayerSizesAndActivation(NamedTuple):
    """The sizes of layers from the inputs on, and the activation of each layer.

    The flat parameters may be longer than these layers need.
    """

    sizes: tuple[int, ...]
    activations: tuple[str, ...]

    def split_parameters_into_layers(self, params: Tensor) -> Layers:
        """Return views of the layers in flat parameters [replica, p]."""
        shapes = [shape for a, b in pairwise(self.sizes) for shape in ((a, b), (1, b))]
        lengths = [a * b for a, b in shapes]
        pieces = params.split([*lengths, params.shape[1] - sum(lengths)], 1)
        views = [
            piece.view(-1, a, b)
            for piece, (a, b) in zip(pieces[:-1], shapes, strict=True)
        ]
        return list(zip(views[::2], views[1::2], strict=True))


def compute_layer_outputs(
    layer_sizes: LayerSizesAndActivation,
    params: Tensor,
    x: Tensor | PackedImages,
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Return the outputs [replica, n, out] of inputs [replica, n, in].

    The outputs of each layer are multiplied by its mask, if it has one.
    """
    return apply_layers_in_order(
        layer_sizes.split_parameters_into_layers(params),
        layer_sizes.activations,
        x,
        masks,
    )


def apply_layers_in_order(
    layers: Layers,
    activations: Sequence[str],
    x: Tensor | PackedImages,
    masks: Sequence[Tensor | None] = (),
) -> Tensor:
    """Return the outputs [replica, n, out] of layers; `masks` may be left out."""
    masks = masks or (None,) * len(layers)
    for (weight, bias), activation, mask in zip(
        layers, activations, masks, strict=True
    ):
        x = _apply_activation(_compute_sums(x, weight, bias), activation, mask)
    assert isinstance(x, Tensor)
    return x


def _compute_sums(x: Tensor | PackedImages, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x times weights [replica, in, out] plus biases [replica, 1, out]."""
    if isinstance(x, PackedImages):
        return x.multiply(weight) + bias
    is_narrow = 1 < weight.shape[2] <= NARROW and x.shape[1] >= MIN_ROWS
    if len(weight) == 1 and is_narrow:
        transposed = weight.squeeze(0).mT.contiguous()
        return F.linear(x.squeeze(0), transposed, bias.view(-1)).unsqueeze(0)
    return add_product(bias, x, weight)


def run_layers_with_sampled_weights(
    layer_sizes: LayerSizesAndActivation,
    mean: Tensor,
    log_std: Tensor,
    x: Tensor | PackedImages,
    draws: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Return outputs [replica, sample, n, out] of independent normal weights.

    By local reparametrisation each layer's sums are drawn instead of its weights, with
    the standard normal `draws` [replica, sample, n, out] of each layer.
    """
    axes = draws[0].shape[1:3]
    layers = zip(
        layer_sizes.split_parameters_into_layers(mean),
        layer_sizes.split_parameters_into_layers(log_std),
        strict=True,
    )
    for i, ((weight, bias), log_stds) in enumerate(layers):
        draw, mask = draws[i], masks[i]
        variance, bias_variance = ((2 * one).exp() for one in log_stds)
        sums = _compute_sums(x, weight, bias)
        spread = _compute_sums(x.square(), variance, bias_variance).sqrt()
        if i == 0:  # the inputs are the same for every sample
            sums, spread = sums.unsqueeze(1), spread.unsqueeze(1)
            sums = torch.addcmul(sums, spread, draw).flatten(1, 2)
        else:
            sums = torch.addcmul(sums, spread, draw.flatten(1, 2))
        mask = None if mask is None else mask.flatten(1, 2)
        x = _apply_activation(sums, layer_sizes.activations[i], mask)
    assert isinstance(x, Tensor)
    return x.unflatten(1, axes)


def _apply_activation(sums: Tensor, activation: str, mask: Tensor | None) -> Tensor:
    """Return a layer's outputs, multiplied by its mask if it has one."""
    if activation == "elu":
        outputs: Tensor = _MaskedELU.apply(sums, mask)
        return outputs
    if activation == "relu":
        sums = sums.relu()
    return sums if mask is None else sums * mask


class _MaskedELU(torch.autograd.Function):
    """ELU times a mask.

    By autograd, the second derivatives of BVIRM's step would take 1.10 to 1.18 times as
    long; everything else takes as long either way.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        sums: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        outputs = F.elu(sums)
        if mask is not None:
            outputs.mul_(mask)
        ctx.save_for_backward(outputs, mask)
        return outputs

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor, None]:
        outputs, mask = ctx.saved_tensors
        # As clamp, whose own derivative takes eight times as long.
        below = F.hardtanh(outputs, -math.inf, 0.0)
        return slope * below.add_(1 if mask is None else mask), None
