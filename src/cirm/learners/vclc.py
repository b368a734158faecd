"""Variational continual learning with a coreset that is kept for prediction.

Nguyen, Li, Bui and Turner, "Variational Continual Learning", 2018, algorithm 1: some
examples of every environment are kept out of training; before a prediction the
propagated posterior is trained on all that were kept, and what comes of it is used for
prediction only. As in VCL here, the first stage starts from random means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Environment, Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import (
    concatenate_examples,
    draw_rows,
    make_empty_examples,
    move_to_device,
    select_k_centers,
    select_other_rows,
)
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
    """What is believed of the parameters, for the next stage and for prediction.

    `posterior` is before any data the prior; `predictive` has seen the `coreset` too;
    `start` are the means [replica, p] of the first stage, later empty, [replica, 0].
    """

    posterior: Gaussian
    start: Tensor
    predictive: Gaussian
    coreset: Examples


@dataclass(frozen=True)
class VCLC(Learner[State]):
    """VCL without `coreset` examples of each environment, which the prediction sees.

    They are at most half of an environment, and chosen at random or, by `k-center`, to
    cover its inputs. The other settings are those of VCL.
    """

    coreset: int = 100
    select: Literal["random", "k-center"] = "random"
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 10
    evaluations: int = 10
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)

    presets = {"paper": {"coreset": 100, "rate": 5e-3, "dropout": 0.0}}

    def __post_init__(self) -> None:
        check_variational_settings("vclc", self)
        if self.coreset < 0 or self.select not in ("random", "k-center"):
            raise ValueError(
                "vclc: coreset must not be negative and select must be random or "
                f"k-center; got {self.coreset} and {self.select!r}"
            )

    def init(self, randomness: Randomness) -> State:
        """The prior, random means to start from, and no examples."""
        means = self.network.init(randomness.at("params"))
        prior = make_gaussian(means, self.prior_std, centred=True)
        return State(prior, means, prior, make_empty_examples(len(means)))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Train on the stage but for its coreset, then, for prediction, on that."""
        rows = [self.select_coreset(e, randomness.at("coreset", e.name)) for e in stage]
        pairs = list(zip(stage, rows, strict=True))
        rest = tuple(e.subset(select_other_rows(r, len(e))) for e, r in pairs)
        past = move_to_device(state, self.descent.device)
        start = init_posterior(past.start, past.posterior, self.initial_std)
        posterior = self.train_posterior(start, past.posterior, rest, randomness, watch)
        kept = [state.coreset, *(e.take(r) for e, r in pairs)]
        predictive, coreset = posterior, state.coreset
        if any(piece.y.shape[1] for piece in kept):
            coreset = concatenate_examples(kept)
            last = Environment("coreset", *coreset, stage[0].task, replicated=True)
            source = randomness.at("predictive")
            predictive = self.train_posterior(posterior, posterior, (last,), source)
        none = posterior.mean.new_zeros(len(posterior.mean), 0)
        return State(posterior, none, predictive, coreset)

    def select_coreset(
        self, environment: Environment, randomness: Randomness
    ) -> Tensor:
        """Rows [replica, m] of the examples that are kept."""
        size = min(self.coreset, len(environment) // 2)
        if self.select == "random":
            return draw_rows(randomness, len(environment), size)
        return select_k_centers(environment.take_all(len(randomness.seeds)).x, size)

    def train_posterior(
        self,
        start: Gaussian,
        prior: Gaussian,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> Gaussian:
        """The posterior that a prior and a stage's examples give."""
        weight = self.beta * kl_factor(self.kl_scale, sum(map(len, stage)))
        loss = partial(self.loss, weight=weight)
        flat = self.descent.minimise(
            loss, flatten_gaussian(start), prior, stage, randomness, watch
        )
        return unflatten_gaussian(flat)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of networks drawn after the coreset, [replica, sample, n, k]."""
        return self.network.sample_predictions(
            state.predictive, inputs, self.evaluations
        )

    def loss(
        self, params: Tensor, past: Gaussian, batch: Batch, weight: float
    ) -> Terms:
        """Expected risk and KL of each replica; `weight` multiplies the KL."""
        q = unflatten_gaussian(params)
        outputs = self.network.sample_outputs(q, batch.x, batch.noise, self.samples)
        losses = self.likelihood.losses(outputs, batch.y).mean(1)
        risk = pool_risks(environment_means(losses, batch.share), batch)
        return {"risk": risk, "kl": weight * kl(q, past)}
