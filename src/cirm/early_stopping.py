"""Training that stops when the loss on held-out examples no longer falls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import (
    Descent,
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
    normalise_weights_per_environment,
)

HELD_OUT = 0.15  # fraction of the examples of each environment
MOST_HELD_OUT = 10_000  # examples of an environment; more would not choose better
FEWEST_EXAMPLES = 50  # of an environment; a part of fewer says nothing about the loss
PATIENCE_STEPS = 200  # without a lower loss, after which training stops,
PATIENCE_EPOCHS = 3  # if they are so many epochs at least


@dataclass(frozen=True)
class EarlyStoppingDescent(Descent):
    """A descent that holds examples out, and returns the parameters best for them.

    The arguments are those of `Descent`; `epochs` is the largest number of epochs.
    Environments of fewer than 50 examples are trained on for all of them.

    Example:
        >>> EarlyStoppingDescent.from_descent(Descent(epochs=7, rate=0.1)).epochs
        7
    """

    @classmethod
    def from_descent(cls, descent: Descent) -> EarlyStoppingDescent:
        """Return a descent with the same settings that stops early."""
        return cls(**{f.name: getattr(descent, f.name) for f in fields(Descent)})

    def minimise(
        self,
        loss: Callable[[Tensor, Any, Batch], Terms],
        params: Tensor,
        past: Any,  # noqa: ANN401  a tuple of tensors, fixed during the stage
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Tensor:
        """Minimise a loss until it no longer falls on held-out examples.

        Args:
            loss: Terms of the loss, given parameters [replica, p], `past` and a batch.
            params: Parameters to start from, [replica, p].
            past: What the loss needs of earlier stages; a tuple of tensors.
            stage: The environments to train on.
            randomness: Source of the order of the examples and of noise.
            watch: Called after each epoch with the steps so far, and those after which
                training would stop if the loss did not fall any more.

        Returns:
            The parameters [replica, p] with the lowest loss on held-out examples.
        """
        if min(map(len, stage)) < FEWEST_EXAMPLES:
            return super().minimise(loss, params, past, stage, randomness, watch)
        source = randomness.at("held out")
        splits = [hold_out_examples(e, source.at(e.name)) for e in stage]
        stage, held_out = (tuple(part) for part in zip(*splits, strict=True))
        whole = self._build_batch_of_all_examples(held_out, randomness)
        params = params.detach().clone().to(self.device).requires_grad_()
        best, lowest = params.detach().clone(), torch.full((len(params),), torch.inf)
        steps, last = self.count_steps(stage), 0
        patience = max(PATIENCE_STEPS, PATIENCE_EPOCHS * steps)
        for step, numbers in self.iterate_epochs(
            create_gradient_function_of_loss(loss), params, past, stage, randomness
        ):
            with torch.no_grad():
                found = torch.stack(list(loss(params, past, whole).values())).sum(0)
            is_lower = found.cpu() < lowest
            lowest = torch.where(is_lower, found.cpu(), lowest)
            best[is_lower] = params.detach()[is_lower]
            last = step if is_lower.any() else last
            numbers = {**numbers, "held_out": found}
            watch(step, min(last + patience, steps * self.epochs), numbers)
            if step >= last + patience:
                break
        return best

    def count_epochs(self, n_steps: int, stage: Stage) -> int:
        """Convert a number of steps on a stage to epochs."""
        largest = max(len(e) - count_held_out_examples(len(e)) for e in stage)
        return n_steps // (-(-largest // self.batch) if self.batch else 1)

    def _build_batch_of_all_examples(
        self, stage: Stage, randomness: Randomness
    ) -> Batch:
        """Return a batch of all examples, without any dropout."""
        stage, mean_weights = normalise_weights_per_environment(stage)
        replicas = len(randomness.seeds)
        batch = self.build_batch(
            [e.take_all(replicas) for e in stage],
            randomness.start_draws(),
            weights=[e.expand_weights(replicas) for e in stage],
            mean_weights=mean_weights,
        )
        return batch._replace(noise=None)  # type: ignore[arg-type]


def count_held_out_examples(n_examples: int) -> int:
    """Return how many examples are held out."""
    return min(int(HELD_OUT * n_examples), MOST_HELD_OUT)


def hold_out_examples(
    environment: Environment, randomness: Randomness
) -> tuple[Environment, Environment]:
    """Split an environment at random into examples to train on and to hold out."""
    order = randomness.permutation(len(environment))
    count = count_held_out_examples(len(environment))
    return environment.subset(order[:, count:]), environment.subset(order[:, :count])
