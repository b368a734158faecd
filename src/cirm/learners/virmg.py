"""The invariance game between beliefs: each environment's player is a posterior.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", equations (VIRMG)
and, on a sequence, (CVIRMG). In each step the environments move one after another, each
its own posterior, by one step down the expected risk of the average of networks drawn
from all posteriors, plus the KL from a prior. With a fixed representation a player is a
whole network, as in the paper's experiments; with a variable one it is a head on a
representation that has a posterior too and moves when the players have moved, down the
mean of the expected risks. On a sequence the prior of a player is the posterior that
player had, and the last stage's players take part as one more that stays: one
environment at a time gives the average (w + w_past) / 2 of the paper. Of stages before
the last nothing is kept. Before any data the prior is normal around zero.

The preset "paper" sums the KL over the weights and does not divide it by the number of
examples: the reading with which the paper's three methods leave the colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import move_to_device
from cirm.objectives import Batch, average_outputs, environment_means
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps
from cirm.variational import (
    Gaussian,
    KLScale,
    check_variational_settings,
    flatten_gaussian,
    kl,
    kl_factor,
    make_gaussian,
    unflatten_gaussian,
)


class State(NamedTuple):
    """The players, and those of the stage before; a new state has only a `past`.

    Both are beliefs about networks [replica, player, p], or, beside a representation
    [replica, q], about heads [replica, player, p - q].
    """

    players: Gaussian
    past: Gaussian
    representation: Gaussian


class Seat(NamedTuple):
    """A mover's name in the records, where it starts, its prior and its KL's weight."""

    name: str
    start: Gaussian
    prior: Gaussian
    weight: float


@dataclass(frozen=True)
class VIRMG(Learner[State]):
    """Players in turn, each with `beta` times the KL from its prior.

    `representation` says what a player is. The KL counts in full or, by `kl_scale`,
    per example of the player's environment. `samples` networks are drawn from each
    player in each step and `evaluations` for a prediction; `prior_std` and
    `initial_std` are the spreads of the first prior and where training starts.
    """

    representation: Literal["fixed", "variable"] = "fixed"
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 5
    evaluations: int = 20
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)

    presets = {
        "paper": {
            "beta": 1.0,
            "kl_scale": "sum",
            "samples": 5,
            "rate": 1e-3,
            "decay": 0.00125,
        },
    }

    def __post_init__(self) -> None:
        check_variational_settings("virmg", self)
        if self.representation not in ("fixed", "variable"):
            raise ValueError(
                "virmg: representation must be fixed or variable; "
                f"got {self.representation!r}"
            )

    def init(self, randomness: Randomness) -> State:
        """A random network that nobody has played."""
        means = self.network.init(randomness.at("params")).to(self.descent.device)
        start = make_gaussian(means[:, None, self._cut :], self.initial_std)
        body = make_gaussian(means[:, : self._cut], self.initial_std)
        return State(Gaussian(*(part[:, :0] for part in start)), start, body)

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
        """Play the stage's environments, near what was believed before."""
        state = move_to_device(state, self.descent.device)
        seats = self._make_seats(state, stage, randomness)
        movers = [flatten_gaussian(seat.start) for seat in seats]
        loss = partial(self.loss, past=split_players(state.players), seats=seats)
        steps = self.descent.count_steps(stage)
        for step, _, numbers in self.descent.take_turns(
            loss, movers, stage, randomness
        ):
            if step % steps == 0:
                watch(step, steps * self.descent.epochs, numbers)
        players = unflatten_gaussian(torch.stack(movers[: len(stage)], 1))
        body = unflatten_gaussian(movers[-1]) if self._cut else state.representation
        return State(players, state.players, body)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of averages of networks drawn from all, [replica, sample, n, k]."""
        return self._average_players(
            split_players(state.players),
            split_players(state.past),
            state.representation,
            lambda q: self.network.sample_predictions(q, inputs, self.evaluations),
        )

    def loss(
        self,
        turn: int,
        movers: list[Tensor],
        batch: Batch,
        past: list[Gaussian],
        seats: list[Seat],
    ) -> Terms:
        """Expected risk in the mover's environment, for the body the mean; and KL."""
        alone = turn < len(batch.sizes)
        x, y = batch.split()[turn] if alone else (batch.x, batch.y)
        beliefs = [unflatten_gaussian(mover) for mover in movers]
        outputs = self._average_players(
            beliefs[: len(batch.sizes)],
            past,
            beliefs[-1],
            lambda q: self.network.sample_outputs(q, x, batch.noise, self.samples),
        )
        losses = self.likelihood.losses(outputs, y).mean(1)
        if not alone:
            losses = environment_means(losses, batch.share)
        name, _, prior, weight = seats[turn]
        return {
            f"risk {name}": losses.mean(-1),
            f"kl {name}": weight * kl(beliefs[turn], prior),
        }

    def _make_seats(
        self, state: State, stage: Stage, randomness: Randomness
    ) -> list[Seat]:
        """A seat for each environment, and for the representation if it moves."""
        lasts, seats = split_players(state.players), []
        starts = lasts or split_players(state.past)
        for index, environment in enumerate(stage):
            if index < len(starts):
                start = starts[index]
            else:
                params = self.network.init(randomness.at("player", index))
                means = params[:, self._cut :].to(self.descent.device)
                start = make_gaussian(means, self.initial_std)
            prior = start if index < len(lasts) else self._make_prior(start)
            weight = self._get_kl_weight(len(environment))
            seats.append(Seat(environment.name, start, prior, weight))
        if self._cut:
            start = state.representation
            prior = start if lasts else self._make_prior(start)
            weight = self._get_kl_weight(sum(map(len, stage)))
            seats.append(Seat("representation", start, prior, weight))
        return seats

    def _make_prior(self, start: Gaussian) -> Gaussian:
        return make_gaussian(start.mean, self.prior_std, centred=True)

    def _get_kl_weight(self, examples: int) -> float:
        return self.beta * kl_factor(self.kl_scale, examples)

    def _average_players(
        self,
        players: list[Gaussian],
        past: list[Gaussian],
        body: Gaussian,
        ask: Callable[[Gaussian], Tensor],
    ) -> Tensor:
        """Outputs [replica, sample, n, k] of the average, each network being asked.

        On one representation that is the output of the average head.
        """
        if self._cut:
            head = average_players(players, past)
            whole = (torch.cat(pair, -1) for pair in zip(body, head, strict=True))
            return ask(Gaussian(*whole))
        # A prediction gives all the same draws; turned, they are independent.
        answers = [ask(q).roll(turn, 1) for turn, q in enumerate([*players, *past])]
        return average_outputs(answers[: len(players)], answers[len(players) :])


def split_players(q: Gaussian) -> list[Gaussian]:
    """Each player's belief, [replica, p], of [replica, player, p]."""
    return [unflatten_gaussian(flat) for flat in flatten_gaussian(q).unbind(1)]


def average_players(players: list[Gaussian], past: list[Gaussian]) -> Gaussian:
    """The mean of independent draws from the players and, as one more, the past."""
    if past:
        players = [*players, average_players(past, [])]
    variance = torch.stack([(2 * q.log_std).exp() for q in players]).mean(0)
    spread = (variance / len(players)).log() / 2
    return Gaussian(torch.stack([q.mean for q in players]).mean(0), spread)
