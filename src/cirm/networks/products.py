"""Products of matrices in single precision, by the faster of PyTorch's two libraries.

PyTorch multiplies matrices by MKL. On AMD's processors MKL does not use AVX-512, where
they have it, but oneDNN, which comes with PyTorch too, does: it takes 0.45 times as
long (`python -m benchmarks.notes.product_libraries`).
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Multiplications from which on oneDNN is faster, its call from Python included
# (`benchmarks.notes.product_libraries`).
MIN_MULTIPLICATIONS = 2**22


def add_product(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return bias + x @ weight for each replica.

    The biases are [replica, 1, out], `x` is [replica, n, in] and the weights are
    [replica, in, out].
    """
    if not _is_faster_by_onednn(x, weight):
        return torch.baddbmm(bias, x, weight)
    sums = [
        multiply_by_onednn(*one).add_(offset)
        for one, offset in zip(zip(x, weight, strict=True), bias, strict=True)
    ]
    return sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product [n, out] of [n, in] and [in, out]."""
    return (
        multiply_by_onednn(x, weight) if _is_faster_by_onednn(x, weight) else x @ weight
    )


def multiply_by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product [n, out] of [n, in] and [in, out]; it has all derivatives."""
    product: Tensor = _Product.apply(x, weight)
    return product


def _is_faster_by_onednn(x: Tensor, weight: Tensor) -> bool:
    n, size, outputs = x.shape[-2], x.shape[-1], weight.shape[-1]
    return (
        n * size * outputs >= MIN_MULTIPLICATIONS
        and outputs > 1
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and has_mkl_without_avx512()
    )


@cache
def has_mkl_without_avx512() -> bool:
    """Return whether the processor has AVX-512, and MKL does not use it."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "AuthenticAMD" in _read_processor_vendor()
    )


def _read_processor_vendor() -> str:
    """Return a text that names the vendor of the processor."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:  # not on Linux
        return platform.processor()


class _Product(torch.autograd.Function):
    """A product of two matrices, whose derivatives are such products."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        x: Tensor,
        weight: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            _make_dense(x), _make_dense(weight).mT, None, "none", [], ""
        )
        return product

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return (
            multiply_by_onednn(slope, weight.mT) if needs_x else None,
            multiply_by_onednn(x.mT, slope) if needs_weight else None,
        )


def _make_dense(matrix: Tensor) -> Tensor:
    """Return the matrix without gaps or repeats in memory.

    Others, such as the expanded slope of a sum, take oneDNN hundreds of times as long.
    """
    is_dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    return matrix if is_dense else matrix.contiguous()
