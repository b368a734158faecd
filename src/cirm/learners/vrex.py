"""Risk extrapolation (V-REx): penalise the variance of the risks of environments.

Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation (REx)", 2021,
the equation of V-REx. Departures: the paper adds the risks up, here their mean is
taken, so that `penalty` does not depend on the number of environments. As in the
paper's experiments the penalty is annealed, and the loss is divided by a weight above
one. A stage of one environment has no variance, so a sequence of single environments
gives plain training with that divisor.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirm.learners.base import ORIGINAL, Learner, PointState
from cirm.objectives import (
    Batch,
    build_terms_of_penalised_loss,
    check_penalty_settings,
    compute_environment_risks,
    compute_risk_variance,
    get_annealed_penalty_weight,
)
from cirm.training import Terms


@dataclass(frozen=True)
class VREx(Learner[PointState]):
    """Mean risk plus the variance of the risks between environments.

    Args:
        penalty: Weight of the variance of the risks.
        anneal: Fraction of a stage's training after which the penalty has its full
            weight; before, the weight is at most one.
        l2: Weight of the squared parameters.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(VREx(penalty=10.0)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 100.0
    anneal: float = 0.5
    l2: float = 0.0

    weighs_examples = True
    presets = {  # not a method of the paper: the settings are those of IRMv1
        "paper": {"penalty": 91257.0, "anneal": 0.5, "rate": 2.5e-4},
        "irm": {"penalty": 91257.18613115903, **ORIGINAL},
    }

    def __post_init__(self) -> None:
        check_penalty_settings("vrex", self.penalty, self.anneal, self.l2)

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the penalised risk of each replica."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        penalty = compute_risk_variance(risks)
        return build_terms_of_penalised_loss(
            risks.mean(-1), penalty, weight, params, self.l2
        )
