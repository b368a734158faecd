"""What environments of the learner `cirm` disagree on, beyond its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.cirm import drift, shortcuts
from cirm.learners.cirm.drift import Sample, Slope
from cirm.learners.cirm.stage import Work

UNLIKELY = 0.01  # probability by chance below which a disagreement is evidence
SETTLED = 0.1  # above this, nothing is left of it but what the reference explains


class Found(NamedTuple):
    """What environments disagree on.

    `chance` [replica] is the least probability that they disagree so much by chance,
    `told` [replica] the least of those where it is known on what: on the reference, or
    on something else, which is `fresh` [replica]. The `logits` of that are
    [replica, k, d], and `centres` [replica, class, k] their class means. There
    were so many `comparisons` [replica].
    """

    chance: Tensor
    told: Tensor
    fresh: Tensor
    logits: Tensor
    centres: Tensor
    comparisons: Tensor

    def answers(self, work: Work) -> list[Tensor]:
        """What it answers on what is learned, [replica * member, n] each."""
        logits, centres = (
            part.repeat_interleave(work.learner.members, 0)
            for part in (self.logits, self.centres)
        )
        return [
            torch.cat(
                [
                    drift.nearest(work.inputs(e, rows).cpu() @ logits.mT, centres)
                    for rows in shortcuts.strides(e)
                ],
                1,
            )
            for e in work.learned
        ]


@dataclass(frozen=True, eq=False)
class Drift:
    """A stage with plain and reference models [replica * member, p] to ask about it."""

    work: Work
    plain: Tensor
    reference: Tensor

    def slope(self) -> Slope:
        """How the plain model's risk slopes where it was not learned."""
        return drift.slope(drift.together([self._sample(e) for e in self._new]))

    def found(self) -> Found:
        """What the environments disagree on: this stage's, and the past ones."""
        work, past = self.work, self.work.past
        found = self._nothing()
        if not work.first:
            old = Drift(work, past.plain.flatten(0, 1), past.reference.flatten(0, 1))
            sample = drift.together([old._sample(e) for e in self._new])
            found = _added(found, sample, past.slope)
        samples = [self._sample(e) for e in work.judged] if len(work.judged) > 1 else []
        for index, one in enumerate(samples[: 1 if len(samples) == 2 else None]):
            rest = drift.together(samples[:index] + samples[index + 1 :])
            found = _added(found, one, drift.slope(rest))
        return found

    @property
    def _new(self) -> Stage:
        """What arrived, and no model before has learned from."""
        return self.work.judged[: self.work.arrived]

    def _nothing(self) -> Found:
        past, k = self.work.past, self.work.learner.classes
        replicas, width = len(past.tally), past.centre.shape[1]
        return Found(
            torch.ones(replicas),
            torch.ones(replicas),
            torch.zeros(replicas).bool(),
            torch.zeros(replicas, k, width),
            torch.zeros(replicas, k, k),
            torch.zeros(replicas),
        )

    def _sample(self, environment: Environment) -> Sample:
        work = self.work
        enough = shortcuts.STRIDE // work.learner.members
        some = shortcuts.shortened(environment, enough)
        plainly = work.sight(hidden=False)
        logits, answers = (
            work.asked(params, some, plainly) for params in (self.plain, self.reference)
        )
        parts = (
            work.inputs(some, shortcuts.strides(some)[0]).cpu(),
            logits,
            some.targets,
            answers.argmax(-1),
        )
        return Sample(*(work.gathered(part) for part in parts))


def _added(found: Found, sample: Sample, other: Slope) -> Found:
    """What is found, or what a sample and another slope show if that is less likely."""
    here = drift.slope(sample, other.cells.sum(2, keepdim=True))
    chance = drift.chance(here, other)
    left = drift.chance(drift.slope(sample, other.cells), other)
    fresh = (chance < UNLIKELY) & (left < UNLIKELY)
    logits, centres = found.logits, found.centres
    if fresh.any():
        made = drift.turned(sample, here, other)
        fresh = fresh & (made != 0).any(2).any(1)
        means = drift.centroids(sample.inputs @ made.mT, sample.targets, made.shape[1])
        best = fresh & ((chance <= found.chance) | ~found.fresh)
        best = best.view(-1, 1, 1)
        logits = torch.where(best, made, logits)
        centres = torch.where(best, means, centres)
    told = torch.where(fresh | (left >= SETTLED), chance, 1.0)
    return Found(
        torch.minimum(chance, found.chance),
        torch.minimum(told, found.told),
        found.fresh | fresh,
        logits,
        centres,
        found.comparisons + drift.comparable(here, other),
    )
