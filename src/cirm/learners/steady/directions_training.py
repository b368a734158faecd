"""Train the members of ensembles, each stopped by the rows that it did not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.likelihoods import Likelihood
from cirm.randomness import RandomDraws, Randomness
from cirm.training import (
    Descent,
    Watch,
    check_parameters_are_finite,
    ignore_training_steps,
)

Model = Callable[[Tensor, Tensor, RandomDraws | None], Tensor]
"""Outputs [model, n, k] of parameters [model, p], inputs [model, n, ...] and noise."""

MOST_ROWS = 1000  # rows of a step: whole-sample steps for the usual places, so that
# the few rows that contradict a shortcut count in every step
CHECK = 5  # steps between two looks at the held-out rows
PATIENCE = 6  # looks without improvement after which a member stops
EARLY = 20  # steps after which a network has learned the easiest feature and little
# else; a fixed number, so that its held-out answers are not selected


class LabelledTrainingRows(NamedTuple):
    """Labelled rows: inputs [replica, n, ...], targets [replica, n], what is known.

    `offset` [replica, n, k] is added to the outputs in training. Inputs may have an
    axis of members, [replica, member, n, ...], if each sees the rows in its own way.
    """

    inputs: Tensor
    targets: Tensor
    offset: Tensor
    has_member_axis: bool = False


class NetworkEnsemble(NamedTuple):
    """Trained members [replica, member, p].

    `params` are those of the best step by the rows left out, `early` those after
    `EARLY` steps, and `folds` [replica, n] tells which member left out which row.
    """

    params: Tensor
    early: Tensor
    folds: Tensor


def train_ensemble_members(
    model: Model,
    initial_params: Tensor,
    rows: LabelledTrainingRows,
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
    watch: Watch = ignore_training_steps,
    pace: Tensor | None = None,
) -> NetworkEnsemble:
    """Train members from parameters `initial_params` [replica, member, p].

    `pace` [replica] are factors of the learning rate.

    A member trains on all folds but its own and stops where it predicts its own best.
    Weight decay pulls it towards where it started, or to zero from a new start. `watch`
    gets the steps so far, and those after which training would stop if no held-out loss
    fell any more.
    """
    replicas, members, _ = initial_params.shape
    n = rows.targets.shape[1]
    folds = assign_rows_to_folds(randomness, n, members)
    taken, left = _split_rows_into_folds(folds, members)
    params = initial_params.flatten(0, 1)
    best, early = params.clone(), params.clone()
    lowest = torch.full((len(params),), torch.inf)
    since = torch.zeros(len(params), dtype=torch.long)
    live = torch.arange(len(params))
    pace = torch.ones(replicas) if pace is None else pace
    rates = descent.rate * pace.repeat_interleave(members)[:, None]
    mean, square = torch.zeros_like(params), torch.zeros_like(params)
    orders = randomness.at("order").spawn(members).start_draws()
    noise = randomness.at("noise").spawn(members).start_draws()
    held_out = _select_training_rows_of_members(rows, left, members)
    batch = _select_training_rows_of_members(rows, taken, members)
    small = taken.shape[1] <= MOST_ROWS
    steps = descent.epochs * -(-taken.shape[1] // MOST_ROWS)
    for step in range(1, steps + 1):
        if not small:
            chosen = orders.permutation(taken.shape[1])[:, :MOST_ROWS]
            batch = _select_training_rows_of_members(
                rows, taken[live].gather(1, chosen), members, live
            )
        weights = params.detach().requires_grad_()
        losses = _compute_losses_of_members(model, weights, batch, likelihood, noise)
        (slope,) = torch.autograd.grad(losses.sum(), weights)
        mean.lerp_(slope, 0.1)
        square.lerp_(slope.square(), 0.001)
        spread = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
        params = params - rates[live] * mean / (1 - 0.9**step) / spread
        params = params.mul_(1 - rates[live] * descent.decay)
        if step == EARLY:
            early[live] = params
        if step % CHECK and step < steps:
            continue
        check_parameters_are_finite(params, step)
        with torch.no_grad():
            losses = _compute_losses_of_members(
                model, params, held_out, likelihood, None
            )
        better = losses < lowest[live]
        lowest[live] = torch.where(better, losses, lowest[live])
        since[live] = torch.where(better, 0, since[live] + 1)
        best[live[better]] = params[better]
        risk = lowest.view(replicas, members).mean(1)
        longest = max(step + CHECK * (PATIENCE - int(since[live].min())), EARLY)
        watch(step, min(longest, steps), {"held-out loss": risk})
        going = (since[live] < PATIENCE) | (step < EARLY)
        if going.all():
            continue
        if not going.any():
            break
        keep = going.nonzero()[:, 0]
        live, params, mean, square = (t[keep] for t in (live, params, mean, square))
        batch, held_out = (
            LabelledTrainingRows(r.inputs[keep], r.targets[keep], r.offset[keep])
            for r in (batch, held_out)
        )
        noise = RandomDraws([noise.generators[i] for i in keep.tolist()])
        orders = RandomDraws([orders.generators[i] for i in keep.tolist()])
    shape = replicas, members, -1
    return NetworkEnsemble(best.view(shape), early.view(shape), folds)


def assign_rows_to_folds(randomness: Randomness, n_rows: int, n_members: int) -> Tensor:
    """Return the member [replica, n] that leaves each row out."""
    return randomness.at("folds").permutation(n_rows).remainder(n_members)


def compute_ensemble_member_outputs(
    model: Model, params: Tensor, inputs: Tensor, has_member_axis: bool = False
) -> Tensor:
    """Return outputs [replica, member, n, k] of members [replica, member, p].

    Inputs are [replica, n, ...], or [replica, member, n, ...] with an axis of members.
    """
    seen = inputs.unbind(1) if has_member_axis else [inputs] * params.shape[1]
    outputs = [
        model(weights, own, None)
        for weights, own in zip(params.unbind(1), seen, strict=True)
    ]
    return torch.stack(outputs, 1)


def select_held_out_outputs_of_members(outputs: Tensor, folds: Tensor) -> Tensor:
    """Return, of outputs [replica, member, n, k], those of the member without the row.

    `folds` [replica, n] is the member that left each row out.
    """
    place = folds[:, None, :, None].expand(-1, 1, -1, outputs.shape[-1])
    return outputs.gather(1, place).squeeze(1)


def _compute_losses_of_members(
    model: Model,
    params: Tensor,
    rows: LabelledTrainingRows,
    likelihood: Likelihood,
    noise: RandomDraws | None,
) -> Tensor:
    """Return the mean loss of each model."""
    outputs = model(params, rows.inputs, noise) + rows.offset
    return likelihood.compute_losses(outputs, rows.targets).mean(-1)


def _split_rows_into_folds(folds: Tensor, n_members: int) -> tuple[Tensor, Tensor]:
    """Return the rows [model, m] that each member trains on, and those left out."""
    n = folds.shape[1]
    fewest = max(1, n // n_members)
    taken, left = [], []
    for fold in folds:
        for member in range(n_members):
            out, rest = (fold == member).nonzero()[:, 0], (fold != member).nonzero()
            rest = rest[:, 0] if len(rest) else out
            left.append(out[:fewest] if len(out) else rest[:fewest])
            taken.append(rest[: max(1, n - -(-n // n_members))])
    return torch.stack(taken), torch.stack(left)


def _select_training_rows_of_members(
    rows: LabelledTrainingRows,
    row_indices: Tensor,
    n_members: int,
    model_indices: Tensor | None = None,
) -> LabelledTrainingRows:
    """Return the rows at `row_indices` [model, m] of the replica of each model."""
    model_indices = (
        torch.arange(len(row_indices)) if model_indices is None else model_indices
    )
    n = rows.targets.shape[1]
    flat = (row_indices + (model_indices // n_members * n)[:, None]).flatten()
    own = (row_indices + (model_indices * n)[:, None]).flatten()
    inputs, targets, offset = (
        t.flatten(0, 2).index_select(0, own)
        if t is rows.inputs and rows.has_member_axis
        else t.flatten(0, 1).index_select(0, flat)
        for t in rows[:3]
    )
    return LabelledTrainingRows(
        *(t.unflatten(0, row_indices.shape) for t in (inputs, targets, offset))
    )
