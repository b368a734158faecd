"""Variational IRMv1: the penalised expected risk, and the KL from a prior.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", definition VIRM with
the penalty of Arjovsky et al., "Invariant Risk Minimization", 2019, equation (IRMv1),
in place of the constraint. On a sequence the prior is the last posterior, which makes
it C-VIRMv1; before any data it is normal around zero.

The constraint is on the expected risk, so what is squared is the slope of the expected
risk, with the losses and slopes of the Monte-Carlo samples averaged first. With local
reparametrisation a sample has noise of its own for every example, and the mean of the
samples' squared slopes is the same but for the slopes' variance divided by the number
of examples.

The preset "paper" reads what the paper leaves open so as to come near its figures of
table 1: the KL is summed over the weights and not divided by the number of examples,
its 5 evaluations are also those of a prediction, its delta rho of 100 is the penalty's
weight from the step threshold on, and there is no dropout: with it the signal grows
against the prior and the colour wins. Decay acts on the means and the logarithms of the
spreads alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import ORIGINAL, Learner
from cirm.memory import move_to_device
from cirm.objectives import (
    Batch,
    anneal_penalty,
    check_penalty,
    environment_means,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps
from cirm.variational import (
    Gaussian,
    KLScale,
    check_variational_settings,
    flatten_gaussian,
    init_posterior,
    kl,
    kl_factor,
    make_gaussian,
    unflatten_gaussian,
)

Drawing = Literal["sums", "weights"]


class State(NamedTuple):
    """What is believed of the parameters: before any data, the prior.

    `start` are the means [replica, p] that the first stage starts from; it is empty,
    [replica, 0], when later ones start from the posterior.
    """

    posterior: Gaussian
    start: Tensor


@dataclass(frozen=True)
class VIRMv1(Learner[State]):
    """Expected risk, squared slope of each environment's, and KL from the prior.

    `penalty` weighs the squared slopes from the part `anneal` of a stage's training
    on, and one does before; with `rescale` the whole loss is divided by a weight above
    one. `beta` weighs the KL and `l2` the expected squared parameters. `samples`
    networks are drawn in each step and `evaluations` for a prediction; `prior_std` and
    `initial_std` are the spreads of the first prior and where training starts. `draws`
    says what is random in a step: the sums of each layer, for every example anew, or
    the weights, a third to a half of the work for large batches.
    """

    penalty: float = 100.0
    anneal: float = 0.5
    rescale: bool = True
    l2: float = 0.0
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 5
    evaluations: int = 10
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)
    draws: Drawing = "sums"

    presets = {
        "paper": {
            "penalty": 100.0,
            "anneal": 0.5,
            "beta": 1.0,
            "kl_scale": "sum",
            "samples": 5,
            "evaluations": 5,
            "dropout": 0.0,
            "rate": 1e-3,
            "decay": 0.00125,
        },
        "eiil": {
            **ORIGINAL,
            "penalty": 191257.18613115902,
            "beta": 1e-6,
            "kl_scale": "sum",
            "samples": 3,
            "draws": "weights",
        },
    }

    def __post_init__(self) -> None:
        check_variational_settings("virmv1", self)
        if self.draws not in get_args(Drawing):
            known = ", ".join(get_args(Drawing))
            raise ValueError(
                f"virmv1: draws must be one of {known}; got {self.draws!r}"
            )
        check_penalty("virmv1", self.penalty, self.anneal, self.l2)

    def init(self, randomness: Randomness) -> State:
        """The prior, and random means to start from."""
        means = self.network.init(randomness.at("params"))
        return State(make_gaussian(means, self.prior_std, centred=True), means)

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Minimise the penalised expected risk, near the last posterior."""
        past = move_to_device(state, self.descent.device)
        start = init_posterior(past.start, past.posterior, self.initial_std)
        near = self.beta * kl_factor(self.kl_scale, sum(map(len, stage)))
        loss = partial(self.loss, near=near)
        flat = self.descent.minimise(
            loss, flatten_gaussian(start), past, stage, randomness, watch
        )
        return State(unflatten_gaussian(flat), flat.new_zeros(len(flat), 0))

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of networks drawn from the posterior, [replica, sample, n, k]."""
        return self.network.sample_predictions(
            state.posterior, inputs, self.evaluations
        )

    def loss(self, params: Tensor, past: State, batch: Batch, near: float) -> Terms:
        """Penalised expected risk of each replica; `near` multiplies the KL."""
        q = unflatten_gaussian(params)
        of_sums = self.draws == "sums"
        sample = (
            self.network.sample_outputs if of_sums else self.network.sample_networks
        )
        outputs = sample(q, batch.x, batch.noise, self.samples)
        losses = self.likelihood.losses(outputs, batch.y).mean(1)
        slopes = self.likelihood.scale_gradients(outputs, batch.y).mean(1)
        weight = self.get_penalty_weight(batch.progress)
        scale = 1 / max(1.0, weight) if self.rescale else 1.0
        penalty = environment_means(slopes, batch.share).square().mean(-1)
        terms = {
            "risk": scale * environment_means(losses, batch.share).mean(-1),
            "penalty": scale * weight * penalty,
            "kl": scale * near * kl(q, past.posterior),
        }
        if self.l2:
            squares = q.mean.square() + (2 * q.log_std).exp()
            terms["l2"] = scale * self.l2 * squares.sum(-1)
        return terms

    def get_penalty_weight(self, progress: float) -> float:
        """The penalty's weight when so much of the stage's training is done."""
        return anneal_penalty(self.penalty, self.anneal, progress)
