"""Worst-case training: weight the risk of the worst environment."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cirm import Randomness, Stage
from cirm.learners.base import Learner
from cirm.objectives import Batch, environment_risks
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """The network's parameters, [replica, p]."""

    params: Tensor


@dataclass(frozen=True)
class WorstCase(Learner[State]):
    """Mean risk, mixed with the risk of the worst environment.

    Args:
        network: The network to train; created for the data if left out.
        likelihood: How outputs are scored; set by the task of the data.
        descent: How long and how fast to train.
        weight: Weight of the worst environment's risk, from 0 to 1.
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        self.check_setting("weight", 0 <= self.weight <= 1, "from 0 to 1")

    def init(self, randomness: Randomness) -> State:
        """Return random parameters."""
        return State(self.network.init(randomness.at("params")))

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Minimise the loss on the stage's environments."""
        return State(
            self.descent.minimise(
                self.loss, state.params, state, stage, randomness, watch
            )
        )

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Return the two parts of each replica's loss."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        worst = self.weight * risks.max(-1).values
        return {"worst": worst, "mean": (1 - self.weight) * risks.mean(-1)}
