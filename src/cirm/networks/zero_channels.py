"""Images with empty channels: the same first layer with fewer products.

A coloured digit is zero in one of two channels, and at its border. Examples that have
the same empty channels are multiplied together, without the inputs that are zero for
all of them: of 250 coloured digits a third of the products remain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from cirm.networks.products import multiply

# Beyond these limits, preparing a batch takes longer than its products save (by
# `benchmarks.notes.table1_steps` and its batches of 250 images).
MIN_INPUTS = 2**15  # of a batch
MAX_KEPT = 0.6  # of the inputs
MAX_KINDS = 8  # of images, by their empty channels: all kinds of three channels


class PackedImages(NamedTuple):
    """Examples in another order, in blocks without inputs that are always zero.

    Attributes:
        shape: [1, n, in].
        order: The example at each new place, [n].
        places: The new place of each example, [n].
        blocks: For each block, which inputs are kept, [kept], and their values,
            [m, kept].
    """

    shape: tuple[int, int, int]
    order: Tensor
    places: Tensor
    blocks: list[tuple[Tensor, Tensor]]

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self.order.device

    def square(self) -> PackedImages:
        """Return the squares of the inputs."""
        squares = [(columns, values.square()) for columns, values in self.blocks]
        return self._replace(blocks=squares)

    def multiply(self, weight: Tensor) -> Tensor:
        """Return the products [1, n, out] with weights [1, in, out]."""
        products: Tensor = _Product.apply(weight.squeeze(0), self)
        return products.unsqueeze(0)


# Players of a game and networks of a posterior share a batch; it is packed once.
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def split_into_packed_chunks(inputs: Tensor, size: int) -> list[Tensor | PackedImages]:
    """Split inputs [replica, n, ...] into chunks [replica, m, in] of at most `size`.

    Images with empty channels are packed.
    """
    if inputs.numel() < MIN_INPUTS or not has_empty_channels(inputs):
        return list(inputs.flatten(2).split(size, 1))
    chunks = inputs.split(size, 1)
    key = inputs._version, min(size, inputs.shape[1])
    known, packed = _packed.get(inputs, (None, []))
    if known != key:
        packed = [pack_images(chunk[0]) for chunk in chunks]
        _packed[inputs] = key, packed  # no view of the inputs, which would keep them
    return [
        chunk.flatten(2) if images is None else images
        for chunk, images in zip(chunks, packed, strict=True)
    ]


def has_empty_channels(inputs: Tensor) -> bool:
    """Return whether inputs [replica, n, ...] may be packed, as the first one shows."""
    if len(inputs) != 1 or inputs.ndim < 4 or inputs.shape[2] == 1 or 0 in inputs.shape:
        return False
    if inputs.requires_grad or inputs.is_inference():
        return False
    return not inputs[0, 0].flatten(1).any(-1).all()


def pack_images(images: Tensor) -> PackedImages | None:
    """Pack images [n, channels, ...], or return None if too few inputs are zero."""
    channels = images.shape[1]
    sizes = images.abs().flatten(2)  # sums of these are faster than comparisons with 0
    filled = (sizes.sum(-1) != 0).long()
    kinds = (filled << torch.arange(channels, device=images.device)).sum(-1)
    found, counts = kinds.unique(return_counts=True)
    if len(found) > MAX_KINDS:
        return None
    order = kinds.argsort(stable=True)
    totals = (kinds == found[:, None]).to(images.dtype) @ sizes.flatten(1)
    rows = images.flatten(1).index_select(0, order).split(counts.tolist())
    blocks = []
    for block, total in zip(rows, totals, strict=True):
        columns = total.nonzero().squeeze(1)
        blocks.append((columns, block.index_select(1, columns)))
    shape = 1, len(images), images[0].numel()
    if sum(values.numel() for _, values in blocks) > MAX_KEPT * images.numel():
        return None
    return PackedImages(shape, order, order.argsort(), blocks)


class _Product(torch.autograd.Function):
    """Packed inputs times weights [in, out]; its derivative is the other function."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        weight: Tensor,
        packed: PackedImages,
    ) -> Tensor:
        ctx.packed = packed
        products = [
            multiply(values, weight.index_select(0, columns), is_shape_new=True)
            for columns, values in packed.blocks
        ]
        return torch.cat(products).index_select(0, packed.places)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor, None]:
        gradient: Tensor = _TransposedProduct.apply(slope, ctx.packed)
        return gradient, None


class _TransposedProduct(torch.autograd.Function):
    """Transposed packed inputs times slopes [n, out], which gives [in, out]."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
        packed: PackedImages,
    ) -> Tensor:
        ctx.packed = packed
        total = slope.new_zeros(packed.shape[2], slope.shape[1])
        sizes = [len(values) for _, values in packed.blocks]
        parts = slope.index_select(0, packed.order).split(sizes)
        for (columns, values), part in zip(packed.blocks, parts, strict=True):
            product = multiply(values.mT, part, is_shape_new=True)
            total.index_add_(0, columns, product)
        return total

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor, None]:
        gradient: Tensor = _Product.apply(slope, ctx.packed)
        return gradient, None
