"""Variational methods and ADMM as people usually write them in PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from benchmarks.cells import Cell
from benchmarks.usual import (
    Settings,
    adam,
    cross_entropy,
    minibatches,
    network,
)


class BayesianLinear(nn.Module):
    """A linear layer whose weights are drawn anew in every forward pass."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(nn.init.xavier_uniform_(torch.empty(outputs, inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.log_std = nn.Parameter(torch.full((outputs, inputs), std).log())
        self.bias_log_std = nn.Parameter(torch.full((outputs,), std).log())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs by weights of this moment."""
        weight = self.mean + self.log_std.exp() * torch.randn_like(self.mean)
        bias = self.bias + self.bias_log_std.exp() * torch.randn_like(self.bias)
        return F.linear(x, weight, bias)

    def divergence(self) -> Tensor:
        """KL from a standard normal."""
        prior = Normal(0.0, 1.0)
        pairs = (self.mean, self.log_std), (self.bias, self.bias_log_std)
        found = [kl_divergence(Normal(m, s.exp()), prior).sum() for m, s in pairs]
        return torch.stack(found).sum()


def bayesian(cell: Cell, settings: Settings) -> nn.Sequential:
    """Bayesian layers with activation and dropout between them."""
    relu = settings.get("activation") == "relu"
    layers: list[nn.Module] = []
    for a, b in pairwise(cell.sizes[:-1]):
        layers += [BayesianLinear(a, b, 0.05), nn.ReLU() if relu else nn.ELU()]
        if settings.get("dropout"):
            layers.append(nn.Dropout(settings["dropout"]))
    return nn.Sequential(*layers, BayesianLinear(*cell.head, 0.05))


def divergence(model: nn.Sequential) -> Tensor:
    """KL of all layers."""
    layers = [layer for layer in model if isinstance(layer, BayesianLinear)]
    return torch.stack([layer.divergence() for layer in layers]).sum()


def vcl(cell: Cell, settings: Settings) -> nn.Module:
    """A forward pass for every draw of the weights."""
    model = bayesian(cell, settings)
    optimiser = adam(model, settings)
    for places in minibatches(cell):
        optimiser.zero_grad()
        risks = [
            cross_entropy(model(x), y)
            for x, y in places
            for _ in range(settings["samples"])
        ]
        near = settings["beta"] / cell.examples * divergence(model)
        (torch.stack(risks).mean() + near).backward()
        optimiser.step()
    return model


def virmv1(cell: Cell, settings: Settings) -> nn.Module:
    """A forward pass for every draw and environment, and a gradient of a gradient."""
    model = bayesian(cell, settings)
    optimiser = adam(model, settings)
    weight = settings["penalty"]
    for places in minibatches(cell):
        risks, penalties = [], []
        for x, y in places:
            scale = torch.ones(1, requires_grad=True)
            drawn = [
                cross_entropy(model(x) * scale, y) for _ in range(settings["samples"])
            ]
            risk = torch.stack(drawn).mean()
            (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
            risks.append(risk)
            penalties.append(slope.square().sum())
        loss = torch.stack(risks).mean() + weight * torch.stack(penalties).mean()
        loss = loss + settings["beta"] * divergence(model)
        optimiser.zero_grad()
        (loss / max(1.0, weight)).backward()
        optimiser.step()
    return model


def bvirm(cell: Cell, settings: Settings) -> nn.Module:
    """Each environment's own Bayesian network, its gradient descended by autograd."""
    locals_ = [bayesian(cell, settings) for _ in range(cell.together)]
    shared = torch.zeros(sum(p.numel() for p in locals_[0].parameters()))
    duals = [torch.zeros_like(shared) for _ in locals_]
    multipliers = [torch.zeros_like(shared) for _ in locals_]
    optimisers = [adam(model, settings) for model in locals_]
    for places in minibatches(cell):
        for place, (x, y) in enumerate(places):
            model = locals_[place]
            risks = [cross_entropy(model(x), y) for _ in range(settings["samples"])]
            quality = torch.stack(risks).mean() + settings["beta"] * divergence(model)
            found = list(model.parameters())
            slopes = torch.autograd.grad(quality, found, create_graph=True)
            flat = torch.cat([p.flatten() for p in found])
            slope = torch.cat([s.flatten() for s in slopes])
            near = (flat - shared + duals[place]).square().sum()
            level = (slope + multipliers[place]).square().sum()
            loss = quality + settings["rho0"] / 2 * near + settings["rho1"] / 2 * level
            optimisers[place].zero_grad()
            loss.backward()
            optimisers[place].step()
    return locals_[0]


def birm(cell: Cell, settings: Settings) -> nn.Module:
    """Heads of the environments in turn, by autograd's gradient of a gradient."""
    model = network(cell, settings)
    body, head = model[:-1], model[-1]
    assert isinstance(head, nn.Linear)
    heads = [nn.Linear(*cell.head) for _ in range(cell.together)]
    duals = [[torch.zeros_like(p) for p in head.parameters()] for _ in heads]
    multipliers = [[torch.zeros_like(p) for p in head.parameters()] for _ in heads]
    optimisers = [adam(own, settings) for own in heads]
    outer = adam(body, settings)
    for places in minibatches(cell):
        for place, (x, y) in enumerate(places):
            own = list(heads[place].parameters())
            risk = cross_entropy(heads[place](body(x).detach()), y)
            slopes = torch.autograd.grad(risk, own, create_graph=True)
            loss = risk
            parts = zip(
                own, head.parameters(), duals[place], slopes, multipliers[place],
                strict=True,
            )  # fmt: skip
            for p, mean, u, slope, v in parts:
                loss = loss + settings["rho0"] / 2 * (p - mean + u).square().sum()
                loss = loss + settings["rho1"] / 2 * (slope + v).square().sum()
            optimisers[place].zero_grad()
            loss.backward()
            optimisers[place].step()
        outer.zero_grad()
        torch.stack(
            [cross_entropy(head(body(x)), y) for x, y in places]
        ).sum().backward()
        outer.step()
    return model
