"""What every learner offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

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

FEWEST_STEPS, MOST_STEPS = 1_000, 20_000
"""Bounds on the optimiser steps of a stage if the user sets no number of epochs."""

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
    epoch_settings: ClassVar[tuple[str, ...]] = ("epochs",)

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
        return self.likelihood.predict(self.outputs(state, inputs))

    def explain(
        self,
        state: State,
        columns: Mapping[str, int] | None = None,
        environments: int = 1,
    ) -> dict[str, Any]:
        """Explain what the learner decided, beyond what every learner reports.

        Args:
            state: The trained state of one replica.
            columns: For tables, the number of input features of each column, in the
                order in which the inputs hold them.
            environments: Number of environments that the state has learned from.

        Returns:
            Plain values that JSON can hold, with at least a sentence `verdict` (without
            a full stop) and sentences `evidence`; empty if there is nothing to say.
        """
        return {}

    def pace(self, stage: Stage) -> Self:
        """Return the learner with a number of epochs that suits the size of a stage.

        Small stages get enough epochs for 1,000 steps and large ones at most as many as
        make 20,000. A learner with its own default of `epochs` is never trained longer
        than that, since it relies on early stopping. All settings that count epochs,
        `epoch_settings`, are shortened in proportion.

        Args:
            stage: The environments that are learned next.
        """
        steps = self.descent.count_steps(stage)
        least = 1 if "epochs" in self.defaults else -(-FEWEST_STEPS // steps)
        epochs = {"epochs": max(self.descent.epochs, least)}
        epochs |= {n: getattr(self, n) for n in self.epoch_settings if n != "epochs"}
        part = min(1.0, max(1, MOST_STEPS // steps) / max(epochs.values()))
        shorter: dict[str, Any] = {
            name: max(1, round(part * count)) for name, count in epochs.items()
        }
        descent = replace(self.descent, epochs=shorter.pop("epochs"))
        return replace(self, descent=descent, **shorter)
