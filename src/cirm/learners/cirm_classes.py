"""A stage of classes: the reference, its groups, and two models judged on both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cirm import shortcuts
from cirm.learners.cirm_stage import Work
from cirm.learners.cirm_state import State, View, viewed

OUTSIDE = 0.632  # Efron's weight of what was held out, beside what was learned from


class ClassWork(Work):
    """What happens to a stage whose targets are classes."""

    def done(self) -> State:
        """The state after a stage of classes."""
        learner, past, plainly = self.learner, self.past, self.sight(hidden=False)
        strength = self._surprise(plainly)
        reference = self._reference(plainly)
        inside, outside = (
            [self.asked(reference, e, plainly).argmax(-1) for e in side]
            for side in (self.learned, self.judged)
        )
        directions = self.hidden(self._contrasts(inside))
        past = past._replace(directions=directions)
        cells = [
            2 * e.targets + (e.targets == answers)
            for e, answers in zip(self.learned, inside, strict=True)
        ]
        weights = shortcuts.balance(torch.cat(cells, 1), learner.classes, learner.cap)
        stage = tuple(
            shortcuts.retargeted(e, cell, 2 * learner.classes)
            for e, cell in zip(self.learned, cells, strict=True)
        )
        posterior = self.invariant(stage, past, weights)
        plain = self.plain(plainly)
        asked = partial(self.asked, posterior.mean, seen=viewed(past, learner.members))
        logits = [
            torch.cat([asked(e) for e in s], 1) for s in (self.judged, self.learned)
        ]
        answers = [torch.cat(a, 1) for a in (outside, inside)]
        targets = [
            torch.cat([e.targets for e in s], 1) for s in (self.judged, self.learned)
        ]
        held = torch.cat([self.asked(plain, e, plainly) for e in self.judged], 1)
        return past._replace(
            posterior=self.apart(posterior),
            plain=plain.unflatten(0, (-1, learner.members)),
            reference=reference.unflatten(0, (-1, learner.members)),
            correction=self._correction(logits, answers, targets).to(plain.device),
            tally=past.tally + self._tally(held, logits[0], answers[0], targets[0]),
            evidence=self._evidence(strength, outside),
        )

    def _reference(self, view: View) -> Tensor:
        """Reference models [replica * member, p], each taught by the one before."""
        learner = self.learner
        enough = learner.reference_steps * learner.descent.batch
        stage = tuple(shortcuts.shortened(e, enough) for e in self.learned)
        epochs = round(learner.reference_steps / learner.descent.steps(stage))
        descent = replace(learner.descent, epochs=max(1, epochs), decay=0.0)
        for turn in range(learner.rounds):
            source = self.members("reference", turn)
            params = learner.dry.init(source.at("params"))
            params[:, learner.dry.head] = 0.0
            params = self.minimised(params, stage, view, source, descent)
            taught = [self.asked(params, e, view).argmax(-1) for e in stage]
            stage = tuple(
                shortcuts.retargeted(e, answers, learner.classes)
                for e, answers in zip(stage, taught, strict=True)
            )
        return params

    def _contrasts(self, answers: list[Tensor]) -> Tensor:
        """Directions [replica * member, answers - 1, d] of this stage."""
        k, view = self.learner.classes, self.sight(hidden=False)
        device = view.centre.device
        sums, counts = (torch.zeros((), device=device) for _ in range(2))
        for environment, answer in zip(self.learned, answers, strict=True):
            cells = k * environment.targets + answer
            for rows in shortcuts.strides(environment):
                hot = torch.nn.functional.one_hot(cells.gather(1, rows), k * k)
                hot = hot.float().to(device)
                seen = view(environment.take(rows).x.to(device)).flatten(2)
                sums, counts = sums + hot.mT @ seen, counts + hot.sum(1)
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
            cells = 2 * target + (target == answer)
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

    def _surprise(self, view: View) -> Tensor:
        """By how many standard errors the carried reference errs otherwise here."""
        past = self.past
        if self.first:
            return past.evidence[:, 0]
        reference = past.reference.flatten(0, 1)
        hits = [
            self.asked(reference, e, view).argmax(-1) == e.targets for e in self.judged
        ]
        joint = self.gathered(torch.cat(hits, 1)).float()
        here = joint.shape[1], joint.sum(1)
        away = _errors_apart(*here, past.evidence[:, 1], past.evidence[:, 2])
        return torch.maximum(past.evidence[:, 0], away)

    def _evidence(self, strength: Tensor, answers: list[Tensor]) -> Tensor:
        """Evidence [replica, 3]: also between environments that came together."""
        hits = [
            self.gathered(a == e.targets).float()
            for a, e in zip(answers, self.judged, strict=True)
        ]
        counts = [float(h.shape[1]) for h in hits]
        right = [h.sum(1) for h in hits]
        whole, total = sum(counts), torch.stack(right).sum(0)
        for count, some in zip(counts, right, strict=True):
            if len(counts) > 1:
                rest = torch.full_like(total, whole - count)
                strength = torch.maximum(
                    strength, _errors_apart(count, some, rest, total - some)
                )
        return torch.stack([strength, torch.full_like(total, whole), total], 1)


def _errors_apart(
    count: float, right: Tensor, others: Tensor, others_right: Tensor
) -> Tensor:
    """Difference of two shares [replica], in standard errors."""
    others = others.clamp(min=1)
    mean = (right + others_right) / (count + others)
    noise = mean * (1 - mean) * (1 / count + 1 / others)
    return (right / count - others_right / others).abs() / noise.clamp(min=1e-9).sqrt()
