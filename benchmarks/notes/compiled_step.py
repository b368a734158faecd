"""Time a training step with and without `torch.compile`, plain and variational.

    OMP_NUM_THREADS=1 python -m benchmarks.notes.compiled_step

The step is written for the compiler, without batches or an optimiser.
"""

import time
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

torch.set_num_threads(1)
x, y, sizes = torch.rand(250, 1568), torch.randint(2, (250,)), (1568, 100, 100, 2)
shapes = list(pairwise(sizes))
means = [torch.randn(shape).div(shape[0]).requires_grad_() for shape in shapes]
logs = [torch.full(shape, -3.0).requires_grad_() for shape in shapes]


def compute_plain_loss() -> Tensor:
    """Return the loss of the means."""
    h = x
    for w in means:
        h = F.elu(h) @ w
    return F.cross_entropy(h, y)


def sample_loss() -> Tensor:
    """Return the loss of ten samples by local reparametrisation."""
    h = x.expand(10, -1, -1)
    for w, log in zip(means, logs, strict=True):
        h = F.elu(h)
        std = (h.square() @ (2 * log).exp()).sqrt()
        h = h @ w + std * torch.randn(std.shape)
    return F.cross_entropy(h.flatten(0, 1), y.repeat(10))


for title, loss, leaves in (
    ("plain", compute_plain_loss, means),
    ("sample_loss", sample_loss, means + logs),
):
    works = {"as it is": loss, "compiled": torch.compile(loss)}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(50):
        for name, work in works.items():
            began = time.perf_counter()
            torch.autograd.grad(work(), leaves)
            times[name].append(time.perf_counter() - began)
    for name, (first, *others) in times.items():
        text = f"{1e3 * median(others):.2f} ms, the first {first:.1f} s"
        print(f"{title}, {name}: {text}")
