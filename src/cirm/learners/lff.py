"""Learning from failure: a biased network shows which examples to learn from.

Nam, Cha, Ahn, Lee and Shin, "Learning from Failure: Training Debiased Classifier from
Biased Classifier", 2020, algorithm 1. Two networks are trained together. The biased one
minimises the generalised cross-entropy, which amplifies what is easy. The debiased one,
which predicts, minimises the cross-entropy weighted by the relative difficulty of each
example: the share of the biased network's loss in the sum of both. Classification only.
Departure: difficulties are those of the current networks, without the moving average
over epochs and the normalisation by class of the authors' experiments.

With two classes the opposite of a shortcut is as simple a rule as the shortcut itself,
and the debiased network may learn it: a training accuracy far below that of guessing
shows this. It happens on coloured digits (`cirm run --learner lff --order joint`).

On a sequence both networks continue. Nothing else of the past is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class LfFState(NamedTuple):
    """Parameters of the debiased and of the biased network, [replica, p] each."""

    params: Tensor
    biased: Tensor


@dataclass(frozen=True)
class LfF(Learner[LfFState]):
    """Risk weighted by how much harder an example is for a biased network.

    Args:
        amplification: The exponent q of the generalised cross-entropy (1 - p^q) / q.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(LfF()).shape
        torch.Size([1, 20, 2])
    """

    amplification: float = 0.7

    presets = {  # the authors', on coloured digits
        "colored": {
            "amplification": 0.7,
            "hidden": (100, 100, 100),
            "activation": "relu",
            "epochs": 100,
            "batch": 256,
            "rate": 1e-3,
        }
    }
    tasks = ("classification",)

    def __post_init__(self) -> None:
        valid = 0 < self.amplification <= 1
        self.check_setting("amplification", valid, "above 0 and at most 1")

    def init(self, randomness: Randomness) -> LfFState:
        """Return random parameters of both networks."""
        names = ("params", "biased")
        return LfFState(*(self.network.init(randomness.at(name)) for name in names))

    def observe(
        self,
        state: LfFState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> LfFState:
        """Train both networks together."""
        start = torch.cat(state, 1)
        both = self.descent.minimise(
            self.compute_loss, start, (), stage, randomness, watch
        )
        return LfFState(*(part.contiguous() for part in both.chunk(2, 1)))

    def compute_loss(self, params: Tensor, past: tuple[()], batch: Batch) -> Terms:
        """Return the weighted risk and the risk of the biased network."""
        own, biased = params.chunk(2, 1)
        losses = self.compute_cross_entropy_of_examples(own, batch)
        easy = self.compute_cross_entropy_of_examples(biased, batch)
        weights = compute_relative_difficulty(easy.detach(), losses.detach())
        amplified = compute_generalised_cross_entropy(easy, self.amplification)
        return {
            "risk": (weights * losses).mean(-1),
            "biased risk": amplified.mean(-1),
        }

    def compute_cross_entropy_of_examples(self, params: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, [replica, n]."""
        outputs = self.network(params.contiguous(), batch.x, batch.noise)
        return self.likelihood.compute_losses(outputs, batch.y)


def compute_relative_difficulty(biased: Tensor, debiased: Tensor) -> Tensor:
    """Return the share of the biased network's losses in the sum of both."""
    tiny = torch.finfo(biased.dtype).tiny  # both losses may underflow to zero
    return (biased + tiny) / (biased + debiased + 2 * tiny)


def compute_generalised_cross_entropy(losses: Tensor, exponent: float) -> Tensor:
    """Return (1 - p^q) / q for the probabilities p that cross-entropies stand for."""
    return -torch.expm1(-exponent * losses) / exponent
