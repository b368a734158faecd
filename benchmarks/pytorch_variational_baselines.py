"""Variational methods and ADMM in the usual style of PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from benchmarks.pytorch_baselines import (
    Settings,
    build_network,
    create_optimiser,
    cross_entropy,
    iterate_minibatches,
)
from benchmarks.workloads import Workload


class BayesianLinear(nn.Module):
    """A linear layer that samples new weights in every forward pass."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(nn.init.xavier_uniform_(torch.empty(outputs, inputs)))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.log_std = nn.Parameter(torch.full((outputs, inputs), std).log())
        self.bias_log_std = nn.Parameter(torch.full((outputs,), std).log())

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for newly sampled weights."""
        weight = self.mean + self.log_std.exp() * torch.randn_like(self.mean)
        bias = self.bias + self.bias_log_std.exp() * torch.randn_like(self.bias)
        return F.linear(x, weight, bias)

    def kl(self) -> Tensor:
        """Return the KL divergence from a standard normal."""
        prior = Normal(0.0, 1.0)
        pairs = (self.mean, self.log_std), (self.bias, self.bias_log_std)
        found = [kl_divergence(Normal(m, s.exp()), prior).sum() for m, s in pairs]
        return torch.stack(found).sum()


def build_bayesian_network(workload: Workload, settings: Settings) -> nn.Sequential:
    """Return Bayesian layers with activation and dropout between them."""
    relu = settings.get("activation") == "relu"
    layers: list[nn.Module] = []
    for a, b in pairwise(workload.sizes[:-1]):
        layers += [BayesianLinear(a, b, 0.05), nn.ReLU() if relu else nn.ELU()]
        if settings.get("dropout"):
            layers.append(nn.Dropout(settings["dropout"]))
    return nn.Sequential(*layers, BayesianLinear(*workload.head, 0.05))


def compute_total_kl(model: nn.Sequential) -> Tensor:
    """Return the KL divergence of all layers."""
    layers = [layer for layer in model if isinstance(layer, BayesianLinear)]
    return torch.stack([layer.kl() for layer in layers]).sum()


def train_vcl(workload: Workload, settings: Settings) -> nn.Module:
    """Use a forward pass for every sample of the weights."""
    model = build_bayesian_network(workload, settings)
    optimiser = create_optimiser(model, settings)
    for places in iterate_minibatches(workload):
        optimiser.zero_grad()
        risks = [
            cross_entropy(model(x), y)
            for x, y in places
            for _ in range(settings["samples"])
        ]
        near = settings["beta"] / workload.examples * compute_total_kl(model)
        (torch.stack(risks).mean() + near).backward()
        optimiser.step()
    return model


def train_virmv1(workload: Workload, settings: Settings) -> nn.Module:
    """Use a forward pass per sample and environment, and a gradient of a gradient."""
    model = build_bayesian_network(workload, settings)
    optimiser = create_optimiser(model, settings)
    weight = settings["penalty"]
    for places in iterate_minibatches(workload):
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
        loss = loss + settings["beta"] * compute_total_kl(model)
        optimiser.zero_grad()
        (loss / max(1.0, weight)).backward()
        optimiser.step()
    return model


def train_bvirm(workload: Workload, settings: Settings) -> nn.Module:
    """Train a Bayesian network per environment on the norm of its own gradient."""
    locals_ = [
        build_bayesian_network(workload, settings) for _ in range(workload.together)
    ]
    shared = torch.zeros(sum(p.numel() for p in locals_[0].parameters()))
    duals = [torch.zeros_like(shared) for _ in locals_]
    multipliers = [torch.zeros_like(shared) for _ in locals_]
    optimisers = [create_optimiser(model, settings) for model in locals_]
    for places in iterate_minibatches(workload):
        for place, (x, y) in enumerate(places):
            model = locals_[place]
            risks = [cross_entropy(model(x), y) for _ in range(settings["samples"])]
            quality = torch.stack(risks).mean() + settings["beta"] * compute_total_kl(
                model
            )
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


def train_birm(workload: Workload, settings: Settings) -> nn.Module:
    """Train the heads of the environments in turn, by a gradient of a gradient."""
    model = build_network(workload, settings)
    body, head = model[:-1], model[-1]
    assert isinstance(head, nn.Linear)
    heads = [nn.Linear(*workload.head) for _ in range(workload.together)]
    duals = [[torch.zeros_like(p) for p in head.parameters()] for _ in heads]
    multipliers = [[torch.zeros_like(p) for p in head.parameters()] for _ in heads]
    optimisers = [create_optimiser(own, settings) for own in heads]
    outer = create_optimiser(body, settings)
    for places in iterate_minibatches(workload):
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
