"""The invariance game: a player for each environment, and their average predicts.

Ahuja, Shanmugam, Varshney and Dhurandhar, "Invariant Risk Minimization Games", 2020,
in the form of equation (IRMG). In each step the environments move one after another,
each its own player, by one step down the risk that the average of all players' outputs
has on its examples. With a fixed representation (their F-game) a player is a whole
network; with a variable one (V-game) it is a head on a representation that moves when
the players have moved, down the mean risk. On a sequence the last stage's players take
part as one more player that stays, (w_1 + ... + w_E + w_past) / (E + 1), unless `past`
is off: then training just goes on. Of stages before the last nothing is kept. In the
F-game those who stay while another moves are asked as in prediction, without dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import move_to_device
from cirm.objectives import Batch, average_outputs, environment_means
from cirm.randomness import Draws, Randomness
from cirm.training import Terms, Watch, check_finite, ignore_steps


class State(NamedTuple):
    """The players, and those of the stage before; a new state has only a `past`.

    Both are networks [replica, player, p], or, beside a representation [replica, q],
    heads [replica, player, p - q].
    """

    players: Tensor
    past: Tensor
    representation: Tensor


@dataclass(frozen=True)
class IRMG(Learner[State]):
    """Players in turn; the game ends when their average has become bad enough.

    `representation` says what a player is, and `past` whether the last stage's take
    part. After `warm_start` steps of a stage a replica's game ends once the accuracy
    of the average on a batch is below `stop_accuracy` (None: never; values have none).
    The accuracy and the risk that each player met are recorded after every epoch.
    """

    representation: Literal["fixed", "variable"] = "fixed"
    past: bool = True
    warm_start: int = 300
    stop_accuracy: float | None = 0.6

    presets = {
        # On a sequence the paper trains as the data arrive: its figures are ERM's.
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
        if self.representation not in ("fixed", "variable"):
            raise ValueError(
                "irmg: representation must be fixed or variable; "
                f"got {self.representation!r}"
            )
        if self.warm_start < 0 or not 0 <= (self.stop_accuracy or 0) <= 1:
            raise ValueError(
                "irmg: warm_start must not be negative and stop_accuracy must be in "
                f"[0, 1]; got {self.warm_start} and {self.stop_accuracy}"
            )

    def init(self, randomness: Randomness) -> State:
        """A random network that nobody has played."""
        params = self.network.init(randomness.at("params"))
        start = params[:, None, self._cut :]
        return State(start[:, :0], start, params[:, : self._cut])

    @property
    def _cut(self) -> int:
        """Where a player's parameters begin among the network's."""
        return self.network.head.start if self.representation == "variable" else 0

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Play until the epochs are over or every replica's game has ended."""
        state = move_to_device(state, self.descent.device)
        past = state.players if self.past else state.players[:, :0]
        movers = self._make_movers(state, len(stage), randomness)
        names = [environment.name for environment in stage]
        loss = partial(self.loss, past=past, names=[*names, "representation"])
        steps = self.descent.count_steps(stage)
        kept, playing = movers, past.new_ones(len(past), dtype=torch.bool)
        for step, batch, numbers in self.descent.take_turns(
            loss, movers, stage, randomness
        ):
            for mover, stays in zip(movers, kept, strict=True):
                mover[~playing] = stays[~playing]
            whole, ruled = step % steps == 0, self._may_stop(step)
            if whole or ruled:
                score = self._score_average(movers, past, batch)
                if ruled:
                    check_finite(torch.cat(movers, -1), step)
                    playing = playing & (score >= 100 * (self.stop_accuracy or 0))
                    kept = [mover.clone() for mover in movers]
                if whole or not playing.any():
                    numbers[self.likelihood.metric] = score
                    numbers["playing"] = playing.float()
                    watch(step, steps * self.descent.epochs, numbers)
            if not playing.any():
                break
        players = torch.stack(movers[: len(stage)], 1)
        return State(players, past, movers[-1] if self._cut else players[:, 0, :0])

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Average outputs of the players, [replica, 1, n, k]."""
        members = [*state.players.unbind(1), *self._get_body(state)]
        return self._average_players(members, state.past, inputs).unsqueeze(1)

    def loss(
        self,
        turn: int,
        movers: list[Tensor],
        batch: Batch,
        past: Tensor,
        names: list[str],
    ) -> Terms:
        """Risk of the average in the mover's environment, or for the body the mean."""
        alone = turn < len(batch.sizes)
        x, y = batch.split()[turn] if alone else (batch.x, batch.y)
        losses = self.likelihood.losses(
            self._average_players(movers, past, x, batch.noise, turn), y
        )
        if not alone:
            losses = environment_means(losses, batch.share)
        return {f"risk {names[turn]}": losses.mean(-1)}

    def _make_movers(
        self, state: State, count: int, randomness: Randomness
    ) -> list[Tensor]:
        """So many players, the state's first, and then the body, if it moves."""
        known = state.players if state.players.shape[1] else state.past
        fresh = [
            self.network.init(randomness.at("player", index))[:, self._cut :]
            for index in range(known.shape[1], count)
        ]
        movers = [*known.unbind(1)[:count], *fresh, *self._get_body(state)]
        return [mover.to(self.descent.device, copy=True) for mover in movers]

    def _get_body(self, state: State) -> list[Tensor]:
        return [state.representation] if self._cut else []

    def _may_stop(self, step: int) -> bool:
        """Whether the game may end at this step."""
        accuracy = self.likelihood.metric == "accuracy"
        return accuracy and self.stop_accuracy is not None and step > self.warm_start

    def _average_players(
        self,
        members: list[Tensor],
        past: Tensor,
        inputs: Tensor,
        noise: Draws | None = None,
        turn: int = 0,
    ) -> Tensor:
        """Average outputs [replica, n, k]; with noise, as one learns whose turn it is.

        On one representation that is the output of the average head.
        """
        if self._cut:
            head = average_outputs(members[:-1], list(past.unbind(1)))
            params = torch.cat([members[-1], head], -1)
            if not head.requires_grad:
                return self.network(params, inputs, noise)
            # Only a head moves, so that nothing need flow back through the body.
            features = self.network.compute_features(params.detach(), inputs, noise)
            rows = head.unflatten(-1, (-1, self.network.outputs))
            return torch.baddbmm(rows[:, -1:], features, rows[:, :-1])
        answers = [
            self.network(member, inputs, noise if index == turn else None)
            for index, member in enumerate(members)
        ]
        return average_outputs(
            answers, [self.network(w, inputs) for w in past.unbind(1)]
        )

    @torch.no_grad()
    def _score_average(
        self, members: list[Tensor], past: Tensor, batch: Batch
    ) -> Tensor:
        """Mean score of the average on a batch, [replica]."""
        outputs = self._average_players(members, past, batch.x).unsqueeze(1)
        predictions = self.likelihood.predict(outputs)
        return self.likelihood.scores(predictions, batch.y).mean(-1)
