"""A stage of values: directions in which the risk slopes where it should not."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm import shortcuts
from cirm.environments import Stage
from cirm.learners.cirm_stage import Work
from cirm.learners.cirm_state import State, View

STRONG = 5.0  # squared slope of a risk, in units of its noise, that counts as evidence
WORTH = 0.01  # of the target's variance that a slope must be able to explain
PORTIONS = 8  # of an environment's examples that are enough to see a slope


class ValueWork(Work):
    """What happens to a stage whose targets are values."""

    def done(self) -> State:
        """The state after a stage of values."""
        learner, past, plainly = self.learner, self.past, self.sight(hidden=False)
        new, slopes = self.learned[: self.arrived], []
        if not self.first:
            slopes.append(self._slope(past.plain, new, plainly))
        plain = self.plain(plainly)
        if len(self.judged) > 1:
            apart = plain.unflatten(0, (-1, learner.members))
            slopes += [self._slope(apart, (e,), plainly) for e in self.judged]
        shape = len(plain), 0, past.centre.shape[1]
        found = (
            torch.cat([s for s, _ in slopes], 1) if slopes else plain.new_zeros(shape)
        )
        strength = torch.stack([past.evidence[:, 0], *(k for _, k in slopes)]).amax(0)
        anew = torch.full_like(strength, self.first).bool()
        past = past._replace(directions=self.hidden(found, anew))
        even = plain.new_ones(len(plain), 1)
        posterior = self.invariant(self.learned, past, even, anew)
        evidence = torch.cat([strength.unsqueeze(1), past.evidence[:, 1:]], 1)
        return past._replace(
            posterior=self.apart(posterior),
            plain=plain.unflatten(0, (-1, learner.members)),
            evidence=evidence,
        )

    def _slope(self, plain: Tensor, stage: Stage, view: View) -> tuple[Tensor, Tensor]:
        """Slope [replica * member, 1, d] of the risk in the inputs, and its strength.

        The strength [replica] is the squared slope in units of its noise; a slope that
        is not above the noise is zero. One that is, but could explain next to nothing,
        is of a model that does not fit quite, and has no strength.
        """
        x, y, off = self._misses(plain.flatten(0, 1), stage, view)
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

    def _misses(
        self, params: Tensor, stage: Stage, view: View
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [replica * member, n, d] and targets of some examples, and misses.

        An environment's examples are in random order: its first ones are a draw.
        """
        seen, targets, off = [], [], []
        with torch.no_grad():
            for environment in stage:
                for rows in shortcuts.strides(environment)[:PORTIONS]:
                    x, y = environment.take(rows)
                    x, y = view(x.to(params.device)), y.to(params.device)
                    off.append(y - self.learner.dry(params, x).squeeze(-1))
                    targets.append(y)
                    seen.append(x.flatten(2))
        return torch.cat(seen, 1), torch.cat(targets, 1), torch.cat(off, 1)
