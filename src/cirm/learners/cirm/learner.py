"""Drops what a plain model goes by, if something else predicts where that fails.

This project's own method; docs/method.md derives it. In each environment a small
reference model finds the easiest predictor of the label, until environments disagree on
something else: then it is that. The examples where it is right and where it is wrong
are the inferred environments. An invariant model does not see the direction in which
the inputs move with the reference's answer, has the groups weighted so that the answer
says nothing, and carries its variational posterior on as the next prior (Alesiani, Yu
and Niepert, "Continual Invariant Risk Minimization", 2023). What still leaks is
measured on held-out examples and taken off. A plain model learns beside it, and is kept
if it does better on both groups together. For values, what is hidden are the columns
without which the regressions of all environments agree, or else the directions in which
the risk slopes when the carried model meets a new environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cirm.environments import Environment, Stage
from cirm.learners.base import Learner
from cirm.learners.cirm import moments, shortcuts
from cirm.learners.cirm.classes import ClassWork
from cirm.learners.cirm.disagreement import UNLIKELY
from cirm.learners.cirm.drift import Slope
from cirm.learners.cirm.explanation import explain_decision
from cirm.learners.cirm.state import State
from cirm.learners.cirm.values import STRONG, ValueWork
from cirm.likelihoods import CrossEntropy
from cirm.memory import add_to_memory, make_empty_memory, move_to_device
from cirm.networks import Network
from cirm.randomness import Randomness
from cirm.training import Descent, DivergenceError, Watch, ignore_steps
from cirm.variational import make_gaussian

FEW = 1000  # examples of a stage up to which dropout is as it is set
MOST = 0.5  # of a layer that is left where there are many
MARGIN = 0.03  # differences between the two models that are not held to be one


@dataclass(frozen=True)
class CIRM(Learner[State]):
    """Members learn from all examples but a part each, on which they are judged.

    `shortcut`: drop what the reference goes by, keep it, or let held-out examples
    decide. The reference learns for `reference_steps` and then, `rounds` in all, again
    from its own answers, which makes it go by the easiest feature alone. `rank`
    directions are carried on at most, or none if not `carry`. `cap` bounds the weight
    of an example, 1 turns balancing off; `hide` and `correct` turn the other two
    means off. `beta` weighs the KL to the last posterior, `prior_std` and `initial_std`
    are the spreads of the first prior and at the start. The plain model learns for
    `plain_epochs`, and of values longer, while held-out examples gain by it. `memory`
    is the part of each environment's examples that is kept.
    Dropout is for classes, and eases where a stage has more than a thousand examples:
    what is left grows as the root of their number, to a half. Values go without.
    """

    descent: Descent = Descent(epochs=20)
    members: int = 4
    shortcut: Literal["auto", "drop", "keep"] = "auto"
    reference_steps: int = 12
    rounds: int = 3
    hide: bool = True
    correct: bool = True
    carry: bool = True
    rank: int = 4
    cap: float = 10.0
    beta: float = 1.0
    prior_std: float = 0.1
    initial_std: float = 0.02
    plain_epochs: int = 40
    memory: float = 0.0

    defaults = {"dropout": 0.9}
    presets = {"paper": {}}
    epoch_settings = "epochs", "plain_epochs"
    min_steps = 0  # all models stop early by design, and overfit small data otherwise

    def __post_init__(self) -> None:
        counts = self.rounds, self.reference_steps, self.plain_epochs
        if self.members < 2 or min(counts) < 1:
            raise ValueError(
                "cirm: members must be two or more, rounds, reference_steps and "
                f"plain_epochs one or more; got {(self.members, *counts)}"
            )
        if self.rank < 1 or self.cap < 1 or self.beta < 0 or not 0 <= self.memory <= 1:
            raise ValueError(
                "cirm: rank and cap must be one or more, beta not negative and memory "
                f"in [0, 1]; got {self.rank}, {self.cap}, {self.beta} and {self.memory}"
            )
        if min(self.prior_std, self.initial_std) <= 0:
            raise ValueError(
                "cirm: prior_std and initial_std must be positive; got "
                f"{self.prior_std} and {self.initial_std}"
            )
        if self.shortcut not in ("auto", "drop", "keep"):
            raise ValueError(
                f"cirm: shortcut must be auto, drop or keep; got {self.shortcut!r}"
            )

    @property
    def classes(self) -> int:
        """Number of classes; none for values."""
        known = isinstance(self.likelihood, CrossEntropy)
        return self.likelihood.classes if known else 0  # type: ignore[attr-defined]

    @property
    def network_without_dropout(self) -> Network:
        """The network without dropout, for all but the invariant model of classes."""
        return self.network.change_dropout(0.0)

    def network_for(self, examples: int) -> Network:
        """The network of the invariant model, which learns from so many examples."""
        if not self.classes:
            return self.network_without_dropout
        if examples <= FEW:
            return self.network
        left = (1 - self.network.dropout) * math.sqrt(examples / FEW)
        dropout = min(self.network.dropout, 1 - min(left, MOST))
        return self.network.change_dropout(dropout)

    def init(self, randomness: Randomness) -> State:
        """The prior, random plain models, and nothing known."""
        replicas, members = len(randomness.seeds), self.members
        means = self.network.init(randomness.at("params").spawn(members))
        plain = means.unflatten(0, (replicas, members))
        start = torch.tensor([1.0, 0.0])
        return State(
            make_gaussian(plain, self.prior_std, centred=True),
            plain,
            torch.zeros_like(plain),
            torch.zeros(replicas, 0),
            torch.zeros(replicas, members, 0, 0),
            start.repeat(replicas, 1),
            torch.zeros(replicas, 3, 2),
            torch.tensor([float(self.classes > 0), 1, 0, 0]).repeat(replicas, 1),
            Slope(
                torch.zeros(replicas, self.classes, 0),
                torch.zeros(replicas, self.classes, 0),
                torch.zeros(replicas),
                torch.zeros(replicas, self.classes, 2),
            ),
            moments.make_empty_moments(replicas),
            make_empty_memory(replicas),
        )

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Infer groups, learn the plain and the invariant model, judge them."""
        # What only counts and weighs stays where the examples are.
        names = "tally", "evidence", "slope", "moments", "memory"
        small = {name: move_to_device(getattr(state, name), "cpu") for name in names}
        past = move_to_device(state, self.descent.device)._replace(**small)
        first = not past.centre.shape[1]
        if first:
            past = past._replace(
                centre=self._compute_centre(stage, len(randomness.seeds))
            )
        whole = (*stage, *self._get_memory_stage(state, stage[0]))
        rows = [
            shortcuts.assign_rows(len(e), self.members, randomness.at("shares", e.name))
            for e in whole
        ]
        learned, judged = (
            tuple(
                shortcuts.select_member_rows(e, pair[side], self.members)
                for e, pair in zip(whole, rows, strict=True)
            )
            for side in (0, 1)
        )
        kind = ClassWork if self.classes else ValueWork
        work = kind(self, past, learned, judged, randomness, watch, first, len(stage))
        try:
            made = work.run()
        except DivergenceError as error:
            raise self._name_replicas(error) from None
        memory, source = state.memory, randomness.at("memory")
        for environment in stage:
            size = round(self.memory * len(environment))
            memory = add_to_memory(memory, (environment,), size, source)
        return made._replace(memory=memory)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the members of the chosen model, [replica, member, n, k]."""
        drop = self.drops_shortcut(state)
        seen = (inputs.flatten(2) - state.centre.unsqueeze(1)).view(inputs.shape)
        if not drop.any():
            return self._predict_plain(state, seen)
        invariant = self._predict_invariant(state, seen)
        if drop.all():
            return invariant
        chosen = drop.view(-1, 1, 1, 1).to(inputs.device)
        return torch.where(chosen, invariant, self._predict_plain(state, seen))

    def explain(
        self,
        state: State,
        columns: Mapping[str, int] | None = None,
        environments: int = 1,
    ) -> dict[str, Any]:
        """Return whether the shortcut was dropped, why, and the numbers behind it."""
        return explain_decision(self, state, columns or {}, environments)

    def drops_shortcut(self, state: State) -> Tensor:
        """Whether each replica goes without what the reference goes by, [replica]."""
        tally, evidence = state.tally.cpu(), state.evidence.cpu()
        if self.shortcut != "auto":
            return torch.full((len(tally),), self.shortcut == "drop")
        if not self.classes:
            return evidence[:, 0] >= STRONG
        rates = tally[:, 1:] / tally[:, :1].clamp(min=1)
        plain, invariant = (
            (rates * shortcuts.fair_shares(self.classes)).sum(-1).unbind(1)
        )
        return (invariant > plain + self.margin(state)) & (tally[:, 0, 1] > 0)

    def margin(self, state: State) -> Tensor:
        """By how much the invariant model must be better than the plain one, [replica].

        With evidence that environments disagree on what it does without, it may be
        worse by as much.
        """
        tally = state.tally.cpu()
        counts = tally[:, :1].clamp(min=1)
        rates = tally[:, 1:] / counts
        noise = (
            rates * (1 - rates) / counts * shortcuts.fair_shares(self.classes).square()
        )
        margin = noise.sum((1, 2)).sqrt().clamp(min=MARGIN)
        return torch.where(self.has_evidence(state), -margin, margin)

    def has_evidence(self, state: State) -> Tensor:
        """Whether environments disagree on the reference, and not by chance, [replica].

        The more comparisons were made, the less likely by chance each must be.
        """
        evidence = state.evidence.cpu()
        return evidence[:, 0] * evidence[:, 2].clamp(min=1) < UNLIKELY

    def _predict_plain(self, state: State, seen: Tensor) -> Tensor:
        return self._compute_logits(state.plain, self._repeat_for_members(seen))

    def _predict_invariant(self, state: State, seen: Tensor) -> Tensor:
        means, wide = state.posterior.mean, self._repeat_for_members(seen)
        directions = state.directions.flatten(0, 1)
        if not directions.shape[1]:
            logits = self._compute_logits(means, wide)
        elif self.network.get_input_weights(means.flatten(0, 1)) is not None:
            # Removing directions from the first layer is the same, and done once.
            means = means.clone()
            weight = self.network.get_input_weights(means.flatten(0, 1))
            assert weight is not None
            weight.copy_(shortcuts.remove_directions(weight.mT, directions).mT)
            logits = self._compute_logits(means, wide)
        else:
            hidden = shortcuts.remove_directions(wide.flatten(2), directions)
            logits = self._compute_logits(means, hidden.view(wide.shape))
        if not self.classes or not self.correct:
            return logits
        answers = self._compute_logits(state.reference, wide).mean(1).argmax(-1)
        hot = torch.nn.functional.one_hot(answers, self.classes) - 1 / self.classes
        scale, back = state.correction.view(-1, 2, 1, 1, 1).unbind(1)
        return scale * logits + back * hot.unsqueeze(1)

    def _repeat_for_members(self, seen: Tensor) -> Tensor:
        """The same inputs for every member, not copied if there is one replica."""
        wide = seen.unsqueeze(1).expand(-1, self.members, *seen.shape[1:])
        return wide.flatten(0, 1)

    def _compute_logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Logits [replica, member, n, k] of inputs [replica * member, n, ...]."""
        outputs = self.network_without_dropout(params.flatten(0, 1), inputs)
        return self.logits(outputs).unflatten(0, (-1, self.members))

    def logits(self, outputs: Tensor) -> Tensor:
        """A logit per class; values as they are."""
        if isinstance(self.likelihood, CrossEntropy):
            return self.likelihood.logits(outputs)
        return outputs

    def _name_replicas(self, error: DivergenceError) -> DivergenceError:
        """The same error, of the replicas whose members were lost."""
        message, lost = error.args
        return DivergenceError(message, sorted({row // self.members for row in lost}))

    def _compute_centre(self, stage: Stage, replicas: int) -> Tensor:
        total, count = torch.zeros(()), 0
        for environment in stage:
            rows = torch.arange(len(environment)).expand(replicas, -1)
            for some in rows.split(shortcuts.STRIDE, 1):
                total = total + environment.take(some).x.flatten(2).sum(1)
            count += len(environment)
        return (total / count).to(self.descent.device)

    def _get_memory_stage(self, state: State, like: Environment) -> Stage:
        kept = state.memory.kept
        if not kept.y.shape[1]:
            return ()
        return (Environment("kept", kept.x, kept.y, like.task, replicated=True),)
