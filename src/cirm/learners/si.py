"""Synaptic intelligence: hold parameters by how much they lowered the loss so far.

Zenke, Poole and Ganguli, "Continual Learning Through Synaptic Intelligence", 2017,
equations 3 to 5. Along the way of training, the gradient times the step of each
parameter adds up to its part of the fall of the loss. Divided by the squared distance
that the parameter moved, it is the curvature with which later stages hold the parameter
near its value. As in the paper the gradient is that of the risk without the penalty.
Departure: parts below zero, of parameters that raised the loss, are set to zero.

On a sequence the importances of all past stages add up; no example is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import move_tensors_to_device
from cirm.objectives import Batch, compute_mean_risk, compute_quadratic_penalty
from cirm.randomness import Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)


class SIState(NamedTuple):
    """Parameters, where they are held and how strongly, [replica, p] each."""

    params: Tensor
    anchor: Tensor
    importance: Tensor


@dataclass(frozen=True)
class SI(Learner[SIState]):
    """Mean risk plus a quadratic penalty weighted by the importance of parameters.

    Args:
        strength: Weight of the penalty.
        damping: Added to the squared distances that importances are divided by.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(SI(strength=1.0)).shape
        torch.Size([1, 20, 2])
    """

    strength: float = 0.1
    damping: float = 0.1

    weighs_examples = True
    presets = {  # the authors'
        "permuted": {
            "strength": 0.1,
            "damping": 0.1,
            "epochs": 20,
            "batch": 256,
            "rate": 1e-3,
            "hidden": (2000, 2000),
            "activation": "relu",
        },
        "split": {
            "strength": 1.0,
            "damping": 1e-3,
            "epochs": 10,
            "batch": 64,
            "rate": 1e-3,
            "hidden": (256, 256),
            "activation": "relu",
        },
    }

    def __post_init__(self) -> None:
        self.check_setting("strength", self.strength >= 0, "0 or more")
        self.check_setting("damping", self.damping > 0, "above 0")

    def init(self, randomness: Randomness) -> SIState:
        """Return random parameters that nothing holds."""
        params = self.network.init(randomness.at("params"))
        return SIState(params, params.clone(), torch.zeros_like(params))

    def observe(
        self,
        state: SIState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> SIState:
        """Minimise the penalised risk, and add up what each parameter contributed."""
        past = move_tensors_to_device(state, self.descent.device)
        path = ParameterImportanceIntegral(past.params)

        def compute_gradient_and_add_importance(
            params: Tensor, past: SIState, batch: Batch
        ) -> tuple[Tensor, Terms]:
            slope, terms = create_gradient_function_of_loss(self.compute_loss)(
                params, past, batch
            )
            path.add_loss_decrease_of_step(params.detach())
            path.slope = slope
            penalty = self.strength * self.compute_importance_weighted_penalty(
                params, past
            )
            (pull,) = torch.autograd.grad(penalty.sum(), params)
            return slope + pull, {**terms, "penalty": penalty.detach()}

        args = past.params, past, stage, randomness, watch
        params = self.descent.descend_along_gradient(
            compute_gradient_and_add_importance, *args
        )
        path.add_loss_decrease_of_step(params)
        distance = (params - past.params).square() + self.damping
        importance = past.importance + path.total.clamp(min=0) / distance
        return SIState(params, params.clone(), importance)

    def compute_loss(self, params: Tensor, past: SIState, batch: Batch) -> Terms:
        """Return the risk of each replica, without the penalty."""
        risk = compute_mean_risk(self.network, self.likelihood, params, batch)
        return {"risk": risk}

    def compute_importance_weighted_penalty(
        self, params: Tensor, past_state: SIState
    ) -> Tensor:
        """Return the weighted squared distance from the anchor, [replica]."""
        return 2 * compute_quadratic_penalty(
            params, past_state.anchor, past_state.importance
        )


class ParameterImportanceIntegral:
    """The part of each parameter in the fall of the loss along a path.

    Attributes:
        total: The integral so far, [replica, p].
        slope: The gradient at the last place.
    """

    def __init__(self, start: Tensor) -> None:
        self.place = start.clone()
        self.slope = torch.zeros_like(start)
        self.total = torch.zeros_like(start)

    def add_loss_decrease_of_step(self, params: Tensor) -> None:
        """Add the step from the last place to these parameters."""
        self.total -= self.slope * (params - self.place)
        self.place = params.clone()
