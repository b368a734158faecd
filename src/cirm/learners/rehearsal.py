"""What learners that keep examples of past environments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
    draw_rows_without_replacement,
    list_rows_that_were_not_chosen,
    move_tensors_to_device,
)
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import (
    Descent,
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)

Gradient = Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]]
"""Returns a gradient [replica, p] and numbers for `watch`."""


class ParametersAndMemoryState(NamedTuple):
    """Parameters [replica, p] and the examples kept from past environments."""

    params: Tensor
    memory: PastExampleMemory


def init_parameters_and_memory_state(
    learner: Learner[Any], randomness: Randomness
) -> ParametersAndMemoryState:
    """Return random parameters and an empty memory. Serves as a learner's `init`."""
    params = learner.network.init(randomness.at("params"))
    return ParametersAndMemoryState(params, create_empty_memory(len(params)))


def train_and_update_memory(
    learner: Any,  # noqa: ANN401  a learner with a loss and a setting `memory`
    state: ParametersAndMemoryState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
) -> ParametersAndMemoryState:
    """Minimise a learner's loss, then keep `memory` examples of each environment.

    Serves as a learner's `observe`.
    """
    gradient = create_gradient_function_of_loss(learner.compute_loss)
    return descend_gradient_and_store_examples(
        learner, gradient, state, stage, randomness, watch
    )


def descend_gradient_and_store_examples(
    learner: Any,  # noqa: ANN401  a learner with a setting `memory`
    gradient_function: Gradient,
    state: ParametersAndMemoryState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch,
    is_memory_total: bool = False,
) -> ParametersAndMemoryState:
    """Follow a gradient, then keep `memory` examples of each environment or in total.

    The gradient's `past` is the state before the stage.
    """
    past = move_tensors_to_device(state, learner.descent.device)
    params = learner.descent.descend_along_gradient(
        gradient_function, past.params, past, stage, randomness, watch
    )
    memory = add_examples_of_stage_to_memory(
        state.memory, stage, learner.memory, randomness.at("memory"), is_memory_total
    )
    return ParametersAndMemoryState(params, memory)


def build_batch_with_past_environments(
    descent: Descent, batch: Batch, memory: PastExampleMemory
) -> Batch:
    """Return a batch in which each past environment is one more environment."""
    pieces = batch.split_by_environment() + memory.split_by_environment()
    return descent.build_batch(pieces, batch.noise, batch.progress)


def split_environments_for_holdout(
    stage: Stage, n_held_out: int, randomness: Randomness
) -> tuple[Stage, Stage]:
    """Split each environment into examples to train on and `n_held_out` held-out ones.

    At most half of an environment is held out.
    """
    rest, held_out = [], []
    for environment in stage:
        count = min(n_held_out, len(environment) // 2)
        source = randomness.at(environment.name)
        rows = draw_rows_without_replacement(source, len(environment), count)
        held_out.append(environment.subset(rows) if count else environment)
        rest.append(
            environment.subset(list_rows_that_were_not_chosen(rows, len(environment)))
        )
    return tuple(rest), tuple(held_out)
