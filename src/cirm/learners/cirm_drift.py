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

UNLIKELY = 1e-3  # probability of a disagreement by chance that counts as evidence


class Found(NamedTuple):
    """What environments disagree on.

    `chance` [replica] is the probability that they disagree so much by chance, `fresh`
    [replica] whether they do in something that is not the reference. Its `logits` are
    [replica, k, d], and `centres` [replica, class, k] what they come to in each class.
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
        return drift.slope(self._whole(self.work.judged))

    def found(self) -> Found:
        """What the environments disagree on: this stage's, and the past ones."""
        work, past = self.work, self.work.past
        found = self._nothing()
        if not work.first:
            old = Drift(work, past.plain.flatten(0, 1), past.reference.flatten(0, 1))
            found = _added(found, old._whole(work.judged), past.slope)
        if len(work.judged) > 1:
            for one in work.judged:
                rest = tuple(e for e in work.judged if e is not one)
                other = drift.slope(self._whole(rest))
                found = _added(found, self._whole((one,)), other)
        return found

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
    beyond = drift.chance(drift.slope(sample, other.cells), other)
    fresh = (torch.maximum(chance, beyond) < UNLIKELY) & (chance < found.chance)
    least = torch.minimum(chance, found.chance)
    if not fresh.any():
        return found._replace(chance=least)
    logits = drift.turned(sample, here, other)
    fresh = fresh & (logits != 0).any(2).any(1)
    seen = sample.inputs @ logits.mT
    centres = drift.centroids(seen, sample.targets, logits.shape[1])
    those = fresh.view(-1, 1, 1)
    return Found(
        least,
        found.fresh | fresh,
        torch.where(those, logits, found.logits),
        torch.where(those, centres, found.centres),
    )
