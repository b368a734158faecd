"""Consensus under constraints on gradients, by alternating directions (ADMM).

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", lemma GADMM and
algorithms 1 to 3. Each environment has its own w_e and descends

    Q_e(w_e) + rho0/2 |w_e - w + u_e|^2 + rho1/2 |grad Q_e(w_e) + v_e|^2

for a round; then they meet: w is the mean of all w_e + u_e, and u_e grows by w_e - w
and v_e by grad Q_e(w_e). The past takes part in the mean as one more that never moves,
which in the end draws w towards it by rho0/2 |w - past|^2.

What the paper leaves open is decided so. There are `rounds` rounds of `inner` steps on
every batch or, with `rounds` 0, one step on every batch and a round lasts `inner`
epochs. A round must nearly reach its minimum: in short ones u and v add up gradients
of the way there, and later undo that way (the paper's listing, read as one step a
round, runs away even on convex problems). The gradient that moves v_e is the first of
the next round: it is taken at the same w_e, and the descent needs it anyway. When the
weights grow, u and v shrink by as much: the multipliers rho u and rho v stay.
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
from cirm.randomness import Draws, Randomness
from cirm.training import Descent, Terms, Watch, check_finite

Growth = Literal["sum", "factor"]
Weights = tuple[float, float]
"""rho0 of the consensus and rho1 of the constraint."""


class Carry(NamedTuple):
    """What moves in a stage.

    Each environment's own parameters and its scaled multipliers of the consensus, u,
    and of the constraint, v, are [replica, e, q]; what is shared is [replica, q].
    """

    local: Tensor
    shared: Tensor
    u: Tensor
    v: Tensor
    weights: Weights


class View(NamedTuple):
    """What a batch says of w and of the features.

    `gradients` gives the terms [replica, e] of the objectives at local parameters
    [replica, e, q], and the objectives' gradients [replica, e, q], to be
    differentiated once more; `outer` gives the loss [replica] that the features
    descend, at shared parameters [replica, q].
    """

    gradients: Callable[[Tensor], tuple[Terms, Tensor]]
    outer: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ADMM:
    """Weights and lengths of the rounds.

    From the part `threshold` of a stage's training on both weights are larger by
    `growth`, as a summand or as a factor.
    """

    rho0: float
    rho1: float
    growth: float
    growth_kind: Growth
    threshold: float
    rounds: int
    inner: int

    def check(self, where: str) -> None:
        """Refuse what cannot be run."""
        if self.growth_kind not in ("sum", "factor"):
            raise ValueError(
                f"{where}: growth_kind must be sum or factor; got {self.growth_kind!r}"
            )
        least = 1 if self.growth_kind == "factor" else 0
        if self.rho0 <= 0 or self.rho1 < 0 or self.growth < least:
            raise ValueError(
                f"{where}: rho0 must be positive, rho1 not negative and growth "
                f"{least} or more; got {self.rho0}, {self.rho1} and {self.growth}"
            )
        if not 0 <= self.threshold <= 1 or self.rounds < 0 or self.inner < 1:
            raise ValueError(
                f"{where}: threshold must be in [0, 1], rounds not negative and inner "
                f"1 or more; got {self.threshold}, {self.rounds} and {self.inner}"
            )

    def weights_at(self, progress: float) -> Weights:
        """The weights when so much of the stage's training is done."""
        if progress < self.threshold:
            return self.rho0, self.rho1
        if self.growth_kind == "sum":
            return self.rho0 + self.growth, self.rho1 + self.growth
        return self.rho0 * self.growth, self.rho1 * self.growth

    @property
    def turns(self) -> int:
        """Steps of the environments on each batch."""
        return self.rounds * self.inner or 1

    def count_round_steps(self, steps: int) -> int:
        """Steps of a round, where an epoch has so many batches."""
        return self.inner if self.rounds else self.inner * steps

    def solve(
        self,
        look: Callable[[Tensor, Batch], View],
        features: Tensor,
        shared: Tensor,
        past: Tensor,
        descent: Descent,
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> tuple[Tensor, Carry]:
        """Features [replica, f], and what the environments end with.

        `look(features, batch)` is asked once for each batch; the features, if there
        are any, move after the batch's turns. `past` is [replica, k, q].
        """
        features = features.detach().clone().requires_grad_()
        carry = init_carry(shared, len(stage), self.weights_at(0.0))
        movers = [descent.make_optimiser(t) for t in (carry.local, features)]
        steps, turns = descent.count_steps(stage), self.turns
        length = self.count_round_steps(steps)
        for step, batch in enumerate(descent.iterate_batches(stage, randomness), 1):
            carry = rescale_multipliers(carry, self.weights_at(batch.progress))
            view = look(features, batch)
            for turn in range((step - 1) * turns, step * turns):
                ends = turn % length == 0, (turn + 1) % length == 0
                carry, numbers = step_environments(carry, view, movers[0], past, ends)
            if features.shape[1]:
                loss = view.outer(carry.shared).sum()
                (features.grad,) = torch.autograd.grad(loss, features)
                movers[1].step()
            if step % steps == 0:
                check_finite(torch.cat([carry.shared, features.detach()], -1), step)
                watch(step, steps * descent.epochs, numbers)
        if not ends[1]:
            carry = update_consensus(carry, past)
        return features.detach(), carry._replace(local=carry.local.detach())


def step_environments(
    carry: Carry,
    view: View,
    mover: torch.optim.Optimizer,
    past: Tensor,
    ends: tuple[bool, bool],
) -> tuple[Carry, Terms]:
    """One step of the environments; `ends` say if a round begins, and if it ends."""
    terms, gradients = view.gradients(carry.local)
    if ends[0]:
        carry = carry._replace(v=carry.v + gradients.detach())
    carry.local.grad = lagrangian_gradient(carry, gradients)
    mover.step()
    if ends[1]:
        carry = update_consensus(carry, past)
    apart = carry.local.detach() - carry.shared.unsqueeze(1)
    numbers = {name: term.detach().mean(-1) for name, term in terms.items()}
    numbers["consensus"] = apart.flatten(1).norm(dim=-1)
    numbers["constraint"] = gradients.detach().flatten(1).norm(dim=-1)
    return carry, numbers


def init_carry(shared: Tensor, environments: int, weights: Weights) -> Carry:
    """Every environment at the shared parameters, [replica, q], and no multipliers."""
    local = shared.detach().unsqueeze(1).repeat(1, environments, 1)
    zeros = torch.zeros_like(local)
    return Carry(local.requires_grad_(), shared.detach(), zeros, zeros, weights)


def rescale_multipliers(carry: Carry, weights: Weights) -> Carry:
    """The same multipliers rho u and rho v under other weights."""
    before = carry.weights
    if weights == before:
        return carry
    u, v = carry.u * (before[0] / weights[0]), carry.v * (before[1] / weights[1])
    return carry._replace(u=u, v=v, weights=weights)


def lagrangian_gradient(carry: Carry, gradients: Tensor) -> Tensor:
    """Gradient of the augmented Lagrangian in the local parameters, [replica, e, q].

    `gradients` are those of the objectives there, to be differentiated once more.
    """
    rho0, rho1 = carry.weights
    fixed = gradients.detach()
    slope = carry.u - carry.shared.unsqueeze(1)
    slope.add_(carry.local.detach()).mul_(rho0).add_(fixed)
    if rho1:
        residual = (fixed + carry.v).mul_(rho1)
        slope.add_(torch.autograd.grad(gradients, carry.local, residual)[0])
    return slope


def update_consensus(carry: Carry, past: Tensor) -> Carry:
    """After a meeting, with the past [replica, k, q] as further participants."""
    local = carry.local.detach()
    shared = torch.cat([local + carry.u, past], 1).mean(1)
    return carry._replace(shared=shared, u=carry.u + local - shared.unsqueeze(1))


def split_environments(batch: Batch) -> Batch:
    """The batch with each environment as a replica of its own, [replica * e, n, ...].

    Environments with fewer examples are filled up by zeros that have no share.
    """
    sizes, sources = batch.sizes, batch.noise.generators
    own = [part[:, e] for e, part in enumerate(batch.share.split(sizes, -1))]
    return batch._replace(
        x=_stack_environments(batch.x, sizes),
        y=_stack_environments(batch.y, sizes),
        share=_stack_environments(torch.cat(own, 1), sizes).unsqueeze(1),
        sizes=(max(sizes),),
        noise=Draws([source for source in sources for _ in sizes]),
    )


def _stack_environments(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Values [replica, n, ...] of environments in a row, as [replica * e, n, ...]."""
    most = max(sizes)
    if min(sizes) < most:
        parts = values.transpose(1, -1).split(sizes, -1)
        filled = [F.pad(part, (0, most - part.shape[-1])) for part in parts]
        values = torch.cat(filled, -1).transpose(1, -1)
    return values.unflatten(1, (len(sizes), most)).flatten(0, 1)
