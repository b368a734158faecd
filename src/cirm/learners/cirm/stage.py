"""One stage of the learner `cirm`: the part shared by both tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.state import Past, State, View, make_view
from cirm.networks import Network
from cirm.objectives import Batch, environment_means, pool_risks
from cirm.randomness import Randomness
from cirm.training import Descent, Terms, Watch, ignore_steps
from cirm.variational import (
    Gaussian,
    flatten_gaussian,
    kl,
    make_gaussian,
    unflatten_gaussian,
)

if TYPE_CHECKING:
    from cirm.learners.cirm.learner import CIRM


def double_epochs(descent: Descent, turn: int) -> Descent:
    """Return the descent of a later round, which is as long as all before it."""
    return replace(descent, epochs=descent.epochs * 2 ** (turn - 1))


@dataclass(frozen=True, eq=False)
class Work:
    """A stage's training and held-out examples of each member, and the state before.

    The first `arrived` environments are new; examples kept from the past follow.
    """

    learner: CIRM
    past: State
    learned: Stage
    judged: Stage
    randomness: Randomness
    watch: Watch
    first: bool
    arrived: int

    def train_plain(self, view: View) -> Tensor:
        """Train the plain models [replica * member, p]."""
        start, source = self.past.plain.flatten(0, 1), self.spawn_members("plain")
        descent = replace(self.learner.descent, epochs=self.learner.plain_epochs)
        return self.minimise_plain(
            start, self.learned, view, source, descent, self._watch_plain
        )

    def minimise_plain(
        self,
        params: Tensor,
        stage: Stage,
        view: View,
        source: Randomness,
        descent: Descent,
        watch: Watch = ignore_steps,
    ) -> Tensor:
        """Train plain models on a stage, from given parameters."""
        past = Past(view, params.new_zeros(0), Gaussian(params, params))
        return descent.minimise(self.plain_loss, params, past, stage, source, watch)

    def train_invariant(
        self,
        stage: Stage,
        past: State,
        weights: Tensor,
        anew: Tensor,
        noise: Tensor | float = 1.0,
        rounds: Tensor | None = None,
    ) -> Gaussian:
        """Train the invariant model; return its posterior [replica * member, p].

        Replicas that start `anew` [replica] start from the first prior. `noise`
        [replica * member] is the unexplained variance in regression. The number of
        `rounds` [replica], each as long as all before it, is one by default.
        """
        learner, descent = self.learner, self.learner.descent
        prior = Gaussian(*(part.flatten(0, 1) for part in past.posterior))
        start = prior
        if anew.any():
            prior, start = self._restart(prior, anew)
        weight = learner.beta * noise / sum(map(len, stage))
        loss = partial(self.loss, weight=weight)
        view = make_view(past, learner.members)
        fixed = Past(view, weights.to(descent.device), prior)
        source = self.spawn_members("invariant")
        flat = descent.minimise(
            loss, flatten_gaussian(start), fixed, stage, source, self._watch_invariant
        )
        rounds = torch.ones(len(anew)) if rounds is None else rounds
        for turn in range(1, int(rounds.max())):
            source = self.spawn_members("invariant", turn)
            new = double_epochs(descent, turn).minimise(
                loss, flat, fixed, stage, source
            )
            flat = self.choose(rounds > turn, new, flat)
        return unflatten_gaussian(flat)

    def _restart(self, old: Gaussian, anew: Tensor) -> tuple[Gaussian, Gaussian]:
        """Return prior and start [replica * member, p] of replicas that start anew.

        In classification the prior is centred on zero, in regression on the start.
        """
        learner = self.learner
        means = self.past.plain.flatten(0, 1)
        if not self.first:
            means = learner.network.init(self.spawn_members("anew")).to(means)
        prior = make_gaussian(means, learner.prior_std, centred=learner.classes > 0)
        start = make_gaussian(means, learner.initial_std)
        return tuple(  # type: ignore[return-value]
            Gaussian(*(self.choose(anew, n, o) for n, o in zip(new, old, strict=True)))
            for new in (prior, start)
        )

    def plain_loss(self, params: Tensor, past: Past, batch: Batch) -> Terms:
        """Return the mean risk of plain models."""
        outputs = self.learner.network_without_dropout(params, past.view(batch.x))
        losses = self.learner.likelihood.losses(outputs, batch.y)
        return {"plain risk": pool_risks(environment_means(losses, batch.share), batch)}

    def loss(
        self, params: Tensor, past: Past, batch: Batch, weight: Tensor | float
    ) -> Terms:
        """Return the balanced expected risk, and `weight` times the KL.

        In classification the targets are cells: twice the class, plus one if the
        reference is right.
        """
        q = unflatten_gaussian(params)
        outputs = self._network.sample_outputs(q, past.view(batch.x), batch.noise, 1)
        targets = batch.y // 2 if self.learner.classes else batch.y
        losses = self.learner.likelihood.losses(outputs, targets).squeeze(1)
        if self.learner.classes:
            losses = losses * past.weights.gather(1, batch.y)
        risk = pool_risks(environment_means(losses, batch.share), batch)
        return {"risk": risk, "kl": weight * kl(q, past.prior)}

    def merge_hidden(self, found: Tensor, anew: Tensor) -> Tensor:
        """Return all directions to hide, [replica, member, rank, d]."""
        learner = self.learner
        shape = (len(found), 0, found.shape[-1])
        if not learner.hide:
            return found.new_zeros(shape).unflatten(0, (-1, learner.members))
        old = self.past.directions.flatten(0, 1)
        if not learner.carry or not old.shape[1]:
            old = found.new_zeros(shape)
        old = self.choose(anew, torch.zeros_like(old), old)
        merged = shortcuts.merge_directions(old, found, learner.rank)
        return merged.unflatten(0, (-1, learner.members))

    def compute_logits(
        self, params: Tensor, environment: Environment, seen: View
    ) -> Tensor:
        """Return logits [replica * member, n, k] of a network, on the CPU."""
        learner, device = self.learner, self.learner.descent.device
        with torch.no_grad():
            pieces = [
                learner.logits(
                    learner.network_without_dropout(
                        params, seen(environment.take(rows).x.to(device))
                    )
                ).cpu()
                for rows in shortcuts.list_row_chunks(environment)
            ]
        return torch.cat(pieces, 1)

    def choose(self, those: Tensor, ours: Tensor, others: Tensor) -> Tensor:
        """Choose between two tensors [replica * member, ...] by replica."""
        chosen = those.repeat_interleave(self.learner.members).to(others.device)
        return torch.where(chosen.view(-1, *[1] * (others.ndim - 1)), ours, others)

    def take_inputs(self, environment: Environment, rows: Tensor) -> Tensor:
        """Return inputs [replica * member, n, d] of rows, as plain models see them."""
        view = self.get_view(hidden=False)
        return view(environment.take(rows).x.to(view.centre.device)).flatten(2)

    def get_view(self, hidden: bool) -> View:
        """Return the view of plain models or, if `hidden`, of invariant ones."""
        return make_view(self.past, self.learner.members, hidden)

    def spawn_members(self, *path: str | int) -> Randomness:
        """Return a source of randomness for each member."""
        return self.randomness.at(*path).spawn(self.learner.members)

    def gather_members(self, part: Tensor) -> Tensor:
        """Join the members [replica * member, n, ...] of each replica."""
        return part.unflatten(0, (-1, self.learner.members)).flatten(1, 2)

    def split_members(self, q: Gaussian) -> Gaussian:
        """Return the posterior with an axis for members."""
        return Gaussian(*(p.unflatten(0, (-1, self.learner.members)) for p in q))

    def _watch_plain(self, step: int, steps: int, numbers: Terms) -> None:
        """Report the progress of the plain models, which come first."""
        later = self.learner.descent.epochs * steps // self.learner.plain_epochs
        self.watch(step, steps + later, {})

    def _watch_invariant(self, step: int, steps: int, numbers: Terms) -> None:
        """Report the mean numbers of the members of each replica."""
        means = {
            name: self.gather_members(v.unsqueeze(1)).mean(1)
            for name, v in numbers.items()
        }
        sooner = self.learner.plain_epochs * steps // self.learner.descent.epochs
        self.watch(step + sooner, steps + sooner, means)

    @cached_property
    def _network(self) -> Network:
        """The invariant model's network, with dropout that suits the stage."""
        sides = self.learned[: self.arrived] + self.judged[: self.arrived]
        return self.learner.network_for(sum(map(len, sides)))
