"""One stage of classification: reference, groups, and two models evaluated on both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.disagreement import Drift
from cirm.learners.cirm.stage import Work
from cirm.learners.cirm.state import Evidence, State, View, make_view
from cirm.variational import Gaussian

PLENTY = 32768  # held-out examples of each member that are evaluated at most
OUTSIDE = 0.632  # weight of held-out examples in Efron's .632 estimator


class ClassWork(Work):
    """Trains and evaluates the models of a stage of classification."""

    def run(self) -> State:
        """Return the state after the stage."""
        learner, plainly = self.learner, self.get_view(hidden=False)
        plain = self.train_plain(plainly)
        reference, anew, evidence = self._choose_reference(plain)
        inside, outside = (
            [self.compute_logits(reference, e, plainly).argmax(-1) for e in side]
            for side in (self.learned, self.judged)
        )
        directions = self.merge_hidden(self._compute_contrasts(inside), anew)
        past = self.past._replace(directions=directions)
        posterior = self._train_balanced(past, inside, anew)
        asked = partial(
            self.compute_logits, posterior.mean, seen=make_view(past, learner.members)
        )
        sides = [
            [shortcuts.truncate_environment(e, PLENTY) for e in side]
            for side in (self.judged, self.learned)
        ]
        logits = [torch.cat([asked(e) for e in side], 1) for side in sides]
        targets = [torch.cat([e.targets for e in side], 1) for side in sides]
        answers = [
            torch.cat([a[:, : len(e)] for a, e in zip(some, side, strict=True)], 1)
            for some, side in zip((outside, inside), sides, strict=True)
        ]
        held = torch.cat([self.compute_logits(plain, e, plainly) for e in sides[0]], 1)
        tally = self._count_hits(held, logits[0], answers[0], targets[0])
        return past._replace(
            posterior=self.split_members(posterior),
            plain=plain.unflatten(0, (-1, learner.members)),
            reference=reference.unflatten(0, (-1, learner.members)),
            correction=self._fit_correction(logits, answers, targets).to(plain.device),
            tally=past.tally * ~anew.view(-1, 1, 1) + tally,
            evidence=evidence,
            slope=Drift(self, plain, reference).compute_slope(),
        )

    def _choose_reference(self, plain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reference models, which replicas start again, and the evidence.

        The reference is the easiest predictor until environments disagree about another
        feature. From then on it is that feature, and the invariant model starts again.
        """
        past, view = self.past, self.get_view(hidden=False)
        known = Evidence.from_tensor(past.evidence)
        before = known.taught > 0
        reference = self.choose(
            before, past.reference.flatten(0, 1), self._train_reference(view)
        )
        found = Drift(self, plain, reference).find_disagreement()
        fresh = found.fresh & ~before
        if fresh.any():
            pupil = self._train_pupil(found.predict(self), view)
            reference = self.choose(fresh, pupil, reference)
        evidence = Evidence(
            torch.minimum(torch.where(fresh, 1.0, known.p_value), found.told),
            torch.minimum(torch.where(fresh, 1.0, known.p_value_any), found.chance),
            known.comparisons + found.comparisons,
            (fresh | before).float(),
        )
        return reference, fresh | self.first, torch.stack(evidence, 1)

    def _train_balanced(
        self, past: State, answers: list[Tensor], anew: Tensor
    ) -> Gaussian:
        """Train the invariant model with balanced groups."""
        learner = self.learner
        cells = [
            shortcuts.number_cells(e.targets, some)
            for e, some in zip(self.learned, answers, strict=True)
        ]
        weights = shortcuts.balance_weights(
            torch.cat(cells, 1), learner.classes, learner.cap
        )
        stage = _replace_stage_targets(self.learned, cells, 2 * learner.classes)
        return self.train_invariant(stage, past, weights, anew)

    def _train_pupil(self, answers: list[Tensor], view: View) -> Tensor:
        """Train networks [replica * member, p] to give these answers."""
        learner, source = self.learner, self.spawn_members("pupil")
        stage = _replace_stage_targets(self.learned, answers, learner.classes)
        descent = replace(learner.descent, epochs=learner.plain_epochs)
        params = learner.network_without_dropout.init(source.at("params"))
        return self.minimise_plain(params, stage, view, source, descent)

    def _train_reference(self, view: View) -> Tensor:
        """Train reference models, each after the first on the last one's answers."""
        learner = self.learner
        enough = learner.reference_steps * learner.descent.batch
        stage = tuple(shortcuts.truncate_environment(e, enough) for e in self.learned)
        epochs = round(learner.reference_steps / learner.descent.count_steps(stage))
        descent = replace(learner.descent, epochs=max(1, epochs), decay=0.0)
        for turn in range(learner.rounds):
            source = self.spawn_members("reference", turn)
            params = learner.network_without_dropout.init(source.at("params"))
            params[:, learner.network_without_dropout.head] = 0.0
            params = self.minimise_plain(params, stage, view, source, descent)
            taught = [self.compute_logits(params, e, view).argmax(-1) for e in stage]
            stage = _replace_stage_targets(stage, taught, learner.classes)
        return params

    def _compute_contrasts(self, answers: list[Tensor]) -> Tensor:
        """Return the directions [replica * member, answers - 1, d] of this stage."""
        k, device = self.learner.classes, self.learner.descent.device
        sums, counts = (torch.zeros((), device=device) for _ in range(2))
        for environment, answer in zip(self.learned, answers, strict=True):
            cells = k * environment.targets + answer
            for rows in shortcuts.list_row_chunks(environment):
                hot = torch.nn.functional.one_hot(cells.gather(1, rows), k * k)
                hot = hot.float().to(device)
                sums = sums + hot.mT @ self.take_inputs(environment, rows)
                counts = counts + hot.sum(1)
        return shortcuts.compute_contrasts(
            sums.unflatten(1, (k, k)), counts.unflatten(1, (k, k))
        )

    def _fit_correction(
        self, logits: list[Tensor], answers: list[Tensor], targets: list[Tensor]
    ) -> Tensor:
        """Fit factors [replica, 2] on held-out and, in part, on training examples."""
        k, fitted = self.learner.classes, []
        for some in zip(logits, answers, targets, strict=True):
            logit, answer, target = (self.gather_members(part) for part in some)
            cells = shortcuts.number_cells(target, answer)
            weights = shortcuts.balance_weights(cells, k, self.learner.cap).gather(
                1, cells
            )
            fitted.append(shortcuts.fit_correction(logit, answer, target, weights))
        scale = fitted[0][:, 0].clamp(min=0.1)
        outside, inside = (f[:, 1] / f[:, 0].clamp(min=0.1) for f in fitted)
        back = OUTSIDE * outside + (1 - OUTSIDE) * inside
        return torch.stack([scale, scale * back], 1)

    def _count_hits(
        self, plain: Tensor, logits: Tensor, answers: Tensor, targets: Tensor
    ) -> Tensor:
        """Return the state's `tally` [replica, 3, 2] of held-out examples."""
        hits = [torch.ones_like(targets), plain.argmax(-1) == targets]
        hits.append(logits.argmax(-1) == targets)
        right = answers == targets
        groups = torch.stack([right, ~right], -1).float()
        counted = torch.stack([hit.float() for hit in hits], 1) @ groups
        return counted.unflatten(0, (-1, self.learner.members)).sum(1)


def _replace_stage_targets(stage: Stage, targets: list[Tensor], classes: int) -> Stage:
    """Replace the targets of a stage by others [replica * member, n]."""
    return tuple(
        shortcuts.replace_targets(e, some, classes)
        for e, some in zip(stage, targets, strict=True)
    )
