"""Bilevel variational IRM: consensus on a posterior that no environment would move.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023, definition
BVIRM and algorithm 1 with equation bvirm_admm; on a sequence algorithm 2, which makes
it C-BVIRM: the prior is the last posterior and the past takes part in the consensus.
See cirm.admm for the rounds. Before any data nothing takes part (the paper starts from
a past at zero), and the features move after a batch's rounds instead of before. What w
is made of are means and logarithms of spreads; both meet and both are constrained.

The preset "paper" reads what the paper leaves open so as to come near its figures of
table 1: the KL is summed over the weights and not divided by the number of examples,
and half of the hidden units are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.admm import ADMM, Growth, View, split_environments
from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.objectives import Batch, environment_means
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
    """What is believed of the parameters, and the past's part in the consensus.

    `start` are the means [replica, p] that the first stage starts from, and empty,
    [replica, 0], afterwards; `last` is the mean of what the environments of the last
    stage ended with, means and log spreads of w [replica, 1, 2q], and empty before.
    """

    posterior: Gaussian
    start: Tensor
    last: Tensor


@dataclass(frozen=True)
class BVIRM(Learner[State]):
    """Least expected risk among the posteriors of w that are stationary everywhere.

    `constraint`, `rho0`, `rho1`, `growth`, `threshold`, `rounds` and `inner` are those
    of BIRM. `beta` weighs the KL; `samples` networks are drawn in each step and
    `evaluations` for a prediction; `prior_std` and `initial_std` are the spreads of
    the first prior and where training starts.
    """

    constraint: Literal["head", "network"] = "head"
    rho0: float = 1.0
    rho1: float = 1.0
    growth: float = 0.0
    growth_kind: Growth = "sum"
    threshold: float = 0.5
    rounds: int = 0
    inner: int = 5
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 5
    evaluations: int = 20
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)

    presets = {
        # The paper has dropout in each layer, and says how much for other methods only.
        "paper": {
            "constraint": "network",
            "rho0": 10.0,
            "rho1": 10.0,
            "growth": 100.0,
            "threshold": 0.5,
            "beta": 1.0,
            "kl_scale": "sum",
            "samples": 5,
            "evaluations": 5,
            "dropout": 0.5,
            "rate": 1e-3,
            "decay": 0.00125,
        },
    }

    def __post_init__(self) -> None:
        check_variational_settings("bvirm", self)
        if self.constraint not in ("head", "network"):
            raise ValueError(
                f"bvirm: constraint must be head or network; got {self.constraint!r}"
            )
        self.admm.check("bvirm")

    @property
    def admm(self) -> ADMM:
        """Weights and lengths of the rounds."""
        lengths = self.threshold, self.rounds, self.inner
        return ADMM(self.rho0, self.rho1, self.growth, self.growth_kind, *lengths)

    @property
    def _cut(self) -> int:
        """Where w begins among the parameters."""
        return self.network.head.start if self.constraint == "head" else 0

    def init(self, randomness: Randomness) -> State:
        """The prior, and random means to start from."""
        means = self.network.init(randomness.at("params")).to(self.descent.device)
        posterior = make_gaussian(means, self.prior_std, centred=True)
        past = means.new_empty(len(means), 0, 2 * (self.network.size - self._cut))
        return State(posterior, means, past)

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Find the posterior that the stage's environments and the past agree on."""
        look = self.make_viewer(self.get_prior(state), sum(map(len, stage)))
        features, shared = self.start_stage(state)
        features, carry = self.admm.solve(
            look, features, shared, state.last, self.descent, stage, randomness, watch
        )
        return self.finish_stage(features, carry.shared, carry.local)

    def start_stage(self, state: State) -> tuple[Tensor, Tensor]:
        """Beliefs of features [replica, 2f] and w [replica, 2q] to start from."""
        start = init_posterior(state.start, state.posterior, self.initial_std)
        features, shared = map(flatten_gaussian, self.split_posterior(start))
        return features, shared

    def get_prior(self, state: State) -> Tensor:
        """What an environment must know of the past: the posterior, [replica, 2p]."""
        return flatten_gaussian(state.posterior)

    def make_viewer(
        self, prior: Tensor, examples: int
    ) -> Callable[[Tensor, Batch], View]:
        """What a batch of a stage with so many examples says; see `ADMM.solve`."""
        near = self.beta * kl_factor(self.kl_scale, examples)
        return partial(
            self.view_posterior,
            prior=self.split_posterior(unflatten_gaussian(prior)),
            near=near,
        )

    def finish_stage(self, features: Tensor, shared: Tensor, local: Tensor) -> State:
        """The state after a stage that ends so; `local` is [replica, e, 2q]."""
        posterior = join_posterior(
            unflatten_gaussian(features), unflatten_gaussian(shared)
        )
        return State(posterior, posterior.mean[:, :0], local.mean(1, keepdim=True))

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of networks drawn from the posterior, [replica, sample, n, k]."""
        return self.network.sample_predictions(
            state.posterior, inputs, self.evaluations
        )

    def view_posterior(
        self,
        features: Tensor,
        batch: Batch,
        prior: tuple[Gaussian, Gaussian],
        near: float,
    ) -> View:
        """Expected risks and KLs of posteriors, and their gradients."""
        each, count = split_environments(batch), len(batch.sizes)
        fixed = unflatten_gaussian(features.detach().repeat_interleave(count, 0))
        expected = Gaussian(*(part.repeat_interleave(count, 0) for part in prior[1]))

        def slopes(local: Tensor) -> tuple[Terms, Tensor]:
            own = unflatten_gaussian(local.flatten(0, 1))
            risks = self.risks(join_posterior(fixed, own), each)[:, 0]
            terms = {"risk": risks, "kl": near * kl(own, expected)}
            objective = (terms["risk"] + terms["kl"]).sum()
            (gradients,) = torch.autograd.grad(objective, local, create_graph=True)
            return {n: t.view(local.shape[:2]) for n, t in terms.items()}, gradients

        def outer(shared: Tensor) -> Tensor:
            moving = unflatten_gaussian(features)
            risks = self.risks(
                join_posterior(moving, unflatten_gaussian(shared)), batch
            )
            return (risks + near * kl(moving, prior[0]).unsqueeze(-1)).sum(-1)

        return View(slopes, outer)

    def risks(self, q: Gaussian, batch: Batch) -> Tensor:
        """Expected risk of each environment, [replica, e]."""
        outputs = self.network.sample_outputs(q, batch.x, batch.noise, self.samples)
        losses = self.likelihood.losses(outputs, batch.y).mean(1)
        return environment_means(losses, batch.share)

    def split_posterior(self, q: Gaussian) -> tuple[Gaussian, Gaussian]:
        """What is believed of the features, and of w."""
        pieces = [part.tensor_split((self._cut,), 1) for part in q]
        features, own = (Gaussian(*part) for part in zip(*pieces, strict=True))
        return features, own


def join_posterior(features: Gaussian, own: Gaussian) -> Gaussian:
    """One belief of all parameters."""
    if not features.mean.shape[1]:
        return own
    mean, log_std = (torch.cat(part, 1) for part in zip(features, own, strict=True))
    return Gaussian(mean, log_std)
