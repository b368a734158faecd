"""Variational continual learning: the posterior of a stage is the prior of the next.

Nguyen, Li, Bui and Turner, "Variational Continual Learning", 2018, equation 4, with
the local reparametrisation of Swaroop, Nguyen, Bui and Turner, "Improving and
Understanding Variational Continual Learning", 2019. The spreads are descended in their
logarithm instead of that of the variance, and the first stage starts from random means
instead of those of a network that was trained before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import move_to_device
from cirm.objectives import Batch, environment_means, pool_risks
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


class State(NamedTuple):
    """What is believed of the parameters: before any data, the prior.

    `start` are the means [replica, p] that the first stage starts from; it is empty,
    [replica, 0], when later ones start from the posterior.
    """

    posterior: Gaussian
    start: Tensor


@dataclass(frozen=True)
class VCL(Learner[State]):
    """Expected risk plus `beta` times the KL from the last posterior.

    `samples` networks are drawn in each step and `evaluations` for a prediction. The
    prior of the first stage is normal around zero with `prior_std`; training starts
    with `initial_std` and, if `restart`, every stage from new random means.
    """

    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 10
    evaluations: int = 10
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)
    restart: bool = False

    presets = {"paper": {"rate": 5e-3, "dropout": 0.0}}

    def __post_init__(self) -> None:
        check_variational_settings("vcl", self)

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
        """Move from the last posterior towards what the stage's examples say."""
        past = move_to_device(state, self.descent.device)
        start = init_posterior(past.start, past.posterior, self.initial_std)
        if self.restart:
            means = self.network.init(randomness.at("params"))
            start = make_gaussian(means, self.initial_std)
        weight = self.beta * kl_factor(self.kl_scale, sum(map(len, stage)))
        loss = partial(self.loss, weight=weight)
        flat = self.descent.minimise(
            loss, flatten_gaussian(start), past, stage, randomness, watch
        )
        return State(unflatten_gaussian(flat), flat.new_zeros(len(flat), 0))

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of networks drawn from the posterior, [replica, sample, n, k]."""
        return self.network.sample_predictions(
            state.posterior, inputs, self.evaluations
        )

    def loss(self, params: Tensor, past: State, batch: Batch, weight: float) -> Terms:
        """Expected risk and KL of each replica; `weight` multiplies the KL."""
        q = unflatten_gaussian(params)
        outputs = self.network.sample_outputs(q, batch.x, batch.noise, self.samples)
        losses = self.likelihood.losses(outputs, batch.y).mean(1)
        risk = pool_risks(environment_means(losses, batch.share), batch)
        return {"risk": risk, "kl": weight * kl(q, past.posterior)}
