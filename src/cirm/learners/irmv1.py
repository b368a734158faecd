"""Invariant risk minimisation (IRMv1): penalise the gradients of environments' risks.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", 2019,
equation (IRMv1). The penalty is the squared derivative of an environment's risk with
respect to a scalar that multiplies the outputs. As in the authors' experiments it has
weight one until the anneal point and `penalty` afterwards, and the whole loss is
divided by a weight above one.

With `slope="head"` the risk is differentiated in the last layer instead, and the
penalty is the mean square of that gradient. Equation (IRMv1) has the scalar, but the
authors' published results for their structural causal model are obtained with the
layer (preset "scm-head"), and not with the scalar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cirm.learners.base import ORIGINAL, PAPER_DROPOUT, Learner, PointState
from cirm.objectives import (
    Batch,
    apply_linear_heads,
    average_values_by_environment,
    build_terms_of_penalised_loss,
    check_penalty_settings,
    compute_head_gradients,
    compute_irm_penalties,
    get_annealed_penalty_weight,
)
from cirm.training import Terms

LINEAR = {"epochs": 3000, "batch": 0, "rate": 1e-2}
"""Settings of training for linear models."""


@dataclass(frozen=True)
class IRMv1(Learner[PointState]):
    """Mean risk plus the squared gradient of each environment's risk in the classifier.

    Args:
        penalty: Weight of the squared gradients.
        anneal: Fraction of a stage's training after which the penalty has its full
            weight; before, the weight is at most one.
        l2: Weight of the squared parameters.
        halves: Multiply the gradients of two halves of a batch instead of squaring that
            of the whole batch; this is unbiased for minibatches.
        slope: What the risk is differentiated in: "factor", a scalar that multiplies
            the outputs, or "head", the last layer.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(IRMv1(penalty=10.0)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 100.0
    anneal: float = 0.5
    l2: float = 0.0
    halves: bool = False
    slope: Literal["factor", "head"] = "factor"

    weighs_examples = True
    presets = {
        "paper": {"penalty": 91257.0, "anneal": 0.5, "rate": 2.5e-4, **PAPER_DROPOUT},
        "irm": {"penalty": 91257.18613115903, **ORIGINAL},
        "eiil": {"penalty": 191257.18613115902, **ORIGINAL},
        "scm": {"penalty": 10.0, "anneal": 0.0, "hidden": (), **LINEAR},
        "scm-head": {
            "penalty": 10.0,
            "anneal": 0.0,
            "slope": "head",
            "hidden": (10,),
            "activation": "linear",
            **LINEAR,
        },
    }

    def __post_init__(self) -> None:
        check_penalty_settings("irmv1", self.penalty, self.anneal, self.l2)
        self.check_setting("slope", self.slope in ("factor", "head"), "factor or head")
        valid = not self.halves or self.slope == "factor"
        self.check_setting("halves", valid, "False if slope is head")

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the penalised risk of each replica."""
        outputs, penalties = self.compute_outputs_and_penalties(params, batch)
        losses = self.likelihood.compute_losses(outputs, batch.y)
        risk = average_values_by_environment(losses, batch.share).mean(-1)
        penalty = penalties.mean(-1)
        weight = self.get_penalty_weight(batch.progress)
        return build_terms_of_penalised_loss(risk, penalty, weight, params, self.l2)

    def compute_outputs_and_penalties(
        self, params: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return outputs [replica, n, k] and penalties of environments [replica, e]."""
        if self.slope == "factor":
            outputs = self.network(params, batch.x, batch.noise)
            return outputs, compute_irm_penalties(
                self.likelihood, outputs, batch, self.halves
            )
        features = self.network.compute_features(params, batch.x, batch.noise)
        outputs = apply_linear_heads(params[:, self.network.head], features)
        gradients = compute_head_gradients(
            self.likelihood, features, outputs, batch.y, batch.share
        )
        return outputs, gradients.square().mean(-1)

    def get_penalty_weight(self, progress: float) -> float:
        """Return the weight of the penalty at a fraction of a stage's training."""
        return get_annealed_penalty_weight(self.penalty, self.anneal, progress)
