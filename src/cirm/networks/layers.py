"""Fully connected layers, with fixed weights or with normally distributed ones.

The backward pass of each layer is written out for its digits, not for its speed: it
takes 0.96 (fixed weights) to 1.04 times (normal weights) as long as one node of
autograd for the whole network. The order of its operations fixes the last digit of the
second derivatives that BIRM and BVIRM descend, and with it the archived results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Layers = list[tuple[Tensor, Tensor]]
"""Weights [replica, in, out] and biases [replica, 1, out] of each layer."""

ACTIVATIONS = ("elu", "relu", "linear")
"""Names of the activations."""


class Plan(NamedTuple):
    """The sizes of layers from the inputs on, and the activation of each layer.

    The flat parameters may be longer than these layers need.
    """

    sizes: tuple[int, ...]
    activations: tuple[str, ...]

    def split_layers(self, params: Tensor) -> Layers:
        """Return views of the layers in flat parameters [replica, p]."""
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
    """Return the outputs [replica, n, out] of inputs [replica, n, in].

    The outputs of each layer are multiplied by its mask, if it has one.
    """
    layers = zip(plan.split_layers(params), plan.activations, masks, strict=True)
    for (weight, bias), activation, mask in layers:
        x = _activate(_Linear.apply(x, weight, bias), activation, mask)
    return x


def run_sampled_layers(
    plan: Plan,
    mean: Tensor,
    log_std: Tensor,
    x: Tensor,
    draws: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Return outputs [replica, sample, n, out] of independent normal weights.

    By local reparametrisation each layer's sums are drawn instead of its weights, with
    the standard normal `draws` [replica, sample, n, out] of each layer.
    """
    axes = draws[0].shape[1:3]
    layers = zip(plan.split_layers(mean), plan.split_layers(log_std), strict=True)
    for i, (means, log_stds) in enumerate(layers):
        draw, mask = draws[i], masks[i]
        whole = plan, i, mean, log_std
        sums, spread = _GaussianLinear.apply(x, *means, *log_stds, *whole)
        if i == 0:  # the inputs are the same for every sample
            sums, spread = sums.unsqueeze(1), spread.unsqueeze(1)
            sums = torch.addcmul(sums, spread, draw).flatten(1, 2)
        else:
            sums = torch.addcmul(sums, spread, draw.flatten(1, 2))
        mask = None if mask is None else mask.flatten(1, 2)
        x = _activate(sums, plan.activations[i], mask)
    return x.unflatten(1, axes)


def _activate(sums: Tensor, activation: str, mask: Tensor | None) -> Tensor:
    """Return a layer's outputs, multiplied by its mask if it has one."""
    if activation == "elu":
        outputs: Tensor = _MaskedELU.apply(sums, mask)
        return outputs
    if activation == "relu":
        sums = sums.relu()
    return sums if mask is None else sums * mask


class _Linear(torch.autograd.Function):
    """The sums of a layer."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch does not name its type
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias, x, weight)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_weight, of_bias = torch.bmm(x.mT, slope), slope.sum(1, keepdim=True)
        of_x = slope @ weight.mT if ctx.needs_input_grad[0] else None
        return of_x, of_weight, of_bias


class _GaussianLinear(torch.autograd.Function):
    """The means and standard deviations of a layer's sums, for normal weights.

    A variance v = exp(2 log_std) gives every derivative a factor 2, and the root
    sqrt(x^2 v) a factor 1/2; both are left out.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        log_weight: Tensor,
        log_bias: Tensor,
        plan: Plan,
        layer: int,
        mean: Tensor,
        log_std: Tensor,
    ) -> tuple[Tensor, Tensor]:
        variances = (2 * log_weight).exp_(), (2 * log_bias).exp_()
        sums = torch.baddbmm(bias, x, weight)
        spread = torch.baddbmm(variances[1], x.square(), variances[0]).sqrt_()
        ctx.plan, ctx.layer, ctx.variances = plan, layer, variances
        ctx.save_for_backward(x, weight, mean, log_std, spread)
        return sums, spread

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
        of_spread: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight, mean, log_std, spread = ctx.saved_tensors
        variances = ctx.variances
        if torch.is_grad_enabled():
            # Taken from the flat vectors again, so that what second derivatives add up
            # there comes before the derivatives of a KL divergence.
            weight, _ = ctx.plan.split_layers(mean)[ctx.layer]
            log_stds = ctx.plan.split_layers(log_std)[ctx.layer]
            variances = tuple((2 * one).exp() for one in log_stds)
        squares = x.square()
        of_spread = of_spread / spread
        of_weight, of_bias = torch.bmm(x.mT, slope), slope.sum(1, keepdim=True)
        of_variance = torch.bmm(squares.mT, of_spread)
        of_log = (
            of_variance * variances[0],
            of_spread.sum(1, keepdim=True) * variances[1],
        )
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = torch.addcmul(slope @ weight.mT, x, of_spread @ variances[0].mT)
        return of_x, of_weight, of_bias, *of_log, None, None, None, None


class _MaskedELU(torch.autograd.Function):
    """ELU times a mask."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        sums: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        outputs = F.elu(sums)
        if mask is not None:
            outputs.mul_(mask)
        ctx.save_for_backward(outputs, mask)
        return outputs

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
    ) -> tuple[Tensor, None]:
        outputs, mask = ctx.saved_tensors
        # As clamp, whose own derivative takes eight times as long.
        below = F.hardtanh(outputs, -math.inf, 0.0)
        return slope * below.add_(1 if mask is None else mask), None
