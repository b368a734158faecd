"""Functions that find the shortcut of an environment and remove it.

They work on ensemble members, several networks of a replica. Each is trained on all
examples but a part of its own, which is held out. The leading axis is replica * member,
with the members of one replica next to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.environments import Environment, Task
from cirm.randomness import Randomness

FAINT = 0.3  # directions this much shorter than the longest are taken as noise
HOLD = 0.01  # strength of the prior of a correction, as a fraction of the examples
HALVINGS = 30  # most halvings of a Newton step
STRIDE = 4096  # examples whose inputs are loaded at once


@dataclass(frozen=True, eq=False)
class MemberInputs:
    """Inputs of selected rows [replica * member, m] of an environment."""

    whole: Environment
    rows: Tensor
    members: int

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica * member, m, *features]."""
        return (*self.rows.shape, *self.whole.features)

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [replica * member, k, *features] of some of the rows."""
        places = self.rows.gather(1, rows)
        apart = places.unflatten(0, (-1, self.members)).flatten(1)
        inputs = self.whole.take(apart).x
        return inputs.unflatten(1, (self.members, -1)).flatten(0, 1)


def assign_rows(
    count: int, members: int, randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """Return training and held-out rows of each member, [replica * member, m].

    Held-out parts are disjoint. With fewer examples than members, each member is
    trained and evaluated on all of them.
    """
    order = randomness.permutation(count)
    size = count // members
    if not size:
        everyone = order.repeat_interleave(members, 0)
        return everyone, everyone
    parts = list(order[:, : size * members].split(size, 1))
    rest = order[:, size * members :]
    learned = [
        torch.cat([*parts[:k], *parts[k + 1 :], rest], 1) for k in range(members)
    ]
    return tuple(torch.stack(rows, 1).flatten(0, 1) for rows in (learned, parts))  # type: ignore[return-value]


def select_member_rows(
    environment: Environment, rows: Tensor, members: int
) -> Environment:
    """Return the environment of the members' rows [replica * member, m]."""
    apart = rows.unflatten(0, (-1, members))
    targets = environment.targets
    if not environment.replicated:
        targets = targets.expand(len(apart), -1)
    targets = targets.unsqueeze(1).expand(-1, members, -1).gather(2, apart)
    return Environment(
        environment.name,
        MemberInputs(environment, rows, members),
        targets.flatten(0, 1),
        environment.task,
        replicated=True,
    )


def truncate_environment(environment: Environment, count: int) -> Environment:
    """Return the first `count` examples of each member, in random order; 0 for all."""
    inputs = environment.inputs
    if not count or len(environment) <= count or not isinstance(inputs, MemberInputs):
        return environment
    fewer = MemberInputs(inputs.whole, inputs.rows[:, :count], inputs.members)
    targets = environment.targets[:, :count]
    return Environment(environment.name, fewer, targets, environment.task, True)


def replace_targets(
    environment: Environment, targets: Tensor, classes: int
) -> Environment:
    """Return the same inputs with other targets of `classes` classes."""
    task = Task.classification(classes)
    return Environment(environment.name, environment.inputs, targets, task, True)


def list_row_chunks(environment: Environment) -> list[Tensor]:
    """Return the rows [replica, m] of an environment in chunks."""
    rows = torch.arange(len(environment)).expand(len(environment.targets), -1)
    return list(rows.split(STRIDE, 1))


def fair_shares(classes: int) -> Tensor:
    """Return the fractions [2] of right and wrong answers of random guessing."""
    return torch.tensor([1.0, classes - 1.0]) / classes


def number_cells(targets: Tensor, answers: Tensor) -> Tensor:
    """Return twice the class of each example, plus one if the answer is right."""
    return 2 * targets + (targets == answers)


def balance_weights(cells: Tensor, classes: int, cap: float) -> Tensor:
    """Return weights [replica, 2 * classes] of cells that make the answer random.

    `cells` [replica, n] are those of the examples. The weight of each class stays the
    same, and no weight is above `cap`: the excess goes to the larger group.
    """
    counts = torch.zeros(len(cells), 2 * classes, device=cells.device)
    counts.scatter_add_(1, cells, torch.ones_like(cells, dtype=counts.dtype))
    grouped = counts.unflatten(1, (classes, 2))
    shares = fair_shares(classes).flip(0).to(cells.device) * (grouped > 0)
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-9)
    wanted = shares * grouped.sum(-1, keepdim=True) / grouped.clamp(min=1)
    capped = wanted.clamp(max=cap)
    left = ((wanted - capped) * grouped).flip(-1)
    weights = (capped + left / grouped.clamp(min=1)) * (grouped > 0)
    mean = (weights * grouped).sum((1, 2), keepdim=True) / cells.shape[1]
    return (weights / mean).flatten(1)


def compute_contrasts(sums: Tensor, counts: Tensor) -> Tensor:
    """Return how inputs change with the reference's answer, for the same label.

    From sums [replica, class, answer, d] and counts [replica, class, answer] of the
    inputs: for each answer but the first, the mean difference, over the classes, of
    the inputs with and without this answer, [replica, answers - 1, d].
    """
    rest = sums.sum(2, keepdim=True) - sums
    others = counts.sum(2, keepdim=True) - counts
    both = ((counts > 0) & (others > 0)).float().unsqueeze(-1)
    means = sums / counts.clamp(min=1).unsqueeze(-1)
    means = means - rest / others.clamp(min=1).unsqueeze(-1)
    moved = (means * both).sum(1) / both.sum(1).clamp(min=1)
    return moved[:, 1:]


def merge_directions(old: Tensor, new: Tensor, rank: int) -> Tensor:
    """Return the strongest orthogonal directions of both, [replica, rank, d].

    Their lengths are the singular values of all directions, so that a direction that
    is found in every environment grows, and one that is noise is dropped.
    """
    stacked = torch.cat([old, new], 1)
    _, lengths, directions = torch.linalg.svd(stacked, full_matrices=False)
    kept = (lengths.unsqueeze(-1) * directions)[:, :rank]
    return torch.nn.functional.pad(kept, (0, 0, 0, rank - kept.shape[1]))


def scale_directions(directions: Tensor) -> Tensor:
    """Return strong directions [replica, rank, d] at length one, others at zero."""
    lengths = directions.norm(dim=-1, keepdim=True)
    strong = lengths > FAINT * lengths.amax(1, keepdim=True)
    return directions / lengths.clamp(min=1e-12) * strong


def remove_directions(inputs: Tensor, directions: Tensor) -> Tensor:
    """Remove from inputs [replica, n, d] their parts along strong directions."""
    axes = scale_directions(directions)
    return inputs - (inputs @ axes.mT) @ axes


def fit_correction(
    logits: Tensor, answers: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """Fit factors [replica, 2] of the logits and of the reference's answers.

    Logits are [replica, n, k], answers and targets [replica, n]. Newton's method
    minimises the weighted cross-entropy with a weak prior around (1, 0).
    """
    classes = logits.shape[-1]
    one = torch.nn.functional.one_hot
    parts = torch.stack([logits, one(answers, classes) - 1 / classes], -1)
    wanted = one(targets, classes).to(logits.dtype)
    start = torch.tensor([1.0, 0.0], device=logits.device)
    factors = start.repeat(len(logits), 1)
    weights = weights / weights.sum(1, keepdim=True)
    hold = HOLD * torch.eye(2, device=logits.device)

    def risk(factors: Tensor) -> Tensor:
        chances = (parts @ factors[:, None, :, None]).squeeze(-1).log_softmax(-1)
        pull = (factors - start).square().sum(-1) * HOLD / 2
        return pull - (weights * (chances * wanted).sum(-1)).sum(-1)

    for _ in range(20):
        chances = (parts @ factors[:, None, :, None]).squeeze(-1).softmax(-1)
        off = ((chances - wanted).unsqueeze(-1) * parts).sum(2)
        slope = (weights.unsqueeze(-1) * off).sum(1) + (factors - start) @ hold
        mean = (chances.unsqueeze(-1) * parts).sum(2)
        spread = parts - mean.unsqueeze(2)
        scaled = (weights.unsqueeze(-1) * chances).unsqueeze(-1) * spread
        bend = torch.einsum("rnki,rnkj->rij", scaled, spread) + hold
        factors = _halve_until_lower(risk, factors, torch.linalg.solve(bend, slope))
    return factors


def _halve_until_lower(
    risk: Callable[[Tensor], Tensor], at: Tensor, step: Tensor
) -> Tensor:
    """Take a step, halved as often as needed for the risk not to rise."""
    limit = risk(at) + 1e-5  # smaller differences are rounding errors
    for _ in range(HALVINGS):
        worse = ~(risk(at - step) <= limit)
        if not worse.any():
            break
        step = torch.where(worse.unsqueeze(1), step / 2, step)
    return at - step
