"""Empirical risk minimisation: the mean loss over all examples of the stage.

Vapnik, "Principles of Risk Minimization for Learning Theory", 1992.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.objectives import Batch, environment_risks, pool_risks
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """The network's parameters, [replica, p]."""

    params: Tensor


@dataclass(frozen=True)
class ERM(Learner[State]):
    """Mean risk; on a sequence, training simply goes on with what arrives."""

    presets = {
        "paper": {"rate": 1e-3, "dropout": 0.75, "decay": 0.00125},
        "irm": {
            "hidden": (256, 256),
            "activation": "relu",
            "outputs": 1,
            "epochs": 501,
            "batch": 0,
            "rate": 1e-3,
            "decay": 2 * 0.001,
        },
        "scm": {"hidden": (), "epochs": 3000, "batch": 0, "rate": 1e-2},
    }

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
        """Minimise the risk of the stage's examples."""
        return State(
            self.descent.minimise(
                self.loss, state.params, state, stage, randomness, watch
            )
        )

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Risk of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": pool_risks(risks, batch)}
