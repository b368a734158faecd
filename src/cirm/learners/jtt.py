"""Just train twice: train again, with the errors of a first model upweighted.

Liu et al., "Just Train Twice: Improving Group Robustness without Training Group
Information", 2021, algorithm 1. A first model is trained for few epochs, so that it
learns what is easiest. The examples that it gets wrong count `upweight` times when the
final model is trained. Classification only. Departures: instead of repeating examples,
their losses are weighted, with weights that average to one over each minibatch.

On a sequence a new first model is trained in each stage, on its environments pooled,
and the final model continues from the last stage. Nothing of the past is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner, PointState
from cirm.objectives import Batch, compute_mean_risk
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


@dataclass(frozen=True)
class JTT(Learner[PointState]):
    """Risk in which the errors of a briefly trained model count more.

    Args:
        first_epochs: Number of epochs of the first model.
        upweight: How many times an error of the first model counts.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(JTT(first_epochs=1)).shape
        torch.Size([1, 20, 2])
    """

    first_epochs: int = 5
    upweight: float = 20.0

    presets = {  # the authors', for images, with momentum, which is not offered here
        "waterbirds": {
            "first_epochs": 60,
            "upweight": 100.0,
            "epochs": 300,
            "batch": 64,
            "rate": 1e-5,
            "decay": 1.0,
            "optimiser": "sgd",
        },
        "celeba": {
            "first_epochs": 1,
            "upweight": 50.0,
            "epochs": 50,
            "batch": 128,
            "rate": 1e-5,
            "decay": 0.1,
            "optimiser": "sgd",
        },
    }
    epoch_settings = ("epochs", "first_epochs")
    tasks = ("classification",)

    def __post_init__(self) -> None:
        self.check_setting("first_epochs", self.first_epochs >= 1, "1 or more")
        self.check_setting("upweight", self.upweight > 0, "above 0")

    def observe(
        self,
        state: PointState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> PointState:
        """Train a first model, then minimise the risk weighted by its errors."""
        source = randomness.at("first")
        start = self.network.init(source.at("params")).to(self.descent.device)
        brief = replace(self.descent, epochs=self.first_epochs)
        first = brief.minimise(
            self.compute_loss_of_first_model, start, (), stage, source
        )
        args = state.params, PointState(first), stage, randomness, watch
        return PointState(self.descent.minimise(self.compute_loss, *args))

    def compute_loss_of_first_model(
        self, params: Tensor, past: None, batch: Batch
    ) -> Terms:
        """Return the risk of the first model in each replica."""
        risk = compute_mean_risk(self.network, self.likelihood, params, batch)
        return {"risk": risk}

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the risk weighted by the errors of the first model, `past`."""
        with torch.no_grad():
            outputs = self.network(past.params, batch.x).unsqueeze(1)
            wrong = (
                self.likelihood.convert_outputs_to_predictions(outputs).argmax(-1)
                != batch.y
            )
        weights = torch.where(wrong, self.upweight, 1.0)
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.compute_losses(outputs, batch.y)
        return {"risk": (weights * losses).sum(-1) / weights.sum(-1)}
