"""The one training loop, and the batches that feed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adam import adam

from cirm.environments import Environment, Examples, Stage
from cirm.objectives import Batch
from cirm.randomness import Draws, Randomness

Terms = dict[str, Tensor]
"""The named parts, [replica] each, that add up to a loss."""

Watch = Callable[[int, int, Terms], None]
"""Is told after each epoch: steps done, steps in all, and numbers [replica]."""

MAX_CACHED_BYTES = (
    2**28
)  # lazily made inputs up to so many bytes are made once per stage


class DivergenceError(ArithmeticError):
    """Training left the finite numbers."""


def ignore_steps(step: int, steps: int, numbers: Terms) -> None:
    """The watcher that does nothing."""


@dataclass(frozen=True)
class Descent:
    """How long, in what portions and how fast to descend.

    In an epoch every example is seen once: the largest environment of the stage is
    cut into parts of at most `batch` examples (0: all at once) and each other one
    into as many parts. `decay` times the parameters is added to the gradient.
    """

    epochs: int = 100
    batch: int = 256
    rate: float = 1e-3
    decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "adam"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 0 or self.rate <= 0 or self.decay < 0:
            raise ValueError(
                "training: epochs and rate must be positive, batch and decay not "
                f"negative; got {self}"
            )
        if self.optimiser not in ("adam", "sgd"):
            raise ValueError(
                f"training: optimiser must be adam or sgd; got {self.optimiser!r}"
            )

    def count_steps(self, stage: Stage) -> int:
        """Steps of one epoch."""
        return -(-max(map(len, stage)) // self.batch) if self.batch else 1

    def iterate_batches(self, stage: Stage, randomness: Randomness) -> Iterator[Batch]:
        """One batch for each step of every epoch."""
        replicas, steps = len(randomness.seeds), self.count_steps(stage)
        noise = randomness.at("noise").start_draws()
        if steps == 1:
            whole = self.make_batch([e.take_all(replicas) for e in stage], noise)
            for epoch in range(self.epochs):
                yield whole._replace(progress=epoch / self.epochs)
            return
        orders = [randomness.at("order", e.name).start_draws() for e in stage]
        source = unite_stage(tuple(materialise(e, replicas) for e in stage))
        starts = list(accumulate(map(len, stage[:-1]), initial=0))
        for epoch in range(self.epochs):
            rows = [
                split_rows(o.permutation(len(e)), steps)
                for o, e in zip(orders, stage, strict=True)
            ]
            for step, row in enumerate(zip(*rows, strict=True)):
                progress = (epoch + step / steps) / self.epochs
                sizes = tuple(part.shape[1] for part in row)
                if len(source) < len(stage):
                    places = zip(row, starts, strict=True)
                    row = (torch.cat([part + start for part, start in places], 1),)
                pieces = [e.take(r) for e, r in zip(source, row, strict=True)]
                yield self.make_batch(pieces, noise, progress, sizes)

    def make_batch(
        self,
        pieces: Sequence[Examples],
        noise: Draws,
        progress: float = 0.0,
        sizes: tuple[int, ...] = (),
    ) -> Batch:
        """A batch of the examples of each environment.

        A piece may hold those of several one after another, if `sizes` tell them apart.
        """
        x, y = (
            pair[0] if len(pieces) == 1 else torch.cat(pair, 1)
            for pair in zip(*pieces, strict=True)
        )
        x, y = x.to(self.device), y.to(self.device)
        sizes = sizes or tuple(piece.y.shape[1] for piece in pieces)
        share = averaging_weights(sizes, y.device).expand(len(y), -1, -1)
        return Batch(x, y, share, sizes, progress, noise)

    def minimise(
        self,
        loss: Callable[[Tensor, Any, Batch], Terms],
        params: Tensor,
        past: Any,  # noqa: ANN401  a tuple of tensors, fixed during the stage
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> Tensor:
        """The parameters [replica, p] after descending `loss(params, past, batch)`.

        The loss is summed over the replicas before it is differentiated; each term
        depends on one replica's parameters only, so that replicas never mix.
        """
        return self.follow_gradient(
            make_gradient(loss), params, past, stage, randomness, watch
        )

    def follow_gradient(
        self,
        gradient: Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]],
        params: Tensor,
        past: Any,  # noqa: ANN401
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> Tensor:
        """The parameters after following `gradient(params, past, batch)` downhill.

        The gradient, [replica, p], comes with numbers to watch.
        """
        params = params.detach().clone().to(self.device).requires_grad_()
        optimiser = self.make_optimiser(params)
        steps = self.count_steps(stage)
        for step, batch in enumerate(self.iterate_batches(stage, randomness), 1):
            params.grad, numbers = gradient(params, past, batch)
            step_optimiser(optimiser, params)
            if step % steps == 0:
                check_finite(params, step)
                watch(step, steps * self.epochs, numbers)
        return params.detach()

    def take_turns(
        self,
        loss: Callable[[int, list[Tensor], Batch], Terms],
        movers: list[Tensor],
        stage: Stage,
        randomness: Randomness,
    ) -> Iterator[tuple[int, Batch, Terms]]:
        """Steps in which each mover in turn goes down its own loss.

        The movers, [replica, ...], are moved in place; `loss(turn, movers, batch)` has
        a gradient in the one whose turn it is. Each step yields how many are done, its
        batch, and the numbers of all losses.
        """
        optimisers = [self.make_optimiser(mover) for mover in movers]
        steps = self.count_steps(stage)
        for step, batch in enumerate(self.iterate_batches(stage, randomness), 1):
            numbers: Terms = {}
            for turn, optimiser in enumerate(optimisers):
                leaves = [m.detach() for m in movers]
                leaves[turn].requires_grad_()
                terms = loss(turn, leaves, batch)
                total = torch.stack(list(terms.values())).sum()
                (movers[turn].grad,) = torch.autograd.grad(total, leaves[turn])
                step_optimiser(optimiser, movers[turn])
                numbers |= {name: term.detach() for name, term in terms.items()}
            if step % steps == 0:
                check_finite(torch.cat(movers, -1), step)
            yield step, batch, numbers

    def make_optimiser(self, params: Tensor) -> torch.optim.Optimizer:
        """A fresh optimiser of these parameters."""
        kind = torch.optim.SGD if self.optimiser == "sgd" else torch.optim.Adam
        made = kind([params], lr=self.rate, weight_decay=self.decay, fused=True)
        made.register_step_pre_hook(lay_out_gradients)
        return made


def make_gradient(
    loss: Callable[[Tensor, Any, Batch], Terms],
) -> Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]]:
    """The gradient of a loss, with the values of its terms."""

    def gradient(
        params: Tensor,
        past: Any,  # noqa: ANN401
        batch: Batch,
    ) -> tuple[Tensor, Terms]:
        terms = loss(params, past, batch)
        total = reduce(torch.add, terms.values()).sum()
        (slope,) = torch.autograd.grad(total, params)
        return slope, {name: term.detach() for name, term in terms.items()}

    return gradient


def step_optimiser(optimiser: torch.optim.Optimizer, params: Tensor) -> None:
    """A step of an optimiser of these parameters alone.

    For Adam, once it has a state, without what torch does around the same function:
    that takes 7 % of a step of table 1.
    """
    state, group = optimiser.state[params], optimiser.param_groups[0]
    if "exp_avg" not in state or params.grad is None:
        optimiser.step()
        return
    lay_out_gradients(optimiser)
    with torch.no_grad():
        adam(
            [params],
            [params.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def lay_out_gradients(optimiser: torch.optim.Optimizer, *_: Any) -> None:  # noqa: ANN401
    """Store gradients as their parameters are; else fused steps misread them."""
    for params in optimiser.param_groups[0]["params"]:
        if params.grad is not None and params.grad.stride() != params.stride():
            params.grad = torch.empty_like(params).copy_(params.grad)


def check_finite(params: Tensor, step: int) -> None:
    """Refuse to go on with parameters [replica, ...] that are not finite."""
    # A sum is finite only if all its terms are, and is twenty times faster to check.
    if not params.sum().isfinite() and not params.isfinite().all():
        lost = [i for i, row in enumerate(params) if not row.isfinite().all()]
        raise DivergenceError(f"parameters must stay finite; lost at step {step}", lost)


def materialise(environment: Environment, replicas: int) -> Environment:
    """The environment with lazily made inputs made, if they are not too large."""
    if isinstance(environment.inputs, Tensor):
        return environment
    size = 4 * torch.Size(environment.inputs.shape).numel()
    if size > MAX_CACHED_BYTES:
        return environment
    return replace(environment, inputs=environment.take_all(replicas).x)


def unite_stage(stage: Stage) -> Stage:
    """The environments of a stage as one, if that is not too large, else as they are.

    A batch is then taken at once, not in pieces that have to be put together.
    """
    first, inputs = stage[0], [e.inputs for e in stage if isinstance(e.inputs, Tensor)]
    alike = all(e.replicated == first.replicated for e in stage)
    size = sum(x.nbytes for x in inputs)
    if len(inputs) < max(2, len(stage)) or not alike or size > MAX_CACHED_BYTES:
        return stage
    axis = int(first.replicated)
    targets = torch.cat([e.targets for e in stage], axis)
    return (replace(first, inputs=torch.cat(inputs, axis), targets=targets),)


def split_rows(rows: Tensor, count: int) -> tuple[Tensor, ...]:
    """Rows [replica, n] cut into nearly equal parts; too few are repeated."""
    repeats = -(-count // rows.shape[1])
    return rows.repeat(1, repeats).tensor_split(count, 1)


@lru_cache(maxsize=64)
def averaging_weights(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Averaging weights [e, n] of environments of these sizes, one after another."""
    blocks = [torch.full((1, size), 1 / size) for size in sizes]
    return torch.block_diag(*blocks).to(device)
