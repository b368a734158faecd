"""Logistic regression: the usual linear classifier, without a network.

The multinomial model with a penalty on the squared coefficients, as scikit-learn's
`LogisticRegression` fits it; classification only. It is the plain method for tables.

On a sequence there are three readings, by `sequence`: all examples are kept and the
model is fitted to all of them; or only the last stage counts; or the coefficients of
the stages' models are averaged. The latter two keep no example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.learners.linear_models import (
    average_coefficients_with_earlier_stages,
    check_network_is_linear,
    fit_linear_head_of_each_replica,
)
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
)
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class LogisticState(NamedTuple):
    """Coefficients [replica, p], number of stages [replica], and kept examples."""

    params: Tensor
    stages: Tensor
    memory: PastExampleMemory


@dataclass(frozen=True)
class Logistic(Learner[LogisticState]):
    """The linear classifier of least penalised loss; its network is linear.

    The settings of training are not used.

    Args:
        l2: Weight of half the squared coefficients, without the intercepts, for losses
            that are summed over the examples: the inverse of scikit-learn's `C`.
        sequence: What happens to earlier stages: "pool" keeps all their examples,
            "last" forgets them, "average" averages the models of all stages.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Logistic()).shape
        torch.Size([1, 20, 2])
    """

    l2: float = 1.0
    sequence: Literal["pool", "last", "average"] = "pool"

    presets = {"scikit-learn": {"l2": 1.0}}
    defaults = {"network": "linear"}
    tasks = ("classification",)

    def __post_init__(self) -> None:
        self.check_setting("l2", self.l2 >= 0, "0 or more")
        valid = self.sequence in ("pool", "last", "average")
        self.check_setting("sequence", valid, "pool, last or average")
        check_network_is_linear("logistic", self.network)

    def init(self, randomness: Randomness) -> LogisticState:
        """Return coefficients of zero."""
        replicas = len(randomness.seeds)
        stages = torch.zeros(replicas, dtype=torch.int64)
        params = torch.zeros(replicas, self.network.size)
        return LogisticState(params, stages, create_empty_memory(replicas))

    def observe(
        self,
        state: LogisticState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> LogisticState:
        """Fit the model to the examples of the stage, or of all stages."""
        memory = create_empty_memory(len(randomness.seeds))
        if self.sequence == "pool":
            memory = state.memory
        whole = add_examples_of_stage_to_memory(
            memory, stage, max(map(len, stage)), randomness.at("memory")
        )
        examples = Examples(whole.kept.x.flatten(2), whole.kept.y)
        weights, start = torch.ones(examples.y.shape), torch.zeros_like(state.params)
        params = fit_linear_head_of_each_replica(
            self.likelihood, examples, weights, self.l2, start
        )
        watch(1, 1, {})
        if self.sequence == "average":
            params = average_coefficients_with_earlier_stages(
                state.params, params, state.stages
            )
        kept = whole if self.sequence == "pool" else state.memory
        return LogisticState(params, state.stages + 1, kept)
