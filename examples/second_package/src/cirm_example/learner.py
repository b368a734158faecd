"""Worst-case training: weight the risk of the worst environment."""

from dataclasses import dataclass

from torch import Tensor

from cirm import Learner, PointState
from cirm.objectives import Batch, compute_environment_risks
from cirm.training import Terms


@dataclass(frozen=True)
class WorstCase(Learner[PointState]):
    """Mean risk, mixed with the risk of the worst environment.

    Args:
        weight: Weight of the worst environment's risk, from 0 to 1.
    """

    weight: float = 0.5

    search_space = "rate=1e-4..1e-2:log,weight=0.1..0.9"  # what `cirm select` tries

    def __post_init__(self) -> None:
        self.check_setting("weight", 0 <= self.weight <= 1, "from 0 to 1")

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the two parts of each replica's loss."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        worst = self.weight * risks.max(-1).values
        return {"worst": worst, "mean": (1 - self.weight) * risks.mean(-1)}
