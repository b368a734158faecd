"""Passes through fully connected layers, forward and back, written out.

A pass is one node of autograd's graph, with a backward pass in closed form: fewer
passes over memory than a node for every operation. The hidden layers are outputs too.
Nothing outside uses them, but through them the backward pass, which is made of saved
inputs and outputs, can itself be differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Layers = list[tuple[Tensor, Tensor]]
"""Weights [replica, in, out] and biases [replica, 1, out] of each layer."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: F.elu(x, inplace=True),
    "relu": lambda x: x.relu_(),
    "linear": lambda x: x,
}
"""Activations in place."""


class Plan(NamedTuple):
    """Layers to pass through: their sizes from the inputs on, and activations.

    The flat parameters may go on after those of the last of these layers.
    """

    sizes: tuple[int, ...]
    activations: tuple[str, ...]

    def split_layers(self, params: Tensor) -> Layers:
        """The layers of flat parameters [replica, p]."""
        shapes = [shape for a, b in pairwise(self.sizes) for shape in ((a, b), (1, b))]
        lengths = [a * b for a, b in shapes]
        pieces = params.split([*lengths, params.shape[1] - sum(lengths)], 1)
        views = [
            piece.view(-1, a, b)
            for piece, (a, b) in zip(pieces[:-1], shapes, strict=True)
        ]
        return list(zip(views[::2], views[1::2], strict=True))


def run_layers(
    plan: Plan, params: Tensor, x: Tensor, masks: Sequence[Tensor | None]
) -> Tensor:
    """What the last layer makes of inputs [replica, n, in], [replica, n, out].

    Each layer's outputs are multiplied by its mask, if it has one.
    """
    outputs: Tensor = _Pass.apply(plan, masks, params, x)[-1]
    return outputs


def run_sampled_layers(
    plan: Plan,
    mean: Tensor,
    log_std: Tensor,
    x: Tensor,
    draws: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """The same, [replica, sample, n, out], of weights that are independent normals.

    Not the weights are drawn but each layer's sums, by standard normal `draws`
    [replica, sample, n, out] of each layer.
    """
    layers = len(draws)
    outputs: Tensor = _SumsPass.apply(plan, draws, masks, mean, log_std, x)[layers - 1]
    return outputs


def _differentiate_activation(
    kind: str, slope: Tensor, outputs: Tensor, mask: Tensor | None
) -> Tensor:
    """The slope in a layer's sums, by that in its outputs: activation times mask."""
    if kind == "elu":
        # As clamp, whose own derivative takes eight times as long.
        below = F.hardtanh(outputs, -math.inf, 0.0)
        return slope * below.add_(1 if mask is None else mask)
    if mask is not None:
        slope = slope * mask
    if kind == "relu":
        slope = torch.ops.aten.threshold_backward(slope, outputs, 0)
    return slope


def _add_optional(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of those that are there."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


class _Gradient:
    """Gradients of layers, gathered into one of the flat parameters."""

    def __init__(self, plan: Plan, params: Tensor) -> None:
        self.tail = params.shape[1] - sum(a * b + b for a, b in pairwise(plan.sizes))
        self.flat = None
        self.pieces: list[Tensor] = []
        if not torch.is_grad_enabled():  # else a product must stay a tensor of its own
            self.flat = torch.empty_like(params)
            if self.tail:
                self.flat[:, -self.tail :] = 0
            self.places = plan.split_layers(self.flat)

    def add(self, inputs: Tensor, slope: Tensor) -> None:
        """The gradient of the last layer that has none yet."""
        weight, bias = (None, None) if self.flat is None else self.places.pop()
        product = torch.bmm(inputs.mT, slope, out=weight)
        total = torch.sum(slope, 1, keepdim=True, out=bias)
        if self.flat is None:
            self.pieces = [product.flatten(1), total.flatten(1), *self.pieces]

    @property
    def whole(self) -> Tensor:
        """The flat gradient, [replica, p]."""
        if self.flat is not None:
            return self.flat
        rest = self.pieces[0].new_zeros(len(self.pieces[0]), self.tail)
        return torch.cat([*self.pieces, rest], 1)


class _Pass(torch.autograd.Function):
    """Parameters and inputs to the outputs of every layer."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        plan: Plan,
        masks: Sequence[Tensor | None],
        params: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, ...]:
        found, layers = [x], plan.split_layers(params)
        steps = zip(layers, plan.activations, masks, strict=True)
        for (weight, bias), kind, mask in steps:
            sums = torch.baddbmm(bias, found[-1], weight)
            found.append(ACTIVATIONS[kind](sums))
            if mask is not None:
                sums.mul_(mask)
        ctx.plan, ctx.layers = plan, layers
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(params, *masks, *found)
        return tuple(found[1:])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *slopes: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        params, *rest = ctx.saved_tensors
        masks, found = rest[: len(slopes)], rest[len(slopes) :]
        layers = (
            ctx.plan.split_layers(params) if torch.is_grad_enabled() else ctx.layers
        )
        gradient = _Gradient(ctx.plan, params)
        slope = None
        for i in reversed(range(len(slopes))):
            slope = _add_optional(slope, slopes[i])
            if slope is None:
                slope = torch.zeros_like(found[i + 1])
            slope = _differentiate_activation(
                ctx.plan.activations[i], slope, found[i + 1], masks[i]
            )
            gradient.add(found[i], slope)
            if i or ctx.needs_input_grad[3]:
                slope = slope @ layers[i][0].mT
        back = slope if ctx.needs_input_grad[3] else None
        return None, None, gradient.whole, back


class _SumsPass(torch.autograd.Function):
    """Means, spreads and inputs to the outputs of every layer, then their spreads.

    Of a variance v = exp(2 log_std) and its sum's spread s = sqrt(x^2 v) every slope
    has a 2 from the exponent and a 1/2 from the root; they are left out.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        plan: Plan,
        draws: Sequence[Tensor],
        masks: Sequence[Tensor | None],
        mean: Tensor,
        log_std: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, ...]:
        variance = (2 * log_std).exp_()
        found, spreads, squares = [x.unsqueeze(1)], [], []
        steps = zip(plan.split_layers(mean), plan.split_layers(variance), strict=True)
        for i, ((weight, bias), (weight_variance, bias_variance)) in enumerate(steps):
            flat, shape = found[-1].flatten(1, 2), found[-1].shape[1:3]
            squares.append(flat.square())
            sums = torch.baddbmm(bias, flat, weight).unflatten(1, shape)
            spread = torch.baddbmm(bias_variance, squares[-1], weight_variance).sqrt_()
            spreads.append(spread.unflatten(1, shape))
            sums = torch.addcmul(sums, spreads[-1], draws[i])
            found.append(ACTIVATIONS[plan.activations[i]](sums))
            mask = masks[i]
            if mask is not None:
                sums.mul_(mask)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        made = *draws, *masks, *squares, *found[1:], *spreads
        ctx.save_for_backward(mean, log_std, variance, x, *made)
        return (*found[1:], *spreads)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *slopes: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        mean, log_std, variance, x, *made = ctx.saved_tensors
        count = len(slopes) // 2
        draws, masks, squares, found, spreads = (
            made[start : start + count] for start in range(0, 5 * count, count)
        )
        found.insert(0, x.unsqueeze(1))
        if torch.is_grad_enabled():  # to be differentiated again, so made anew
            variance = (2 * log_std).exp()
            inner = [one.flatten(1, 2).square() for one in found[1:-1]]
            squares = [x.square() if ctx.needs_input_grad[5] else squares[0], *inner]
        weights = [weight for weight, _ in ctx.plan.split_layers(mean)]
        variances = [weight for weight, _ in ctx.plan.split_layers(variance)]
        of_mean = _Gradient(ctx.plan, mean)
        of_variance = _Gradient(ctx.plan, mean)
        slope = None
        for i in reversed(range(count)):
            slope = _add_optional(slope, slopes[i])
            if slope is None:
                slope = torch.zeros_like(found[i + 1])
            slope = _differentiate_activation(
                ctx.plan.activations[i], slope, found[i + 1], masks[i]
            )
            of_spread = slope * draws[i]
            if found[i].shape[1] < slope.shape[1]:  # one for all samples
                slope, of_spread = (s.sum(1, keepdim=True) for s in (slope, of_spread))
            extra = slopes[count + i]
            if extra is not None:
                of_spread = of_spread + extra
            slope = slope.flatten(1, 2)
            of_spread = (of_spread / spreads[i]).flatten(1, 2)
            of_mean.add(found[i].flatten(1, 2), slope)
            of_variance.add(squares[i], of_spread)
            if i or ctx.needs_input_grad[5]:
                slope = torch.addcmul(
                    slope @ weights[i].mT,
                    found[i].flatten(1, 2),
                    of_spread @ variances[i].mT,
                ).unflatten(1, found[i].shape[1:3])
        back = slope[:, 0] if slope is not None and ctx.needs_input_grad[5] else None
        return None, None, None, of_mean.whole, of_variance.whole * variance, back
