"""Elastic weight consolidation: the risk, and a pull towards what past stages need.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017,
equation 3. After a stage the mean squared gradient of single examples, the diagonal of
the Fisher information, says how firmly each parameter is held. It is estimated on
`memory` examples; they are not needed again, so no raw data is kept of the past. The
paper has one anchor and one Fisher information per past stage. Their quadratics add up
to a single one, whose curvature is the sum and whose centre is the weighted mean: it
is kept instead, which is the same (but for a constant) and does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import concatenate_examples, draw_examples, move_to_device
from cirm.objectives import Batch, environment_risks, pool_risks, quadratic_penalty
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_steps


class State(NamedTuple):
    """Parameters [replica, p]; anchor and Fisher information [replica, 0 or 1, p]."""

    params: Tensor
    anchor: Tensor
    fisher: Tensor


@dataclass(frozen=True)
class EWC(Learner[State]):
    """Mean risk plus a quadratic pull, `strength` / 2 times the Fisher information.

    `memory` is the number of a stage's examples that the Fisher information is
    estimated on. `fisher` takes their own labels or, for `model`, the exact mean over
    the labels that the model believes in. If `online`, all curvature is moved to the
    newest parameters; otherwise each stage's stays where that stage ended.
    """

    strength: float = 0.1
    memory: int = 100
    fisher: Literal["labels", "model"] = "labels"
    online: bool = False

    presets = {"paper": {"strength": 0.1, "memory": 100, "rate": 1e-3}}

    def __post_init__(self) -> None:
        if self.strength < 0 or self.memory < 1:
            raise ValueError(
                "ewc: strength must not be negative and memory must be one or more; "
                f"got {self.strength} and {self.memory}"
            )
        if self.fisher not in ("labels", "model"):
            raise ValueError(
                f"ewc: fisher must be labels or model; got {self.fisher!r}"
            )

    def init(self, randomness: Randomness) -> State:
        """Random parameters, held by nothing."""
        params = self.network.init(randomness.at("params"))
        free = params.new_zeros(len(params), 0, self.network.size)
        return State(params, free, free)

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_steps,
    ) -> State:
        """Minimise the risk within the pull of the past, then hold what it found."""
        past = move_to_device(state, self.descent.device)
        params = self.descent.minimise(
            self.loss, past.params, past, stage, randomness, watch
        )
        examples = self.draw_fisher_examples(stage, randomness.at("memory"))
        found = self.compute_fisher(params, examples).unsqueeze(1)
        fisher = torch.cat([past.fisher, found], 1).sum(1, keepdim=True)
        anchor = params.unsqueeze(1)
        if not self.online:
            # Where no stage has any curvature, no anchor counts.
            ratio = (found / fisher).nan_to_num(1.0)
            anchor = torch.cat([(1 - ratio) * past.anchor, ratio * anchor], 1).sum(
                1, keepdim=True
            )
        return State(params, anchor, fisher)

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Outputs of the network, [replica, 1, n, k]."""
        return self.network(state.params, inputs).unsqueeze(1)

    def loss(self, params: Tensor, past: State, batch: Batch) -> Terms:
        """Risk and pull of each replica."""
        risks = environment_risks(self.network, self.likelihood, params, batch)
        held = params.new_zeros(len(params))
        if past.anchor.shape[1]:
            held = quadratic_penalty(params, past.anchor[:, 0], past.fisher[:, 0])
        return {"risk": pool_risks(risks, batch), "penalty": self.strength * held}

    def draw_fisher_examples(self, stage: Stage, randomness: Randomness) -> Examples:
        """`memory` examples of a stage, evenly from its environments."""
        even, rest = divmod(self.memory, len(stage))
        drawn = concatenate_examples(
            draw_examples(e, even + (i < rest), randomness.at(e.name))
            for i, e in enumerate(stage)
        )
        return Examples(*move_to_device(drawn, self.descent.device))

    def compute_fisher(self, params: Tensor, examples: Examples) -> Tensor:
        """Mean squared gradient of single examples, [replica, p]."""
        params = params.detach().requires_grad_()
        total = torch.zeros_like(params)
        for x, y in zip(examples.x.split(1, 1), examples.y.split(1, 1), strict=True):
            outputs = self.network(params, x)
            for direction in self.factor_fisher(outputs.detach(), y).unbind(-1):
                (slope,) = torch.autograd.grad(
                    outputs, params, direction, retain_graph=True
                )
                total += slope.square()
        return total / examples.y.shape[1]

    def factor_fisher(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Vectors [replica, n, k, m] whose outer products add up to the information.

        In outputs [replica, n, k] it is the residual's outer product; its mean over
        targets drawn from the model is the second derivative of the loss.
        """
        residuals = self.likelihood.residuals
        if self.fisher == "labels":
            return residuals(outputs, targets).unsqueeze(-1)
        outputs.requires_grad_()
        found = residuals(outputs, targets)
        rows = [
            torch.autograd.grad(row.sum(), outputs, retain_graph=True)[0]
            for row in found.unbind(-1)
        ]
        values, vectors = torch.linalg.eigh(torch.stack(rows, -2))
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
