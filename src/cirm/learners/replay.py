"""Experience replay with an invariance penalty, at a budget of kept examples.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, with the
penalty of IRMv1 (Arjovsky et al., 2019) or V-REx (Krueger et al., 2021). The memories
of past environments take part beside the arriving ones, as further environments of
the same weight: so a sequence, too, has environments to compare. They replay random
parts of the memory; here every step sees the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import Memory, add_to_memory, make_empty_memory, move_to_device
from cirm.objectives import (
    Batch,
    anneal_penalty,
    environment_means,
    gradient_penalties,
    risk_variance,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """Parameters [replica, p] and the examples kept of past environments."""

    params: Tensor
    memory: Memory


@dataclass(frozen=True)
class Replay(Learner[State]):
    """Mean risk of arriving and kept environments, and a penalty between them.

    `memory` random examples are kept of each environment, or, if the `budget` is the
    total, of all environments together. `penalty` and `anneal` are as for IRMv1.
    """

    memory: int = 100
    budget: Literal["each", "total"] = "each"
    penalty_kind: Literal["none", "irmv1", "vrex"] = "none"
    penalty: float = 100.0
    anneal: float = 0.5

    presets = {  # not a system of the paper: GEM's settings, with penalties IRMv1's
        "paper": {"memory": 100, "rate": 1e-3},
        "irmv1": {
            "memory": 100,
            "penalty_kind": "irmv1",
            "penalty": 91257.0,
            "anneal": 0.5,
            "rate": 2.5e-4,
        },
        "vrex": {
            "memory": 100,
            "penalty_kind": "vrex",
            "penalty": 91257.0,
            "anneal": 0.5,
            "rate": 2.5e-4,
        },
    }

    def __post_init__(self) -> None:
        if self.memory < 0 or self.penalty < 0 or not 0 <= self.anneal <= 1:
            raise ValueError(
                "replay: memory and penalty must not be negative and anneal must be in "
                f"[0, 1]; got {self.memory}, {self.penalty} and {self.anneal}"
            )
        if self.budget not in ("each", "total"):
            raise ValueError(
                f"replay: budget must be each or total; got {self.budget!r}"
            )
        if self.penalty_kind not in ("none", "irmv1", "vrex"):
            raise ValueError(
                "replay: penalty_kind must be none, irmv1 or vrex; "
                f"got {self.penalty_kind!r}"
            )

    def init(self, randomness: Randomness) -> State:
        """Random parameters and no memory."""
        params = self.network.init(randomness.at("params"))
        return State(params, make_empty_memory(len(params)))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Minimise the penalised risk of stage and memory, then keep some examples."""
        past = move_to_device(state, self.descent.device)
        params = self.descent.minimise(
            self.loss, past.params, past, stage, randomness, watch
        )
        memory = add_to_memory(
            state.memory,
            stage,
            self.memory,
            randomness.at("memory"),
            total=self.budget == "total",
        )
        return State(params, memory)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Penalised risk of each replica, over arriving and kept environments."""
        pieces = batch.split() + past.memory.split()
        batch = self.descent.make_batch(pieces, batch.noise, batch.progress)
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.losses(outputs, batch.y)
        risks = environment_means(losses, batch.share)
        if self.penalty_kind == "none":
            return {"risk": risks.mean(-1)}
        if self.penalty_kind == "vrex":
            penalty = risk_variance(risks)
        else:
            penalty = gradient_penalties(self.likelihood, outputs, batch).mean(-1)
        weight = anneal_penalty(self.penalty, self.anneal, batch.progress)
        scale = 1 / max(1.0, weight)
        return {"risk": scale * risks.mean(-1), "penalty": scale * weight * penalty}
