"""Variational IRM games: each environment's player is a posterior distribution.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023, equations
(VIRMG) and, on a sequence, (CVIRMG). In each step the environments move one after
another. Each takes one gradient step with its own posterior, on the expected risk of
the average of networks drawn from all posteriors, plus the KL divergence from a prior.
With a fixed representation a player is a whole network, as in the paper's experiments.
With a variable one it is a head on a representation that has a posterior, too, and
moves after the players, on the mean of the expected risks. On a sequence the prior of
a player is its last posterior, and the players of the last stage take part as one more
that does not move; one environment at a time gives the paper's (w + w_past) / 2.
Nothing is kept of earlier stages. Before any data the prior is normal around zero.

The preset "paper" has the objective as printed: the risk is a mean over the examples,
and the KL stays whole, although Bayes' rule divides it by their number. So all three
methods of the paper stop using the colour. The paper ends the game between networks
(IRMG) at an accuracy of 0.6 and does not say whether it ends this one, too; the preset
does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage, count_examples
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
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps
from cirm.variational import (
    DiagonalGaussian,
    KLScale,
    check_variational_settings,
    compute_gaussian_kl,
    compute_kl_weight,
    create_diagonal_gaussian,
    flatten_gaussian_to_vector,
    restore_gaussian_from_vector,
)


class VIRMGState(NamedTuple):
    """The players of the last stage and of the one before; a new state has only `past`.

    Players are posteriors of networks [replica, player, p] or, with a shared
    representation [replica, q], of heads [replica, player, p - q].
    """

    players: DiagonalGaussian
    past: DiagonalGaussian
    representation: DiagonalGaussian


class PlayerSettings(NamedTuple):
    """The name of a mover in records, its start, its prior and the weight of its KL."""

    name: str
    start: DiagonalGaussian
    prior: DiagonalGaussian
    weight: float


@dataclass(frozen=True)
class VIRMG(Learner[VIRMGState]):
    """Players that move in turn, each with the KL divergence from its prior.

    Args:
        representation: Whether a player is a whole network ("fixed") or a head on a
            shared representation ("variable").
        beta: Weight of the KL divergence from the prior.
        kl_scale: Whether the KL divergence is divided by the number of examples
            ("per-example") or not ("sum").
        samples: Number of networks drawn from the posterior in each training step.
        evaluations: Number of networks drawn for a prediction.
        prior_std: Standard deviation of the first prior.
        initial_std: Standard deviation at which training starts.
        warm_start: Number of steps of a stage before a game may end.
        stop_accuracy: A replica's game ends once the accuracy of a prediction on a
            batch is below this; None to never stop. Regression has no accuracy and
            never stops.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(VIRMG(samples=2)).shape
        torch.Size([1, 20, 2])
    """

    representation: Literal["fixed", "variable"] = "fixed"
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 5
    evaluations: int = 20
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)
    warm_start: int = 300
    stop_accuracy: float | None = None

    weighs_examples = True
    revision = 1
    presets = {
        "paper": {
            "beta": 1.0,
            "kl_scale": "sum",
            "samples": 5,
            "evaluations": 5,
            "rate": 1e-3,
            "decay": 0.00125,
        },
    }

    def __post_init__(self) -> None:
        check_variational_settings("virmg", self)
        check_game_settings(self)

    def init(self, randomness: Randomness) -> VIRMGState:
        """Return a random network with which the first player starts."""
        means = self.network.init(randomness.at("params")).to(self.descent.device)
        start = create_diagonal_gaussian(
            means[:, None, self._first_head_index :], self.initial_std
        )
        body = create_diagonal_gaussian(
            means[:, : self._first_head_index], self.initial_std
        )
        return VIRMGState(
            DiagonalGaussian(*(part[:, :0] for part in start)), start, body
        )

    @property
    def _first_head_index(self) -> int:
        """Index of the first of the network's parameters that belongs to a player."""
        return self.network.head.start if self.representation == "variable" else 0

    def observe(
        self,
        state: VIRMGState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> VIRMGState:
        """Play with the environments of the stage, near the last posteriors."""
        state = move_tensors_to_device(state, self.descent.device)
        seats = self._build_settings_of_players(state, stage, randomness)
        movers = [flatten_gaussian_to_vector(seat.start) for seat in seats]
        past = split_player_posteriors(state.players)
        loss = partial(self.compute_loss, past_players=past, settings_of_players=seats)
        rule = choose_stop_rule_of_game(
            self.likelihood, self.warm_start, self.stop_accuracy
        )
        score = partial(
            self._compute_score_of_drawn_average,
            past_players=past,
            n_players=len(stage),
        )
        game = PlayerTrainingSettings(
            self.descent,
            loss,
            rule,
            score if rule.accuracy is not None else None,
            self.likelihood.metric,
        )
        game.train_players_in_turn(movers, stage, randomness, watch)
        players = restore_gaussian_from_vector(torch.stack(movers[: len(stage)], 1))
        body = (
            restore_gaussian_from_vector(movers[-1])
            if self._first_head_index
            else state.representation
        )
        return VIRMGState(players, state.players, body)

    def outputs(self, state: VIRMGState, inputs: Tensor) -> Tensor:
        """Return outputs [replica, sample, n, k] of averages of drawn networks."""
        return self._predict_with_players(
            split_player_posteriors(state.players),
            split_player_posteriors(state.past),
            state.representation,
            inputs,
        )

    def compute_loss(
        self,
        mover_index: int,
        trained_params: list[Tensor],
        batch: Batch,
        past_players: list[DiagonalGaussian],
        settings_of_players: list[PlayerSettings],
    ) -> Terms:
        """Return the expected risk in the mover's environment, and its KL.

        For the representation it is the mean over the environments.
        """
        alone = mover_index < len(batch.sizes)
        x, y = (
            batch.split_by_environment()[mover_index] if alone else (batch.x, batch.y)
        )
        posteriors = [restore_gaussian_from_vector(mover) for mover in trained_params]
        outputs = self._average_outputs_of_players(
            posteriors[: len(batch.sizes)],
            past_players,
            posteriors[-1],
            lambda q, _: self.network.sample_outputs(q, x, batch.noise, self.samples),
        )
        losses = self.likelihood.compute_losses(outputs, y).mean(1)
        if alone:
            risk = batch.average_losses_of_environment(losses, mover_index)
        else:
            risk = average_values_by_environment(losses, batch.share).mean(-1)
        name, _, prior, weight = settings_of_players[mover_index]
        return {
            f"risk {name}": risk,
            f"kl {name}": weight * compute_gaussian_kl(posteriors[mover_index], prior),
        }

    def _build_settings_of_players(
        self, state: VIRMGState, stage: Stage, randomness: Randomness
    ) -> list[PlayerSettings]:
        """Return a seat for each environment, and for a shared representation."""
        lasts, seats = split_player_posteriors(state.players), []
        starts = lasts or split_player_posteriors(state.past)
        for index, environment in enumerate(stage):
            if index < len(starts):
                start = starts[index]
            else:
                params = self.network.init(randomness.at("player", index))
                means = params[:, self._first_head_index :].to(self.descent.device)
                start = create_diagonal_gaussian(means, self.initial_std)
            prior = start if index < len(lasts) else self._create_player_prior(start)
            weight = self._compute_kl_weight_of_player(environment.total_weight)
            seats.append(PlayerSettings(environment.name, start, prior, weight))
        if self._first_head_index:
            start = state.representation
            prior = start if lasts else self._create_player_prior(start)
            weight = self._compute_kl_weight_of_player(count_examples(stage))
            seats.append(PlayerSettings("representation", start, prior, weight))
        return seats

    def _create_player_prior(
        self, initial_posterior: DiagonalGaussian
    ) -> DiagonalGaussian:
        return create_diagonal_gaussian(
            initial_posterior.mean, self.prior_std, is_centred_at_zero=True
        )

    def _compute_kl_weight_of_player(self, n_examples: float) -> float:
        return self.beta * compute_kl_weight(self.kl_scale, n_examples)

    def _predict_with_players(
        self,
        players: list[DiagonalGaussian],
        past_players: list[DiagonalGaussian],
        body: DiagonalGaussian,
        inputs: Tensor,
    ) -> Tensor:
        """Return outputs [replica, sample, n, k]; each player has draws of its own."""
        return self._average_outputs_of_players(
            players,
            past_players,
            body,
            lambda q, player: self.network.sample_outputs_with_fixed_noise(
                q, inputs, self.evaluations, player
            ),
        )

    @torch.no_grad()
    def _compute_score_of_drawn_average(
        self,
        trained_params: list[Tensor],
        batch: Batch,
        past_players: list[DiagonalGaussian],
        n_players: int,
    ) -> Tensor:
        """Return the mean score of a prediction for a batch, [replica]."""
        posteriors = [restore_gaussian_from_vector(mover) for mover in trained_params]
        outputs = self._predict_with_players(
            posteriors[:n_players], past_players, posteriors[-1], batch.x
        )
        return compute_mean_score_of_outputs(self.likelihood, outputs, batch)

    def _average_outputs_of_players(
        self,
        players: list[DiagonalGaussian],
        past_players: list[DiagonalGaussian],
        body: DiagonalGaussian,
        sample: Callable[[DiagonalGaussian, int], Tensor],
    ) -> Tensor:
        """Return outputs [replica, sample, n, k] of the average of players.

        `sample` gives those of one posterior, drawn independently for each number of a
        player. With a shared representation this is the output of the average head.
        """
        if self._first_head_index:
            head = average_player_posteriors(players, past_players)
            whole = (torch.cat(pair, -1) for pair in zip(body, head, strict=True))
            return sample(DiagonalGaussian(*whole), 0)
        answers = [sample(q, turn) for turn, q in enumerate([*players, *past_players])]
        return average_outputs_with_past_models(
            answers[: len(players)], answers[len(players) :]
        )


def split_player_posteriors(q: DiagonalGaussian) -> list[DiagonalGaussian]:
    """Split [replica, player, p] into the posterior [replica, p] of each player."""
    return [
        restore_gaussian_from_vector(flat)
        for flat in flatten_gaussian_to_vector(q).unbind(1)
    ]


def average_player_posteriors(
    players: list[DiagonalGaussian], past_players: list[DiagonalGaussian]
) -> DiagonalGaussian:
    """Return the mean of independent draws from the players and the past.

    The past counts as one more player.
    """
    if past_players:
        players = [*players, average_player_posteriors(past_players, [])]
    variance = torch.stack([(2 * q.log_std).exp() for q in players]).mean(0)
    spread = (variance / len(players)).log() / 2
    return DiagonalGaussian(torch.stack([q.mean for q in players]).mean(0), spread)
