"""What every learner offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from cirm.environments import Stage
from cirm.likelihoods import CrossEntropy, Likelihood
from cirm.networks import Network
from cirm.randomness import Randomness
from cirm.training import Descent, Watch, ignore_steps

ORIGINAL = {
    "anneal": 190 / 501,
    "l2": 0.00110794568,
    "rate": 0.0004898536566546834,
    "hidden": (390, 390),
    "activation": "relu",
    "outputs": 1,
    "epochs": 501,
    "batch": 0,
}
"""IRM's original settings on coloured digits, which the work on EIIL took over."""

State = TypeVar("State", bound=tuple[Any, ...])


@dataclass(frozen=True)
class Learner(ABC, Generic[State]):
    """Hyper-parameters and three functions; all that changes is in the state.

    States are named tuples of tensors with a leading replica axis. `presets` are
    named settings: of the learner's own fields, of `Descent` and of the network;
    `defaults` are those of `Descent` and the network that the learner needs otherwise.
    `revision` counts the changes of its code after which results are others: those
    recorded before do not count for it any more.
    """

    network: Network
    likelihood: Likelihood = field(default_factory=CrossEntropy)
    descent: Descent = Descent()

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    revision: ClassVar[int] = 0

    @abstractmethod
    def init(self, randomness: Randomness) -> State:
        """The state before any data."""

    @abstractmethod
    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """The state after training on one stage; `state` is left as it was."""

    @abstractmethod
    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs [replica, sample, n, k] of inputs [replica, n, ...].

        The samples are networks drawn from what the learner believes; a learner that
        believes in one network gives one.
        """

    def predict(self, state: State, inputs: Tensor) -> Tensor:
        """Class probabilities [replica, n, k], or values [replica, n, 1]."""
        return self.likelihood.predictive(self.outputs(state, inputs))
