"""Compare the two libraries that PyTorch multiplies matrices with, MKL and oneDNN.

    PYTHONPATH=src:. python -m benchmarks.notes.product_libraries

For products [n, in] x [in, out] forward, and forward and backward, it prints how long
oneDNN takes as a multiple of MKL's time. `MIN_MULTIPLICATIONS` in
`cirm.networks.products` was chosen by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import (
    compute_time_ratios,
    get_processor_name,
    time_functions_in_turn,
)
from cirm.networks.products import has_mkl_without_avx512, multiply_by_onednn

ROUNDS = 9
SHAPES = [
    (16, 128, 128),
    (32, 128, 128),
    (250, 128, 128),
    (64, 256, 256),
    (250, 131, 100),
    (250, 256, 256),
    (250, 392, 392),
    (1024, 160, 392),
    (1024, 392, 392),
    (10_000, 392, 392),
    (1024, 392, 1),
    (1024, 392, 10),
]


def run_many(multiply: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> int:
    """Multiply until about 50 million multiplications are done; return how often."""
    times = max(1, 50_000_000 // (x.numel() * w.shape[1]))
    for _ in range(times):
        product = multiply(x, w)
        if w.requires_grad:
            torch.autograd.grad(product.sum(), (x, w))
    return times


def main() -> None:
    """Print the ratio of times for each shape."""
    torch.set_num_threads(1)
    print(f"{get_processor_name()}; used here: {has_mkl_without_avx512()}")
    for n, size, outputs in SHAPES:
        ratios = []
        for needs_grad in (False, True):
            x = torch.rand(n, size, requires_grad=needs_grad)
            w = torch.rand(size, outputs, requires_grad=needs_grad)
            times = time_functions_in_turn(
                {
                    "mkl": partial(run_many, torch.mm, x, w),
                    "onednn": partial(run_many, multiply_by_onednn, x, w),
                },
                ROUNDS,
            )
            ratios.append(compute_time_ratios(times["onednn"], times["mkl"])["median"])
        millions = n * size * outputs / 1e6
        print(
            f"{n:6} x {size:3} x {outputs:3} ({millions:7.2f} million): "
            f"{ratios[0]:.2f} forward, {ratios[1]:.2f} with derivatives"
        )


if __name__ == "__main__":
    main()
