"""A learner of your own in one file: it minimises the risk of the worst environment.

    python examples/own_learner.py

`cirm.fit`, the estimators and `cirm.run` take the instance as it is, and the command
line takes `--learner own_learner:Worst`. To offer it by a name of its own, see
examples/second_package.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cirm import Descent, Randomness, create, run
from cirm.data.scm import SCM
from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.objectives import Batch, environment_risks
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """The network's parameters, [replica, p]."""

    params: Tensor


@dataclass(frozen=True)
class Worst(Learner[State]):
    """Mean risk, mixed with `weight` times the risk of the worst environment."""

    weight: float = 0.5

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


if __name__ == "__main__":
    problem = SCM(examples=200).draw((0, 1))
    settings = Descent(epochs=150, batch=0, rate=0.02)
    learner = create(Worst(descent=settings), problem.train[0], {"hidden": ()})
    for record in run(learner, problem, "joint", seeds=(0, 1), label="worst"):
        if record.kind == "score" and record.split == "train":
            print(f"seed {record.seed}, {record.environment}: error {record.value:.3f}")
