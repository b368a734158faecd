"""Select the candidate that is best in its worst training environment."""

import torch
from torch import Tensor

from cirm.evaluation.selection import Rule, TrainedLearner, TrainingData


class WorstEnvironment(Rule):
    """Score of the worst environment's held-out examples."""

    name = "worst-environment"
    description = "score on the held-out part of the worst training environment"

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the lowest score of an environment, [replica]."""
        return torch.stack(
            [trained.compute_mean_score([e]) for e in data.held_out]
        ).amin(0)
