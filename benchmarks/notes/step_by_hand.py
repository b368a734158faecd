"""Time a step of ERM that is written by hand, as a multiple of its matrix products.

    OMP_NUM_THREADS=1 python -m benchmarks.notes.step_by_hand

Each line adds one part of a training step to those before it.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adam import adam

from benchmarks import workloads
from benchmarks.matrix_products import list_plain_products
from cirm.learners.erm import ERM
from cirm.networks.mlp import MLP

torch.set_num_threads(1)
workload = workloads.build_table1_workload(quick=False)
x0, y0 = workload.data[1]
learner = cast(ERM, workload.make_learner("erm", "paper", dropout=0.0))
network = cast(MLP, learner.network)
own, floor = (
    workloads.TimedLearner(workload, learner),
    list_plain_products(workload.sizes, 250),
)
params = network.init(own.randomness)
grad, first, second = (torch.zeros_like(params) for _ in range(3))
empty: list[Tensor] = []
moments = [params], [grad], [first], [second], empty, [torch.zeros(())]
layers, gradients = map(network.split_parameters_into_layers, (params, grad))


@torch.no_grad()
def take_steps(gather: bool = False, move: bool = False, rest: bool = False) -> None:
    """Take 20 steps: products alone, and batches, Adam and activations if asked."""
    for _ in range(20):
        rows = torch.randperm(1000)[:250]
        x = (x0.index_select(0, rows) if gather else x0[:250])[None]
        seen = [x]
        for weight, bias in layers:
            seen.append(torch.baddbmm(bias, seen[-1], weight))
            if rest and len(seen) < 4:
                F.elu(seen[-1], inplace=True)
        back = seen.pop()
        if rest:
            back = learner.likelihood.compute_output_gradients(back, y0[rows][None])
            back = back / 250
        for (weight, _), (to, bias) in zip(layers[::-1], gradients[::-1], strict=True):
            x = seen.pop()
            torch.bmm(x.mT, back, out=to)
            torch.sum(back, 1, keepdim=True, out=bias)
            if seen:
                back = back @ weight.mT
                if rest:
                    back *= x.clamp(max=0).add_(1)
        if move:
            adam(
                *moments,
                beta1=0.9,
                beta2=0.999,
                lr=1e-3,
                weight_decay=0.0,
                eps=1e-8,
                fused=True,
                amsgrad=False,
                maximize=False,
            )


works: dict[str, Callable[[], object]] = {
    "floor": lambda: [floor() for _ in range(20)],
    "products in place": take_steps,
    "and batches": lambda: take_steps(True),
    "and Adam": lambda: take_steps(True, True),
    "and activations, loss": lambda: take_steps(True, True, True),
    "erm": own,
}
times: dict[str, list[float]] = {name: [] for name in works}
for _ in range(25):
    for name, work in works.items():
        began = time.process_time()
        work()
        times[name].append(time.process_time() - began)
for name, values in times.items():
    pairs = zip(values, times["floor"], strict=True)
    print(f"{name}: {median(a / b for a, b in pairs):.2f}")
