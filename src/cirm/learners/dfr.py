"""Deep feature reweighting: retrain the last layer on examples balanced over groups.

Kirichenko, Izmailov and Wilson, "Last Layer Re-Training is Sufficient for Robustness to
Spurious Correlations", 2023. A network is trained plainly; then its last layer is
trained anew on held-out examples in which every group counts the same. The groups are
the classes within each environment, or for a regression the environments. Departures:
groups are balanced by weights, which is what the authors' average over balanced draws
converges to, and the squared weights are penalised instead of the absolute ones.

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
class DFR(Learner[LastLayerState]):
    """Plain training, then a last layer for which all groups count the same.

    Args:
        memory: Number of examples of each environment that are held out for the last
            layer, at most half of them, and kept.
        l2: Weight of the squared distance of the last layer's weights from those of
            plain training, for losses that are summed over the examples.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(DFR(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    memory: int = 200
    l2: float = 1.0

    presets = {  # the authors', for images
        "waterbirds": {
            "epochs": 100,
            "batch": 32,
            "rate": 1e-3,
            "decay": 1e-3,
            "optimiser": "sgd",
        }
    }

    init = init_last_layer_state
    observe = train_and_refit_last_layer
    outputs = compute_last_layer_outputs
    compute_loss = compute_plain_loss

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 1, "1 or more")
        self.check_setting("l2", self.l2 >= 0, "0 or more")

    def compute_example_weights(
        self, outputs: Tensor, memory: PastExampleMemory
    ) -> Tensor:
        """Return weights [replica, n] that give each group the same sum."""
        groups = memory.owner
        if not memory.kept.y.is_floating_point():
            classes = int(memory.kept.y.max()) + 1
            groups = groups * classes + memory.kept.y
        ones = torch.ones_like(groups, dtype=outputs.dtype)
        sizes = ones.new_zeros(len(ones), int(groups.max()) + 1)
        sizes = sizes.scatter_add(1, groups, ones)
        filled = (sizes > 0).sum(-1, keepdim=True)
        return groups.shape[1] / (filled * sizes.gather(1, groups))
