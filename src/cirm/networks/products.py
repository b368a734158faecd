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

# The same for shapes that hardly ever come again: oneDNN prepares itself for each new
# shape, which takes half a millisecond or more.
MIN_OF_NEW_SHAPE = 2**27


def add_product(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return bias + x @ weight for each replica.

    The biases are [replica, 1, out], `x` is [replica, n, in] and the weights are
    [replica, in, out].
    """
    if not _is_faster_by_onednn(x, weight, MIN_MULTIPLICATIONS):
        return torch.baddbmm(bias, x, weight)
    sums = [
        multiply_by_onednn(*one).add_(offset)
        for one, offset in zip(zip(x, weight, strict=True), bias, strict=True)
    ]
    return sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums)


def multiply(x: Tensor, weight: Tensor, is_shape_new: bool = False) -> Tensor:
    """Return the product [n, out] of [n, in] and [in, out].

    Say if its shape is a new one at almost every call. That is for the caller to say,
    since digits would depend on earlier calls if it was found out here.
    """
    least = MIN_OF_NEW_SHAPE if is_shape_new else MIN_MULTIPLICATIONS
    if _is_faster_by_onednn(x, weight, least):
        return multiply_by_onednn(x, weight)
    return x @ weight


def multiply_by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product [n, out] of [n, in] and [in, out]; it has all derivatives."""
    product: Tensor = _Product.apply(x, weight)
    return product


def _is_faster_by_onednn(x: Tensor, weight: Tensor, least: int) -> bool:
    n, size, outputs = x.shape[-2], x.shape[-1], weight.shape[-1]
    return (
        n * size * outputs >= least
        and outputs > 1
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not _is_transformed_by_torch()
        and has_mkl_without_avx512()
    )


def _is_transformed_by_torch() -> bool:
    """Return whether torch changes what is computed, as `vmap` or `compile` do."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
    )


@cache
def has_mkl_without_avx512() -> bool:
    """Return whether oneDNN uses the processor's AVX-512, and MKL does not."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "AuthenticAMD" in _read_processor_vendor()
        and can_multiply_by_onednn()
    )


def can_multiply_by_onednn() -> bool:
    """Return whether this PyTorch has the functions used here that are not public."""
    ones = torch.ones(2, 2)
    try:
        _is_transformed_by_torch()
        return bool((_call_onednn(ones, ones) == 2).all())
    except (AttributeError, RuntimeError, TypeError):  # other name or arguments
        return False


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
        ctx.save_for_forward(x, weight)
        return _call_onednn(x, weight)

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

    @staticmethod
    def jvp(
        ctx: Any,  # noqa: ANN401
        x_tangent: Tensor | None,
        weight_tangent: Tensor | None,
    ) -> Tensor:
        x, weight = ctx.saved_tensors
        parts = [
            left @ right
            for left, right in ((x_tangent, weight), (x, weight_tangent))
            if left is not None and right is not None
        ]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _call_onednn(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        _make_dense(x), _make_dense(weight).mT, None, "none", [], ""
    )
    return product


def _make_dense(matrix: Tensor) -> Tensor:
    """Return the matrix without gaps or repeats in memory.

    Others, such as the expanded slope of a sum, take oneDNN hundreds of times as long.
    """
    is_dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    return matrix if is_dense else matrix.contiguous()
