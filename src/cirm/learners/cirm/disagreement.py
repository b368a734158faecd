"""Whether environments disagree about features other than the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.cirm import drift, shortcuts
from cirm.learners.cirm.drift import Evaluation, Slope
from cirm.learners.cirm.stage import Work

UNLIKELY = 0.01  # significance level of a disagreement
SETTLED = 0.1  # above this p-value the reference explains a disagreement


class Disagreement(NamedTuple):
    """What environments disagree about.

    `chance` [replica] is the least p-value of all comparisons, and `told` [replica] the
    least of those where the feature is known: the reference, or another one, `fresh`
    [replica]. `logits` [replica, k, d] are linear in that feature, and `centres`
    [replica, class, k] their class means. `comparisons` [replica] is the number of
    comparisons.
    """

    chance: Tensor
    told: Tensor
    fresh: Tensor
    logits: Tensor
    centres: Tensor
    comparisons: Tensor

    def predict(self, work: Work) -> list[Tensor]:
        """Predict the training examples of each environment, [replica * member, n]."""
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
    """A stage, and plain and reference models [replica * member, p]."""

    work: Work
    plain: Tensor
    reference: Tensor

    def compute_slope(self) -> Slope:
        """Return the gradient of the plain model's risk on held-out examples."""
        return drift.compute_slope(
            drift.concatenate_evaluations(
                [self._evaluate(e) for e in self._arriving_stage]
            )
        )

    def find_disagreement(self) -> Disagreement:
        """Compare the environments of this stage with each other and with the past."""
        work, past = self.work, self.work.past
        found = self._make_empty()
        if not work.first:
            old = Drift(work, past.plain.flatten(0, 1), past.reference.flatten(0, 1))
            sample = drift.concatenate_evaluations(
                [old._evaluate(e) for e in self._arriving_stage]
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
    def _arriving_stage(self) -> Stage:
        """The held-out examples of new environments."""
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
    found: Disagreement, examples: Evaluation, other: Slope
) -> Disagreement:
    """Add the comparison of examples with the slope of another environment."""
    here = drift.compute_slope(examples, other.cells.sum(2, keepdim=True))
    chance = drift.disagreement_p_value(here, other)
    left = drift.disagreement_p_value(drift.compute_slope(examples, other.cells), other)
    fresh = (chance < UNLIKELY) & (left < UNLIKELY)
    logits, centres = found.logits, found.centres
    if fresh.any():
        made = drift.fit_change(examples, here, other)
        fresh = fresh & (made != 0).any(2).any(1)
        means = drift.compute_centroids(
            examples.inputs @ made.mT, examples.targets, made.shape[1]
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
