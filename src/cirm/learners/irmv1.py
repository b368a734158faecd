"""Invariant risk minimisation by a penalty on the slope of each environment's risk.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", 2019,
equation (IRMv1). As in their experiments the penalty has weight one until the anneal
point and `penalty` from there on, and the whole loss is divided by a weight above one.

With `slope` "head" the classifier w is not a factor on the outputs but the last layer,
and the penalty is the mean square of the gradient in all its coordinates. Equation
(IRMv1) has the factor; the results that the authors published for their structural
causal model come out with the layer (preset "scm-head"), and not with the factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import ORIGINAL, Learner
from cirm.objectives import (
    Batch,
    anneal_penalty,
    apply_heads,
    check_penalty,
    environment_means,
    gradient_penalties,
    head_gradients,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps

LINEAR = {"epochs": 3000, "batch": 0, "rate": 1e-2}
"""Training of linear models."""


class State(NamedTuple):
    """The network's parameters, [replica, p]."""

    params: Tensor


@dataclass(frozen=True)
class IRMv1(Learner[State]):
    """Mean risk plus the squared slope of each environment's risk in the head.

    `anneal` is the part of a stage's training after which the penalty counts in full;
    `l2` weighs the squared parameters within the loss; `halves` multiplies the slopes
    of two halves of a batch, which is unbiased for minibatches; `slope` says in what
    the risk is differentiated: a factor on the outputs, or the head.
    """

    penalty: float = 100.0
    anneal: float = 0.5
    l2: float = 0.0
    halves: bool = False
    slope: Literal["factor", "head"] = "factor"

    presets = {
        "paper": {"penalty": 91257.0, "anneal": 0.5, "rate": 2.5e-4},
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
        check_penalty("irmv1", self.penalty, self.anneal, self.l2)
        if self.slope not in ("factor", "head"):
            raise ValueError(f"irmv1: slope must be factor or head; got {self.slope!r}")
        if self.halves and self.slope == "head":
            raise ValueError("irmv1: halves needs the slope in a factor; got head")

    def init(self, randomness: Randomness) -> State:
        """Random parameters."""
        return State(self.network.init(randomness.at("params")))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Minimise the penalised risk of the stage's environments."""
        return State(
            self.descent.minimise(
                self.loss, state.params, state, stage, randomness, watch
            )
        )

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Penalised risk of each replica."""
        outputs, penalties = self.penalties(params, batch)
        losses = self.likelihood.losses(outputs, batch.y)
        risk = environment_means(losses, batch.share).mean(-1)
        penalty = penalties.mean(-1)
        weight = self.get_penalty_weight(batch.progress)
        scale = 1 / max(1.0, weight)
        terms = {"risk": scale * risk, "penalty": scale * weight * penalty}
        if self.l2:
            terms["l2"] = scale * self.l2 * params.square().sum(-1)
        return terms

    def penalties(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Outputs [replica, n, k], and each environment's penalty, [replica, e]."""
        if self.slope == "factor":
            outputs = self.network(params, batch.x, batch.noise)
            return outputs, gradient_penalties(
                self.likelihood, outputs, batch, self.halves
            )
        features = self.network.compute_features(params, batch.x, batch.noise)
        outputs = apply_heads(params[:, self.network.head], features)
        gradients = head_gradients(
            self.likelihood, features, outputs, batch.y, batch.share
        )
        return outputs, gradients.square().mean(-1)

    def get_penalty_weight(self, progress: float) -> float:
        """The penalty's weight when so much of the stage's training is done."""
        return anneal_penalty(self.penalty, self.anneal, progress)
