"""Bilevel IRM: environments agree on parameters at which every risk is stationary.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023, definition
BIRM and algorithm 3 with equations admm1 and admm2; see `cirm.admm` for the consensus
rounds. On a sequence the last stage's w takes part in the consensus, as in algorithm 2.
Departure: the features move after a batch's rounds instead of before, so that they are
computed once.

A stationary point need not be a minimum, so if w is the whole network, a large `rho1`
can hold an untrained network where it is. In table 5 w is the only layer of a linear
network, and no w is stationary in all environments: the consensus is then near the
mean of what each environment would choose, which gives the paper's errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.admm import ADMM, ADMMBatchObjectives, Growth, split_batch_by_environment
from cirm.environments import Stage, count_examples
from cirm.learners.base import Learner
from cirm.objectives import (
    Batch,
    apply_linear_heads,
    average_values_by_environment,
    compute_environment_risks,
    compute_head_gradients,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class BIRMState(NamedTuple):
    """The network's parameters [replica, p], and the past's part in the consensus.

    `last` is the mean w of the environments of the last stage, [replica, 1, q]; it is
    empty, [replica, 0, q], before any data.
    """

    params: Tensor
    last: Tensor


@dataclass(frozen=True)
class BIRM(Learner[BIRMState]):
    """Least risk among the w at which the risk of every environment is stationary.

    Args:
        constraint: What w is: the last layer ("head"), on features that minimise the
            sum of the risks, or the whole "network".
        rho0: Weight of the consensus.
        rho1: Weight of the constraint on the gradients.
        growth: Increase of both weights after the threshold.
        growth_kind: Whether `growth` is added ("sum") or multiplied ("factor").
        threshold: Fraction of a stage's training after which the weights grow.
        rounds: Number of consensus rounds on each batch; with 0, each batch has one
            step and a round lasts `inner` epochs.
        inner: Number of steps (or epochs, with `rounds` 0) of a round.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(BIRM(inner=1)).shape
        torch.Size([1, 20, 2])
    """

    constraint: Literal["head", "network"] = "head"
    rho0: float = 1.0
    rho1: float = 1.0
    growth: float = 0.0
    growth_kind: Growth = "sum"
    threshold: float = 0.5
    rounds: int = 0
    inner: int = 5

    weighs_examples = True
    revision = 1
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
        valid = self.constraint in ("head", "network")
        self.check_setting("constraint", valid, "head or network")
        self.admm.check_settings("birm")

    @property
    def admm(self) -> ADMM:
        """The weights and lengths of the consensus rounds."""
        lengths = self.threshold, self.rounds, self.inner
        return ADMM(self.rho0, self.rho1, self.growth, self.growth_kind, *lengths)

    @property
    def _first_head_index(self) -> int:
        """Index of the first parameter that belongs to w."""
        return self.network.head.start if self.constraint == "head" else 0

    def init(self, randomness: Randomness) -> BIRMState:
        """Return random parameters."""
        params = self.network.init(randomness.at("params")).to(self.descent.device)
        return BIRMState(
            params, params[:, self._first_head_index :].unsqueeze(1)[:, :0]
        )

    def observe(
        self,
        state: BIRMState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> BIRMState:
        """Find the w that the environments of the stage and the past agree on."""
        view = self.create_batch_objectives_function(
            self.get_prior_parameters(state), count_examples(stage)
        )
        features, shared = self.get_initial_parameters_of_stage(state)
        features, carry = self.admm.solve(
            view, features, shared, state.last, self.descent, stage, randomness, watch
        )
        return self.build_state_after_stage(features, carry.shared, carry.local)

    def get_initial_parameters_of_stage(
        self, state: BIRMState
    ) -> tuple[Tensor, Tensor]:
        """Return features [replica, f] and w [replica, q] at which a stage starts."""
        features, shared = state.params.tensor_split((self._first_head_index,), 1)
        return features, shared

    def get_prior_parameters(self, state: BIRMState) -> Tensor:
        """Return what environments need to know of the past: nothing, [replica, 0]."""
        return state.params[:, :0]

    def create_batch_objectives_function(
        self, prior: Tensor, n_examples: float
    ) -> Callable[[Tensor, Batch], ADMMBatchObjectives]:
        """Return the function from features and a batch to the view of `ADMM.solve`."""
        return (
            self.compute_head_objectives
            if self.constraint == "head"
            else self.compute_network_objectives
        )

    def build_state_after_stage(
        self, feature_params: Tensor, shared_params: Tensor, local_params: Tensor
    ) -> BIRMState:
        """Return the state after a stage; `local_params` are those of environments."""
        params = torch.cat([feature_params, shared_params], 1)
        return BIRMState(params, local_params.mean(1, keepdim=True))

    def compute_network_objectives(
        self, feature_params: Tensor, batch: Batch
    ) -> ADMMBatchObjectives:
        """Return risks of whole networks, and gradients by differentiation."""
        each = split_batch_by_environment(batch)

        def compute_gradients_of_networks(local_params: Tensor) -> tuple[Terms, Tensor]:
            params = local_params.flatten(0, 1)
            risks = compute_environment_risks(
                self.network, self.likelihood, params, each
            )
            (gradients,) = torch.autograd.grad(
                risks.sum(), local_params, create_graph=True
            )
            return {"risk": risks.view(local_params.shape[:2])}, gradients

        return ADMMBatchObjectives(
            compute_gradients_of_networks, lambda shared: shared.sum(-1)
        )

    def compute_head_objectives(
        self, feature_params: Tensor, batch: Batch
    ) -> ADMMBatchObjectives:
        """Return risks of heads on shared features, and gradients in closed form."""
        padding = feature_params.new_zeros(
            len(feature_params), self.network.size - self._first_head_index
        )
        whole = torch.cat([feature_params, padding], 1)
        hidden = self.network.compute_features(whole, batch.x, batch.noise)
        each = split_batch_by_environment(batch._replace(x=hidden.detach()))

        def compute_gradients_of_heads(local_params: Tensor) -> tuple[Terms, Tensor]:
            outputs = apply_linear_heads(local_params.flatten(0, 1), each.x)
            losses = self.likelihood.compute_losses(outputs, each.y)
            risks = average_values_by_environment(losses, each.share)
            gradients = compute_head_gradients(
                self.likelihood, each.x, outputs, each.y, each.share
            )
            return {"risk": risks.view(local_params.shape[:2])}, gradients.view_as(
                local_params
            )

        def compute_feature_loss(shared_params: Tensor) -> Tensor:
            losses = self.likelihood.compute_losses(
                apply_linear_heads(shared_params, hidden), batch.y
            )
            return average_values_by_environment(losses, batch.share).sum(-1)

        return ADMMBatchObjectives(compute_gradients_of_heads, compute_feature_loss)
