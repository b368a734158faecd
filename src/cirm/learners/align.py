"""Replay with alignment of features to statistics that were kept at insertion.

After Janetzky, Schlagenhauf and Feuerriegel, "Continual Learning of Domain-Invariant
Representations", 2026: replay combined with a sequential alignment, which learns what
is invariant and preserves it. The details are a reading, since only the abstract was at
hand. When an environment's stage ends, some of its examples are kept, together with
the means and covariances that its features then have. Later, examples of the stage and
of the memory are learned, and two distances of moments (those of `coral`) are added:
between environments of the stage and kept moments, and between the present features of
replayed examples and the moments kept with them, so that what was aligned stays so.

With `form="naive"` no example is kept: the stage is aligned with kept moments only.
On a joint stream the environments of the stage are aligned with each other, as in
`coral`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.features import (
    compute_feature_moments_of_stage,
    create_empty_feature_moments,
)
from cirm.learners.rehearsal import (
    build_batch_with_past_environments,
    init_parameters_and_memory_state,
)
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    move_tensors_to_device,
)
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


class AlignState(NamedTuple):
    """Parameters [replica, p], kept examples, and moments of past environments."""

    params: Tensor
    memory: PastExampleMemory
    moments: FeatureMoments


@dataclass(frozen=True)
class Align(Learner[AlignState]):
    """Mean risk of new and past environments, plus distances from kept moments.

    Args:
        penalty: Weight of the mean distance over pairs of environments.
        form: "replay", or "naive" to keep statistics without examples.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Align(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 1.0
    form: Literal["replay", "naive"] = "replay"
    memory: int = 100

    presets = {"naive": {"form": "naive"}}

    def __post_init__(self) -> None:
        self.check_setting("penalty", self.penalty >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("form", self.form in ("replay", "naive"), "replay or naive")

    def init(self, randomness: Randomness) -> AlignState:
        """Return random parameters, without examples or moments."""
        params, memory = init_parameters_and_memory_state(self, randomness)
        return AlignState(
            params, memory, create_empty_feature_moments(self.network, params)
        )

    def observe(
        self,
        state: AlignState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> AlignState:
        """Minimise the penalised risk, then keep examples and moments of the stage."""
        past = move_tensors_to_device(state, self.descent.device)
        args = past.params, past, stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        size = self.memory if self.form == "replay" else 0
        source = randomness.at("memory")
        memory = add_examples_of_stage_to_memory(state.memory, stage, size, source)
        new = compute_feature_moments_of_stage(self, params, stage)
        return AlignState(
            params, memory, concatenate_feature_moments(past.moments, new)
        )

    def compute_loss(self, params: Tensor, past: AlignState, batch: Batch) -> Terms:
        """Return the penalised risk of each replica."""
        new = len(batch.sizes)
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        features, _, risk = compute_features_and_risk(
            self.network, self.likelihood, params, batch
        )
        if not self.penalty:
            return {"risk": risk}
        moments = compute_feature_moments(features, batch.share)
        distances = self.compute_distances_between_moments(moments, past.moments, new)
        if not distances.shape[1]:
            return {"risk": risk}
        return {"risk": risk, "penalty": self.penalty * distances.mean(-1)}

    def compute_distances_between_moments(
        self, moments: FeatureMoments, stored_moments: FeatureMoments, n_new: int
    ) -> Tensor:
        """Return the distances of all pairs that are aligned, [replica, pair].

        Of the moments, the first `n_new` are of the stage, the others of the memory.
        """
        past = stored_moments.means.shape[1]
        first, second = list_environment_pairs(n_new)
        pairs = [
            (
                select_feature_moments_of_environments(moments, first),
                select_feature_moments_of_environments(moments, second),
            )
        ]
        every = [place for place in range(n_new) for _ in range(past)]
        pairs.append(
            (
                select_feature_moments_of_environments(moments, every),
                select_feature_moments_of_environments(
                    stored_moments, [*range(past)] * n_new
                ),
            )
        )
        replayed = range(n_new, moments.means.shape[1])
        own = list(range(len(replayed)))
        pairs.append(
            (
                select_feature_moments_of_environments(moments, list(replayed)),
                select_feature_moments_of_environments(stored_moments, own),
            )
        )
        return torch.cat([compute_moment_distances(*pair) for pair in pairs], 1)
