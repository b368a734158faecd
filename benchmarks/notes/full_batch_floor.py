"""Compare a step of tables 3 and 4 with its matrix products alone.

    PYTHONPATH=src:. python -m benchmarks.notes.full_batch_floor

The step is that of a network 392-390-390-1 on the 50,000 examples of table 3, forward
and backward. The products have the shapes that are left without inputs that are zero
in a whole chunk, by the library that the step uses; they are also timed in bfloat16,
and the step by MKL, which is the same on most processors.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import compute_time_ratios, time_functions_in_turn
from cirm.networks import MLP, products
from cirm.networks.large_batches import pack_nonzero_inputs
from cirm.networks.products import multiply
from cirm.paper import EXPERIMENTS
from cirm.randomness import Randomness
from cirm.runs.jobs import draw_environments_of_job

ROUNDS = 3
WIDTH = 392  # of the hidden layers, padded


def load_inputs() -> Tensor:
    """Return the inputs of table 3, [1, 50,000, 2, 14, 14]."""
    trial = EXPERIMENTS["table3"].list_trials()[0]
    (job,) = trial.plan_jobs((0,))
    stage = draw_environments_of_job(job).train
    return torch.cat([environment.take_all(1).x for environment in stage], 1)


def make_products(
    shapes: list[tuple[int, int]], kind: torch.dtype
) -> Callable[[], None]:
    """Return a function that multiplies matrices for chunks of these shapes."""
    inner = torch.randn(WIDTH, WIDTH).to(kind)
    chunks = {shape: torch.randn(shape).to(kind) for shape in set(shapes)}
    hidden = {rows: torch.randn(rows, WIDTH).to(kind) for rows, _ in chunks}
    first = {kept: torch.randn(kept, WIDTH).to(kind) for _, kept in chunks}

    def multiply_all() -> None:
        for shape in shapes:
            x, h = chunks[shape], hidden[shape[0]]
            for pair in (
                (x, first[shape[1]]),
                (x.T, h),
                (h, inner),
                (h.T, h),
                (h, inner.T),
            ):
                multiply(*pair)

    return multiply_all


def main() -> None:
    """Print the times of a step and of its products."""
    torch.set_num_threads(1)
    x = load_inputs()
    packed = pack_nonzero_inputs(x.flatten(2))
    assert packed is not None
    network = MLP((392, 390, 390, 1), "relu")
    params = network.init(Randomness((0,))).requires_grad_()
    signs = torch.randint(2, x.shape[:2]) * 2.0 - 1

    def take_step() -> None:
        loss = F.softplus(signs * network(params, x)[..., 0]).mean()
        torch.autograd.grad(loss, params)

    def take_step_by_mkl() -> None:
        with patch.object(products, "has_mkl_without_avx512", lambda: False):
            take_step()

    shapes = [(part.shape[1], part.shape[2]) for _, part in packed.chunks]
    times = time_functions_in_turn(
        {
            "step": take_step,
            "step by MKL": take_step_by_mkl,
            "products": make_products(shapes, torch.float32),
            "products in bfloat16": make_products(shapes, torch.bfloat16),
        },
        ROUNDS,
    )
    for name, seconds in times.items():
        ratio = compute_time_ratios(seconds, times["products"])["median"]
        print(f"{name}: {min(seconds):.3f} s, {ratio:.2f} times the products")


if __name__ == "__main__":
    main()
