"""A tiny learner that adapts: it estimates the class frequencies anew by EM.

Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a
priori probabilities", 2002.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.base import Learner
from cirm.objectives import compute_environment_risks

FEWEST_ROWS = 10


class Weights(NamedTuple):
    """The class frequencies in training, and the logs of what they changed by."""

    seen: Tensor
    change: Tensor
    rows: Tensor


class State(NamedTuple):
    """A network and the weights of the classes."""

    params: Tensor
    weights: Weights


@dataclass(frozen=True)
class Reweigh(Learner[State]):
    """Adapts to other class frequencies."""

    trust: str = "invariant"
    unstable: tuple[int, ...] = ()
    stable: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    adapts = True

    def init(self, randomness):
        params = self.network.init(randomness.at("params"))
        empty = torch.zeros(len(params), self.network.outputs)
        return State(params, Weights(empty, empty, torch.zeros(len(params), 1)))

    def compute_loss(self, params, past, batch):
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": risks.mean(-1)}

    def observe(self, state, stage, randomness, watch=None):
        params = self.descent.minimise(
            self.compute_loss, state.params, state, stage, randomness, watch
        )
        targets = torch.cat([one.targets for one in stage], -1)
        targets = targets.flatten().long()
        counts = torch.bincount(targets, minlength=self.network.outputs)[None]
        seen = (counts + 1) / (counts + 1).sum()
        change = torch.zeros_like(seen)
        return State(params, Weights(seen, change, torch.zeros(1, 1)))

    def outputs(self, state, inputs):
        logits = self.network(state.params, inputs) + state.weights.change[:, None]
        return logits.unsqueeze(1)

    def adapt(self, state, inputs):
        if inputs.shape[1] < FEWEST_ROWS:
            return state._replace(
                weights=self._weigh(state, state.weights.seen, inputs)
            )
        logits = self.network(state.params, inputs)
        seen = share = state.weights.seen
        for _ in range(50):
            change = (share / seen).log()[:, None]
            share = (logits + change).softmax(-1).mean(1).clamp(min=1e-9)
        return state._replace(weights=self._weigh(state, share, inputs))

    def forget_adaptation(self, state):
        return state._replace(
            weights=state.weights._replace(
                change=torch.zeros_like(state.weights.change),
                rows=torch.zeros_like(state.weights.rows),
            )
        )

    def _weigh(self, state, share, inputs):
        seen = state.weights.seen
        rows = torch.full((1, 1), float(inputs.shape[1]))
        return Weights(seen, (share / seen).log(), rows)

    def explain(self, state, columns=None, environments=1, names=()):
        named = [name for i, name in enumerate(columns or {}) if i in self.unstable]
        sentences = [f"The meaning of `{name}` differs" for name in named]
        found = {
            "verdict": "The model relies on what holds everywhere",
            "evidence": ["The classes were weighed in each environment"],
            "unstable": [
                {"feature": name, "effects": [1.0], "sentence": text}
                for name, text in zip(named, sentences, strict=True)
            ],
        }
        rows = int(state.weights.rows)
        if not rows:
            return found
        change = float(state.weights.change[0, 0])
        effect = {
            "feature": "class frequency",
            "seen": [0.0] * environments,
            "here": change,
            "low": change - 0.5,
            "high": change + 0.5,
            "sentence": "The first class is weighed anew",
        }
        few = rows < FEWEST_ROWS
        found["adaptation"] = {
            "rows": rows,
            "verdict": "Nothing changed" if few else "The class frequencies changed",
            "effects": [] if few else [effect],
            "gains": ["At clinic-b, adapting would have gained 2 points"],
            "refusals": ["There are too few rows to weigh classes"] if few else [],
        }
        return found
