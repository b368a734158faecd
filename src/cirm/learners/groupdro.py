"""Group distributionally robust optimisation: minimise the risk of the worst group.

Sagawa, Koh, Hashimoto and Liang, "Distributionally Robust Neural Networks for Group
Shifts", 2020, algorithm 1. Each group has a weight, which grows exponentially with its
risk; the weighted risk is minimised. Departures: every step uses examples of all
groups, instead of one group that is drawn, and there is no adjustment for the size of a
group. The weights start equal in each stage.

On a sequence some examples of each past environment are kept, and their groups take
part in the later stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.rehearsal import (
    Gradient,
    ParametersAndMemoryState,
    build_batch_with_past_environments,
    descend_gradient_and_store_examples,
    init_parameters_and_memory_state,
)
from cirm.objectives import (
    Batch,
    average_values_by_environment,
    split_averaging_weights_by_class,
)
from cirm.randomness import Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)


@dataclass(frozen=True)
class GroupDRO(Learner[ParametersAndMemoryState]):
    """Risk of the groups, weighted by how large it was so far.

    Args:
        step: Rate at which the weight of a group grows with its risk.
        groups: The groups: "environments", or the "classes" within each environment.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(GroupDRO(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    step: float = 0.01
    groups: Literal["environments", "classes"] = "environments"
    memory: int = 100

    presets = {  # the authors', for images, with momentum, which is not offered here
        "waterbirds": {
            "step": 0.01,
            "groups": "classes",
            "epochs": 300,
            "batch": 128,
            "rate": 1e-5,
            "decay": 1.0,
            "optimiser": "sgd",
        },
        "celeba": {
            "step": 0.01,
            "groups": "classes",
            "epochs": 50,
            "batch": 128,
            "rate": 1e-5,
            "decay": 0.1,
            "optimiser": "sgd",
        },
    }

    init = init_parameters_and_memory_state

    def __post_init__(self) -> None:
        self.check_setting("step", self.step >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 0, "0 or more")
        valid = self.groups in ("environments", "classes")
        self.check_setting("groups", valid, "environments or classes")

    def observe(
        self,
        state: ParametersAndMemoryState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> ParametersAndMemoryState:
        """Minimise the weighted risk of all groups, then keep some examples."""
        return descend_gradient_and_store_examples(
            self, self.create_gradient_function(), state, stage, randomness, watch
        )

    def create_gradient_function(self) -> Gradient:
        """Return a function that updates the weights of groups, then differentiates."""
        logits = torch.zeros(())  # logarithms of the weights, [replica, group]

        def compute_loss(
            params: Tensor, past: ParametersAndMemoryState, batch: Batch
        ) -> Terms:
            nonlocal logits
            risks = self.compute_group_risks(params, past, batch)
            logits = (logits + self.step * risks.detach()).log_softmax(-1)
            return {"risk": (logits.exp() * risks).sum(-1)}

        return create_gradient_function_of_loss(compute_loss)

    def compute_group_risks(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Tensor:
        """Return the risk of each group, [replica, group]; 0 without examples."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.compute_losses(outputs, batch.y)
        share = batch.share
        if self.groups == "classes" and not batch.y.is_floating_point():
            classes = getattr(self.likelihood, "classes", 1)
            share = split_averaging_weights_by_class(share, batch.y, classes)
        return average_values_by_environment(losses, share)
