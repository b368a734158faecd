"""Experience replay with a penalty: past examples act as further environments.

Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, combined with
the penalty of IRMv1 (Arjovsky et al., 2019) or V-REx (Krueger et al., 2021). The kept
examples of a past environment take part as one more environment of the same weight, so
that a sequence, too, has environments to compare. Departure: the paper replays random
parts of the memory, here every step uses the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.rehearsal import (
    ParametersAndMemoryState,
    build_batch_with_past_environments,
    descend_gradient_and_store_examples,
    init_parameters_and_memory_state,
)
from cirm.objectives import (
    Batch,
    average_values_by_environment,
    build_terms_of_penalised_loss,
    compute_irm_penalties,
    compute_risk_variance,
    get_annealed_penalty_weight,
)
from cirm.randomness import Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)


@dataclass(frozen=True)
class Replay(Learner[ParametersAndMemoryState]):
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

    init = init_parameters_and_memory_state

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("penalty", self.penalty >= 0, "0 or more")
        self.check_setting("anneal", 0 <= self.anneal <= 1, "from 0 to 1")
        self.check_setting("budget", self.budget in ("each", "total"), "each or total")
        valid = self.penalty_kind in ("none", "irmv1", "vrex")
        self.check_setting("penalty_kind", valid, "none, irmv1 or vrex")

    def observe(
        self,
        state: ParametersAndMemoryState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> ParametersAndMemoryState:
        """Minimise the penalised risk of stage and memory, then keep some examples."""
        gradient, total = (
            create_gradient_function_of_loss(self.compute_loss),
            self.budget == "total",
        )
        return descend_gradient_and_store_examples(
            self, gradient, state, stage, randomness, watch, total
        )

    def compute_loss(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Terms:
        """Return the penalised risk of each replica over new and past environments."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.compute_losses(outputs, batch.y)
        risks = average_values_by_environment(losses, batch.share)
        if self.penalty_kind == "none":
            return {"risk": risks.mean(-1)}
        if self.penalty_kind == "vrex":
            penalty = compute_risk_variance(risks)
        else:
            penalty = compute_irm_penalties(self.likelihood, outputs, batch).mean(-1)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        return build_terms_of_penalised_loss(risks.mean(-1), penalty, weight, params)
