"""TENT: at a new place, make predictions more certain by the normalisation layers.

Wang, Shelhamer, Liu, Olshausen and Darrell, "Tent: Fully Test-Time Adaptation by
Entropy Minimization", 2021, section 3. Training is plain. Given inputs of a new
environment, statistics of batch normalisation are replaced by those of the inputs, and
the scales and shifts of all normalisation layers are changed by gradient steps that
lower the mean entropy of the predictions. The network must have such layers: those of
the default, the network "layernorm", have no statistics; a module of the user may have
batch or group normalisation. Classification only. Departures: each step uses all
inputs, so that their order does not matter, and statistics are replaced once.

On a sequence training continues on whatever arrives. Nothing of the past is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.features import compute_logit_of_each_class
from cirm.learners.last_layer import compute_plain_loss
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class TENTState(NamedTuple):
    """Parameters [replica, p], and those adapted to an environment.

    Unless the state is adapted, the latter are empty, [replica, 0].
    """

    params: Tensor
    adapted: Tensor


@dataclass(frozen=True)
class TENT(Learner[TENTState]):
    """Plain training, with normalisation layers adapted to a new environment.

    Args:
        steps: Number of gradient steps at the new environment.
        step_rate: Learning rate of these steps, which Adam takes.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(TENT()).shape
        torch.Size([1, 20, 2])
    """

    steps: int = 10
    step_rate: float = 1e-3

    presets = {"cifar": {"steps": 1, "step_rate": 1e-3}}
    defaults = {"network": "layernorm"}
    tasks = ("classification",)
    adapts = True
    compute_loss = compute_plain_loss

    def __post_init__(self) -> None:
        self.check_setting("steps", self.steps >= 0, "0 or more")
        self.check_setting("step_rate", self.step_rate > 0, "above 0")
        has_layer = self.network is None or (
            self.network.find_normalisation_parameters().any()
        )
        if not has_layer:
            raise ValueError(
                "tent: the network has no normalisation layer whose scale and shift "
                "could be adapted. Use network=layernorm with a hidden layer, a module "
                "with normalisation, or another learner, such as t3a."
            )

    def init(self, randomness: Randomness) -> TENTState:
        """Return random parameters."""
        params = self.network.init(randomness.at("params"))
        return TENTState(params, params.new_zeros(len(params), 0))

    def observe(
        self,
        state: TENTState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> TENTState:
        """Minimise the mean risk."""
        args = state.params, (), stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        return TENTState(params, params.new_zeros(len(params), 0))

    def outputs(self, state: TENTState, inputs: Tensor) -> Tensor:
        """Return the outputs of the network, adapted or not."""
        is_adapted = bool(state.adapted.shape[1])
        params = state.adapted if is_adapted else state.params
        return self.network(params, inputs).unsqueeze(1)

    def adapt(self, state: TENTState, inputs: Tensor) -> TENTState:
        """Return the state with normalisation layers adapted to the inputs."""
        params = state.params.detach()
        if inputs.shape[1] > 1:  # one input has no variance
            with torch.no_grad():
                params = self.network.renormalise(params, inputs)
        params = params.clone().requires_grad_()
        mask = self.network.find_normalisation_parameters().to(params)
        optimiser = torch.optim.Adam([params], lr=self.step_rate)
        for _ in range(self.steps):
            with torch.enable_grad():
                entropy = self.compute_mean_entropy(params, inputs)
                (slope,) = torch.autograd.grad(entropy.sum(), params)
            params.grad = slope * mask
            optimiser.step()
        return state._replace(adapted=params.detach())

    def forget_adaptation(self, state: TENTState) -> TENTState:
        """Return the state without adapted parameters."""
        return state._replace(adapted=state.adapted[:, :0])

    def compute_mean_entropy(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return the mean entropy of the predictions for inputs, [replica]."""
        log_p = compute_logit_of_each_class(self, params, inputs).log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1).mean(-1)
