"""Empirical risk minimisation: minimise the mean loss over all examples of a stage.

Vapnik, "Principles of Risk Minimization for Learning Theory", 1992. On a sequence,
training continues on whatever arrives.
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
    """Plain training on the mean risk, without any penalty.

    Args:
        network: The network to train; created for the data if left out.
        likelihood: How outputs are scored; set by the task of the data.
        descent: How long and how fast to train.

    Example:
        >>> from cirm.learners import try_learner
        >>> try_learner(ERM()).shape
        torch.Size([1, 20, 2])
    """

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
        """Return random parameters."""
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

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Return the risk of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": pool_risks(risks, batch)}
