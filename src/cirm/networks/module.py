"""Any torch module as a network."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from cirm.networks.base import Network
from cirm.randomness import RandomDraws, Randomness

NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


class ModuleNetwork(Network):
    """Any torch module whose last linear layer gives the outputs.

    The module is copied and never changed. Training starts from the weights that it
    has. Parameters that do not require gradients, or that `frozen` names, stay as they
    are and are not part of the trained vector. Layers that keep running statistics,
    such as batch normalisation, run in evaluation mode with the statistics that they
    have. Dropout inside the module draws from the noise that is passed in, not from
    torch's global source. Replicas are evaluated one after another.

    Args:
        module: The module. It receives inputs as the data set gives them, [n, ...], and
            returns outputs [n, outputs].
        frozen: Names of layers or parameters that are not trained, such as "encoder"
            or "encoder.0.weight". A layer's name stands for all its parameters.
        reset: Whether `init` draws new weights for each replica, by the layers' own
            `reset_parameters`, instead of starting from those of the module.

    Raises:
        TypeError: If it is no module, such as the class of one.
        ValueError: If the last linear layer is missing, has no bias or is frozen, if an
            activation follows it in an `nn.Sequential`, or if
            there is no layer or parameter of a name, or a batch normalisation has no
            running statistics.

    Example:
        >>> from torch import nn
        >>> from cirm import ModuleNetwork, Randomness
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> ModuleNetwork(module).size
        58
        >>> network = ModuleNetwork(module, frozen=["0"])
        >>> network.size
        18
        >>> params = network.init(Randomness((0,)))
        >>> outputs = network(params, torch.ones(1, 3, 4))
        >>> bool(outputs[0].allclose(module(torch.ones(3, 4)), atol=1e-6))
        True
    """

    is_thread_safe = False  # the module's training mode is shared
    accepts_scaled_inputs = False

    def __init__(
        self, module: nn.Module, *, frozen: Sequence[str] = (), reset: bool = False
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"network: {module!r} is no torch module. Pass an instance, such as "
                f"network={getattr(module, '__name__', 'Net')}()."
            )
        self.module = copy.deepcopy(module)
        self.reset = reset
        for layer in self.module.modules():
            if isinstance(layer, _BatchNorm) and layer.running_mean is None:
                raise ValueError(
                    f"The layer {type(layer).__name__} has no running statistics, so a "
                    "prediction would depend on the other rows. Create the layer with "
                    "track_running_stats=True."
                )
        linear = [m for m in self.module.modules() if isinstance(m, nn.Linear)]
        if not linear or linear[-1].bias is None:
            raise ValueError(
                "The last layer of the network must be a torch.nn.Linear with a "
                f"bias, but {type(module).__name__} has no such layer. Add one as the "
                "last layer."
            )
        last = _find_last_layer_of_sequence(module)
        if type(last).__module__ == nn.Softmax.__module__:  # that of activations
            raise ValueError(
                f"The network ends with {type(last).__name__}, but its outputs must be "
                "those of its last linear layer: learners turn them into probabilities "
                "themselves. Remove this layer."
            )
        self._head = linear[-1]
        self._freeze_parameters(frozen)
        self._shapes = {name: p.shape for name, p in self._list_parameters()}
        self._lengths = [shape.numel() for shape in self._shapes.values()]
        self.size = sum(self._lengths)
        self.outputs = self._head.out_features
        ends = self._head.weight.numel() + self.outputs
        self.head = slice(self.size - ends, self.size)

    @classmethod
    def build(
        cls, input_shape: tuple[int, ...], n_outputs: int, settings: Mapping[str, Any]
    ) -> Network:
        """Raise an error: a module cannot be built by name."""
        raise ValueError(
            "network: a torch module cannot be built from a name. Pass the module "
            "itself in Python, as network=module."
        )

    def describe(self) -> dict[str, Any]:
        """Describe the module by its class, its trained parameters and its constants.

        Returns:
            Plain values: the kind, the class's name, the shape of each trained
            parameter and, if there are constants, their SHA-256.
        """
        shapes = {name: list(p.shape) for name, p in self._list_parameters()}
        names = [name for name, _ in self.module.named_parameters() if name in shapes]
        description: dict[str, Any] = {
            "kind": "module",
            "name": type(self.module).__name__,
            "parameters": {name: shapes[name] for name in names},
        }
        if constants := self._get_constant_tensors():
            digest = hashlib.sha256()
            for name, tensor in constants.items():
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            description["constants"] = digest.hexdigest()
        return description

    @classmethod
    def restore(
        cls,
        description: Mapping[str, Any],
        module: nn.Module | Network | None = None,
    ) -> Network:
        """Return the network of the user's module, if it is the one described.

        Args:
            description: What `describe` returned.
            module: The module, or a `ModuleNetwork` of it if parts are frozen by name.

        Returns:
            The network.

        Raises:
            ValueError: If the module is missing or another one.
        """
        if module is None:
            raise ValueError(
                "The model was trained with a network of your own, the torch module "
                f"{description['name']!r}, which the file does not contain. Pass a "
                "module of this class with network= to load the model."
            )
        network = module if isinstance(module, Network) else cls(module)
        given = network.describe()
        if given.get("parameters") != description["parameters"]:
            raise ValueError(
                "The parameters of the given network have the shapes "
                f"{given.get('parameters')}, but the model was trained with "
                f"{description['parameters']}. Pass a module with the same layers as "
                "in training."
            )
        if given.get("constants") != description.get(
            "constants", given.get("constants")
        ):
            raise ValueError(
                "The frozen parameters or running statistics of the given network "
                "differ from those that the model was trained with. Load the same "
                "weights into the network as in training."
            )
        return network

    def _freeze_parameters(self, names: Sequence[str]) -> None:
        named = dict(self.module.named_parameters())
        for chosen in names:
            prefix = f"{chosen.removesuffix('.')}."
            matching = [p for n, p in named.items() if f"{n}.".startswith(prefix)]
            if not matching:
                raise ValueError(
                    f"frozen: there is no layer or parameter {chosen!r}. Choose from "
                    f"the parameters {', '.join(named)}."
                )
            for parameter in matching:
                parameter.requires_grad_(False)
        if not (self._head.weight.requires_grad and self._head.bias.requires_grad):
            raise ValueError(
                "The last linear layer of the network is frozen, so the network "
                "could not learn. Leave it out of frozen=."
            )

    def _list_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trained parameters, the head's weight and bias last."""
        tail = (self._head.weight, self._head.bias)
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        rest = [(n, p) for n, p in named if all(p is not t for t in tail)]
        return rest + [(n, p) for t in tail for n, p in named if p is t]

    def _get_constant_tensors(self) -> dict[str, Tensor]:
        frozen = {
            n: p for n, p in self.module.named_parameters() if not p.requires_grad
        }
        return {**frozen, **dict(self.module.named_buffers())}

    def __repr__(self) -> str:
        return f"ModuleNetwork({type(self.module).__name__}, size={self.size})"

    def init(self, randomness: Randomness) -> Tensor:
        """Return the module's own weights for every replica, or draw new ones.

        Args:
            randomness: One source of random draws per replica.

        Returns:
            Parameters, [replica, size].
        """
        if not self.reset:
            return self._flatten_module_weights(self.module).repeat(
                len(randomness.seeds), 1
            )
        rows = []
        fresh = copy.deepcopy(self.module)
        for seed in randomness.integers(2**62, 1)[:, 0].tolist():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                # Inner layers first: an outer one has the last word, as when built.
                for layer in reversed(list(fresh.modules())):
                    for name in ("reset_parameters", "_reset_parameters"):
                        if hasattr(layer, name):
                            getattr(layer, name)()
                rows.append(self._flatten_module_weights(fresh))
        return torch.stack(rows)

    def _flatten_module_weights(self, module: nn.Module) -> Tensor:
        named = dict(module.named_parameters())
        pieces = [named[name].detach() for name in self._shapes]
        # The head is stored as [width, outputs], as in every network here.
        pieces[-2] = pieces[-2].T
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def _unflatten_params(self, params: Tensor) -> dict[str, Tensor]:
        pieces = list(params.split(self._lengths))
        width, outputs = self._head.in_features, self.outputs
        pieces[-2] = pieces[-2].view(width, outputs).T
        shapes = self._shapes.items()
        return {
            name: piece.reshape(shape)
            for (name, shape), piece in zip(shapes, pieces, strict=True)
        }

    def __call__(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """Compute outputs [replica, n, outputs]."""
        return self._run_module(params, inputs, noise)[0]

    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None = None
    ) -> Tensor:
        """Compute the inputs of the last linear layer, [replica, n, width].

        Args:
            params: Parameters, [replica, size].
            inputs: Inputs, [replica, n, ...].
            noise: Source of dropout; without it none is applied.

        Returns:
            Features, [replica, n, width].
        """
        return self._run_module(params, inputs, noise)[1]

    def find_normalisation_parameters(self) -> Tensor:
        """Return which parameters scale or shift normalised values, [p]."""
        names = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, layer in self.module.named_modules()
            if isinstance(layer, NORMALISATIONS)
            for name, _ in layer.named_parameters(recurse=False)
        }
        pieces = [
            torch.full((shape.numel(),), name in names)
            for name, shape in self._shapes.items()
        ]
        return torch.cat(pieces)

    def renormalise(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return parameters with which stored statistics are those of these inputs.

        Batch normalisation with other statistics is the same as with other scales and
        shifts, so only these change, layer by layer from the inputs on.

        Args:
            params: Parameters, [replica, size].
            inputs: Inputs, [replica, n, ...], with n at least 2.

        Returns:
            Parameters, [replica, size].
        """
        rows = []
        for row, x in zip(params, inputs, strict=True):
            for prefix, layer in self.module.named_modules():
                names = [f"{prefix}.{n}".removeprefix(".") for n in ("weight", "bias")]
                if isinstance(layer, _BatchNorm) and set(names) <= set(self._shapes):
                    row = self._fit_layer_to_batch_statistics(row, x, layer, names)
            rows.append(row)
        return torch.stack(rows)

    def _fit_layer_to_batch_statistics(
        self, params: Tensor, x: Tensor, layer: _BatchNorm, names: list[str]
    ) -> Tensor:
        """Return parameters [p] with which a layer has the statistics of x."""
        caught: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            self._run_module(params[None], x[None], None)
        finally:
            hook.remove()
        values = caught[0].transpose(0, 1).flatten(1)
        deviation = (values.var(1, correction=0) + layer.eps).sqrt()
        assert layer.running_mean is not None and layer.running_var is not None
        mean = layer.running_mean.to(params)
        stored = (layer.running_var.to(params) + layer.eps).sqrt()
        pieces = dict(zip(self._shapes, params.split(self._lengths), strict=True))
        scale, shift = (pieces[name] for name in names)
        pieces[names[0]] = scale * stored / deviation
        pieces[names[1]] = shift + scale * (mean - values.mean(1)) / deviation
        return torch.cat(list(pieces.values()))

    def _run_module(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None
    ) -> tuple[Tensor, Tensor]:
        self.module.train(noise is not None)
        for layer in self.module.modules():
            if getattr(layer, "track_running_stats", False):
                layer.eval()
        outputs, features = [], []
        caught: list[Tensor] = []

        def store_head_inputs(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            caught.append(arguments[0])

        constants = {
            n: t.to(params) if t.is_floating_point() else t.to(params.device)
            for n, t in self._get_constant_tensors().items()
        }
        hook = self._head.register_forward_pre_hook(store_head_inputs)
        seeds = [0] * len(params)
        if noise is not None:
            seeds = noise.integers(2**62, 1)[:, 0].tolist()
        try:
            for seed, row, x in zip(seeds, params, inputs, strict=True):
                tensors = {**self._unflatten_params(row), **constants}
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    outputs.append(functional_call(self.module, tensors, x))
                features.append(caught.pop())
        finally:
            hook.remove()
        return torch.stack(outputs), torch.stack(features)


def _find_last_layer_of_sequence(module: nn.Module) -> nn.Module:
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module
