"""Features and logits of a network, and their moments, which several learners use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.base import Learner
from cirm.networks import Network
from cirm.objectives import (
    FeatureMoments,
    compute_feature_moments,
    concatenate_feature_moments,
)
from cirm.training import build_averaging_weights

CHUNK = 4096  # examples whose features are computed at once, to bound memory


def compute_features_and_targets_of_environment(
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


def create_empty_feature_moments(network: Network, params: Tensor) -> FeatureMoments:
    """Return the feature moments of no environment, for parameters [replica, p]."""
    width = compute_last_layer_input_width(network)
    shape = len(params), 0, width
    return FeatureMoments(params.new_zeros(shape), params.new_zeros(*shape, width))


def compute_feature_moments_of_stage(
    learner: Learner[Any], params: Tensor, stage: Stage
) -> FeatureMoments:
    """Return the feature moments of each environment of a stage."""
    moments = create_empty_feature_moments(learner.network, params)
    for environment in stage:
        features, y = compute_features_and_targets_of_environment(
            learner, params, environment
        )
        share = build_averaging_weights((y.shape[1],), y.device)
        own = compute_feature_moments(features, share.expand(len(y), -1, -1))
        moments = concatenate_feature_moments(moments, own)
    return moments


def compute_last_layer_input_width(network: Network) -> int:
    """Return the number of inputs of a network's last layer."""
    return (network.head.stop - network.head.start) // network.outputs - 1


def compute_logit_of_each_class(
    learner: Learner[Any], params: Tensor, inputs: Tensor
) -> Tensor:
    """Return one logit for each class, [replica, n, k]."""
    outputs = learner.network(params, inputs)
    logits: Tensor = learner.likelihood.compute_class_logits(outputs)  # type: ignore[attr-defined]
    return logits
