"""Averaged gradient episodic memory: no step against the mean gradient of the past.

Chaudhry, Ranzato, Rohrbach and Elhoseiny, "Efficient Lifelong Learning with A-GEM",
2019, equation 11. Where the gradient of the stage opposes that of a random draw of all
kept examples, its part along that gradient is removed. Unlike in `gem` there is a
single constraint. As in `gem`, the gradient of the past is computed without dropout,
and the optimiser gets the projected gradient; with the paper's optimiser, `sgd`, the
step itself is the projection.

On a joint stream, or before the second stage, it is plain training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.learners.rehearsal import (
    Gradient,
    ParametersAndMemoryState,
    descend_gradient_and_store_examples,
    init_parameters_and_memory_state,
)
from cirm.memory import select_examples_at_rows
from cirm.objectives import Batch, compute_mean_risk
from cirm.randomness import RandomDraws, Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)


@dataclass(frozen=True)
class AGEM(Learner[ParametersAndMemoryState]):
    """Risk of the stage, with gradients that do not raise the mean risk of the past.

    Args:
        memory: Number of random examples kept of each environment.
        reference: Number of kept examples that the gradient of the past is computed
            on, drawn anew in each step.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(AGEM(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    memory: int = 100
    reference: int = 256

    presets = {  # the authors', on permuted digits: 25 examples of each of ten classes
        "permuted": {
            "memory": 250,
            "reference": 256,
            "epochs": 1,
            "batch": 10,
            "rate": 0.1,
            "optimiser": "sgd",
            "hidden": (256, 256),
            "activation": "relu",
        }
    }

    init = init_parameters_and_memory_state

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("reference", self.reference >= 1, "1 or more")

    def observe(
        self,
        state: ParametersAndMemoryState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> ParametersAndMemoryState:
        """Follow the projected gradients of the risk, then keep some examples."""
        gradient = self.create_gradient_function(
            randomness.at("reference").start_draws()
        )
        return descend_gradient_and_store_examples(
            self, gradient, state, stage, randomness, watch
        )

    def compute_loss(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Terms:
        """Return the risk of each replica."""
        risk = compute_mean_risk(self.network, self.likelihood, params, batch)
        return {"risk": risk}

    def create_gradient_function(self, draws: RandomDraws) -> Gradient:
        """Return a function that projects the gradient of the risk."""

        def compute_gradient(
            params: Tensor, past: ParametersAndMemoryState, batch: Batch
        ) -> tuple[Tensor, Terms]:
            own, terms = create_gradient_function_of_loss(self.compute_loss)(
                params, past, batch
            )
            stored = past.memory.kept.y.shape[1]
            if not stored:
                return own, terms
            rows = draws.permutation(stored)[:, : self.reference]
            kept = Examples(*(part.cpu() for part in past.memory.kept))
            examples = select_examples_at_rows(kept, rows)
            reference = self.compute_gradient_on_stored_examples(params, examples)
            return remove_conflict_with_reference_gradient(own, reference), terms

        return compute_gradient

    def compute_gradient_on_stored_examples(
        self, params: Tensor, examples: Examples
    ) -> Tensor:
        """Return the gradient [replica, p] of the mean risk of past examples."""
        x, y = (part.to(self.descent.device) for part in examples)
        losses = self.likelihood.compute_losses(self.network(params, x), y)
        return torch.autograd.grad(losses.mean(-1).sum(), params)[0]


def remove_conflict_with_reference_gradient(
    gradient: Tensor, reference_gradient: Tensor
) -> Tensor:
    """Remove from gradients [replica, p] what opposes reference gradients."""
    product = (gradient * reference_gradient).sum(-1, keepdim=True)
    square = reference_gradient.square().sum(-1, keepdim=True)
    factor = product.clamp(max=0) / square.clamp(min=torch.finfo(square.dtype).tiny)
    return gradient - factor * reference_gradient
