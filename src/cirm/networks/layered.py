"""Networks of torch layers that are built by name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import nn

from cirm.networks.base import Network
from cirm.networks.module import ModuleNetwork

CHANNELS = 16, 32  # of the two convolutions: small enough for a few thousand images
SMALLEST = 4  # pixels a side that two poolings by two leave something of
ACTIVATIONS = {"elu": nn.ELU, "relu": nn.ReLU, "linear": nn.Identity}


class LayeredNetwork(ModuleNetwork):
    """A module that is made of layers by the settings of a network.

    Args:
        features: Shape of the inputs of one example.
        outputs: Number of outputs.
        hidden: Units of the fully connected hidden layers.
        activation: "elu", "relu" or "linear".
        dropout: Probability with which hidden units are dropped in training.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        features: tuple[int, ...],
        outputs: int,
        hidden: tuple[int, ...] = (100,),
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        self.features, self.hidden = tuple(features), tuple(hidden)
        self.outputs, self.activation, self.dropout = outputs, activation, dropout
        super().__init__(nn.Sequential(*self._build_layers()), reset=True)

    @abstractmethod
    def _build_layers(self) -> list[nn.Module]:
        """Return the layers, the last of them linear."""

    def _get_constructor_arguments(self) -> dict[str, Any]:
        names = ("features", "outputs", "hidden", "activation", "dropout")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        settings = ", ".join(
            f"{n}={v!r}" for n, v in self._get_constructor_arguments().items()
        )
        return f"{type(self).__name__}({settings})"

    @classmethod
    def build(
        cls, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
    ) -> Self:
        """Return a network with the hidden layers of the settings."""
        names = ("hidden", "activation", "dropout")
        return cls(input_shape, n_outputs, *(settings[name] for name in names))

    def describe(self) -> dict[str, Any]:
        """Describe the network in plain values."""
        arguments = self._get_constructor_arguments()
        lists = {name: list(arguments[name]) for name in ("features", "hidden")}
        return {"kind": self.kind, **arguments, **lists}

    @classmethod
    def restore(
        cls,
        description: Mapping[str, Any],
        module: nn.Module | Network | None = None,
    ) -> Self:
        """Return the network that `describe` described."""
        return cls(
            tuple(int(size) for size in description["features"]),
            int(description["outputs"]),
            tuple(int(units) for units in description["hidden"]),
            description["activation"],
            float(description["dropout"]),
        )


class CNN(LayeredNetwork):
    """A small convolutional network for images [channels, height, width].

    Two convolutions of 3 by 3 with 16 and 32 channels, each followed by the activation
    and pooling by two; then the fully connected layers `hidden`, with dropout.
    """

    kind = "cnn"

    def _build_layers(self) -> list[nn.Module]:
        shape, activation = self.features, ACTIVATIONS[self.activation]
        if len(shape) != 3 or min(shape[1:]) < SMALLEST:
            raise ValueError(
                "The network cnn needs images [channels, height, width] of at least "
                f"{SMALLEST} by {SMALLEST} pixels, but the inputs have the shape "
                f"{list(shape)}. Use network=mlp."
            )
        layers: list[nn.Module] = []
        for before, after in zip((shape[0], *CHANNELS), CHANNELS, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1), activation()]
            layers += [nn.MaxPool2d(2)]
        width = CHANNELS[-1] * math.prod(side // 4 for side in shape[1:])
        layers.append(nn.Flatten())
        for units in self.hidden:
            layers += [nn.Dropout(self.dropout), nn.Linear(width, units), activation()]
            width = units
        return [*layers, nn.Dropout(self.dropout), nn.Linear(width, self.outputs)]


class LayerNormMLP(LayeredNetwork):
    """A fully connected network with layer normalisation in its hidden layers.

    Each hidden layer is normalised over its units, with a learned scale and shift for
    each unit, before the activation.
    """

    kind = "layernorm"

    def _build_layers(self) -> list[nn.Module]:
        width = math.prod(self.features)
        layers: list[nn.Module] = [nn.Flatten()]
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.LayerNorm(units)]
            layers += [ACTIVATIONS[self.activation](), nn.Dropout(self.dropout)]
            width = units
        return [*layers, nn.Linear(width, self.outputs)]
