"""Deep CORAL: match means and covariances of the features between environments.

Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", 2016,
equation 1, between all pairs of environments as in Gulrajani and Lopez-Paz, "In Search
of Lost Domain Generalization", 2021, which also matches the means. Features are the
inputs of the last layer. Departure: covariances are divided by the number of examples.

On a sequence means and covariances of a past environment are kept as they were when
its stage ended, and no example of it. `align` also replays examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.features import (
    compute_feature_moments_of_stage,
    create_empty_feature_moments,
)
from cirm.memory import move_tensors_to_device
from cirm.objectives import (
    Batch,
    FeatureMoments,
    compute_feature_moments,
    compute_features_and_risk,
    compute_moment_distances,
    concatenate_feature_moments,
    list_environment_pairs,
    select_feature_moments_of_environments,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class CORALState(NamedTuple):
    """Parameters [replica, p] and the feature moments of past environments."""

    params: Tensor
    moments: FeatureMoments


@dataclass(frozen=True)
class CORAL(Learner[CORALState]):
    """Mean risk plus the distance between the environments' feature moments.

    Args:
        penalty: Weight of the mean distance over pairs of environments.
        means: Whether means are matched as well, or covariances only.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(CORAL(penalty=10.0)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 1.0
    means: bool = True

    presets = {  # the defaults of "In Search of Lost Domain Generalization"
        "domainbed": {"penalty": 1.0, "means": True, "batch": 32, "rate": 5e-5},
        "domainbed-small": {"penalty": 1.0, "means": True, "batch": 64, "rate": 1e-3},
    }

    def __post_init__(self) -> None:
        self.check_setting("penalty", self.penalty >= 0, "0 or more")

    def init(self, randomness: Randomness) -> CORALState:
        """Return random parameters and no moments."""
        params = self.network.init(randomness.at("params"))
        return CORALState(params, create_empty_feature_moments(self.network, params))

    def observe(
        self,
        state: CORALState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> CORALState:
        """Minimise the penalised risk, then keep the moments of the stage."""
        past = move_tensors_to_device(state, self.descent.device)
        args = past.params, past, stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        new = compute_feature_moments_of_stage(self, params, stage)
        return CORALState(params, concatenate_feature_moments(past.moments, new))

    def compute_loss(self, params: Tensor, past: CORALState, batch: Batch) -> Terms:
        """Return the penalised risk of each replica."""
        features, _, risk = compute_features_and_risk(
            self.network, self.likelihood, params, batch
        )
        moments = compute_feature_moments(features, batch.share)
        moments = concatenate_feature_moments(moments, past.moments)
        first, second = list_environment_pairs(moments.means.shape[1])
        if not first or not self.penalty:
            return {"risk": risk}
        distances = compute_moment_distances(
            select_feature_moments_of_environments(moments, first),
            select_feature_moments_of_environments(moments, second),
            self.means,
        )
        return {"risk": risk, "penalty": self.penalty * distances.mean(-1)}
