"""Losses and scores of outputs: cross-entropy and squared error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Task


class Likelihood(ABC):
    """Losses of outputs [replica, sample, n, k] at targets [replica, n].

    The sample axis may be absent.

    Attributes:
        metric: Name of the score.
    """

    metric: str

    @abstractmethod
    def compute_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, [replica, sample, n]."""

    @abstractmethod
    def compute_output_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of each loss in the outputs, [replica, sample, n, k]."""

    def compute_output_scale_gradients(
        self, outputs: Tensor, targets: Tensor
    ) -> Tensor:
        """Return the derivative of each loss in a scale of the outputs, at 1."""
        return (self.compute_output_gradients(outputs, targets) * outputs).sum(-1)

    @abstractmethod
    def convert_outputs_to_predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions [replica, n, k], averaged over the samples."""

    @abstractmethod
    def compute_scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each example, [replica, n]."""


@dataclass(frozen=True)
class CrossEntropy(Likelihood):
    """The cross-entropy of logits; a single output is the second class's logit.

    Args:
        classes: Number of classes.
    """

    classes: int = 2
    metric = "accuracy"

    def compute_class_logits(self, outputs: Tensor) -> Tensor:
        """Return one logit per class."""
        if outputs.shape[-1] == 1 and self.classes == 2:
            return torch.cat([torch.zeros_like(outputs), outputs], -1)
        return outputs

    def compute_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log probability of each target."""
        logits = self.compute_class_logits(outputs)
        places = _add_sample_axis_to_targets(targets, logits).reshape(-1)
        losses = F.cross_entropy(logits.flatten(0, -2), places, reduction="none")
        return losses.view(outputs.shape[:-1])

    def compute_output_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the probabilities, less one at the target."""
        logits = self.compute_class_logits(outputs)
        places = _add_sample_axis_to_targets(targets, logits).unsqueeze(-1)
        probabilities = logits.softmax(-1)
        one_hot = torch.zeros_like(probabilities).scatter(-1, places, 1.0)
        return (probabilities - one_hot)[..., -outputs.shape[-1] :]

    def compute_output_scale_gradients(
        self, outputs: Tensor, targets: Tensor
    ) -> Tensor:
        """Return the expected logit less that of the target."""
        logits = self.compute_class_logits(outputs)
        return (logits.softmax(-1) * logits).sum(-1) - _select_logits_of_targets(
            logits, targets
        )

    def convert_outputs_to_predictions(self, outputs: Tensor) -> Tensor:
        """Return class probabilities."""
        return self.compute_class_logits(outputs).softmax(-1).mean(1)

    def compute_scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return 100 where the most likely class is correct, else 0."""
        return 100.0 * (predictions.argmax(-1) == targets)


@dataclass(frozen=True)
class SquaredError(Likelihood):
    """The squared error, which is the likelihood of normal noise of variance 1/2."""

    metric = "error"

    def compute_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared difference of the only output and the target."""
        values = outputs.squeeze(-1)
        return (values - _add_sample_axis_to_targets(targets, outputs)).square()

    def compute_output_gradients(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return twice the difference."""
        return 2 * (
            outputs - _add_sample_axis_to_targets(targets, outputs).unsqueeze(-1)
        )

    def convert_outputs_to_predictions(self, outputs: Tensor) -> Tensor:
        """Return the mean output."""
        return outputs.mean(1)

    def compute_scores(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error."""
        return (predictions.squeeze(-1) - targets).square()


def choose_likelihood(task: Task) -> Likelihood:
    """Return the cross-entropy for a classification, else the squared error."""
    return CrossEntropy(len(task.classes)) if task.classes else SquaredError()


def _add_sample_axis_to_targets(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets with a sample axis if the outputs have one."""
    if outputs.ndim > targets.ndim + 1:
        targets = targets.unsqueeze(1)
    return targets.expand(outputs.shape[:-1])


def _select_logits_of_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the logit of each target."""
    return logits.gather(
        -1, _add_sample_axis_to_targets(targets, logits).unsqueeze(-1)
    ).squeeze(-1)
