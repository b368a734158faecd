"""What environments of the learner `cirm` disagree on, beyond its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm import drift, shortcuts
from cirm.drift import Sample, Slope
from cirm.environments import Environment, Stage
from cirm.learners.cirm_stage import Work

UNLIKELY = 0.01  # probability by chance below which a disagreement is evidence
SETTLED = 0.1  # above this, nothing is left of it but what the reference explains


class Found(NamedTuple):
    """What environments disagree on.

    `chance` [replica] is the probability that they disagree so much by chance, if it is
    known on what: the reference, or something else, `fresh` [replica]. The `logits` of
    that are [replica, k, d], and `centres` [replica, class, k] their class means.
    """

    chance: Tensor
    fresh: Tensor
    logits: Tensor
    centres: Tensor

    def answers(self, work: Work) -> list[Tensor]:
        """What it answers on what is learned, [replica * member, n] each."""
        logits, centres = (
            part.repeat_interleave(work.learner.members, 0)
            for part in (self.logits, self.centres)
        )
        return [
            torch.cat(
                [
                    drift.nearest(_seen(work, e, rows) @ logits.mT, centres)
                    for rows in shortcuts.strides(e)
                ],
                1,
            )
            for e in work.learned
        ]


@dataclass(frozen=True, eq=False)
class Drift:
    """A stage with the plain and reference models [replica * member, p] after it."""

    work: Work
    plain: Tensor
    reference: Tensor

    def slope(self) -> Slope:
        """How the plain model's risk slopes where it was not learned."""
        return drift.slope(self._whole(self._new))

    def found(self) -> Found:
        """What the environments disagree on: this stage's, and the past ones."""
        work, past = self.work, self.work.past
        found = self._nothing()
        if not work.first:
            old = Drift(work, past.plain.flatten(0, 1), past.reference.flatten(0, 1))
            found = _added(found, old._whole(self._new), past.slope)
        if len(work.judged) > 1:
            for one in work.judged:
                rest = tuple(e for e in work.judged if e is not one)
                other = drift.slope(self._whole(rest))
                found = _added(found, self._whole((one,)), other)
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
            torch.zeros(replicas).bool(),
            torch.zeros(replicas, k, width),
            torch.zeros(replicas, k, k),
        )

    def _whole(self, stage: Stage) -> Sample:
        """Some examples of the stage with what the models say of them."""
        return drift.together([self._sample(e) for e in stage])

    def _sample(self, environment: Environment) -> Sample:
        work = self.work
        enough = shortcuts.STRIDE // work.learner.members
        some = shortcuts.shortened(environment, enough)
        plainly = work.sight(hidden=False)
        logits, answers = (
            work.asked(params, some, plainly) for params in (self.plain, self.reference)
        )
        parts = (
            _seen(work, some, shortcuts.strides(some)[0]),
            logits,
            some.targets,
            answers.argmax(-1),
        )
        return Sample(*(work.gathered(part) for part in parts))


def _seen(work: Work, environment: Environment, rows: Tensor) -> Tensor:
    """Inputs [replica * member, n, d] as plain models see them, beside the examples."""
    device = work.learner.descent.device
    inputs = environment.take(rows).x.to(device)
    return work.sight(hidden=False)(inputs).flatten(2).cpu()


def _added(found: Found, sample: Sample, other: Slope) -> Found:
    """What is found, or what a sample and another slope show if that is less likely."""
    here = drift.slope(sample, other.cells.sum(2, keepdim=True))
    chance = drift.chance(here, other)
    left = drift.chance(drift.slope(sample, other.cells), other)
    fresh = (chance < UNLIKELY) & (left < UNLIKELY) & (chance < found.chance)
    logits, centres = found.logits, found.centres
    if fresh.any():
        made = drift.turned(sample, here, other)
        fresh = fresh & (made != 0).any(2).any(1)
        means = drift.centroids(sample.inputs @ made.mT, sample.targets, made.shape[1])
        logits = torch.where(fresh.view(-1, 1, 1), made, logits)
        centres = torch.where(fresh.view(-1, 1, 1), means, centres)
    told = torch.where(fresh | (left >= SETTLED), chance, 1.0)
    least = torch.minimum(told, found.chance)
    return Found(least, found.fresh | fresh, logits, centres)
