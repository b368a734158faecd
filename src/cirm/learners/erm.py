"""Empirical risk minimisation: minimise the mean loss over all examples of a stage.

Vapnik, "Principles of Risk Minimization for Learning Theory", 1992. On a sequence,
training continues on whatever arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirm.learners.base import Learner, PointState
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_environment_risks,
)
from cirm.training import Terms


@dataclass(frozen=True)
class ERM(Learner[PointState]):
    """Plain training on the mean risk, without any penalty.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(ERM()).shape
        torch.Size([1, 20, 2])
    """

    weighs_examples = True
    stops_early = True
    presets = {
        "paper": {"rate": 1e-3, "dropout": 0.75, "decay": 0.00125},
        "irm": {
            "hidden": (256, 256),
            "activation": "relu",
            "outputs": 1,
            "epochs": 501,
            "batch": 0,
            "rate": 1e-3,
            "decay": 2 * 0.001,
        },
        "scm": {"hidden": (), "epochs": 3000, "batch": 0, "rate": 1e-2},
    }

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the risk of each replica."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": average_risks_over_examples(risks, batch)}
