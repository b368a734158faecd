"""Meta-experience replay: Reptile steps over arriving examples and a reservoir.

Riemer et al., "Learning to Learn without Forgetting by Maximizing Transfer and
Minimizing Interference", 2019, algorithm 1. For each arriving example, `batches` times:
steps of plain descent, one example at a time, on `replay` examples of the memory and,
last, on the arriving one; then the parameters go the part `beta` of the way from where
the batch began, and after all batches the part `gamma`.

With `literal` that is done as written. Otherwise the examples of a minibatch take these
steps together: each step follows the mean gradient over them, every one with replayed
examples of its own, and the way is multiplied by their number. To first order in the
rate that is where the single examples get one after another, and in expectation over
the draws to second order within a batch; with a minibatch of one it is the same. It
holds while minibatch x beta x rate x (replay + 1) is no more than an ordinary rate.

The paper passes once over its data. Here, in later epochs, an example is not offered to
the reservoir again, so that it stays a uniform draw of different examples; replayed
examples are drawn from it with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import make_empty_examples, select_examples, update_reservoir
from cirm.objectives import Batch, environment_risks, pool_risks
from cirm.randomness import Draws, Randomness
from cirm.training import Terms, Watch, check_finite, ignore_steps, make_gradient


class State(NamedTuple):
    """Parameters [replica, p], the reservoir, and how many were offered, [replica]."""

    params: Tensor
    memory: Examples
    seen: Tensor


@dataclass(frozen=True)
class MER(Learner[State]):
    """Replay from a reservoir of `memory` examples, by steps within and across batches.

    Its steps are those of plain descent, so `optimiser` is always sgd.
    """

    memory: int = 100
    replay: int = 5
    batches: int = 1
    beta: float = 0.03
    gamma: float = 1.0
    literal: bool = False

    presets = {
        "paper": {
            "memory": 100,
            "replay": 5,
            "batches": 1,
            "beta": 0.03,
            "gamma": 1.0,
            "rate": 1e-3,
        }
    }

    def __post_init__(self) -> None:
        if min(self.memory, self.replay) < 0 or self.batches < 1:
            raise ValueError(
                "mer: memory and replay must not be negative and batches must be one "
                f"or more; got {self.memory}, {self.replay} and {self.batches}"
            )
        if self.beta <= 0 or self.gamma <= 0:
            raise ValueError(
                "mer: beta and gamma must be positive; "
                f"got {self.beta} and {self.gamma}"
            )
        # What is recorded of the settings must be what is done.
        plain = replace(self.descent, optimiser="sgd")
        object.__setattr__(self, "descent", plain)

    def init(self, randomness: Randomness) -> State:
        """Random parameters and an empty reservoir."""
        params = self.network.init(randomness.at("params"))
        seen = torch.zeros(len(params), dtype=torch.int64)
        return State(params, make_empty_examples(len(params)), seen)

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Learn each arriving minibatch or example with replay, then offer it."""
        memory, seen = state.memory, state.seen
        params = state.params.clone().to(self.descent.device).requires_grad_()
        optimiser = self.descent.make_optimiser(params)
        chosen, places = (
            randomness.at(n).start_draws() for n in ("replay", "reservoir")
        )
        steps = self.descent.count_steps(stage)
        for step, batch in enumerate(
            self.descent.iterate_batches(stage, randomness), 1
        ):
            for arriving in self.split_arrivals(batch):
                numbers = self.learn_arrival(
                    params, optimiser, memory, arriving, chosen
                )
                if self.memory and step <= steps:
                    offered = Examples(arriving.x.cpu(), arriving.y.cpu())
                    memory, seen = update_reservoir(
                        memory, seen, offered, self.memory, places
                    )
            if step % steps == 0:
                check_finite(params, step)
                watch(step, steps * self.descent.epochs, numbers)
        return State(params.detach(), memory, seen)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: None, batch: Batch) -> Terms:
        """Risk of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": pool_risks(risks, batch)}

    def split_arrivals(self, batch: Batch) -> Iterator[Batch]:
        """What is learned at once: a minibatch or, if literal, one example."""
        if not self.literal:
            yield batch
            return
        for x, y in zip(batch.x.split(1, 1), batch.y.split(1, 1), strict=True):
            yield self.descent.make_batch([Examples(x, y)], batch.noise, batch.progress)

    def learn_arrival(
        self,
        params: Tensor,
        optimiser: torch.optim.Optimizer,
        memory: Examples,
        arriving: Batch,
        draws: Draws,
    ) -> Terms:
        """Move the parameters, in place, by the batches of one arrival."""
        before = params.detach().clone()
        for _ in range(self.batches):
            begun = params.detach().clone()
            for batch in (*self.draw_replays(memory, arriving, draws), arriving):
                params.grad, numbers = make_gradient(self.loss)(params, None, batch)
                optimiser.step()
            way = self.beta * arriving.y.shape[1]
            params.data = begun.lerp_(params.detach(), way)
        params.data = before.lerp_(params.detach(), self.gamma)
        return numbers

    def draw_replays(
        self, memory: Examples, arriving: Batch, draws: Draws
    ) -> Iterator[Batch]:
        """`replay` batches, with one random example of the memory for each arriving."""
        held, arrivals = memory.y.shape[1], arriving.y.shape[1]
        if not held:
            return
        rest = arriving.noise, arriving.progress
        rows = (draws.uniform(arrivals, self.replay) * held).long().clamp(max=held - 1)
        for row in rows.unbind(-1):
            if arrivals <= held:
                yield self.descent.make_batch([select_examples(memory, row)], *rest)
                continue
            # Weighing all that is held takes less work than repeating some of it.
            part = torch.full(row.shape, 1 / arrivals)
            share = torch.zeros(len(row), held).scatter_add(1, row, part).unsqueeze(1)
            batch = self.descent.make_batch([memory], *rest)
            yield batch._replace(share=share.to(batch.x.device))
