"""Consensus under gradient constraints by the alternating direction method (ADMM).

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", lemma GADMM and
algorithms 1 to 3. Each environment has its own w_e and descends

    Q_e(w_e) + rho0/2 |w_e - w + u_e|^2 + rho1/2 |grad Q_e(w_e) + v_e|^2

for a round. Then w becomes the mean of all w_e + u_e, u_e grows by w_e - w and v_e by
grad Q_e(w_e). The past takes part in the mean as one more environment that never moves,
which in the end pulls w towards it by rho0/2 |w - past|^2.

The paper leaves some choices open; these are ours. There are `rounds` rounds of `inner`
steps on every batch, or with `rounds` 0 one step on every batch and rounds of `inner`
epochs. A round must nearly reach its minimum: in short rounds u and v add up gradients
along the way and later undo it (the paper's listing, read as one step per round,
diverges even on convex problems). u and v start at zero. The gradient that moves v_e
after a round is the first one of the next round, which is taken at the same w_e and is
needed there anyway. When the weights grow, u and v shrink by the same factor, so that
the multipliers rho u and rho v stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Stage
from cirm.objectives import Batch
from cirm.randomness import RandomDraws, Randomness
from cirm.training import (
    Descent,
    Terms,
    Watch,
    check_parameters_are_finite,
    take_optimiser_step,
)

Growth = Literal["sum", "factor"]
Weights = tuple[float, float]
"""The weights rho0 of the consensus and rho1 of the constraint."""


class ADMMVariables(NamedTuple):
    """The variables of a stage.

    Attributes:
        local: Parameters of each environment, [replica, e, q].
        shared: Their consensus, [replica, q].
        u: Scaled multipliers of the consensus, [replica, e, q].
        v: Scaled multipliers of the constraint, [replica, e, q].
        weights: The weights that the multipliers are scaled by.
    """

    local: Tensor
    shared: Tensor
    u: Tensor
    v: Tensor
    weights: Weights


class ADMMBatchObjectives(NamedTuple):
    """The objectives on one batch.

    Attributes:
        gradients: Function of local parameters [replica, e, q]. It returns the terms of
            the objectives, [replica, e] each, and the gradients of the objectives,
            [replica, e, q], which can be differentiated again.
        feature_loss: Function of shared parameters [replica, q]. It returns the loss
            [replica] that the features minimise.
    """

    gradients: Callable[[Tensor], tuple[Terms, Tensor]]
    feature_loss: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ADMM:
    """The weights of the constraints and the lengths of the rounds.

    Args:
        rho0: Weight of the consensus.
        rho1: Weight of the constraint.
        growth: Increase of both weights, as a summand or a factor.
        growth_kind: "sum" or "factor".
        threshold: Fraction of a stage's training after which the weights increase.
        rounds: Rounds on each batch; 0 for rounds of `inner` epochs.
        inner: Steps, or epochs, of a round.
    """

    rho0: float
    rho1: float
    growth: float
    growth_kind: Growth
    threshold: float
    rounds: int
    inner: int

    def check_settings(self, where: str) -> None:
        """Raise an error if a setting is invalid."""
        if self.growth_kind not in ("sum", "factor"):
            raise ValueError(
                f"{where}: the setting growth_kind must be sum or factor, but is "
                f"{self.growth_kind!r}. Change it with --set growth_kind=VALUE."
            )
        least = 1 if self.growth_kind == "factor" else 0
        conditions = {
            "rho0": (self.rho0 > 0, "positive"),
            "rho1": (self.rho1 >= 0, "0 or more"),
            "growth": (self.growth >= least, f"{least} or more"),
            "threshold": (0 <= self.threshold <= 1, "from 0 to 1"),
            "rounds": (self.rounds >= 0, "0 or more"),
            "inner": (self.inner >= 1, "1 or more"),
        }
        for name, (holds, range_) in conditions.items():
            if not holds:
                value = getattr(self, name)
                raise ValueError(
                    f"{where}: the setting {name} must be {range_}, but is {value}. "
                    f"Change it with --set {name}=VALUE."
                )

    def get_constraint_weights_at_progress(self, progress: float) -> Weights:
        """Return the weights at a fraction of the stage's training."""
        if progress < self.threshold:
            return self.rho0, self.rho1
        if self.growth_kind == "sum":
            return self.rho0 + self.growth, self.rho1 + self.growth
        return self.rho0 * self.growth, self.rho1 * self.growth

    @property
    def steps_per_batch(self) -> int:
        """Number of steps of the environments on each batch."""
        return self.rounds * self.inner or 1

    def count_steps_per_admm_round(self, steps_per_epoch: int) -> int:
        """Return the steps of a round, given the number of batches in an epoch."""
        return self.inner if self.rounds else self.inner * steps_per_epoch

    def find_whether_step_follows_or_ends_round(
        self, step: int, steps_per_epoch: int
    ) -> tuple[bool, bool]:
        """Return whether a step of a stage follows a round, and whether it ends one."""
        length = self.count_steps_per_admm_round(steps_per_epoch)
        return step > 0 and step % length == 0, (step + 1) % length == 0

    def solve(
        self,
        compute_objectives: Callable[[Tensor, Batch], ADMMBatchObjectives],
        feature_params: Tensor,
        shared_params: Tensor,
        past: Tensor,
        descent: Descent,
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> tuple[Tensor, ADMMVariables]:
        """Run a stage.

        Args:
            compute_objectives: Returns the objectives on a batch, given features and
                the batch. It is called once for each batch.
            feature_params: Parameters of the features, [replica, f]; they take a step
                after the environments' steps on a batch. f may be 0.
            shared_params: Parameters to find a consensus on, [replica, q].
            past: Parameters that take part in the consensus, [replica, k, q].
            descent: Length of the training and optimisers.
            stage: The environments to train on.
            randomness: Source of the order of the examples and of noise.
            watch: Called after each epoch.

        Returns:
            The features [replica, f], and the final variables.
        """
        feature_params = feature_params.detach().clone().requires_grad_()
        carry = init_admm_variables(
            shared_params, len(stage), self.get_constraint_weights_at_progress(0.0)
        )
        movers = [descent.create_optimiser(t) for t in (carry.local, feature_params)]
        steps, steps_per_batch = descent.count_steps(stage), self.steps_per_batch
        for step, batch in enumerate(descent.iterate_batches(stage, randomness), 1):
            carry = rescale_lagrange_multipliers(
                carry, self.get_constraint_weights_at_progress(batch.progress)
            )
            view = compute_objectives(feature_params, batch)
            for turn in range((step - 1) * steps_per_batch, step * steps_per_batch):
                follows, ends = self.find_whether_step_follows_or_ends_round(
                    turn, steps
                )
                carry, numbers = take_local_gradient_step(
                    carry, view, movers[0], past, follows, ends
                )
            if feature_params.shape[1]:
                loss = view.feature_loss(carry.shared).sum()
                (feature_params.grad,) = torch.autograd.grad(loss, feature_params)
                take_optimiser_step(movers[1], feature_params)
            if step % steps == 0:
                check_parameters_are_finite(
                    torch.cat([carry.shared, feature_params.detach()], -1), step
                )
                watch(step, steps * descent.epochs, numbers)
        if not ends:
            carry = update_consensus_parameters(carry, past)
        return feature_params.detach(), carry._replace(local=carry.local.detach())


def take_local_gradient_step(
    variables: ADMMVariables,
    objectives: ADMMBatchObjectives,
    optimiser: torch.optim.Optimizer,
    past: Tensor,
    follows_round: bool,
    ends_round: bool,
) -> tuple[ADMMVariables, Terms]:
    """Make one step; if it follows a round, update v first, as that round ends."""
    terms, gradients = objectives.gradients(variables.local)
    if follows_round:
        variables = variables._replace(v=variables.v + gradients.detach())
    variables.local.grad = compute_lagrangian_gradient(variables, gradients)
    take_optimiser_step(optimiser, variables.local)
    if ends_round:
        variables = update_consensus_parameters(variables, past)
    apart = variables.local.detach() - variables.shared.unsqueeze(1)
    numbers = {name: term.detach().mean(-1) for name, term in terms.items()}
    numbers["consensus"] = apart.flatten(1).norm(dim=-1)
    numbers["constraint"] = gradients.detach().flatten(1).norm(dim=-1)
    return variables, numbers


def init_admm_variables(
    shared_params: Tensor, n_environments: int, weights: Weights
) -> ADMMVariables:
    """Start every environment at the shared parameters, with zero multipliers."""
    local = shared_params.detach().unsqueeze(1).repeat(1, n_environments, 1)
    zeros = torch.zeros_like(local)
    return ADMMVariables(
        local.requires_grad_(), shared_params.detach(), zeros, zeros, weights
    )


def rescale_lagrange_multipliers(
    variables: ADMMVariables, weights: Weights
) -> ADMMVariables:
    """Return the same multipliers rho u and rho v, scaled by other weights."""
    before = variables.weights
    if weights == before:
        return variables
    u, v = (
        variables.u * (before[0] / weights[0]),
        variables.v * (before[1] / weights[1]),
    )
    return variables._replace(u=u, v=v, weights=weights)


def compute_lagrangian_gradient(variables: ADMMVariables, gradients: Tensor) -> Tensor:
    """Compute the augmented Lagrangian's gradient in the local parameters.

    `gradients` are those of the objectives, which can be differentiated again. All are
    [replica, e, q].
    """
    rho0, rho1 = variables.weights
    fixed = gradients.detach()
    slope = variables.u - variables.shared.unsqueeze(1)
    slope.add_(variables.local.detach()).mul_(rho0).add_(fixed)
    if rho1:
        residual = (fixed + variables.v).mul_(rho1)
        slope.add_(torch.autograd.grad(gradients, variables.local, residual)[0])
    return slope


def update_consensus_parameters(
    variables: ADMMVariables, past: Tensor
) -> ADMMVariables:
    """Update consensus and multipliers, with the past [replica, k, q] taking part."""
    local = variables.local.detach()
    shared = torch.cat([local + variables.u, past], 1).mean(1)
    return variables._replace(
        shared=shared, u=variables.u + local - shared.unsqueeze(1)
    )


def split_batch_by_environment(batch: Batch) -> Batch:
    """Return the batch with a replica for each environment, [replica * e, n, ...].

    Environments with fewer examples are padded with zeros that have no share.
    """
    sizes, sources = batch.sizes, batch.noise.generators
    if len(sizes) == 1:
        return batch._replace(mean_weights=())
    shares = [part[:, e] for e, part in enumerate(batch.share.split(sizes, -1))]
    return batch._replace(
        x=_split_and_pad_by_environment(batch.x, sizes),
        y=_split_and_pad_by_environment(batch.y, sizes),
        share=_split_and_pad_by_environment(torch.cat(shares, 1), sizes).unsqueeze(1),
        sizes=(max(sizes),),
        mean_weights=(),
        noise=RandomDraws([source for source in sources for _ in sizes]),
    )


def _split_and_pad_by_environment(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Reshape values [replica, n, ...] of several environments, as the batch is."""
    most = max(sizes)
    if min(sizes) < most:
        parts = values.transpose(1, -1).split(sizes, -1)
        filled = [F.pad(part, (0, most - part.shape[-1])) for part in parts]
        values = torch.cat(filled, -1).transpose(1, -1)
    return values.unflatten(1, (len(sizes), most)).flatten(0, 1)
