"""What every network offers: outputs as a pure function of flat parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from cirm.randomness import RandomDraws, Randomness
from cirm.variational import DiagonalGaussian, draw_samples_of_gaussian

MAX_CACHED_NOISE = 2**22  # numbers, 16 MiB: drawing them takes as long as predicting


class Network(ABC):
    """A function of flat parameters [replica, p] and inputs [replica, n, ...].

    Attributes:
        size: Number p of trained parameters.
        outputs: Number of outputs.
        head: Where the parameters of the last linear layer lie in the flat vector: its
            weights [width, outputs] row by row, then its biases.
        dropout: Probability with which hidden units are dropped in training.
        is_thread_safe: Whether several threads may evaluate the network at once.
        accepts_scaled_inputs: Whether a learner may centre and scale inputs. A network
            that brings trained weights expects inputs as they are.
    """

    size: int
    outputs: int
    head: slice
    dropout: float = 0.0
    is_thread_safe: bool = True
    accepts_scaled_inputs: bool = True

    @classmethod
    def build(
        cls, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
    ) -> Network:
        """Return a network for inputs of a shape.

        Args:
            input_shape: Shape of the inputs of one example.
            n_outputs: Number of outputs.
            settings: The settings `hidden`, `activation` and `dropout`.

        Raises:
            NotImplementedError: If the network cannot be chosen by name.
        """
        raise NotImplementedError(
            f"{cls.__name__} has no build() method, so this network cannot be chosen "
            "by name. Pass an instance of it with network= instead."
        )

    def describe(self) -> dict[str, Any]:
        """Describe the network in plain values; `kind` is its key in the registry.

        Raises:
            NotImplementedError: If models with this network cannot be saved.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no describe() method, so models with this "
            "network cannot be saved. Add the method to the class."
        )

    def get_settings(self) -> dict[str, Any]:
        """Return the settings that build such a network for inputs of any shape."""
        description = self.describe()
        names = ("hidden", "activation", "dropout")
        known = {name: description[name] for name in names if name in description}
        return {"network": description["kind"], **known}

    @classmethod
    def restore(
        cls, description: Mapping[str, Any], module: nn.Module | None = None
    ) -> Network:
        """Return the network that `describe` described, also after JSON.

        Args:
            description: What `describe` returned.
            module: The user's own module, for a network that was made from one.

        Raises:
            NotImplementedError: If models with this network cannot be loaded.
        """
        raise NotImplementedError(
            f"{cls.__name__} has no restore() method, so models with this network "
            "cannot be loaded. Add the method to the class."
        )

    def find_normalisation_parameters(self) -> Tensor:
        """Return which parameters scale or shift normalised values, [p]."""
        return torch.zeros(self.size, dtype=torch.bool)

    def renormalise(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return parameters with which stored statistics are those of these inputs.

        Layers without stored statistics do not change, nor do those whose scale and
        shift are constant.
        """
        return params

    @abstractmethod
    def init(self, randomness: Randomness) -> Tensor:
        """Return initial parameters, [replica, p]."""

    @abstractmethod
    def __call__(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """Compute outputs [replica, n, outputs]; with noise, dropout is applied."""

    @abstractmethod
    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """Compute the inputs of the last layer, [replica, n, width]."""

    def sample_outputs(
        self, q: DiagonalGaussian, inputs: Tensor, noise: RandomDraws, samples: int
    ) -> Tensor:
        """Compute outputs [replica, sample, n, outputs] of networks drawn from `q`."""
        return self.sample_outputs_of_whole_networks(q, inputs, noise, samples)

    def sample_outputs_of_whole_networks(
        self, q: DiagonalGaussian, inputs: Tensor, noise: RandomDraws, samples: int
    ) -> Tensor:
        """Compute [replica, sample, n, outputs], one weight draw for all examples."""
        weights = draw_samples_of_gaussian(
            q, noise.normal(samples, self.size).to(inputs.device)
        )
        outputs = [self(w, inputs, noise) for w in weights.unbind(1)]
        return torch.stack(outputs, 1)

    def sample_outputs_with_fixed_noise(
        self, q: DiagonalGaussian, inputs: Tensor, samples: int, member: int = 0
    ) -> Tensor:
        """Compute outputs [replica, sample, n, outputs] of draws that never change.

        The draws are the same for all inputs and replicas, so that the prediction for a
        row does not depend on the other rows, and nothing has to be stored. Members of
        an ensemble have independent draws.
        """
        noise = draw_fixed_noise(samples, self.size, member)
        weights = draw_samples_of_gaussian(q, noise.to(inputs.device))
        return torch.stack([self(w, inputs) for w in weights.unbind(1)], 1)


def draw_fixed_noise(samples: int, size: int, member: int) -> Tensor:
    """Return standard normal noise [1, samples, size] that never changes."""
    small = samples * size <= MAX_CACHED_NOISE
    draw = _draw_cached_noise if small else _draw_cached_noise.__wrapped__
    return draw(samples, size, member)


@lru_cache(maxsize=4)
def _draw_cached_noise(samples: int, size: int, member: int) -> Tensor:
    source = Randomness((0,), ("prediction",))
    if member:
        source = source.at("member", member)
    with torch.inference_mode(False):  # it may be used with gradients later
        return source.normal(samples, size)
