"""How outputs are scored against targets: cross-entropy and squared error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Task


class Likelihood(ABC):
    """Losses of outputs [replica, sample, n, k] at targets [replica, n].

    The sample axis may be absent. `metric` is the word for the score.
    """

    metric: str

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of each example, [replica, sample, n]."""

    @abstractmethod
    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Derivative of each loss in the outputs, [replica, sample, n, k]."""

    def scale_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Derivative of each loss in a factor on the outputs, at one."""
        return (self.residuals(outputs, targets) * outputs).sum(-1)

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """Prediction [replica, n, k], averaged over the samples."""

    @abstractmethod
    def scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The score of each example in units of `metric`, [replica, n]."""


@dataclass(frozen=True)
class CrossEntropy(Likelihood):
    """Classes from logits; a single output is the logit of the second of two."""

    classes: int = 2
    metric = "accuracy"

    def logits(self, outputs: Tensor) -> Tensor:
        """One logit per class."""
        if outputs.shape[-1] == 1 and self.classes == 2:
            return torch.cat([torch.zeros_like(outputs), outputs], -1)
        return outputs

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative logarithm of the probability of each target."""
        logits = self.logits(outputs)
        places = _spread(targets, logits).reshape(-1)
        found = F.cross_entropy(logits.flatten(0, -2), places, reduction="none")
        return found.view(outputs.shape[:-1])

    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Probability less one at the target."""
        logits = self.logits(outputs)
        places = _spread(targets, logits).unsqueeze(-1)
        chances = logits.softmax(-1)
        hit = torch.zeros_like(chances).scatter(-1, places, 1.0)
        return (chances - hit)[..., -outputs.shape[-1] :]

    def scale_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Expected logit less the target's."""
        logits = self.logits(outputs)
        return (logits.softmax(-1) * logits).sum(-1) - _pick(logits, targets)

    def predict(self, outputs: Tensor) -> Tensor:
        """Class probabilities."""
        return self.logits(outputs).softmax(-1).mean(1)

    def scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """100 where the likeliest class is right, else 0: accuracy in percent."""
        return 100.0 * (predictions.argmax(-1) == targets)


@dataclass(frozen=True)
class SquaredError(Likelihood):
    """Values, under normal noise of variance one half."""

    metric = "error"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared distance of the only output from the target."""
        values = outputs.squeeze(-1)
        return (values - _spread(targets, outputs)).square()

    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Twice the distance."""
        return 2 * (outputs - _spread(targets, outputs).unsqueeze(-1))

    def predict(self, outputs: Tensor) -> Tensor:
        """Mean value."""
        return outputs.mean(1)

    def scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Squared error."""
        return (predictions.squeeze(-1) - targets).square()


def make_likelihood(task: Task) -> Likelihood:
    """Cross-entropy for classes, squared error for values."""
    return CrossEntropy(len(task.classes)) if task.classes else SquaredError()


def _spread(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets with a sample axis if the outputs have one."""
    if outputs.ndim > targets.ndim + 1:
        targets = targets.unsqueeze(1)
    return targets.expand(outputs.shape[:-1])


def _pick(logits: Tensor, targets: Tensor) -> Tensor:
    """The logit of each target."""
    return logits.gather(-1, _spread(targets, logits).unsqueeze(-1)).squeeze(-1)
