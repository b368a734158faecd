"""Gradient episodic memory: steps that raise the risk of no past environment.

Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
algorithm 1 and equations 8 to 11. They keep the last examples of an environment; here
they are drawn at random, as the order within an environment means nothing. Dropout is
left out of the past's gradients: they guard the network that predicts. The optimiser
gets the projected gradient; with theirs, `sgd`, the step itself is the projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from scipy.optimize import nnls
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import Memory, add_to_memory, make_empty_memory
from cirm.objectives import Batch, environment_risks, pool_risks
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps, make_gradient

RIDGE = 1e-10  # keeps the factor of nearly parallel unit gradients well defined


class State(NamedTuple):
    """Parameters [replica, p] and the examples kept of past environments."""

    params: Tensor
    memory: Memory


class Past(NamedTuple):
    """Memories side by side, [replica, environment, m, ...], with averaging weights.

    Shorter memories are filled up with examples of weight zero.
    """

    examples: Examples
    weight: Tensor


@dataclass(frozen=True)
class GEM(Learner[State]):
    """Risk of the stage, by gradients bent so that no past risk rises.

    `memory` random examples are kept of each environment (the paper's 100 are a tenth
    of one), or, if the `budget` is the total, of all environments together. `margin`
    is the least weight of a past gradient in a bent one.
    """

    memory: int = 100
    budget: Literal["each", "total"] = "each"
    margin: float = 0.0

    presets = {"paper": {"memory": 100, "rate": 1e-3}}

    def __post_init__(self) -> None:
        if self.memory < 0 or self.margin < 0:
            raise ValueError(
                "gem: memory and margin must not be negative; "
                f"got {self.memory} and {self.margin}"
            )
        if self.budget not in ("each", "total"):
            raise ValueError(f"gem: budget must be each or total; got {self.budget!r}")

    def init(self, randomness: Randomness) -> State:
        """Random parameters and no memory."""
        params = self.network.init(randomness.at("params"))
        return State(params, make_empty_memory(len(params)))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Follow the bent gradients of the stage's risk, then keep some examples."""
        past = stack_memories(state.memory, torch.device(self.descent.device))
        params = self.descent.follow_gradient(
            self.gradient, state.params, past, stage, randomness, watch
        )
        memory = add_to_memory(
            state.memory,
            stage,
            self.memory,
            randomness.at("memory"),
            total=self.budget == "total",
        )
        return State(params, memory)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: Past, batch: Batch) -> Terms:
        """Risk of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": pool_risks(risks, batch)}

    def gradient(
        self, params: Tensor, past: Past, batch: Batch
    ) -> tuple[Tensor, Terms]:
        """The nearest gradient that no past one opposes, and how many oppose it."""
        slope, terms = make_gradient(self.loss)(params, past, batch)
        if not past.weight.shape[1]:
            return slope, terms
        guards = self.past_gradients(params, past)
        products = (guards @ slope.unsqueeze(-1)).squeeze(-1)  # [replica, e]
        opposed = products < 0
        lost = ~products.isfinite().all(-1)
        for replica in (opposed.any(-1) & ~lost).nonzero().flatten().tolist():
            slope[replica] = project_gradient(
                slope[replica], guards[replica], self.margin
            )
        if lost.any():
            slope[lost] = torch.nan  # so that the loop reports the divergence
        return slope, {**terms, "opposed": opposed.sum(-1).to(slope.dtype)}

    def past_gradients(self, params: Tensor, past: Past) -> Tensor:
        """Gradient of each past environment's risk, [replica, e, p]."""
        environments = past.weight.shape[1]
        # As further replicas, all past environments take one batched pass.
        copies = params.detach().repeat_interleave(environments, 0).requires_grad_()
        x, y = (part.flatten(0, 1) for part in past.examples)
        losses = self.likelihood.losses(self.network(copies, x), y)
        risks = (losses * past.weight.flatten(0, 1)).sum()
        return torch.autograd.grad(risks, copies)[0].unflatten(0, (-1, environments))


def stack_memories(memory: Memory, device: torch.device) -> Past:
    """The memories of past environments on an axis of their own."""
    sizes = memory.sizes
    longest = max(sizes, default=0)
    rows = torch.zeros(len(sizes), longest, dtype=torch.int64)
    weight = torch.zeros(len(sizes), longest)
    start = 0
    for place, size in enumerate(sizes):
        rows[place, :size] = torch.arange(start, start + size)
        weight[place, :size] = 1 / size
        start += size
    x, y = (part[:, rows].to(device) for part in memory.kept)
    return Past(Examples(x, y), weight.to(device).expand(len(y), -1, -1))


def project_gradient(slope: Tensor, guards: Tensor, margin: float = 0.0) -> Tensor:
    """The nearest vector to `slope` [p] that no row of `guards` [e, p] opposes.

    It is the slope plus the guards times dual weights that are not negative, or not
    below `margin`: the shortest such sum, found by non-negative least squares on the
    triangular factor of the guards' products.
    """
    rows = guards.double()
    gram, products = rows @ rows.T, rows @ slope.double()
    norms = gram.diagonal().sqrt().clamp(min=torch.finfo(slope.dtype).tiny)
    least = margin * norms  # the dual weights are those of guards of length one
    gram = gram / norms / norms.unsqueeze(-1)
    wanted = products / norms + gram @ least
    factor = torch.linalg.cholesky(gram + RIDGE * torch.eye(len(rows)).to(gram))
    target = torch.linalg.solve_triangular(factor, -wanted.unsqueeze(-1), upper=False)
    dual, _ = nnls(factor.T.cpu().numpy(), target.squeeze(-1).cpu().numpy())
    weights = (least + torch.from_numpy(dual).to(least)) / norms
    return (slope.double() + weights @ rows).to(slope.dtype)
