"""Dark experience replay (DER++): replay examples, with the outputs they once had.

Buzzega, Boschini, Porrello, Abati and Calderara, "Dark Experience for General Continual
Learning: a Strong, Simple Baseline", 2020, algorithm 2 (DER++); with `beta` zero it is
algorithm 1 (DER). A reservoir keeps random examples of all that arrived, each with the
outputs of the network when it arrived. Two draws from it are replayed in each step: the
outputs of one are compared with the kept ones, the other is learned with its targets.
Examples are offered in every epoch, as in the paper; environments play no role.

Departure: the difference of outputs is averaged over the outputs as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import (
    concatenate_examples,
    create_empty_examples,
    draw_rows_kept_in_reservoir,
    select_examples_at_rows,
)
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    average_values_by_environment,
)
from cirm.randomness import RandomDraws, Randomness
from cirm.training import (
    Terms,
    Watch,
    create_gradient_function_of_loss,
    ignore_training_steps,
)


class ReplayReservoir(NamedTuple):
    """Examples, their outputs [replica, m, k], and the number of offers [replica]."""

    kept: Examples
    outputs: Tensor
    seen: Tensor


class DERState(NamedTuple):
    """Parameters [replica, p] and the reservoir."""

    params: Tensor
    memory: ReplayReservoir


@dataclass(frozen=True)
class DER(Learner[DERState]):
    """Risk of the stage and of replayed examples, and distance from kept outputs.

    Args:
        memory: Number of examples in the reservoir.
        replay: Number of examples in each of the two draws of a step.
        alpha: Weight of the squared difference from the kept outputs.
        beta: Weight of the risk of replayed examples.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(DER(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    memory: int = 200
    replay: int = 128
    alpha: float = 1.0
    beta: float = 0.5

    presets = {  # the authors', on rotated digits with 200 examples
        "rotated": {
            "memory": 200,
            "replay": 128,
            "alpha": 1.0,
            "beta": 0.5,
            "epochs": 1,
            "batch": 128,
            "rate": 0.1,
            "optimiser": "sgd",
            "activation": "relu",
        }
    }

    def __post_init__(self) -> None:
        self.check_setting("memory", self.memory >= 0, "0 or more")
        self.check_setting("replay", self.replay >= 1, "1 or more")
        self.check_setting("alpha", self.alpha >= 0, "0 or more")
        self.check_setting("beta", self.beta >= 0, "0 or more")

    def init(self, randomness: Randomness) -> DERState:
        """Return random parameters and an empty reservoir."""
        params = self.network.init(randomness.at("params"))
        seen = torch.zeros(len(params), dtype=torch.int64)
        outputs = torch.zeros(len(params), 0, self.network.outputs)
        kept = create_empty_examples(len(params))
        return DERState(params, ReplayReservoir(kept, outputs, seen))

    def observe(
        self,
        state: DERState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> DERState:
        """Minimise the risk with replay, and offer each minibatch to the reservoir."""
        memory = state.memory
        replay_draws, reservoir_draws = (
            randomness.at(name).start_draws() for name in ("replay", "reservoir")
        )

        def compute_gradient_with_replay(
            params: Tensor, past: None, batch: Batch
        ) -> tuple[Tensor, Terms]:
            nonlocal memory
            replays = [
                self.draw_replayed_examples(memory, replay_draws) for _ in range(2)
            ]
            found = create_gradient_function_of_loss(self.compute_loss)(
                params, replays, batch
            )
            if self.memory:
                with torch.no_grad():
                    outputs = self.network(params, batch.x)
                memory = self.add_batch_to_replay_reservoir(
                    memory, batch, outputs, reservoir_draws
                )
            return found

        params = self.descent.descend_along_gradient(
            compute_gradient_with_replay, state.params, None, stage, randomness, watch
        )
        return DERState(params, memory)

    def compute_loss(
        self, params: Tensor, past: list[ReplayReservoir], batch: Batch
    ) -> Terms:
        """Return the risk, and the terms of two replayed draws."""
        outputs = self.network(params, batch.x, batch.noise)
        losses = self.likelihood.compute_losses(outputs, batch.y)
        risks = average_values_by_environment(losses, batch.share)
        terms = {"risk": average_risks_over_examples(risks, batch)}
        dark, labelled = past
        if dark.kept.y.shape[1] and self.alpha:
            outputs = self.network(params, dark.kept.x.to(batch.x), batch.noise)
            gaps = (outputs - dark.outputs.to(outputs)).square().mean((-2, -1))
            terms["outputs"] = self.alpha * gaps
        if labelled.kept.y.shape[1] and self.beta:
            x, y = (part.to(batch.x.device) for part in labelled.kept)
            losses = self.likelihood.compute_losses(
                self.network(params, x, batch.noise), y
            )
            terms["replay"] = self.beta * losses.mean(-1)
        return terms

    def draw_replayed_examples(
        self, memory: ReplayReservoir, draws: RandomDraws
    ) -> ReplayReservoir:
        """Draw `replay` different examples, or all if there are fewer."""
        rows = draws.permutation(memory.kept.y.shape[1])[:, : self.replay]
        return (
            select_rows_of_replay_reservoir(memory, rows) if rows.shape[1] else memory
        )

    def add_batch_to_replay_reservoir(
        self, memory: ReplayReservoir, batch: Batch, outputs: Tensor, draws: RandomDraws
    ) -> ReplayReservoir:
        """Return the reservoir after the examples of a batch arrived."""
        arriving = Examples(batch.x.cpu(), batch.y.cpu())
        held, arrivals = memory.kept.y.shape[1], arriving.y.shape[1]
        rows = draw_rows_kept_in_reservoir(
            held, arrivals, memory.seen, self.memory, draws
        )
        whole = ReplayReservoir(
            concatenate_examples([memory.kept, arriving]),
            torch.cat([memory.outputs, outputs.cpu()], 1),
            memory.seen + arrivals,
        )
        return select_rows_of_replay_reservoir(whole, rows)


def select_rows_of_replay_reservoir(
    memory: ReplayReservoir, rows: Tensor
) -> ReplayReservoir:
    """Return the examples and outputs at rows [replica, m]."""
    places = rows.unsqueeze(-1).expand(-1, -1, memory.outputs.shape[-1])
    return ReplayReservoir(
        select_examples_at_rows(memory.kept, rows),
        memory.outputs.gather(1, places),
        memory.seen,
    )
