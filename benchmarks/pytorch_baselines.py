"""The methods in the usual style of PyTorch: modules, autograd, Adam, loops.

Each function trains one seed on the timed stage of a workload and returns the network.
The code is written for a fair comparison: tensors instead of data loaders, no logging,
no evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import Workload

Settings = Mapping[str, Any]


def build_network(workload: Workload, settings: Settings) -> nn.Sequential:
    """Return linear layers with activation and dropout between them."""
    relu = settings.get("activation") == "relu"
    layers: list[nn.Module] = []
    for a, b in pairwise(workload.sizes[:-1]):
        layers += [nn.Linear(a, b), nn.ReLU() if relu else nn.ELU()]
        if settings.get("dropout"):
            layers.append(nn.Dropout(settings["dropout"]))
    return nn.Sequential(*layers, nn.Linear(*workload.head))


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of two logits, or of one for the second class."""
    if outputs.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[..., 0], labels.float())
    return F.cross_entropy(outputs, labels)


def iterate_minibatches(workload: Workload) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield, for each step, the examples of every environment of the timed stage."""
    places = workload.data[workload.together :]
    for _ in range(workload.epochs):
        if not workload.batch:
            yield places
            continue
        orders = [torch.randperm(len(y)) for _, y in places]
        count = -(-workload.examples // workload.batch)
        for rows in zip(*(order.tensor_split(count) for order in orders), strict=True):
            yield [(x[r], y[r]) for (x, y), r in zip(places, rows, strict=True)]


def create_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return an Adam optimiser."""
    decay = settings.get("decay", 0.0)
    return torch.optim.Adam(model.parameters(), settings["rate"], weight_decay=decay)


def train_erm(workload: Workload, settings: Settings) -> nn.Module:
    """Minimise the mean cross-entropy."""
    model = build_network(workload, settings)
    optimiser = create_optimiser(model, settings)
    for places in iterate_minibatches(workload):
        optimiser.zero_grad()
        risks = [cross_entropy(model(x), y) for x, y in places]
        torch.stack(risks).mean().backward()
        optimiser.step()
    return model


def train_irmv1(workload: Workload, settings: Settings) -> nn.Module:
    """Use a forward pass per environment, and autograd's gradient of a gradient."""
    model = build_network(workload, settings)
    optimiser = create_optimiser(model, settings)
    weight = settings["penalty"]
    for places in iterate_minibatches(workload):
        risks, penalties = [], []
        for x, y in places:
            scale = torch.ones(1, requires_grad=True)
            risk = cross_entropy(model(x) * scale, y)
            (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
            risks.append(risk)
            penalties.append(slope.square().sum())
        loss = torch.stack(risks).mean() + weight * torch.stack(penalties).mean()
        loss = loss + l2_penalty(model, settings)
        optimiser.zero_grad()
        (loss / max(1.0, weight)).backward()
        optimiser.step()
    return model


def l2_penalty(model: nn.Module, settings: Settings) -> Tensor:
    """Return the weighted sum of the squared parameters."""
    total = torch.zeros(())
    if settings.get("l2"):
        for values in model.parameters():
            total = total + settings["l2"] * values.norm().square()
    return total


def train_ewc(workload: Workload, settings: Settings) -> nn.Module:
    """Penalise changes of parameters by the Fisher information of single examples."""
    model = build_network(workload, settings)
    anchor = [p.detach().clone() for p in model.parameters()]
    fisher = estimate_fisher(model, *workload.data[0], settings["memory"])
    optimiser = create_optimiser(model, settings)
    for places in iterate_minibatches(workload):
        optimiser.zero_grad()
        loss = torch.stack([cross_entropy(model(x), y) for x, y in places]).mean()
        for p, held, curve in zip(model.parameters(), anchor, fisher, strict=True):
            pull = (curve * (p - held).square()).sum()
            loss = loss + settings["strength"] / 2 * pull
        loss.backward()
        optimiser.step()
    return model


def estimate_fisher(
    model: nn.Module, x: Tensor, y: Tensor, memory: int
) -> list[Tensor]:
    """Return the mean squared gradients of single examples."""
    totals = [torch.zeros_like(p) for p in model.parameters()]
    for row in range(min(memory, len(y))):
        model.zero_grad()
        cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        for total, p in zip(totals, model.parameters(), strict=True):
            if p.grad is not None:
                total += p.grad.square() / memory
    return totals


def train_gem(workload: Workload, settings: Settings) -> nn.Module:
    """Compute the memory's gradient in each step; project with a general solver."""
    model = build_network(workload, settings)
    optimiser = create_optimiser(model, settings)
    x0, y0 = (part[: settings["memory"]] for part in workload.data[0])
    for places in iterate_minibatches(workload):
        guard = compute_gradient(model, [(x0, y0)])
        slope = compute_gradient(model, places)
        if guard @ slope < 0:
            slope = project_gradient_onto_constraints(slope, guard.unsqueeze(0))
        pieces = slope.split([p.numel() for p in model.parameters()])
        for p, piece in zip(model.parameters(), pieces, strict=True):
            p.grad = piece.view_as(p)
        optimiser.step()
    return model


def compute_gradient(model: nn.Module, places: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the gradient of the mean risk as one vector."""
    model.zero_grad()
    torch.stack([cross_entropy(model(x), y) for x, y in places]).mean().backward()
    return torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


def project_gradient_onto_constraints(slope: Tensor, guards: Tensor) -> Tensor:
    """Return the nearest gradient that no guard opposes, by solving the dual."""
    rows = guards.double().numpy()
    matrix, vector = rows @ rows.T, rows @ slope.double().numpy()

    def dual(weights: np.ndarray) -> float:
        return float(weights @ matrix @ weights / 2 + weights @ vector)

    start = np.zeros(len(rows))
    solution = minimize(dual, start, method="SLSQP", bounds=[(0, None)] * len(rows))
    return slope + torch.from_numpy(solution.x).float() @ guards


def train_mer(workload: Workload, settings: Settings) -> nn.Module:
    """Step on replayed examples and on the new one, then go part of the way."""
    model = build_network(workload, settings)
    optimiser = torch.optim.SGD(model.parameters(), settings["rate"])
    x0, y0 = (part[: settings["memory"]] for part in workload.data[0])
    for places in iterate_minibatches(workload):
        for x, y in places:
            for row in range(len(y)):
                before = [p.detach().clone() for p in model.parameters()]
                for place in torch.randint(len(y0), (settings["replay"],)).tolist():
                    step_on_example(model, optimiser, x0[place], y0[place])
                step_on_example(model, optimiser, x[row], y[row])
                with torch.no_grad():
                    for p, old in zip(model.parameters(), before, strict=True):
                        p.copy_(old + settings["beta"] * (p - old))
    return model


def step_on_example(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    """Take one step on one example."""
    optimiser.zero_grad()
    cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0)).backward()
    optimiser.step()
