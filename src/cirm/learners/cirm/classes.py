"""A stage of classes: the reference, its groups, and two models judged on both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.disagreement import Drift
from cirm.learners.cirm.stage import Work
from cirm.learners.cirm.state import State, View, viewed
from cirm.variational import Gaussian

PLENTY = 32768  # examples of each member by which models are judged at most
OUTSIDE = 0.632  # Efron's weight of what was held out, beside what was learned from


class ClassWork(Work):
    """What happens to a stage whose targets are classes."""

    def done(self) -> State:
        """The state after a stage of classes."""
        learner, plainly = self.learner, self.sight(hidden=False)
        plain = self.plain(plainly)
        reference, anew, evidence = self._referred(plain)
        inside, outside = (
            [self.asked(reference, e, plainly).argmax(-1) for e in side]
            for side in (self.learned, self.judged)
        )
        directions = self.hidden(self._contrasts(inside), anew)
        past = self.past._replace(directions=directions)
        posterior = self._balanced(past, inside, anew)
        asked = partial(self.asked, posterior.mean, seen=viewed(past, learner.members))
        sides = [
            [shortcuts.shortened(e, PLENTY) for e in side]
            for side in (self.judged, self.learned)
        ]
        logits = [torch.cat([asked(e) for e in side], 1) for side in sides]
        targets = [torch.cat([e.targets for e in side], 1) for side in sides]
        answers = [
            torch.cat([a[:, : len(e)] for a, e in zip(some, side, strict=True)], 1)
            for some, side in zip((outside, inside), sides, strict=True)
        ]
        held = torch.cat([self.asked(plain, e, plainly) for e in sides[0]], 1)
        tally = self._tally(held, logits[0], answers[0], targets[0])
        return past._replace(
            posterior=self.apart(posterior),
            plain=plain.unflatten(0, (-1, learner.members)),
            reference=reference.unflatten(0, (-1, learner.members)),
            correction=self._correction(logits, answers, targets).to(plain.device),
            tally=past.tally * ~anew.view(-1, 1, 1) + tally,
            evidence=evidence,
            slope=Drift(self, plain, reference).slope(),
        )

    def _referred(self, plain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reference models [replica * member, p], who begins anew, and the evidence.

        The reference is the easiest predictor until environments disagree on something
        else. Then it is that, from there on, and what was learned without knowing of it
        is given up.
        """
        past, view = self.past, self.sight(hidden=False)
        before = past.evidence[:, 3] > 0
        reference = self.either(
            before, past.reference.flatten(0, 1), self._reference(view)
        )
        found = Drift(self, plain, reference).found()
        fresh = found.fresh & ~before
        if fresh.any():
            pupil = self._pupil(found.answers(self), view)
            reference = self.either(fresh, pupil, reference)
        known = torch.where(fresh.unsqueeze(1), 1.0, past.evidence[:, :2])
        now = torch.stack([found.told, found.chance], 1)
        count = past.evidence[:, 2] + found.comparisons
        taught = (fresh | before).float()
        evidence = torch.cat(
            [torch.minimum(known, now), torch.stack([count, taught], 1)], 1
        )
        return reference, fresh | self.first, evidence

    def _balanced(self, past: State, answers: list[Tensor], anew: Tensor) -> Gaussian:
        """The posterior [replica * member, p] of examples with balanced groups."""
        learner = self.learner
        cells = [
            shortcuts.cells(e.targets, some)
            for e, some in zip(self.learned, answers, strict=True)
        ]
        weights = shortcuts.balance(torch.cat(cells, 1), learner.classes, learner.cap)
        stage = _labelled(self.learned, cells, 2 * learner.classes)
        return self.invariant(stage, past, weights, anew)

    def _pupil(self, answers: list[Tensor], view: View) -> Tensor:
        """Networks [replica * member, p] that have learned to answer so."""
        learner, source = self.learner, self.members("pupil")
        stage = _labelled(self.learned, answers, learner.classes)
        descent = replace(learner.descent, epochs=learner.plain_epochs)
        params = learner.dry.init(source.at("params"))
        return self.minimised(params, stage, view, source, descent)

    def _reference(self, view: View) -> Tensor:
        """Reference models [replica * member, p], each taught by the one before."""
        learner = self.learner
        enough = learner.reference_steps * learner.descent.batch
        stage = tuple(shortcuts.shortened(e, enough) for e in self.learned)
        epochs = round(learner.reference_steps / learner.descent.count_steps(stage))
        descent = replace(learner.descent, epochs=max(1, epochs), decay=0.0)
        for turn in range(learner.rounds):
            source = self.members("reference", turn)
            params = learner.dry.init(source.at("params"))
            params[:, learner.dry.head] = 0.0
            params = self.minimised(params, stage, view, source, descent)
            taught = [self.asked(params, e, view).argmax(-1) for e in stage]
            stage = _labelled(stage, taught, learner.classes)
        return params

    def _contrasts(self, answers: list[Tensor]) -> Tensor:
        """Directions [replica * member, answers - 1, d] of this stage."""
        k, device = self.learner.classes, self.learner.descent.device
        sums, counts = (torch.zeros((), device=device) for _ in range(2))
        for environment, answer in zip(self.learned, answers, strict=True):
            cells = k * environment.targets + answer
            for rows in shortcuts.strides(environment):
                hot = torch.nn.functional.one_hot(cells.gather(1, rows), k * k)
                hot = hot.float().to(device)
                sums = sums + hot.mT @ self.inputs(environment, rows)
                counts = counts + hot.sum(1)
        return shortcuts.contrasts(
            sums.unflatten(1, (k, k)), counts.unflatten(1, (k, k))
        )

    def _correction(
        self, logits: list[Tensor], answers: list[Tensor], targets: list[Tensor]
    ) -> Tensor:
        """Factors [replica, 2] from held-out examples, steadied by those learned."""
        k, fitted = self.learner.classes, []
        for some in zip(logits, answers, targets, strict=True):
            logit, answer, target = (self.gathered(part) for part in some)
            cells = shortcuts.cells(target, answer)
            weights = shortcuts.balance(cells, k, self.learner.cap).gather(1, cells)
            fitted.append(shortcuts.correction(logit, answer, target, weights))
        scale = fitted[0][:, 0].clamp(min=0.1)
        outside, inside = (f[:, 1] / f[:, 0].clamp(min=0.1) for f in fitted)
        back = OUTSIDE * outside + (1 - OUTSIDE) * inside
        return torch.stack([scale, scale * back], 1)

    def _tally(
        self, plain: Tensor, logits: Tensor, answers: Tensor, targets: Tensor
    ) -> Tensor:
        """Held-out counts [replica, 3, 2], as in the state."""
        hits = [torch.ones_like(targets), plain.argmax(-1) == targets]
        hits.append(logits.argmax(-1) == targets)
        right = answers == targets
        groups = torch.stack([right, ~right], -1).float()
        counted = torch.stack([hit.float() for hit in hits], 1) @ groups
        return counted.unflatten(0, (-1, self.learner.members)).sum(1)


def _labelled(stage: Stage, targets: list[Tensor], classes: int) -> Stage:
    """The same inputs with other targets [replica * member, n] of so many classes."""
    return tuple(
        shortcuts.retargeted(e, some, classes)
        for e, some in zip(stage, targets, strict=True)
    )
