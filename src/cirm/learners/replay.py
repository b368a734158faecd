"""Experience replay with a penalty: past examples act as further environments.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, combined with
the penalty of IRMv1 (Arjovsky et al., 2019) or V-REx (Krueger et al., 2021). The kept
examples of a past environment take part as one more environment of the same weight, so
that a sequence, too, has environments to compare. Departure: the paper replays random
parts of the memory, here every step uses the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import (
    ExampleMemory,
    add_stage_to_memory,
    create_empty_memory,
    move_to_device,
)
from cirm.objectives import (
    Batch,
    average_by_environment,
    compute_irm_penalties,
    compute_risk_variance,
    get_annealed_penalty_weight,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class State(NamedTuple):
    """Parameters [replica, p] and the examples kept from past environments."""

    params: Tensor
    memory: ExampleMemory


@dataclass(frozen=True)
class Replay(Learner[State]):
    """Mean risk of new and past environments, plus a penalty between them.

    Args:
        memory: Number of random examples that are kept.
        budget: Whether `memory` is the number for "each" environment, or the "total"
            of all environments.
        penalty_kind: The penalty: "none", that of "irmv1" or that of "vrex".
        penalty: Weight of the penalty.
        anneal: Fraction of a stage's training after which the penalty has its full
            weight; before, the weight is at most one.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Replay(memory=5, penalty_kind="vrex")).shape
        torch.Size([1, 20, 2])
    """

    memory: int = 100
    budget: Literal["each", "total"] = "each"
    penalty_kind: Literal["none", "irmv1", "vrex"] = "none"
    penalty: float = 100.0
    anneal: float = 0.5

    presets = {  # not a method of the paper: GEM's settings, and IRMv1's penalty
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
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("penalty", self.penalty >= 0, "0 or more")
        self.check_setting("anneal", 0 <= self.anneal <= 1, "from 0 to 1")
        self.check_setting("budget", self.budget in ("each", "total"), "each or total")
        valid = self.penalty_kind in ("none", "irmv1", "vrex")
        self.check_setting("penalty_kind", valid, "none, irmv1 or vrex")

    def init(self, randomness: Randomness) -> State:
        """Return random parameters and an empty memory."""
        params = self.network.init(randomness.at("params"))
        return State(params, create_empty_memory(len(params)))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> State:
        """Minimise the penalised risk of stage and memory, then keep some examples."""
        past = move_to_device(state, self.descent.device)
        params = self.descent.minimise(
            self.loss, past.params, past, stage, randomness, watch
        )
        memory = add_stage_to_memory(
            state.memory,
            stage,
            self.memory,
            randomness.at("memory"),
            total=self.budget == "total",
        )
        return State(params, memory)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Return the penalised risk of each replica over new and past environments."""
        pieces = batch.split() + past.memory.split()
        batch = self.descent.build_batch(pieces, batch.noise, batch.progress)
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.losses(outputs, batch.y)
        risks = average_by_environment(losses, batch.share)
        if self.penalty_kind == "none":
            return {"risk": risks.mean(-1)}
        if self.penalty_kind == "vrex":
            penalty = compute_risk_variance(risks)
        else:
            penalty = compute_irm_penalties(self.likelihood, outputs, batch).mean(-1)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        scale = 1 / max(1.0, weight)
        return {"risk": scale * risks.mean(-1), "penalty": scale * weight * penalty}
