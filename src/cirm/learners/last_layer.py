"""What learners that retrain the last layer on held-out examples share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.learners.linear_models import fit_linear_head_of_each_replica
from cirm.learners.rehearsal import split_environments_for_holdout
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
    move_tensors_to_device,
)
from cirm.objectives import Batch, apply_linear_heads, compute_mean_risk
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class LastLayerState(NamedTuple):
    """A network, the last layer that replaces its own, and held-out examples.

    `params` [replica, p] are those of plain training. `head` [replica, h] predicts, and
    was trained on the examples in `memory`, on which the network was not.
    """

    params: Tensor
    head: Tensor
    memory: PastExampleMemory


def init_last_layer_state(
    learner: Learner[Any], randomness: Randomness
) -> LastLayerState:
    """Return random parameters and no examples. Serves as a learner's `init`."""
    params = learner.network.init(randomness.at("params"))
    head = params[:, learner.network.head].clone()
    return LastLayerState(params, head, create_empty_memory(len(params)))


def train_and_refit_last_layer(
    learner: Any,  # noqa: ANN401  a learner with `memory` and `compute_example_weights`
    state: LastLayerState,
    stage: Stage,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
) -> LastLayerState:
    """Train on the rows that are not held out, then retrain the last layer.

    Serves as a learner's `observe`. The last layer is retrained on the held-out
    examples of all environments seen, with the weights of the learner.
    """
    rest, held_out = split_environments_for_holdout(
        stage, learner.memory, randomness.at("split")
    )
    args = state.params, (), rest, randomness, watch
    params = learner.descent.minimise(learner.compute_loss, *args)
    memory = add_examples_of_stage_to_memory(
        state.memory, held_out, learner.memory, randomness.at("memory")
    )
    known = move_tensors_to_device(memory, learner.descent.device)
    with torch.no_grad():
        features = learner.network.compute_features(params, known.kept.x)
        start = params[:, learner.network.head]
        outputs = apply_linear_heads(start, features)
    weights = learner.compute_example_weights(outputs, known)
    examples = Examples(features, known.kept.y)
    head = fit_linear_head_of_each_replica(
        learner.likelihood, examples, weights, learner.l2, start
    )
    return LastLayerState(params, head, memory)


def compute_plain_loss(
    learner: Learner[Any], params: Tensor, past: tuple[()], batch: Batch
) -> Terms:
    """Return the risk of each replica. Serves as a learner's `compute_loss`."""
    risk = compute_mean_risk(learner.network, learner.likelihood, params, batch)
    return {"risk": risk}


def compute_last_layer_outputs(
    learner: Learner[Any], state: LastLayerState, inputs: Tensor
) -> Tensor:
    """Return outputs [replica, 1, n, k]. Serves as a learner's `outputs`."""
    features = learner.network.compute_features(state.params, inputs)
    return apply_linear_heads(state.head, features).unsqueeze(1)
