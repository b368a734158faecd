"""Bilevel invariant risk minimisation: consensus on a w that no environment would move.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023, definition
BIRM and algorithm 3 with equations admm1 and admm2; see cirm.admm for the rounds. The
features move after a batch's rounds instead of before, so they are computed once. On a
sequence the last stage's w takes part in the consensus, as in algorithm 2.

A stationary point need not be a minimum, so with the whole network as w a large `rho1`
can hold an untrained network where it is. In table 5 w is a linear network's only
layer, and no w is stationary in all environments: the consensus is then near the mean
of what each environment alone would choose, which gives the paper's errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.admm import ADMM, Growth, View, split_environments
from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.objectives import (
    Batch,
    apply_heads,
    environment_means,
    environment_risks,
    head_gradients,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """The network's parameters [replica, p], and the past's part in the consensus.

    `last` is the mean of what the environments of the last stage ended with,
    [replica, 1, q]; before any data it is empty, [replica, 0, q].
    """

    params: Tensor
    last: Tensor


@dataclass(frozen=True)
class BIRM(Learner[State]):
    """Least risk among the w at which the risk of every environment is stationary.

    `constraint` says what w is: the head, on features that descend the sum of the
    risks, or the whole network. `rho0` weighs the consensus and `rho1` the gradients;
    from the part `threshold` of a stage's training on both are larger by `growth`, a
    summand or a factor. Each batch has `rounds` rounds of `inner` steps; with `rounds`
    0 a batch has one step and a round lasts `inner` epochs.
    """

    constraint: Literal["head", "network"] = "head"
    rho0: float = 1.0
    rho1: float = 1.0
    growth: float = 0.0
    growth_kind: Growth = "sum"
    threshold: float = 0.5
    rounds: int = 0
    inner: int = 5

    presets = {
        "paper": {
            "constraint": "network",
            "rho0": 10.0,
            "rho1": 10.0,
            "growth": 100.0,
            "rate": 1e-3,
            "decay": 0.00125,
        },
        "scm": {
            "rho0": 10.0,
            "rho1": 100.0,
            "rounds": 1,
            "inner": 50,
            "hidden": (),
            "epochs": 100,
            "batch": 0,
            "rate": 1e-2,
        },
    }

    def __post_init__(self) -> None:
        if self.constraint not in ("head", "network"):
            raise ValueError(
                f"birm: constraint must be head or network; got {self.constraint!r}"
            )
        self.admm.check("birm")

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
        """Random parameters."""
        params = self.network.init(randomness.at("params")).to(self.descent.device)
        return State(params, params[:, self._cut :].unsqueeze(1)[:, :0])

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Find the w that the stage's environments and the past agree on."""
        look = self.make_viewer(self.get_prior(state), sum(map(len, stage)))
        features, shared = self.start_stage(state)
        features, carry = self.admm.solve(
            look, features, shared, state.last, self.descent, stage, randomness, watch
        )
        return self.finish_stage(features, carry.shared, carry.local)

    def start_stage(self, state: State) -> tuple[Tensor, Tensor]:
        """Features [replica, f] and w [replica, q] that a stage starts from."""
        features, shared = state.params.tensor_split((self._cut,), 1)
        return features, shared

    def get_prior(self, state: State) -> Tensor:
        """What an environment must know of the past: nothing, [replica, 0]."""
        return state.params[:, :0]

    def make_viewer(
        self, prior: Tensor, examples: int
    ) -> Callable[[Tensor, Batch], View]:
        """What a batch of a stage with so many examples says; see `ADMM.solve`."""
        return self.view_head if self.constraint == "head" else self.view_network

    def finish_stage(self, features: Tensor, shared: Tensor, local: Tensor) -> State:
        """The state after a stage that ends so; `local` is [replica, e, q]."""
        params = torch.cat([features, shared], 1)
        return State(params, local.mean(1, keepdim=True))

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def view_network(self, features: Tensor, batch: Batch) -> View:
        """Risks of whole networks, and their gradients by differentiation."""
        each = split_environments(batch)

        def slopes(local: Tensor) -> tuple[Terms, Tensor]:
            params = local.flatten(0, 1)
            risks = environment_risks(self.network, self.likelihood, params, each)
            (gradients,) = torch.autograd.grad(risks.sum(), local, create_graph=True)
            return {"risk": risks.view(local.shape[:2])}, gradients

        return View(slopes, lambda shared: shared.sum(-1))

    def view_head(self, features: Tensor, batch: Batch) -> View:
        """Risks of heads on the same features, and their gradients in closed form."""
        blank = features.new_zeros(len(features), self.network.size - self._cut)
        whole = torch.cat([features, blank], 1)
        seen = self.network.compute_features(whole, batch.x, batch.noise)
        each = split_environments(batch._replace(x=seen.detach()))

        def slopes(local: Tensor) -> tuple[Terms, Tensor]:
            outputs = apply_heads(local.flatten(0, 1), each.x)
            losses = self.likelihood.losses(outputs, each.y)
            risks = environment_means(losses, each.share)
            gradients = head_gradients(
                self.likelihood, each.x, outputs, each.y, each.share
            )
            return {"risk": risks.view(local.shape[:2])}, gradients.view_as(local)

        def outer(shared: Tensor) -> Tensor:
            losses = self.likelihood.losses(apply_heads(shared, seen), batch.y)
            return environment_means(losses, batch.share).sum(-1)

        return View(slopes, outer)
