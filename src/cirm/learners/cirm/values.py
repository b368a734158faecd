"""One stage of regression: find inputs that change their meaning, and hide them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.moments import (
    WIDEST,
    Moments,
    compute_moments,
    compute_similarity_weights,
    find_changed_columns,
    has_enough,
    pool_moments,
)
from cirm.learners.cirm.stage import Work, double_epochs
from cirm.learners.cirm.state import State, View

STRONG = 5.0  # squared slope, in units of its noise, that counts as evidence
ALIKE = 0.001  # p-value from which regressions count as equal
WORTH = 0.01  # fraction of the target's variance that a slope must explain
LONGEST = 2000  # most steps of plain models, unless one round is longer
LEAST = 0.001  # least unexplained variance, of targets with variance one
CHUNKS = 8  # chunks of an environment's examples that are enough for a slope


class Change(NamedTuple):
    """How regressions differ between environments.

    `columns` [replica, d] changed their meaning, and if `settled` [replica] nothing
    else did. `moved` [replica] is whether anything did, also if that cannot be tested.
    `moments` are those of all examples, including this stage.
    """

    columns: Tensor
    settled: Tensor
    moved: Tensor
    moments: Moments


class ValueWork(Work):
    """Trains and evaluates the models of a stage of regression."""

    def run(self) -> State:
        """Return the state after the stage."""
        learner, past, plainly = self.learner, self.past, self.get_view(hidden=False)
        new, slopes = self.learned[: self.arrived], []
        if not self.first:
            slopes.append(self._compute_slope(past.plain, new, plainly))
        plain, rounds = self._train_plain_rounds(plainly)
        if len(self.judged) > 1:
            apart = plain.unflatten(0, (-1, learner.members))
            slopes += [self._compute_slope(apart, (e,), plainly) for e in self.judged]
        shape = len(plain), 0, past.centre.shape[1]
        found = (
            torch.cat([s for s, _ in slopes], 1) if slopes else plain.new_zeros(shape)
        )
        none = torch.zeros(len(past.evidence))
        strong = torch.stack([none, *(k for _, k in slopes)]).amax(0)
        change = self._detect_change(strong)
        strength = self._update_strength(strong, change)
        found = self.choose(change.settled, torch.zeros_like(found), found)
        found = torch.cat([found, self._make_axes(change)], 1)
        first = torch.full_like(change.settled, self.first)
        past = past._replace(directions=self.merge_hidden(found, first))
        even = plain.new_ones(len(plain), 1)
        anew = first | change.columns.any(1)  # what was learned goes by them
        residuals = self._compute_residuals(
            plain, self.judged[: self.arrived], plainly
        )[2]
        noise = residuals.square().mean(1).clamp(LEAST, 1.0)
        posterior = self.train_invariant(self.learned, past, even, anew, noise, rounds)
        evidence = torch.cat([strength.unsqueeze(1), past.evidence[:, 1:]], 1)
        return past._replace(
            posterior=self.split_members(posterior),
            plain=plain.unflatten(0, (-1, learner.members)),
            evidence=evidence,
            moments=change.moments,
        )

    def _train_plain_rounds(self, view: View) -> tuple[Tensor, Tensor]:
        """Train plain models in rounds, as long as the held-out error falls.

        Each round after the first is as long as all before it. The second result is the
        number of rounds [replica].
        """
        learner = self.learner
        descent = replace(learner.descent, epochs=learner.plain_epochs)
        steps = descent.epochs * descent.count_steps(self.learned)
        plain = self.train_plain(view)
        error = self._held_out_error(plain, view)
        going, rounds = torch.ones_like(error).bool(), torch.ones_like(error)
        turn = 1
        while going.any() and steps * 2**turn <= LONGEST:
            source = self.spawn_members("plain", turn)
            new = self.minimise_plain(
                plain, self.learned, view, source, double_epochs(descent, turn)
            )
            other = self._held_out_error(new, view)
            going = going & (other < error)
            plain = self.choose(going, new, plain)
            error = torch.where(going, other, error)
            rounds, turn = rounds + going, turn + 1
        return plain, rounds

    def _held_out_error(self, plain: Tensor, view: View) -> Tensor:
        """Return the mean squared error [replica] of plain models on held-out rows."""
        residuals = self._compute_residuals(plain, self.judged, view)[2]
        return self.gather_members(residuals).square().mean(1).cpu()

    def _detect_change(self, strong: Tensor) -> Change:
        """Compare the regressions of past and new environments.

        If too few examples are distributed alike, unweighted regressions are compared,
        and the slopes must be `strong` [replica] as well.
        """
        before, centre, learner = self.past.moments, self.past.centre, self.learner
        none = torch.zeros(len(centre)).bool()
        columns = torch.zeros(centre.shape).bool()
        if centre.shape[1] > WIDEST:
            return Change(columns, none, ~none, before)
        samples = [self._take_examples(e) for e in self.judged[: self.arrived]]
        parts = [compute_moments(*sample) for sample in samples]
        after = before
        for part in parts:
            after = pool_moments(after, part)
        past = [] if self.first else [before]
        if len(past + parts) < 2 or not learner.hide:
            return Change(columns, none, none, after)
        like = after if self.first else before
        alike = past + [
            compute_moments(
                inputs, targets, compute_similarity_weights(inputs, part, like)
            )
            for (inputs, targets), part in zip(samples, parts, strict=True)
        ]
        bare = torch.zeros(len(centre), 0, centre.shape[1])
        old = bare
        if not self.first:
            old = shortcuts.scale_directions(self.past.directions[:, 0].cpu())
        found, chance = find_changed_columns(past + parts, old, ALIKE, learner.rank)
        apart = found.any(1) | (chance < ALIKE) | old.any(2).any(1)
        moved = torch.where(
            has_enough(alike),
            find_changed_columns(alike, bare, ALIKE, 0)[1] < ALIKE,
            apart & (strong >= STRONG),
        )
        told = found.any(1) | old.any(2).any(1)
        settled = moved & told & (chance >= ALIKE)
        return Change(found & settled.unsqueeze(1), settled, moved, after)

    def _take_examples(self, environment: Environment) -> tuple[Tensor, Tensor]:
        """Return inputs [replica, n, d] and targets of some of the examples."""
        rows = shortcuts.list_row_chunks(environment)[:CHUNKS]
        inputs = torch.cat(
            [self.take_inputs(environment, some) for some in rows], 1
        ).cpu()
        targets = environment.targets[:, : inputs.shape[1]].cpu()
        return self.gather_members(inputs), self.gather_members(targets)

    def _make_axes(self, change: Change) -> Tensor:
        """Return the axes [replica * member, rank, d] of the columns that changed."""
        axes = torch.zeros(
            len(change.columns), self.learner.rank, change.columns.shape[1]
        )
        for own, columns in zip(axes, change.columns, strict=True):
            places = columns.nonzero().squeeze(1)
            own[range(len(places)), places] = 1.0
        return axes.to(self.past.centre).repeat_interleave(self.learner.members, 0)

    def _update_strength(self, strong: Tensor, change: Change) -> Tensor:
        """Return the strongest evidence so far, [replica].

        Slopes count only if the regressions changed, too, since residuals may also
        depend on inputs in regions without training data. Columns that explain the
        whole change are enough.
        """
        here = torch.where(change.moved, strong, 0.0)
        told = torch.where(change.columns.any(1), STRONG, 0.0)
        return torch.stack([self.past.evidence[:, 0], here, told]).amax(0)

    def _compute_slope(
        self, plain: Tensor, stage: Stage, view: View
    ) -> tuple[Tensor, Tensor]:
        """Return the slope [replica * member, 1, d] of residuals, and its strength.

        The strength [replica] is the squared slope in units of its noise; a slope that
        is not above the noise is zero. A slope that explains next to nothing is due to
        an imperfect fit, and has strength zero.
        """
        x, y, off = self._compute_residuals(plain.flatten(0, 1), stage, view)
        x, off = x - x.mean(1, keepdim=True), off - off.mean(1, keepdim=True)
        parts = x * off.unsqueeze(-1)
        slope = parts.mean(1)
        noise = (parts - slope.unsqueeze(1)).square().mean(1).sum(-1) / x.shape[1]
        square = slope.square().sum(-1)
        along = (x @ slope.unsqueeze(-1)).square().mean((1, 2))
        worth = (
            square.square()
            / along.clamp(min=1e-12)
            / y.var(1, correction=0).clamp(min=1e-12)
        )
        strength, worth = (
            part.unflatten(0, (-1, self.learner.members)).mean(1)
            for part in (square / noise.clamp(min=1e-12), worth)
        )
        strength = torch.where(worth >= WORTH, strength, 0.0)
        certain = (strength >= STRONG).repeat_interleave(self.learner.members)
        return (slope * certain[:, None]).unsqueeze(1), strength.cpu()

    def _compute_residuals(
        self, params: Tensor, stage: Stage, view: View
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs [replica * member, n, d], targets and residuals of examples.

        Examples are in random order, so that the first ones are a random subset.
        """
        seen, targets, off = [], [], []
        with torch.no_grad():
            for environment in stage:
                for rows in shortcuts.list_row_chunks(environment)[:CHUNKS]:
                    x, y = environment.take(rows)
                    x, y = view(x.to(params.device)), y.to(params.device)
                    off.append(
                        y - self.learner.network_without_dropout(params, x).squeeze(-1)
                    )
                    targets.append(y)
                    seen.append(x.flatten(2))
        return torch.cat(seen, 1), torch.cat(targets, 1), torch.cat(off, 1)
