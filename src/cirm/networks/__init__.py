"""Networks as pure functions of one flat parameter vector, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cirm.networks.base import Network
from cirm.networks.layered import CNN
from cirm.networks.mlp import CHUNK, MLP, Activation
from cirm.networks.module import ModuleNetwork
from cirm.registry import NamedClassRegistry

if TYPE_CHECKING:
    from torch import nn

NETWORKS = {
    "mlp": "cirm.networks.mlp:MLP",
    "cnn": "cirm.networks.layered:CNN",
    "linear": "cirm.networks.mlp:Linear",
    "layernorm": "cirm.networks.layered:LayerNormMLP",
}
"""Class by key."""

REGISTRY = NamedClassRegistry("network", "cirm.networks", __name__, NETWORKS)
"""The built-in networks and those that installed packages offer."""

__all__ = [
    "CHUNK",
    "CNN",
    "MLP",
    "NETWORKS",
    "Activation",
    "ModuleNetwork",
    "Network",
    "build_network",
    "restore_network",
]


def build_network(
    name: str, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
) -> Network:
    """Return a network by name for inputs of a shape.

    Args:
        name: A key such as "mlp", "cnn" or "linear", the name of an entry point, or an
            import path `package.module:Class`.
        input_shape: Shape of the inputs of one example.
        n_outputs: Number of outputs.
        settings: The settings `hidden`, `activation` and `dropout`.

    Returns:
        The network.

    Raises:
        ValueError: If there is no such network, or it does not suit the inputs.

    Example:
        >>> shape = {"hidden": (10,), "activation": "relu", "dropout": 0.0}
        >>> build_network("mlp", (2, 8, 8), 3, shape).sizes
        (128, 10, 3)
        >>> build_network("cnn", (2, 8, 8), 3, shape).outputs
        3
    """
    network: Network = REGISTRY.load(name).build(input_shape, n_outputs, settings)
    return network


def restore_network(
    description: Mapping[str, Any], module: nn.Module | Network | None = None
) -> Network:
    """Return the network that `Network.describe` described, as in a model file.

    Example:
        >>> restore_network(MLP((3, 4, 2)).describe()).sizes
        (3, 4, 2)
    """
    kind = description["kind"]
    if kind == "module":
        return ModuleNetwork.restore(description, module)
    network: Network = REGISTRY.load(kind, allow_import_paths=False).restore(
        description
    )
    return network
