"""A learner of your own in one file: the risk of the worst environment.

    python examples/own_learner.py

To offer it on the command line too, put the class into src/cirm/learners/worst.py and
add one line to LEARNERS; CONTRIBUTING.md says how.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cirm import MLP, Descent, Randomness, run
from cirm.data.scm import SCM
from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.likelihoods import make_likelihood
from cirm.objectives import Batch, environment_risks
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """The network's parameters, [replica, p]."""

    params: Tensor


@dataclass(frozen=True)
class Worst(Learner[State]):
    """The part `weight` of the worst environment's risk, the rest of the mean."""

    weight: float = 0.5

    def init(self, randomness: Randomness) -> State:
        """Random parameters."""
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

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Loss of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        worst = self.weight * risks.max(-1).values
        return {"worst": worst, "mean": (1 - self.weight) * risks.mean(-1)}


problem = SCM(examples=200).draw((0, 1))
first = problem.train[0]
learner = Worst(
    network=MLP((first.features[0], 1)),
    likelihood=make_likelihood(first.task),
    descent=Descent(epochs=150, batch=0, rate=0.02),
)
for record in run(learner, problem, "joint", seeds=(0, 1), label="worst"):
    if record.kind == "score" and record.split == "train":
        print(f"seed {record.seed}, {record.environment}: error {record.value:.3f}")
