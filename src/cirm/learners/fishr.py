"""Fishr: match the variances of gradients between environments.

Rame, Dancette and Cord, "Fishr: Invariant Gradient Variances for Out-of-Distribution
Generalization", 2022, equation 4. The gradients are those of single examples in the
last layer; the penalty is the mean squared distance of each environment's variances
from their mean over environments. Departures: variances are divided by the number of
examples, and there is no moving average of them over steps, which the authors use for
minibatches and not on coloured digits.

On a sequence the variances of a past environment are kept as they were when its stage
ended, and no example of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import ORIGINAL, Learner
from cirm.learners.features import compute_features_and_targets_of_environment
from cirm.memory import move_tensors_to_device
from cirm.objectives import (
    Batch,
    apply_linear_heads,
    build_terms_of_penalised_loss,
    check_penalty_settings,
    compute_features_and_risk,
    compute_head_gradient_variances,
    get_annealed_penalty_weight,
)
from cirm.randomness import Randomness
from cirm.training import (
    Terms,
    Watch,
    build_averaging_weights,
    ignore_training_steps,
)


class FishrState(NamedTuple):
    """Parameters [replica, p] and variances of past environments [replica, e, head]."""

    params: Tensor
    variances: Tensor


@dataclass(frozen=True)
class Fishr(Learner[FishrState]):
    """Mean risk plus the distance between the environments' gradient variances.

    Args:
        penalty: Weight of the distance.
        anneal: Fraction of a stage's training after which the penalty has its full
            weight; before, the weight is at most one.
        l2: Weight of the squared parameters.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Fishr(penalty=10.0)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 1000.0
    anneal: float = 0.5
    l2: float = 0.0

    presets = {  # on coloured digits the authors use IRM's settings
        "irm": {"penalty": 91257.18613115903, **ORIGINAL},
    }

    def __post_init__(self) -> None:
        check_penalty_settings("fishr", self.penalty, self.anneal, self.l2)

    def init(self, randomness: Randomness) -> FishrState:
        """Return random parameters and no variances."""
        params = self.network.init(randomness.at("params"))
        return FishrState(params, params[:, None, self.network.head][:, :0])

    def observe(
        self,
        state: FishrState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> FishrState:
        """Minimise the penalised risk, then keep the variances of the stage."""
        past = move_tensors_to_device(state, self.descent.device)
        args = past.params, past, stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        new = self.compute_gradient_variances_of_stage(params, stage)
        return FishrState(params, torch.cat([past.variances, new], 1))

    def compute_loss(self, params: Tensor, past: FishrState, batch: Batch) -> Terms:
        """Return the penalised risk of each replica."""
        features, outputs, risk = compute_features_and_risk(
            self.network, self.likelihood, params, batch
        )
        variances = compute_head_gradient_variances(
            self.likelihood, features, outputs, batch.y, batch.share
        )
        variances = torch.cat([variances, past.variances], 1)
        gaps = variances - variances.mean(1, keepdim=True)
        penalty = gaps.square().sum(-1).mean(-1)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        return build_terms_of_penalised_loss(risk, penalty, weight, params, self.l2)

    def compute_gradient_variances_of_stage(
        self, params: Tensor, stage: Stage
    ) -> Tensor:
        """Return the variances in each environment of a stage, [replica, e, head]."""
        found = []
        for environment in stage:
            features, y = compute_features_and_targets_of_environment(
                self, params, environment
            )
            share = build_averaging_weights((y.shape[1],), y.device)
            outputs = apply_linear_heads(params[:, self.network.head], features)
            found.append(
                compute_head_gradient_variances(
                    self.likelihood, features, outputs, y, share.expand(len(y), -1, -1)
                )
            )
        return torch.cat(found, 1)
