"""Networks as pure functions of one flat parameter vector."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cirm.passes import ACTIVATIONS, Layers, Plan, run_layers, run_sampled_layers
from cirm.randomness import Draws, Randomness
from cirm.variational import Gaussian, sample_gaussian


class Network(ABC):
    """Outputs as a function of parameters [replica, p] and inputs [replica, n, ...].

    `size` is the number p of parameters, `outputs` that of outputs, and `head` where
    the parameters of the last linear layer lie: its weights [width, outputs] row by
    row, then its biases.
    """

    size: int
    outputs: int
    head: slice

    @abstractmethod
    def init(self, randomness: Randomness) -> Tensor:
        """Random parameters, [replica, p]."""

    @abstractmethod
    def __call__(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """Outputs [replica, n, outputs]; with noise, as in training (dropout)."""

    @abstractmethod
    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """What the head gets, [replica, n, width]."""

    def sample_outputs(
        self, q: Gaussian, inputs: Tensor, noise: Draws, samples: int
    ) -> Tensor:
        """Outputs [replica, sample, n, outputs] of networks drawn from `q`."""
        return self.sample_networks(q, inputs, noise, samples)

    def sample_networks(
        self, q: Gaussian, inputs: Tensor, noise: Draws, samples: int
    ) -> Tensor:
        """Outputs [replica, sample, n, outputs], a draw's weights for all examples."""
        weights = sample_gaussian(q, noise.normal(samples, self.size).to(inputs.device))
        outputs = [self(w, inputs, noise) for w in weights.unbind(1)]
        return torch.stack(outputs, 1)

    def sample_predictions(self, q: Gaussian, inputs: Tensor, samples: int) -> Tensor:
        """Outputs [replica, sample, n, outputs] of the same few draws every time.

        The draws are the same for all inputs and replicas, so that a prediction does
        not depend on what else is asked, and nothing is kept for it.
        """
        noise = Randomness((0,), ("prediction",)).normal(samples, self.size)
        weights = sample_gaussian(q, noise.to(inputs.device))
        return torch.stack([self(w, inputs) for w in weights.unbind(1)], 1)


CHUNK = 4096  # examples whose layers are computed at once, to stay in the cache

Activation = Literal["elu", "relu", "linear"]


@dataclass(frozen=True)
class MLP(Network):
    """Fully connected network; `sizes` runs from inputs to outputs.

    Each hidden layer is followed by dropout. Without hidden layers it is linear.
    """

    sizes: tuple[int, ...]
    activation: Activation = "elu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(
                "network: sizes must be two or more positive numbers; "
                f"got {list(self.sizes)}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"network: dropout must be in [0, 1); got {self.dropout}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"network: activation must be one of {', '.join(ACTIVATIONS)}; "
                f"got {self.activation!r}"
            )

    @cached_property
    def _plan(self) -> Plan:
        hidden = (self.activation,) * (len(self.sizes) - 2)
        return Plan(self.sizes, (*hidden, "linear"))

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
        """Glorot-uniform weights and zero biases, [replica, size]."""
        noise = 2 * randomness.uniform(self.size) - 1
        scales = [
            torch.full((n,), scale)
            for a, b in pairwise(self.sizes)
            for n, scale in ((a * b, math.sqrt(6 / (a + b))), (b, 0.0))
        ]
        return noise * torch.cat(scales)

    def split_layers(self, params: Tensor) -> Layers:
        """Weights [replica, in, out] and biases [replica, 1, out] of each layer."""
        return self._plan.split_layers(params)

    def __call__(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """Outputs [replica, n, outputs]."""
        pieces = [
            self._run_plan(self._plan, params, x, noise)
            for x in inputs.flatten(2).split(CHUNK, 1)
        ]
        return _concatenate(pieces, 1)

    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """The last hidden layer, [replica, n, width]."""
        plan = Plan(self.sizes[:-1], self._plan.activations[:-1])
        x = inputs.flatten(2)
        return self._run_plan(plan, params, x, noise) if plan.activations else x

    def _run_plan(
        self, plan: Plan, params: Tensor, x: Tensor, noise: Draws | None
    ) -> Tensor:
        masks = [
            self._draw_mask(layer, x, noise, x.shape[1], width)
            for layer, width in enumerate(plan.sizes[1:])
        ]
        return run_layers(plan, params, x, masks)

    def sample_outputs(
        self, q: Gaussian, inputs: Tensor, noise: Draws, samples: int
    ) -> Tensor:
        """Outputs [replica, sample, n, outputs] by local reparametrisation.

        Draws each layer's sums instead of its weights: two products a layer, and for
        the first layer the same two whatever the number of samples.
        """
        pieces = []
        for x in inputs.flatten(2).split(CHUNK, 1):
            draws, masks = [], []
            for layer, width in enumerate(self.sizes[1:]):
                shape = samples, x.shape[1], width
                draws.append(noise.approximate_normal(*shape).to(x.device))
                masks.append(self._draw_mask(layer, x, noise, *shape))
            pieces.append(run_sampled_layers(self._plan, *q, x, draws, masks))
        return _concatenate(pieces, 2)

    def _draw_mask(
        self, layer: int, x: Tensor, noise: Draws | None, *shape: int
    ) -> Tensor | None:
        """What dropout multiplies a layer's outputs by; the last has none."""
        if noise is None or not self.dropout or layer == len(self.sizes) - 2:
            return None
        keep = 1 - self.dropout
        return noise.bernoulli(keep, *shape).div_(keep).to(x.device)


def _concatenate(pieces: list[Tensor], axis: int) -> Tensor:
    """Pieces one after another; a single one is not copied."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


class ModuleNetwork(Network):
    """Any torch module whose last child is a linear layer, on a flat vector.

    Inputs arrive as the data set gives them, [n, ...]. Replicas run in turn. Dropout
    inside the module draws from the noise that is passed in, not from global state.
    """

    def __init__(self, module: nn.Module) -> None:
        norms = [m for m in module.modules() if getattr(m, "track_running_stats", 0)]
        if norms:
            raise ValueError(
                "network: layers must keep nothing outside their parameters (use "
                f"group or layer normalisation); got {type(norms[0]).__name__}"
            )
        linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
        if not linear or linear[-1].bias is None:
            raise ValueError(
                "network: the last layer must be linear with a bias; "
                f"got {type(module).__name__}"
            )
        self.module = module
        self._head = linear[-1]
        self._shapes = {name: p.shape for name, p in self._list_parameters()}
        self.size = sum(shape.numel() for shape in self._shapes.values())
        self.outputs = self._head.out_features
        ends = self._head.weight.numel() + self.outputs
        self.head = slice(self.size - ends, self.size)

    def _list_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Named parameters, the head's weight and bias last."""
        tail = (self._head.weight, self._head.bias)
        named = list(self.module.named_parameters())
        rest = [(n, p) for n, p in named if all(p is not t for t in tail)]
        return rest + [(n, p) for t in tail for n, p in named if p is t]

    def __repr__(self) -> str:
        return f"ModuleNetwork({type(self.module).__name__}, size={self.size})"

    def init(self, randomness: Randomness) -> Tensor:
        """Parameters as the module's own layers draw them, [replica, size]."""
        rows = []
        for seed in randomness.integers(2**62, 1)[:, 0].tolist():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                # Inner layers first: an outer one has the last word, as when built.
                for layer in reversed(list(self.module.modules())):
                    for name in ("reset_parameters", "_reset_parameters"):
                        if hasattr(layer, name):
                            getattr(layer, name)()
                rows.append(self._flatten_module())
        return torch.stack(rows)

    def _flatten_module(self) -> Tensor:
        pieces = [p.detach() for _, p in self._list_parameters()]
        # The head is kept as [width, outputs], as in every network here.
        pieces[-2] = pieces[-2].T
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def _unflatten(self, params: Tensor) -> dict[str, Tensor]:
        lengths = [shape.numel() for shape in self._shapes.values()]
        pieces = list(params.split(lengths))
        width, outputs = self._head.in_features, self.outputs
        pieces[-2] = pieces[-2].view(width, outputs).T
        shapes = self._shapes.items()
        return {
            name: piece.reshape(shape)
            for (name, shape), piece in zip(shapes, pieces, strict=True)
        }

    def __call__(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """Outputs [replica, n, outputs]."""
        return self._run(params, inputs, noise)[0]

    def compute_features(
        self, params: Tensor, inputs: Tensor, noise: Draws | None = None
    ) -> Tensor:
        """What the last linear layer gets, [replica, n, width]."""
        return self._run(params, inputs, noise)[1]

    def _run(
        self, params: Tensor, inputs: Tensor, noise: Draws | None
    ) -> tuple[Tensor, Tensor]:
        self.module.train(noise is not None)
        outputs, features = [], []
        keep: list[Tensor] = []

        def catch(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            keep.append(arguments[0])

        hook = self._head.register_forward_pre_hook(catch)
        seeds = [0] * len(params)
        if noise is not None:
            seeds = noise.integers(2**62, 1)[:, 0].tolist()
        try:
            for seed, row, x in zip(seeds, params, inputs, strict=True):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    outputs.append(
                        functional_call(self.module, self._unflatten(row), x)
                    )
                features.append(keep.pop())
        finally:
            hook.remove()
        return torch.stack(outputs), torch.stack(features)
