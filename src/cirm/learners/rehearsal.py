"""What learners that keep examples of past environments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import (
    ExampleMemory,
    add_stage_to_memory,
    create_empty_memory,
    draw_distinct_rows,
    move_to_device,
    select_remaining_rows,
)
from cirm.networks import Network
from cirm.objectives import (
    Batch,
    FeatureMoments,
    compute_feature_moments,
    join_moments,
)
from cirm.randomness import Randomness
from cirm.training import (
    Descent,
    Terms,
    Watch,
    build_averaging_weights,
    differentiate_loss,
    ignore_training_steps,
)

Gradient = Callable[[Tensor, Any, Batch], tuple[Tensor, Terms]]
"""Returns a gradient [replica, p] and numbers for `watch`."""

CHUNK = 4096  # examples whose features are computed at once, to bound memory


class MemoryState(NamedTuple):
    """Parameters [replica, p] and the examples kept from past environments."""

    params: Tensor
    memory: ExampleMemory


def init_with_memory(learner: Learner[Any], randomness: Randomness) -> MemoryState:
    """Return random parameters and an empty memory. Serves as a learner's `init`."""
    params = learner.network.init(randomness.at("params"))
    return MemoryState(params, create_empty_memory(len(params)))


def observe_with_memory(
    learner: Any,  # noqa: ANN401  a learner with a loss and a setting `memory`
    state: MemoryState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
) -> MemoryState:
    """Minimise a learner's loss, then keep `memory` examples of each environment.

    Serves as a learner's `observe`.
    """
    gradient = differentiate_loss(learner.loss)
    return descend_with_memory(learner, gradient, state, stage, randomness, watch)


def descend_with_memory(
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


class MomentState(NamedTuple):
    """Coefficients [replica, d + 1] of a regression, and second moments by environment.

    `moments` are sums of products of (1, inputs, target), [replica, e, d + 2, d + 2].
    """

    params: Tensor
    moments: Tensor


def init_with_moments(learner: Learner[Any], randomness: Randomness) -> MomentState:
    """Return coefficients of zero and no moments. Serves as a learner's `init`."""
    replicas, side = len(randomness.seeds), learner.network.size + 1
    moments = torch.zeros(replicas, 0, side, side, dtype=torch.float64)
    return MomentState(torch.zeros(replicas, learner.network.size), moments)


def check_network_is_linear(where: str, network: Network | None) -> None:
    """Raise an error if a network has hidden layers."""
    if network is not None and network.head.start:
        raise ValueError(
            f"{where}: the network must be linear, because this learner fits a linear "
            "function of the inputs. Leave out the setting network, or choose linear."
        )


def join_past_environments(
    descent: Descent, batch: Batch, memory: ExampleMemory
) -> Batch:
    """Return a batch in which each past environment is one more environment."""
    pieces = batch.split() + memory.split()
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


def compute_environment_features(
    learner: Learner[Any], params: Tensor, environment: Environment
) -> tuple[Tensor, Tensor]:
    """Return features [replica, n, width] and targets of all examples, without noise.

    Features are the inputs of the network's last layer.
    """
    device = learner.descent.device
    features, targets = [], []
    for start in range(0, len(environment), CHUNK):
        rows = torch.arange(start, min(start + CHUNK, len(environment)))
        x, y = environment.take(rows.expand(len(params), -1))
        with torch.no_grad():
            features.append(learner.network.compute_features(params, x.to(device)))
        targets.append(y.to(device))
    return torch.cat(features, 1), torch.cat(targets, 1)


def create_empty_moments(network: Network, params: Tensor) -> FeatureMoments:
    """Return the feature moments of no environment, for parameters [replica, p]."""
    width = compute_head_width(network)
    shape = len(params), 0, width
    return FeatureMoments(params.new_zeros(shape), params.new_zeros(*shape, width))


def compute_stage_moments(
    learner: Learner[Any], params: Tensor, stage: Stage
) -> FeatureMoments:
    """Return the feature moments of each environment of a stage."""
    moments = create_empty_moments(learner.network, params)
    for environment in stage:
        features, y = compute_environment_features(learner, params, environment)
        share = build_averaging_weights((y.shape[1],), y.device)
        own = compute_feature_moments(features, share.expand(len(y), -1, -1))
        moments = join_moments(moments, own)
    return moments


def compute_class_logits(
    learner: Learner[Any], params: Tensor, inputs: Tensor
) -> Tensor:
    """Return one logit for each class, [replica, n, k]."""
    outputs = learner.network(params, inputs)
    logits: Tensor = learner.likelihood.logits(outputs)  # type: ignore[attr-defined]
    return logits


def compute_head_width(network: Network) -> int:
    """Return the number of inputs of a network's last layer."""
    return (network.head.stop - network.head.start) // network.outputs - 1


def concatenate_stage_examples(stage: Stage, replicas: int) -> Examples:
    """Return all examples of a stage, environment by environment."""
    pieces = [environment.take_all(replicas) for environment in stage]
    return Examples(*(torch.cat(part, 1) for part in zip(*pieces, strict=True)))
