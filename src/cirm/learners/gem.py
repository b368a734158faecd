"""Gradient episodic memory: take no step that raises the risk of a past environment.

Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
algorithm 1 and equations 8 to 11. Departures: the paper keeps the last examples of an
environment, here they are drawn at random, since the order within an environment has
no meaning. The gradients of past environments are computed without dropout, because
they protect the network that predicts. The optimiser gets the projected gradient; with
the paper's optimiser, `sgd`, the step itself is the projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from scipy.optimize import nnls
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import PAPER_DROPOUT, Learner
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
)
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_environment_risks,
)
from cirm.randomness import Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)

RIDGE = 1e-10  # keeps the Cholesky factor of nearly parallel gradients well defined


class GEMState(NamedTuple):
    """Parameters [replica, p] and the examples kept from past environments."""

    params: Tensor
    memory: PastExampleMemory


class StackedExampleMemories(NamedTuple):
    """Memories stacked as [replica, environment, m, ...], with averaging weights.

    Shorter memories are padded with examples of weight zero.
    """

    examples: Examples
    weight: Tensor


@dataclass(frozen=True)
class GEM(Learner[GEMState]):
    """Risk of the stage, with gradients projected so that no past risk rises.

    Args:
        memory: Number of random examples that are kept; the paper's 100 are a tenth of
            an environment.
        budget: Whether `memory` is the number for "each" environment, or the "total"
            of all environments.
        margin: Least weight of a past environment's gradient in a projected gradient.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(GEM(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    memory: int = 100
    budget: Literal["each", "total"] = "each"
    margin: float = 0.0

    presets = {"paper": {"memory": 100, "rate": 1e-3, **PAPER_DROPOUT}}

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("margin", self.margin >= 0, "0 or more")
        self.check_setting("budget", self.budget in ("each", "total"), "each or total")

    def init(self, randomness: Randomness) -> GEMState:
        """Return random parameters and an empty memory."""
        params = self.network.init(randomness.at("params"))
        return GEMState(params, create_empty_memory(len(params)))

    def observe(
        self,
        state: GEMState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> GEMState:
        """Follow the projected gradients of the risk, then keep some examples."""
        past = stack_example_memories(state.memory, torch.device(self.descent.device))
        params = self.descent.descend_along_gradient(
            self.compute_projected_gradient,
            state.params,
            past,
            stage,
            randomness,
            watch,
        )
        memory = add_examples_of_stage_to_memory(
            state.memory,
            stage,
            self.memory,
            randomness.at("memory"),
            is_total_size=self.budget == "total",
        )
        return GEMState(params, memory)

    def compute_loss(
        self, params: Tensor, past: StackedExampleMemories, batch: Batch
    ) -> Terms:
        """Return the risk of each replica."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": average_risks_over_examples(risks, batch)}

    def compute_projected_gradient(
        self, params: Tensor, past: StackedExampleMemories, batch: Batch
    ) -> tuple[Tensor, Terms]:
        """Return the projected gradient, and how many past gradients opposed it."""
        gradient, terms = create_gradient_function_of_loss(self.compute_loss)(
            params, past, batch
        )
        if not past.weight.shape[1]:
            return gradient, terms
        others = self.compute_gradients_of_past_environments(params, past)
        products = (others @ gradient.unsqueeze(-1)).squeeze(-1)  # [replica, e]
        opposed = products < 0
        diverged = ~products.isfinite().all(-1)
        for replica in (opposed.any(-1) & ~diverged).nonzero().flatten().tolist():
            gradient[replica] = project_gradient_onto_constraints(
                gradient[replica], others[replica], self.margin
            )
        if diverged.any():
            gradient[diverged] = torch.nan  # so that the loop reports the divergence
        return gradient, {**terms, "opposed": opposed.sum(-1).to(gradient.dtype)}

    def compute_gradients_of_past_environments(
        self, params: Tensor, past: StackedExampleMemories
    ) -> Tensor:
        """Return the gradients of past environments' risks, [replica, e, p]."""
        environments = past.weight.shape[1]
        # Treated as further replicas, all past environments need a single pass.
        copies = params.detach().repeat_interleave(environments, 0).requires_grad_()
        x, y = (part.flatten(0, 1) for part in past.examples)
        losses = self.likelihood.compute_losses(self.network(copies, x), y)
        risks = (losses * past.weight.flatten(0, 1)).sum()
        return torch.autograd.grad(risks, copies)[0].unflatten(0, (-1, environments))


def stack_example_memories(
    memory: PastExampleMemory, device: torch.device
) -> StackedExampleMemories:
    """Stack the memories of past environments along an axis of their own."""
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
    return StackedExampleMemories(
        Examples(x, y), weight.to(device).expand(len(y), -1, -1)
    )


def project_gradient_onto_constraints(
    gradient: Tensor, past_gradients: Tensor, margin: float = 0.0
) -> Tensor:
    """Return the vector nearest to `gradient` [p] that opposes no past one [e, p].

    It is the gradient plus the rows multiplied by dual weights of at least `margin`
    (for rows of length one). The weights that give the shortest such sum are found by
    non-negative least squares on the Cholesky factor of the rows' products.
    """
    rows = past_gradients.double()
    gram, products = rows @ rows.T, rows @ gradient.double()
    norms = gram.diagonal().sqrt().clamp(min=torch.finfo(gradient.dtype).tiny)
    least = margin * norms
    gram = gram / norms / norms.unsqueeze(-1)
    wanted = products / norms + gram @ least
    factor = torch.linalg.cholesky(gram + RIDGE * torch.eye(len(rows)).to(gram))
    target = torch.linalg.solve_triangular(factor, -wanted.unsqueeze(-1), upper=False)
    dual, _ = nnls(factor.T.cpu().numpy(), target.squeeze(-1).cpu().numpy())
    weights = (least + torch.from_numpy(dual).to(least)) / norms
    return (gradient.double() + weights @ rows).to(gradient.dtype)
