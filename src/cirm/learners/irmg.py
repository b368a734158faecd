"""Invariant risk minimisation games: one player per environment; their mean predicts.

Ahuja, Shanmugam, Varshney and Dhurandhar, "Invariant Risk Minimization Games", 2020,
equation (IRMG). In each step the environments move one after another. Each takes one
gradient step with its own player, on the risk that the average of all players' outputs
has on its examples. With a fixed representation (the paper's F-game) a player is a
whole network; with a variable one (V-game) it is a head on a representation that moves
after the players, on the mean risk. On a sequence the players of the last stage take
part as one more player that does not move, (w_1 + ... + w_E + w_past) / (E + 1), unless
`past` is False: then training just continues. Nothing is kept of earlier stages. In
the F-game the players that do not move are evaluated without dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.games import (
    PlayerTrainingSettings,
    check_game_settings,
    choose_stop_rule_of_game,
    compute_mean_score_of_outputs,
)
from cirm.memory import move_tensors_to_device
from cirm.objectives import (
    Batch,
    average_outputs_with_past_models,
    average_values_by_environment,
)
from cirm.randomness import RandomDraws, Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class IRMGState(NamedTuple):
    """The players of the last stage and of the one before; a new state has only `past`.

    Players are networks [replica, player, p] or, with a shared representation
    [replica, q], heads [replica, player, p - q].
    """

    players: Tensor
    past: Tensor
    representation: Tensor


@dataclass(frozen=True)
class IRMG(Learner[IRMGState]):
    """Players that move in turn, until their average is inaccurate enough.

    Args:
        representation: Whether a player is a whole network ("fixed") or a head on a
            shared representation ("variable").
        past: Whether the players of the last stage take part.
        warm_start: Number of steps of a stage before a game may end.
        stop_accuracy: A replica's game ends once the accuracy of the average on a batch
            is below this; None to never stop. Regression has no accuracy and never
            stops.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(IRMG()).shape
        torch.Size([1, 20, 2])
    """

    representation: Literal["fixed", "variable"] = "fixed"
    past: bool = True
    warm_start: int = 300
    stop_accuracy: float | None = 0.6

    weighs_examples = True
    presets = {
        # On a sequence the paper just continues training: its numbers are those of ERM.
        "paper": {
            "past": False,
            "warm_start": 300,
            "stop_accuracy": 0.6,
            "rate": 2.5e-4,
            "dropout": 0.75,
            "decay": 0.00125,
        },
    }

    def __post_init__(self) -> None:
        check_game_settings(self)

    def init(self, randomness: Randomness) -> IRMGState:
        """Return a random network with which the first player starts."""
        params = self.network.init(randomness.at("params"))
        start = params[:, None, self._first_head_index :]
        return IRMGState(start[:, :0], start, params[:, : self._first_head_index])

    @property
    def _first_head_index(self) -> int:
        """Index of the first of the network's parameters that belongs to a player."""
        return self.network.head.start if self.representation == "variable" else 0

    def observe(
        self,
        state: IRMGState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> IRMGState:
        """Play until the epochs are over or the games of all replicas have ended."""
        state = move_tensors_to_device(state, self.descent.device)
        past = state.players if self.past else state.players[:, :0]
        movers = self._create_player_networks(state, len(stage), randomness)
        names = [environment.name for environment in stage]
        loss = partial(
            self.compute_loss, past_players=past, names=[*names, "representation"]
        )
        rule = choose_stop_rule_of_game(
            self.likelihood, self.warm_start, self.stop_accuracy
        )
        score = partial(self._compute_score_of_player_average, past_players=past)
        game = PlayerTrainingSettings(
            self.descent, loss, rule, score, self.likelihood.metric
        )
        game.train_players_in_turn(movers, stage, randomness, watch)
        players = torch.stack(movers[: len(stage)], 1)
        return IRMGState(
            players,
            past,
            movers[-1] if self._first_head_index else players[:, 0, :0],
        )

    def outputs(self, state: IRMGState, inputs: Tensor) -> Tensor:
        """Return average outputs of the players, [replica, 1, n, k]."""
        members = [*state.players.unbind(1), *self._get_shared_representation(state)]
        return self._average_outputs_of_players(members, state.past, inputs).unsqueeze(
            1
        )

    def compute_loss(
        self,
        mover_index: int,
        trained_params: list[Tensor],
        batch: Batch,
        past_players: Tensor,
        names: list[str],
    ) -> Terms:
        """Risk of the average in the mover's environment, or for the body the mean."""
        alone = mover_index < len(batch.sizes)
        x, y = (
            batch.split_by_environment()[mover_index] if alone else (batch.x, batch.y)
        )
        losses = self.likelihood.compute_losses(
            self._average_outputs_of_players(
                trained_params, past_players, x, batch.noise, mover_index
            ),
            y,
        )
        if alone:
            risk = batch.average_losses_of_environment(losses, mover_index)
        else:
            risk = average_values_by_environment(losses, batch.share).mean(-1)
        return {f"risk {names[mover_index]}": risk}

    def _create_player_networks(
        self, state: IRMGState, n_players: int, randomness: Randomness
    ) -> list[Tensor]:
        """Return the players, first those of the state, and any representation."""
        old = state.players if state.players.shape[1] else state.past
        fresh = [
            self.network.init(randomness.at("player", index))[
                :, self._first_head_index :
            ]
            for index in range(old.shape[1], n_players)
        ]
        movers = [
            *old.unbind(1)[:n_players],
            *fresh,
            *self._get_shared_representation(state),
        ]
        return [mover.to(self.descent.device, copy=True) for mover in movers]

    def _get_shared_representation(self, state: IRMGState) -> list[Tensor]:
        return [state.representation] if self._first_head_index else []

    def _average_outputs_of_players(
        self,
        players: list[Tensor],
        past_players: Tensor,
        inputs: Tensor,
        noise: RandomDraws | None = None,
        training_index: int = 0,
    ) -> Tensor:
        """Return average outputs [replica, n, k]; with noise, as one player learns.

        With a shared representation this is the output of the average head.
        """
        if self._first_head_index:
            head = average_outputs_with_past_models(
                players[:-1], list(past_players.unbind(1))
            )
            params = torch.cat([players[-1], head], -1)
            if not head.requires_grad:
                return self.network(params, inputs, noise)
            # Only a head moves, so no gradient is needed in the representation.
            features = self.network.compute_features(params.detach(), inputs, noise)
            rows = head.unflatten(-1, (-1, self.network.outputs))
            return torch.baddbmm(rows[:, -1:], features, rows[:, :-1])
        answers = [
            self.network(member, inputs, noise if index == training_index else None)
            for index, member in enumerate(players)
        ]
        return average_outputs_with_past_models(
            answers, [self.network(w, inputs) for w in past_players.unbind(1)]
        )

    @torch.no_grad()
    def _compute_score_of_player_average(
        self, players: list[Tensor], batch: Batch, past_players: Tensor
    ) -> Tensor:
        """Return the mean score of the average on a batch, [replica]."""
        outputs = self._average_outputs_of_players(
            players, past_players, batch.x
        ).unsqueeze(1)
        return compute_mean_score_of_outputs(self.likelihood, outputs, batch)
