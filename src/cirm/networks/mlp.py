"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cirm.networks.base import Network, draw_fixed_noise
from cirm.networks.large_batches import CHUNK as LARGE_CHUNK
from cirm.networks.large_batches import LARGE, run_layers_on_large_batch
from cirm.networks.layers import (
    ACTIVATIONS,
    Layers,
    LayerSizesAndActivation,
    compute_layer_outputs,
    run_layers_with_sampled_weights,
)
from cirm.networks.zero_channels import (
    PackedImages,
    has_empty_channels,
    split_into_packed_chunks,
)
from cirm.randomness import RandomDraws, Randomness
from cirm.variational import DiagonalGaussian, draw_samples_of_gaussian

CHUNK = 4096  # examples whose layers are computed at once, to stay in the cache

Activation = Literal["elu", "relu", "linear"]


@dataclass(frozen=True)
class MLP(Network):
    """A fully connected network.

    Each hidden layer is followed by dropout. Without hidden layers it is linear.

    Args:
        sizes: Number of inputs, of units in each hidden layer, and of outputs.
        activation: "elu", "relu" or "linear", after each hidden layer.
        dropout: Probability with which hidden units are dropped in training.

    Raises:
        ValueError: If there are fewer than two sizes, or a value is out of range.

    Example:
        >>> from cirm import MLP, Randomness
        >>> network = MLP((4, 8, 2))
        >>> network.size
        58
        >>> params = network.init(Randomness((0, 1)))
        >>> network(params, torch.zeros(2, 10, 4)).shape
        torch.Size([2, 10, 2])
    """

    sizes: tuple[int, ...]
    activation: Activation = "elu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(
                f"The sizes of the network's layers are {list(self.sizes)}. Give two "
                "or more positive numbers: the number of inputs, the sizes of hidden "
                "layers, and the number of outputs."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(
                "The setting dropout, the fraction of units that is dropped, must be "
                f"at least 0 and less than 1, but is {self.dropout}. Change it with "
                "--set dropout=VALUE (in Python dropout=)."
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"The setting activation must be one of {', '.join(ACTIVATIONS)}, but "
                f"is {self.activation!r}. Change it with --set activation=VALUE (in "
                "Python activation=)."
            )

    @classmethod
    def build(
        cls, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
    ) -> MLP:
        """Return a network with the hidden layers of the settings."""
        sizes = (math.prod(input_shape), *settings["hidden"], n_outputs)
        return cls(sizes, settings["activation"], settings["dropout"])

    def describe(self) -> dict[str, Any]:
        """Describe the network in plain values."""
        return {
            "kind": "mlp",
            "sizes": list(self.sizes),
            "activation": self.activation,
            "dropout": self.dropout,
        }

    def get_settings(self) -> dict[str, Any]:
        """Return the settings that build such a network for inputs of any shape."""
        return {**super().get_settings(), "hidden": self.sizes[1:-1]}

    @classmethod
    def restore(
        cls, description: Mapping[str, Any], module: nn.Module | None = None
    ) -> MLP:
        """Return the network that `describe` described."""
        sizes = tuple(int(size) for size in description["sizes"])
        return cls(sizes, description["activation"], description["dropout"])

    @cached_property
    def _layer_sizes(self) -> LayerSizesAndActivation:
        hidden = (self.activation,) * (len(self.sizes) - 2)
        return LayerSizesAndActivation(self.sizes, (*hidden, "linear"))

    @cached_property
    def size(self) -> int:  # type: ignore[override]
        """Number of parameters."""
        return sum(a * b + b for a, b in pairwise(self.sizes))

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return self.sizes[-1]

    @property
    def head(self) -> slice:  # type: ignore[override]
        """Where the parameters of the last layer lie."""
        width, outputs = self.sizes[-2:]
        return slice(self.size - width * outputs - outputs, self.size)

    def init(self, randomness: Randomness) -> Tensor:
        """Return Glorot-uniform weights and zero biases, [replica, size].

        Args:
            randomness: One source of random draws per replica.

        Returns:
            Parameters, [replica, size].
        """
        noise = 2 * randomness.uniform(self.size) - 1
        scales = [
            torch.full((n,), scale)
            for a, b in pairwise(self.sizes)
            for n, scale in ((a * b, math.sqrt(6 / (a + b))), (b, 0.0))
        ]
        return noise * torch.cat(scales)

    def split_parameters_into_layers(self, params: Tensor) -> Layers:
        """Return weights [replica, in, out] and biases [replica, 1, out] by layer.

        Args:
            params: Parameters, [replica, size].

        Returns:
            Views of the parameters, layer by layer.
        """
        return self._layer_sizes.split_parameters_into_layers(params)

    def __call__(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """Outputs [replica, n, outputs]."""
        drops = noise is not None and self.dropout > 0
        if inputs.shape[1] >= LARGE and not drops:
            return run_layers_on_large_batch(self._layer_sizes, params, inputs)
        pieces = [
            self._run_layers_with_dropout(self._layer_sizes, params, x, noise)
            for x in split_into_packed_chunks(inputs, CHUNK)
        ]
        return _concatenate_tensors_without_copy(pieces, 1)

    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """The last hidden layer, [replica, n, width]."""
        plan = LayerSizesAndActivation(
            self.sizes[:-1], self._layer_sizes.activations[:-1]
        )
        if not plan.activations:
            return inputs.flatten(2)
        (x,) = split_into_packed_chunks(inputs, inputs.shape[1])
        return self._run_layers_with_dropout(plan, params, x, noise)

    def _run_layers_with_dropout(
        self,
        layer_sizes: LayerSizesAndActivation,
        params: Tensor,
        x: Tensor | PackedImages,
        noise: RandomDraws | None,
    ) -> Tensor:
        masks = [
            self._draw_dropout_mask(layer, x, noise, x.shape[1], width)
            for layer, width in enumerate(layer_sizes.sizes[1:])
        ]
        return compute_layer_outputs(layer_sizes, params, x, masks)

    def sample_outputs(
        self, q: DiagonalGaussian, inputs: Tensor, noise: RandomDraws, samples: int
    ) -> Tensor:
        """Outputs [replica, sample, n, outputs] by local reparametrisation.

        Draws each layer's sums instead of its weights: two products a layer, and for
        the first layer the same two whatever the number of samples.
        """
        pieces = []
        for x in split_into_packed_chunks(inputs, CHUNK):
            draws, masks = [], []
            for layer, width in enumerate(self.sizes[1:]):
                shape = samples, x.shape[1], width
                draws.append(noise.approximate_normal(*shape).to(x.device))
                masks.append(self._draw_dropout_mask(layer, x, noise, *shape))
            pieces.append(
                run_layers_with_sampled_weights(self._layer_sizes, *q, x, draws, masks)
            )
        return _concatenate_tensors_without_copy(pieces, 2)

    def sample_outputs_with_fixed_noise(
        self, q: DiagonalGaussian, inputs: Tensor, samples: int, member: int = 0
    ) -> Tensor:
        """Outputs [replica, sample, n, outputs]; all networks share packed inputs."""
        if not has_empty_channels(inputs):
            return super().sample_outputs_with_fixed_noise(q, inputs, samples, member)
        noise = draw_fixed_noise(samples, self.size, member).to(inputs.device)
        weights = draw_samples_of_gaussian(q, noise).unbind(1)
        pieces = [
            torch.stack(
                [
                    self._run_layers_with_dropout(self._layer_sizes, w, x, None)
                    for w in weights
                ],
                1,
            )
            for x in split_into_packed_chunks(inputs, LARGE_CHUNK)
        ]
        return _concatenate_tensors_without_copy(pieces, 2)

    def _draw_dropout_mask(
        self,
        layer: int,
        like: Tensor | PackedImages,
        noise: RandomDraws | None,
        *shape: int,
    ) -> Tensor | None:
        """What dropout multiplies a layer's outputs by; the last has none."""
        if noise is None or not self.dropout or layer == len(self.sizes) - 2:
            return None
        keep = 1 - self.dropout
        return noise.bernoulli(keep, *shape).div_(keep).to(like.device)


def _concatenate_tensors_without_copy(pieces: list[Tensor], axis: int) -> Tensor:
    """Pieces one after another; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


class Linear(MLP):
    """Builds an `MLP` without hidden layers."""

    @classmethod
    def build(
        cls, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
    ) -> MLP:
        """Return a linear function of the inputs; the settings do not matter."""
        return MLP((math.prod(input_shape), n_outputs))
