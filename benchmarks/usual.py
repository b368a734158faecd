"""Methods as people usually write them in PyTorch: modules, autograd, Adam, loops.

Each function learns the timed stage of a cell once, one seed, and gives the network.
They are here to be timed beside ours, and are written to be fair: tensors instead of
data loaders, no logging, no evaluation.
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

from benchmarks.cells import Cell

Settings = Mapping[str, Any]


def network(cell: Cell, settings: Settings) -> nn.Sequential:
    """Linear layers with activation and dropout between them."""
    relu = settings.get("activation") == "relu"
    layers: list[nn.Module] = []
    for a, b in pairwise(cell.sizes[:-1]):
        layers += [nn.Linear(a, b), nn.ReLU() if relu else nn.ELU()]
        if settings.get("dropout"):
            layers.append(nn.Dropout(settings["dropout"]))
    return nn.Sequential(*layers, nn.Linear(*cell.head))


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Of two outputs, or of the logit of the second class."""
    if outputs.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[..., 0], labels.float())
    return F.cross_entropy(outputs, labels)


def minibatches(cell: Cell) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """For each step the examples of every environment of the timed stage."""
    places = cell.data[cell.together :]
    for _ in range(cell.epochs):
        if not cell.batch:
            yield places
            continue
        orders = [torch.randperm(len(y)) for _, y in places]
        count = -(-cell.examples // cell.batch)
        for rows in zip(*(order.tensor_split(count) for order in orders), strict=True):
            yield [(x[r], y[r]) for (x, y), r in zip(places, rows, strict=True)]


def adam(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The usual optimiser."""
    decay = settings.get("decay", 0.0)
    return torch.optim.Adam(model.parameters(), settings["rate"], weight_decay=decay)


def erm(cell: Cell, settings: Settings) -> nn.Module:
    """Mean cross-entropy."""
    model = network(cell, settings)
    optimiser = adam(model, settings)
    for places in minibatches(cell):
        optimiser.zero_grad()
        risks = [cross_entropy(model(x), y) for x, y in places]
        torch.stack(risks).mean().backward()
        optimiser.step()
    return model


def irmv1(cell: Cell, settings: Settings) -> nn.Module:
    """A forward pass per environment, and autograd's gradient of a gradient."""
    model = network(cell, settings)
    optimiser = adam(model, settings)
    weight = settings["penalty"]
    for places in minibatches(cell):
        risks, penalties = [], []
        for x, y in places:
            scale = torch.ones(1, requires_grad=True)
            risk = cross_entropy(model(x) * scale, y)
            (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
            risks.append(risk)
            penalties.append(slope.square().sum())
        loss = torch.stack(risks).mean() + weight * torch.stack(penalties).mean()
        loss = loss + squares(model, settings)
        optimiser.zero_grad()
        (loss / max(1.0, weight)).backward()
        optimiser.step()
    return model


def squares(model: nn.Module, settings: Settings) -> Tensor:
    """The weighted sum of the squared parameters."""
    total = torch.zeros(())
    if settings.get("l2"):
        for values in model.parameters():
            total = total + settings["l2"] * values.norm().square()
    return total


def ewc(cell: Cell, settings: Settings) -> nn.Module:
    """A pull on every parameter; the Fisher information example by example."""
    model = network(cell, settings)
    anchor = [p.detach().clone() for p in model.parameters()]
    fisher = information(model, *cell.data[0], settings["memory"])
    optimiser = adam(model, settings)
    for places in minibatches(cell):
        optimiser.zero_grad()
        loss = torch.stack([cross_entropy(model(x), y) for x, y in places]).mean()
        for p, held, curve in zip(model.parameters(), anchor, fisher, strict=True):
            pull = (curve * (p - held).square()).sum()
            loss = loss + settings["strength"] / 2 * pull
        loss.backward()
        optimiser.step()
    return model


def information(model: nn.Module, x: Tensor, y: Tensor, memory: int) -> list[Tensor]:
    """Mean squared gradients of single examples."""
    found = [torch.zeros_like(p) for p in model.parameters()]
    for row in range(min(memory, len(y))):
        model.zero_grad()
        cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        for total, p in zip(found, model.parameters(), strict=True):
            if p.grad is not None:
                total += p.grad.square() / memory
    return found


def gem(cell: Cell, settings: Settings) -> nn.Module:
    """A gradient on the memory in each step, and a general solver where they clash."""
    model = network(cell, settings)
    optimiser = adam(model, settings)
    x0, y0 = (part[: settings["memory"]] for part in cell.data[0])
    for places in minibatches(cell):
        guard = gradient(model, [(x0, y0)])
        slope = gradient(model, places)
        if guard @ slope < 0:
            slope = bent(slope, guard.unsqueeze(0))
        pieces = slope.split([p.numel() for p in model.parameters()])
        for p, piece in zip(model.parameters(), pieces, strict=True):
            p.grad = piece.view_as(p)
        optimiser.step()
    return model


def gradient(model: nn.Module, places: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The gradient of the mean risk in one vector."""
    model.zero_grad()
    torch.stack([cross_entropy(model(x), y) for x, y in places]).mean().backward()
    return torch.cat(
        [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    )


def bent(slope: Tensor, guards: Tensor) -> Tensor:
    """The nearest slope that no guard opposes, by a general solver of the dual."""
    rows = guards.double().numpy()
    matrix, vector = rows @ rows.T, rows @ slope.double().numpy()

    def dual(weights: np.ndarray) -> float:
        return float(weights @ matrix @ weights / 2 + weights @ vector)

    start = np.zeros(len(rows))
    found = minimize(dual, start, method="SLSQP", bounds=[(0, None)] * len(rows))
    return slope + torch.from_numpy(found.x).float() @ guards


def mer(cell: Cell, settings: Settings) -> nn.Module:
    """Example by example: steps on some memory and on it, then part of the way."""
    model = network(cell, settings)
    optimiser = torch.optim.SGD(model.parameters(), settings["rate"])
    x0, y0 = (part[: settings["memory"]] for part in cell.data[0])
    for places in minibatches(cell):
        for x, y in places:
            for row in range(len(y)):
                before = [p.detach().clone() for p in model.parameters()]
                for place in torch.randint(len(y0), (settings["replay"],)).tolist():
                    single(model, optimiser, x0[place], y0[place])
                single(model, optimiser, x[row], y[row])
                with torch.no_grad():
                    for p, old in zip(model.parameters(), before, strict=True):
                        p.copy_(old + settings["beta"] * (p - old))
    return model


def single(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    """A step on one example."""
    optimiser.zero_grad()
    cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0)).backward()
    optimiser.step()
