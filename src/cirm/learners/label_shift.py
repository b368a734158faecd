"""Label shift: at a new place, estimate how often each class occurs.

Saerens, Latinne and Decaestecker, "Adjusting the Outputs of a Classifier to New a
Priori Probabilities: A Simple Procedure", 2002, equations 2.9. Training is plain. Given
inputs of a new environment, expectation-maximisation finds the class frequencies there,
on the assumption that inputs of a class look the same everywhere; the probabilities are
reweighted by them. Classification only.

On a sequence training continues on whatever arrives; the frequencies that the network
has learned are taken to be those of the last stage, and are all that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.features import compute_logit_of_each_class
from cirm.learners.last_layer import compute_plain_loss
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class LabelShiftState(NamedTuple):
    """A network, the class frequencies that it learned, and a shift of its logits.

    Parameters are [replica, p]; frequencies and shift are [replica, k]. The shift is
    zero unless the state is adapted.
    """

    params: Tensor
    frequencies: Tensor
    shift: Tensor


@dataclass(frozen=True)
class LabelShift(Learner[LabelShiftState]):
    """Plain training, adapted to the class frequencies of a new environment.

    Args:
        iterations: Most iterations of expectation-maximisation.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(LabelShift()).shape
        torch.Size([1, 20, 2])
    """

    iterations: int = 1000

    tasks = ("classification",)
    adapts = True
    compute_loss = compute_plain_loss

    def __post_init__(self) -> None:
        self.check_setting("iterations", self.iterations >= 1, "1 or more")

    def init(self, randomness: Randomness) -> LabelShiftState:
        """Return random parameters, and equal frequencies."""
        params = self.network.init(randomness.at("params"))
        classes = self.likelihood.classes  # type: ignore[attr-defined]
        equal = torch.full((len(params), classes), 1 / classes)
        return LabelShiftState(params, equal, torch.zeros_like(equal))

    def observe(
        self,
        state: LabelShiftState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> LabelShiftState:
        """Minimise the mean risk, and count the classes of the stage."""
        args = state.params, (), stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        counts = torch.zeros(state.frequencies.shape)
        for environment in stage:
            y = environment.targets.expand(len(counts), -1)
            counts += F.one_hot(y, counts.shape[1]).sum(1)
        # A class without examples may still occur elsewhere.
        frequencies = counts.clamp(min=0.5) / counts.clamp(min=0.5).sum(-1, True)
        return LabelShiftState(params, frequencies, torch.zeros_like(counts))

    def outputs(self, state: LabelShiftState, inputs: Tensor) -> Tensor:
        """Return logits [replica, 1, n, k], with the shift added."""
        logits = compute_logit_of_each_class(self, state.params, inputs)
        return (logits + state.shift.to(logits).unsqueeze(1)).unsqueeze(1)

    def adapt(self, state: LabelShiftState, inputs: Tensor) -> LabelShiftState:
        """Return the state for the class frequencies that the inputs show."""
        with torch.no_grad():
            logits = compute_logit_of_each_class(self, state.params, inputs)
        known = state.frequencies.to(logits)
        found = estimate_class_frequencies(logits.softmax(-1), known, self.iterations)
        return state._replace(shift=(found / known).log().to(state.shift))

    def forget_adaptation(self, state: LabelShiftState) -> LabelShiftState:
        """Return the state for the class frequencies seen in training."""
        return state._replace(shift=torch.zeros_like(state.shift))


def estimate_class_frequencies(
    probabilities: Tensor, training_frequencies: Tensor, n_iterations: int
) -> Tensor:
    """Estimate class frequencies [replica, k] by expectation-maximisation.

    The probabilities [replica, n, k] are those of a classifier trained where classes
    had the frequencies `training_frequencies` [replica, k].
    """
    p, training_frequencies = probabilities.double(), training_frequencies.double()
    found = training_frequencies
    for _ in range(n_iterations):
        weighted = p * (found / training_frequencies).unsqueeze(1)
        new = (weighted / weighted.sum(-1, keepdim=True)).mean(1)
        done = (new - found).abs().max() < 1e-10
        found = new
        if done:
            break
    return found.clamp(min=1e-9)
