"""Meta-experience replay: Reptile steps over arriving examples and a reservoir.

Riemer et al., "Learning to Learn without Forgetting by Maximizing Transfer and
Minimizing Interference", 2019, algorithm 1. For each arriving example, and `batches`
times: take plain gradient steps, one example at a time, on `replay` examples of the
memory and, last, on the arriving one; then move the parameters the fraction `beta` of
the way from where the batch began. After all batches, move them the fraction `gamma`.

With `literal` this is done as written. Otherwise the examples of a minibatch take these
steps together: each step follows their mean gradient, every example has its own
replayed examples, and the distance is multiplied by the number of examples. To first
order in the learning rate this ends where single examples one after another would, and
in expectation over the draws also to second order within a batch. It holds as long as
minibatch size x beta x rate x (replay + 1) is not above a usual learning rate.

Departures: the paper passes over its data once. Here later epochs do not offer an
example to the reservoir again, so that the reservoir stays a uniform draw of different
examples. Replayed examples are drawn from it with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import PAPER_DROPOUT, Learner
from cirm.memory import (
    create_empty_examples,
    select_examples_at_rows,
    update_example_reservoir,
)
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_environment_risks,
)
from cirm.randomness import RandomDraws, Randomness
from cirm.training import (
    Terms,
    Watch,
    check_parameters_are_finite,
    create_gradient_function_of_loss,
    ignore_training_steps,
    take_optimiser_step,
)


class MERState(NamedTuple):
    """Parameters [replica, p], the reservoir, and the number of offers [replica]."""

    params: Tensor
    memory: Examples
    seen: Tensor


@dataclass(frozen=True)
class MER(Learner[MERState]):
    """Replay from a reservoir, with Reptile steps within and across batches.

    Args:
        descent: How long and how fast to train. MER takes plain gradient steps, so its
            `optimiser` is always "sgd".
        memory: Number of examples in the reservoir.
        replay: Number of replayed examples for each arriving one.
        batches: Number of batches for each arriving example.
        beta: Fraction of the way that is kept after a batch.
        gamma: Fraction of the way that is kept after all batches.
        literal: Take the steps for one arriving example at a time, as in the paper.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(MER(memory=5)).shape
        torch.Size([1, 20, 2])
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
            **PAPER_DROPOUT,
        }
    }

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("replay", self.replay >= 0, "0 or more")
        self.check_setting("batches", self.batches >= 1, "1 or more")
        self.check_setting("beta", self.beta > 0, "above 0")
        self.check_setting("gamma", self.gamma > 0, "above 0")
        # Records list the settings, so they must name the optimiser that is used.
        object.__setattr__(self, "descent", replace(self.descent, optimiser="sgd"))

    def init(self, randomness: Randomness) -> MERState:
        """Return random parameters and an empty reservoir."""
        params = self.network.init(randomness.at("params"))
        seen = torch.zeros(len(params), dtype=torch.int64)
        return MERState(params, create_empty_examples(len(params)), seen)

    def observe(
        self,
        state: MERState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> MERState:
        """Learn arriving minibatches with replay, and offer them to the reservoir."""
        memory, seen = state.memory, state.seen
        params = state.params.clone().to(self.descent.device).requires_grad_()
        optimiser = self.descent.create_optimiser(params)
        replay_draws, reservoir_draws = (
            randomness.at(n).start_draws() for n in ("replay", "reservoir")
        )
        steps = self.descent.count_steps(stage)
        for step, batch in enumerate(
            self.descent.iterate_batches(stage, randomness), 1
        ):
            for arriving in self.iterate_arriving_minibatches(batch):
                numbers = self.train_on_arriving_examples(
                    params, optimiser, memory, arriving, replay_draws
                )
                if self.memory and step <= steps:
                    offered = Examples(arriving.x.cpu(), arriving.y.cpu())
                    memory, seen = update_example_reservoir(
                        memory, seen, offered, self.memory, reservoir_draws
                    )
            if step % steps == 0:
                check_parameters_are_finite(params, step)
                watch(step, steps * self.descent.epochs, numbers)
        return MERState(params.detach(), memory, seen)

    def compute_loss(self, params: Tensor, past: None, batch: Batch) -> Terms:
        """Return the risk of each replica."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": average_risks_over_examples(risks, batch)}

    def iterate_arriving_minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Yield what is learned at once: a minibatch or, if literal, one example."""
        if not self.literal:
            yield batch
            return
        for x, y in zip(batch.x.split(1, 1), batch.y.split(1, 1), strict=True):
            yield self.descent.build_batch(
                [Examples(x, y)], batch.noise, batch.progress
            )

    def train_on_arriving_examples(
        self,
        params: Tensor,
        optimiser: torch.optim.Optimizer,
        memory: Examples,
        arriving: Batch,
        draws: RandomDraws,
    ) -> Terms:
        """Move the parameters in place by the batches of one arrival."""
        before = params.detach().clone()
        for _ in range(self.batches):
            start = params.detach().clone()
            for batch in (*self.draw_replay_batches(memory, arriving, draws), arriving):
                params.grad, numbers = create_gradient_function_of_loss(
                    self.compute_loss
                )(params, None, batch)
                take_optimiser_step(optimiser, params)
            distance = self.beta * arriving.y.shape[1]
            params.data = start.lerp_(params.detach(), distance)
        params.data = before.lerp_(params.detach(), self.gamma)
        return numbers

    def draw_replay_batches(
        self, memory: Examples, arriving: Batch, draws: RandomDraws
    ) -> Iterator[Batch]:
        """Yield `replay` batches with a random stored example for each arriving one."""
        stored, arrivals = memory.y.shape[1], arriving.y.shape[1]
        if not stored:
            return
        rest = arriving.noise, arriving.progress
        rows = (
            (draws.uniform(arrivals, self.replay) * stored).long().clamp(max=stored - 1)
        )
        for row in rows.unbind(-1):
            if arrivals <= stored:
                yield self.descent.build_batch(
                    [select_examples_at_rows(memory, row)], *rest
                )
                continue
            # Weighting all stored examples takes less work than repeating some of them.
            part = torch.full(row.shape, 1 / arrivals)
            share = torch.zeros(len(row), stored).scatter_add(1, row, part).unsqueeze(1)
            batch = self.descent.build_batch([memory], *rest)
            yield batch._replace(share=share.to(batch.x.device))
