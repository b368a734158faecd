"""What learners that keep examples of past environments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import (
    ExampleMemory,
    add_stage_to_memory,
    create_empty_memory,
    draw_distinct_rows,
    move_to_device,
    select_remaining_rows,
)
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import (
    Descent,
    Terms,
    Watch,
    ignore_training_steps,
    make_gradient_function,
)

Gradient = Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]]
"""Returns a gradient [replica, p] and numbers for `watch`."""


class MemoryState(NamedTuple):
    """Parameters [replica, p] and the examples kept from past environments."""

    params: Tensor
    memory: ExampleMemory


def init_memory_state(learner: Learner[Any], randomness: Randomness) -> MemoryState:
    """Return random parameters and an empty memory. Serves as a learner's `init`."""
    params = learner.network.init(randomness.at("params"))
    return MemoryState(params, create_empty_memory(len(params)))


def train_and_store_examples(
    learner: Any,  # noqa: ANN401  a learner with a loss and a setting `memory`
    state: MemoryState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
) -> MemoryState:
    """Minimise a learner's loss, then keep `memory` examples of each environment.

    Serves as a learner's `observe`.
    """
    gradient = make_gradient_function(learner.compute_loss)
    return follow_gradient_and_store_examples(
        learner, gradient, state, stage, randomness, watch
    )


def follow_gradient_and_store_examples(
    learner: Any,  # noqa: ANN401  a learner with a setting `memory`
    gradient: Gradient,
    state: MemoryState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch,
    total: bool = False,
) -> MemoryState:
    """Follow a gradient, then keep `memory` examples of each environment or in total.

    The gradient's `past` is the state before the stage.
    """
    past = move_to_device(state, learner.descent.device)
    params = learner.descent.descend_along_gradient(
        gradient, past.params, past, stage, randomness, watch
    )
    memory = add_stage_to_memory(
        state.memory, stage, learner.memory, randomness.at("memory"), total
    )
    return MemoryState(params, memory)


def join_past_environments(
    descent: Descent, batch: Batch, memory: ExampleMemory
) -> Batch:
    """Return a batch in which each past environment is one more environment."""
    pieces = batch.split_by_environment() + memory.split_by_environment()
    return descent.build_batch(pieces, batch.noise, batch.progress)


def hold_out_examples(
    stage: Stage, size: int, randomness: Randomness
) -> tuple[Stage, Stage]:
    """Split each environment into examples to train on and `size` held-out ones.

    At most half of an environment is held out.
    """
    rest, held_out = [], []
    for environment in stage:
        count = min(size, len(environment) // 2)
        source = randomness.at(environment.name)
        rows = draw_distinct_rows(source, len(environment), count)
        held_out.append(environment.subset(rows) if count else environment)
        rest.append(environment.subset(select_remaining_rows(rows, len(environment))))
    return tuple(rest), tuple(held_out)
