"""Learn what a stage leaves of the classes without the features that were found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_inputs import scale_inputs
from cirm.learners.steady.directions_stable import (
    HeldOutLogits,
    RowsWithKnownFeatures,
    compute_mean_logits_of_members,
    does_stable_model_tell_class,
    train_stable_ensemble,
)
from cirm.learners.steady.directions_stage import FeatureSearchOutcome
from cirm.learners.steady.directions_start import choose_start_networks_of_ensemble
from cirm.learners.steady.directions_state import SteadyNetworkState
from cirm.learners.steady.directions_training import Model, NetworkEnsemble
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent, Watch


class StableTraining(NamedTuple):
    """Stable models of a stage: what they saw, where they started, what they became."""

    inputs: Tensor
    known: list[RowsWithKnownFeatures]
    start: Tensor
    fit: NetworkEnsemble
    held_out_logits: list[HeldOutLogits]


@dataclass(frozen=True)
class StageRemainder:
    """The rows of a stage, of which features were found, and the state before it.

    Args:
        state: The state before the stage.
        model: The network.
        new_networks: Networks that have learned nothing, [replica, member, p].
        targets: Classes [replica, n].
        environment_of_row: Environment [n] of each row.
        shape: Shape of one input.
        classes: Number of classes.
        is_first_stage: Whether nothing was learned before.
    """

    state: SteadyNetworkState
    model: Model
    new_networks: Tensor
    targets: Tensor
    environment_of_row: Tensor
    shape: tuple[int, ...]
    classes: int
    is_first_stage: bool

    def train_stable_models(
        self,
        outcomes: list[FeatureSearchOutcome],
        likelihood: Likelihood,
        descent: Descent,
        randomness: Randomness,
        watch: Watch,
    ) -> StableTraining:
        """Train stable models on the rows as the searches leave them."""
        rows = torch.stack([outcome.rows.float() for outcome in outcomes])
        seen = scale_inputs(rows.unflatten(2, self.shape), self.state.inputs)
        known = [
            RowsWithKnownFeatures(
                o.values, t, self.environment_of_row, o.is_hidden, self.classes
            )
            for o, t in zip(outcomes, self.targets, strict=True)
        ]
        start = choose_start_networks_of_ensemble(
            self.model, self.state, self.new_networks, outcomes, seen, known
        )
        fit, held_out_logits = train_stable_ensemble(
            self.model,
            start,
            seen,
            known,
            self.is_first_stage,
            likelihood,
            descent,
            randomness.at("train"),
            watch,
            self._stack_rows_of_members(outcomes),
        )
        return StableTraining(seen, known, start, fit, held_out_logits)

    def do_features_tell_all(
        self, outcomes: list[FeatureSearchOutcome], training: StableTraining
    ) -> list[bool]:
        """Return for each replica whether new features leave nothing of the classes.

        Then the features are what tells the classes, and no shortcuts.
        """
        if not any(outcome.found for outcome in outcomes):
            return [False] * len(outcomes)
        before = compute_mean_logits_of_members(
            self.model, training.start, training.inputs
        )
        parts = before, training.held_out_logits, training.known
        return [
            bool(outcome.found) and not does_stable_model_tell_class(*own)
            for outcome, *own in zip(outcomes, *parts, strict=True)
        ]

    def _stack_rows_of_members(
        self, outcomes: list[FeatureSearchOutcome]
    ) -> Tensor | None:
        """Return vectors [replica, member, n, d] as members see them, if it matters."""
        if all(outcome.rows_of_members is None for outcome in outcomes):
            return None
        members = self.new_networks.shape[1]
        rows = [
            outcome.rows.float().expand(members, -1, -1)
            if outcome.rows_of_members is None
            else outcome.rows_of_members
            for outcome in outcomes
        ]
        stacked = torch.stack(rows)
        scaled = scale_inputs(stacked.flatten(1, 2), self.state.inputs)
        return scaled.unflatten(1, stacked.shape[1:3])
