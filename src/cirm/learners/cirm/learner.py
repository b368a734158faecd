"""Ignore the shortcut of plain training, if other features predict where it fails.

This project's own method; docs/method.md derives it. In each environment a small
reference model learns the easiest predictor of the label, the suspected shortcut. If
environments disagree about another feature, that feature becomes the reference. The
examples for which the reference is right and wrong are the inferred environments. The
invariant model does not see the directions in which the inputs change with the
reference's answer, is trained with the groups weighted so that the answer carries no
information, and passes its posterior on as the next prior (Alesiani, Yu and Niepert,
"Continual Invariant Risk Minimization", 2023). A correction fitted on held-out examples
removes what is left. A plain model is trained as well, and used if it is better on both
groups together. In regression the hidden directions are the columns without which the
regressions of all environments agree, or else those in which the residuals of the last
model depend on the inputs of a new environment.
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
from cirm.learners.cirm.state import Evidence, State
from cirm.learners.cirm.values import STRONG, ValueWork
from cirm.likelihoods import CrossEntropy
from cirm.memory import add_to_memory, make_empty_memory, move_to_device
from cirm.networks import Network
from cirm.randomness import Randomness
from cirm.training import Descent, DivergenceError, Watch, ignore_steps
from cirm.variational import make_gaussian

FEW = 1000  # stages with up to so many examples have the full dropout
MOST = 0.5  # largest fraction of a layer that is kept in large stages
MARGIN = 0.03  # smaller differences of accuracy do not count


@dataclass(frozen=True)
class CIRM(Learner[State]):
    """Ensemble members that each hold out a part of the examples to decide by.

    Args:
        network: The network to train; created for the data if left out. Dropout is used
            in classification only, and becomes weaker in stages of more than a thousand
            examples.
        likelihood: How outputs are scored; set by the task of the data.
        descent: How long and how fast to train the invariant model.
        members: Number of ensemble members.
        shortcut: Whether to "drop" the shortcut, to "keep" it, or to decide on held-out
            examples ("auto").
        reference_steps: Number of training steps of the reference model.
        rounds: Number of times that the reference is trained, after the first time on
            its own answers, which makes it rely on the easiest feature only.
        hide: Whether the shortcut's directions are hidden from the invariant model.
        correct: Whether its outputs are corrected on held-out examples.
        carry: Whether hidden directions are kept for later stages.
        rank: Largest number of hidden directions.
        cap: Largest weight of an example; 1 turns the weighting off.
        beta: Weight of the KL divergence from the last posterior.
        prior_std: Standard deviation of the first prior.
        initial_std: Standard deviation at which training starts.
        plain_epochs: Number of epochs of the plain model. In regression it is trained
            longer while that lowers the held-out error.
        memory: Fraction of each environment's examples that is kept.

    Example:
        >>> from cirm.learners import try_learner
        >>> try_learner(CIRM(plain_epochs=2)).shape
        torch.Size([1, 20, 2])
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
        self.check_setting("members", self.members >= 2, "2 or more")
        for name in ("rounds", "reference_steps", "plain_epochs", "rank", "cap"):
            self.check_setting(name, getattr(self, name) >= 1, "1 or more")
        for name in ("prior_std", "initial_std"):
            self.check_setting(name, getattr(self, name) > 0, "above 0")
        self.check_setting("beta", self.beta >= 0, "0 or more")
        self.check_setting("memory", 0 <= self.memory <= 1, "from 0 to 1")
        valid = self.shortcut in ("auto", "drop", "keep")
        self.check_setting("shortcut", valid, "auto, drop or keep")

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        known = isinstance(self.likelihood, CrossEntropy)
        return self.likelihood.classes if known else 0  # type: ignore[attr-defined]

    @property
    def network_without_dropout(self) -> Network:
        """The network without dropout, for all but the invariant classifier."""
        return self.network.change_dropout(0.0)

    def network_for(self, examples: int) -> Network:
        """Return the invariant model's network for a stage of so many examples."""
        if not self.classes:
            return self.network_without_dropout
        if examples <= FEW:
            return self.network
        left = (1 - self.network.dropout) * math.sqrt(examples / FEW)
        dropout = min(self.network.dropout, 1 - min(left, MOST))
        return self.network.change_dropout(dropout)

    def init(self, randomness: Randomness) -> State:
        """Return the prior, random plain models, and no evidence."""
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
        """Infer groups, train both models, and evaluate them on held-out examples."""
        # Counts and weights are computed on the CPU, where the examples are.
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
        """Return outputs [replica, member, n, k] of the chosen model's members."""
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
        """Return whether each replica ignores the shortcut, [replica]."""
        tally, evidence = state.tally.cpu(), Evidence.from_tensor(state.evidence.cpu())
        if self.shortcut != "auto":
            return torch.full((len(tally),), self.shortcut == "drop")
        if not self.classes:
            return evidence.p_value >= STRONG
        rates = tally[:, 1:] / tally[:, :1].clamp(min=1)
        plain, invariant = (
            (rates * shortcuts.fair_shares(self.classes)).sum(-1).unbind(1)
        )
        return (invariant > plain + self.margin(state)) & (tally[:, 0, 1] > 0)

    def margin(self, state: State) -> Tensor:
        """Return by how much the invariant model must be more accurate, [replica].

        If environments disagree about the shortcut, it may be less accurate by as much.
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
        """Return whether environments disagree significantly, [replica].

        The p-value is corrected for the number of comparisons.
        """
        evidence = Evidence.from_tensor(state.evidence.cpu())
        return evidence.p_value * evidence.comparisons.clamp(min=1) < UNLIKELY

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
        """Repeat the inputs for every member; one replica needs no copy."""
        wide = seen.unsqueeze(1).expand(-1, self.members, *seen.shape[1:])
        return wide.flatten(0, 1)

    def _compute_logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return logits [replica, member, n, k] of inputs of all members."""
        outputs = self.network_without_dropout(params.flatten(0, 1), inputs)
        return self.logits(outputs).unflatten(0, (-1, self.members))

    def logits(self, outputs: Tensor) -> Tensor:
        """Return a logit per class; in regression the outputs."""
        if isinstance(self.likelihood, CrossEntropy):
            return self.likelihood.logits(outputs)
        return outputs

    def _name_replicas(self, error: DivergenceError) -> DivergenceError:
        """Return the error with the replicas whose members diverged."""
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
