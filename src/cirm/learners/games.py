"""The course of a game: players move in turn until it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.likelihoods import Likelihood
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import Descent, Terms, Watch, check_parameters_are_finite


class GameStopRule(NamedTuple):
    """When a replica's game ends before the epochs are over.

    Attributes:
        warm_start: Number of steps of a stage before a game may end.
        accuracy: A game ends once the accuracy on a batch is below this; None for a
            game that never ends early.
    """

    warm_start: int
    accuracy: float | None

    def may_game_stop_at_step(self, step: int) -> bool:
        """Return whether a game may end at this step."""
        return self.accuracy is not None and step > self.warm_start


@dataclass(frozen=True)
class PlayerTrainingSettings:
    """What players descend, how long, and when they stop.

    Args:
        descent: Length of the training and optimisers.
        loss: Loss of the mover whose turn it is, see `Descent.minimise_in_turn`.
        rule: When a game ends early.
        score: Mean score of the players on a batch, [replica]; None to record none,
            for a game that never ends early.
        metric: Name of that score in records.
    """

    descent: Descent
    loss: Callable[[int, list[Tensor], Batch], Terms]
    rule: GameStopRule
    score: Callable[[list[Tensor], Batch], Tensor] | None
    metric: str

    def train_players_in_turn(
        self,
        trained_params: list[Tensor],
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> None:
        """Move the players, in place, until the epochs or all games are over."""
        steps = self.descent.count_steps(stage)
        stopped, playing = (
            trained_params,
            trained_params[0].new_ones(len(trained_params[0]), dtype=torch.bool),
        )
        for step, batch, numbers in self.descent.minimise_in_turn(
            self.loss, trained_params, stage, randomness
        ):
            for mover, last in zip(trained_params, stopped, strict=True):
                mover[~playing] = last[~playing]
            epoch_ends, may_stop = (
                step % steps == 0,
                self.rule.may_game_stop_at_step(step),
            )
            if self.score and (epoch_ends or may_stop):
                score = self.score(trained_params, batch)
                if may_stop:
                    check_parameters_are_finite(torch.cat(trained_params, -1), step)
                    playing = playing & (score >= 100 * (self.rule.accuracy or 0))
                    stopped = [mover.clone() for mover in trained_params]
                numbers |= {self.metric: score, "playing": playing.float()}
            if epoch_ends or not playing.any():
                watch(step, steps * self.descent.epochs, numbers)
            if not playing.any():
                break


def compute_mean_score_of_outputs(
    likelihood: Likelihood, outputs: Tensor, batch: Batch
) -> Tensor:
    """Return the mean score [replica] of outputs [replica, sample, n, k] on a batch."""
    predictions = likelihood.convert_outputs_to_predictions(outputs)
    return likelihood.compute_scores(predictions, batch.y).mean(-1)


def choose_stop_rule_of_game(
    likelihood: Likelihood, warm_start: int, accuracy: float | None
) -> GameStopRule:
    """Return the rule; regression has no accuracy, and its games never end early."""
    return GameStopRule(
        warm_start, accuracy if likelihood.metric == "accuracy" else None
    )


def check_game_settings(learner: Any) -> None:  # noqa: ANN401  IRMG or VIRMG
    """Raise an error if `representation`, `warm_start` or `stop_accuracy` is wrong."""
    valid = learner.representation in ("fixed", "variable")
    learner.check_setting("representation", valid, "fixed or variable")
    learner.check_setting("warm_start", learner.warm_start >= 0, "0 or more")
    valid = 0 <= (learner.stop_accuracy or 0) <= 1
    learner.check_setting("stop_accuracy", valid, "from 0 to 1, or None")
