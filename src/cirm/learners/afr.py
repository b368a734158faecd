"""Automatic feature reweighting: retrain the last layer on what it gets wrong.

Qiu, Potapczynski, Izmailov and Wilson, "Simple and Fast Group Robustness by Automatic
Feature Reweighting", 2023, equations 1 to 3. A network is trained plainly on a part of
the data. Its last layer is then trained on the rest, with larger weights for examples
to which the network gives a low probability, and kept near its first values. No groups
are needed. Classification only. Departure: intercepts are not kept near their values.

On a sequence the held-out examples of each environment are kept, and the last layer is
retrained on all of them after each stage. The network below continues.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.learners.base import Learner
from cirm.learners.last_layer import (
    LastLayerState,
    compute_last_layer_outputs,
    compute_plain_loss,
    init_last_layer_state,
    train_and_refit_last_layer,
)
from cirm.memory import PastExampleMemory


@dataclass(frozen=True)
class AFR(Learner[LastLayerState]):
    """Plain training, then a last layer that gives unlikely examples more weight.

    Args:
        gamma: How fast the weight of an example falls with the probability that plain
            training gives to its class.
        memory: Number of examples of each environment that are held out for the last
            layer, at most half of them, and kept.
        l2: Weight of the squared distance of the last layer's weights from those of
            plain training, for losses that are averaged over the examples.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(AFR(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    gamma: float = 4.0
    memory: int = 200
    l2: float = 0.2

    presets = {  # the authors', for images
        "waterbirds": {
            "gamma": 14.0,
            "l2": 2 * 0.2,
            "epochs": 40,
            "batch": 32,
            "rate": 3e-3,
            "decay": 1e-4,
            "optimiser": "sgd",
        },
        "celeba": {
            "gamma": 1.8,
            "l2": 0.0,
            "epochs": 20,
            "batch": 100,
            "rate": 3e-3,
            "decay": 1e-4,
            "optimiser": "sgd",
        },
    }
    tasks = ("classification",)

    init = init_last_layer_state
    observe = train_and_refit_last_layer
    outputs = compute_last_layer_outputs
    compute_loss = compute_plain_loss

    def __post_init__(self) -> None:
        self.check_setting("gamma", self.gamma >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 1, "1 or more")
        self.check_setting("l2", self.l2 >= 0, "0 or more")

    def compute_example_weights(
        self, outputs: Tensor, memory: PastExampleMemory
    ) -> Tensor:
        """Return weights [replica, n] with sum one, by probabilities and classes."""
        y = memory.kept.y
        probabilities = (-self.likelihood.compute_losses(outputs, y)).exp()
        counts = torch.zeros(len(y), int(y.max()) + 1).to(outputs)
        counts = counts.scatter_add(1, y, torch.ones_like(probabilities))
        weights = (-self.gamma * probabilities).exp() / counts.gather(1, y)
        return weights / weights.sum(-1, keepdim=True)
