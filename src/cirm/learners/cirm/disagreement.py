"""What environments of the learner `cirm` disagree on, beyond its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.cirm import drift, shortcuts
from cirm.learners.cirm.drift import Evaluation, Slope
from cirm.learners.cirm.stage import Work

UNLIKELY = 0.01  # probability by chance below which a disagreement is evidence
SETTLED = 0.1  # above this, nothing is left of it but what the reference explains


class Disagreement(NamedTuple):
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

    def predict(self, work: Work) -> list[Tensor]:
        """What it answers on what is learned, [replica * member, n] each."""
        logits, centres = (
            part.repeat_interleave(work.learner.members, 0)
            for part in (self.logits, self.centres)
        )
        return [
            torch.cat(
                [
                    drift.find_nearest(
                        work.take_inputs(e, rows).cpu() @ logits.mT, centres
                    )
                    for rows in shortcuts.list_row_chunks(e)
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

    def compute_slope(self) -> Slope:
        """How the plain model's risk slopes where it was not learned."""
        return drift.compute_slope(
            drift.concatenate_evaluations([self._evaluate(e) for e in self._arrived])
        )

    def find_disagreement(self) -> Disagreement:
        """What the environments disagree on: this stage's, and the past ones."""
        work, past = self.work, self.work.past
        found = self._make_empty()
        if not work.first:
            old = Drift(work, past.plain.flatten(0, 1), past.reference.flatten(0, 1))
            sample = drift.concatenate_evaluations(
                [old._evaluate(e) for e in self._arrived]
            )
            found = _add_comparison(found, sample, past.slope)
        samples = (
            [self._evaluate(e) for e in work.judged] if len(work.judged) > 1 else []
        )
        for index, one in enumerate(samples[: 1 if len(samples) == 2 else None]):
            rest = drift.concatenate_evaluations(samples[:index] + samples[index + 1 :])
            found = _add_comparison(found, one, drift.compute_slope(rest))
        return found

    @property
    def _arrived(self) -> Stage:
        """What arrived, and no model before has learned from."""
        return self.work.judged[: self.work.arrived]

    def _make_empty(self) -> Disagreement:
        past, k = self.work.past, self.work.learner.classes
        replicas, width = len(past.tally), past.centre.shape[1]
        return Disagreement(
            torch.ones(replicas),
            torch.ones(replicas),
            torch.zeros(replicas).bool(),
            torch.zeros(replicas, k, width),
            torch.zeros(replicas, k, k),
            torch.zeros(replicas),
        )

    def _evaluate(self, environment: Environment) -> Evaluation:
        work = self.work
        enough = shortcuts.STRIDE // work.learner.members
        some = shortcuts.truncate_environment(environment, enough)
        plainly = work.get_view(hidden=False)
        logits, answers = (
            work.compute_logits(params, some, plainly)
            for params in (self.plain, self.reference)
        )
        parts = (
            work.take_inputs(some, shortcuts.list_row_chunks(some)[0]).cpu(),
            logits,
            some.targets,
            answers.argmax(-1),
        )
        return Evaluation(*(work.gather_members(part) for part in parts))


def _add_comparison(
    found: Disagreement, sample: Evaluation, other: Slope
) -> Disagreement:
    """What is found, or what a sample and another slope show if that is less likely."""
    here = drift.compute_slope(sample, other.cells.sum(2, keepdim=True))
    chance = drift.disagreement_p_value(here, other)
    left = drift.disagreement_p_value(drift.compute_slope(sample, other.cells), other)
    fresh = (chance < UNLIKELY) & (left < UNLIKELY)
    logits, centres = found.logits, found.centres
    if fresh.any():
        made = drift.fit_change(sample, here, other)
        fresh = fresh & (made != 0).any(2).any(1)
        means = drift.compute_centroids(
            sample.inputs @ made.mT, sample.targets, made.shape[1]
        )
        best = fresh & ((chance <= found.chance) | ~found.fresh)
        best = best.view(-1, 1, 1)
        logits = torch.where(best, made, logits)
        centres = torch.where(best, means, centres)
    told = torch.where(fresh | (left >= SETTLED), chance, 1.0)
    return Disagreement(
        torch.minimum(chance, found.chance),
        torch.minimum(told, found.told),
        found.fresh | fresh,
        logits,
        centres,
        found.comparisons + drift.is_comparable(here, other),
    )
