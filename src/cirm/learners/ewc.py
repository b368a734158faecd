"""Elastic weight consolidation: keep parameters near the values that past stages need.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017,
equation 3. After a stage, the diagonal of the Fisher information (the mean squared
gradient of single examples) says how strongly each parameter is held. It is estimated
on `memory` examples, which are not kept. Departure: the paper has one anchor and one
Fisher information per past stage. Their quadratic penalties add up to a single one,
whose curvature is the sum and whose centre is the weighted mean. That one is kept
instead, which is the same except for a constant and does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import PAPER_DROPOUT, Learner
from cirm.memory import (
    concatenate_examples,
    draw_examples_without_replacement,
    move_tensors_to_device,
)
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_environment_risks,
    compute_quadratic_penalty,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps


class EWCState(NamedTuple):
    """Parameters [replica, p]; anchor and Fisher information [replica, 0 or 1, p]."""

    params: Tensor
    anchor: Tensor
    fisher: Tensor


@dataclass(frozen=True)
class EWC(Learner[EWCState]):
    """Mean risk plus a quadratic penalty weighted by the Fisher information.

    Args:
        strength: Weight of the penalty.
        memory: Number of a stage's examples that the Fisher information is estimated
            on.
        fisher: Whether the gradients are those at the examples' own "labels", or the
            exact mean over the labels that the "model" predicts.
        online: Whether the penalty of all past stages is centred on the newest
            parameters; otherwise each stage's stays where that stage ended.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(EWC(strength=10.0)).shape
        torch.Size([1, 20, 2])
    """

    strength: float = 0.1
    memory: int = 100
    fisher: Literal["labels", "model"] = "labels"
    online: bool = False

    presets = {"paper": {"strength": 0.1, "memory": 100, "rate": 1e-3, **PAPER_DROPOUT}}

    def __post_init__(self) -> None:
        self.check_setting("strength", self.strength >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 1, "1 or more")
        valid = self.fisher in ("labels", "model")
        self.check_setting("fisher", valid, "labels or model")

    def init(self, randomness: Randomness) -> EWCState:
        """Return random parameters without a penalty."""
        params = self.network.init(randomness.at("params"))
        free = params.new_zeros(len(params), 0, self.network.size)
        return EWCState(params, free, free)

    def observe(
        self,
        state: EWCState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> EWCState:
        """Minimise the penalised risk, then add the stage to the penalty."""
        past = move_tensors_to_device(state, self.descent.device)
        params = self.descent.minimise(
            self.compute_loss, past.params, past, stage, randomness, watch
        )
        examples = self.draw_fisher_examples(stage, randomness.at("memory"))
        new = self.compute_fisher_information(params, examples).unsqueeze(1)
        fisher = torch.cat([past.fisher, new], 1).sum(1, keepdim=True)
        anchor = params.unsqueeze(1)
        if not self.online:
            # Where the curvature is zero everywhere, the anchor does not matter.
            ratio = (new / fisher).nan_to_num(1.0)
            anchor = torch.cat([(1 - ratio) * past.anchor, ratio * anchor], 1).sum(
                1, keepdim=True
            )
        return EWCState(params, anchor, fisher)

    def compute_loss(self, params: Tensor, past: EWCState, batch: Batch) -> Terms:
        """Return the risk and the penalty of each replica."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        penalty = params.new_zeros(len(params))
        if past.anchor.shape[1]:
            penalty = compute_quadratic_penalty(
                params, past.anchor[:, 0], past.fisher[:, 0]
            )
        return {
            "risk": average_risks_over_examples(risks, batch),
            "penalty": self.strength * penalty,
        }

    def draw_fisher_examples(self, stage: Stage, randomness: Randomness) -> Examples:
        """Draw `memory` examples of a stage, evenly from its environments."""
        even, rest = divmod(self.memory, len(stage))
        examples = concatenate_examples(
            draw_examples_without_replacement(
                e, even + (i < rest), randomness.at(e.name)
            )
            for i, e in enumerate(stage)
        )
        return Examples(*move_tensors_to_device(examples, self.descent.device))

    def compute_fisher_information(self, params: Tensor, examples: Examples) -> Tensor:
        """Return the mean squared gradient of single examples, [replica, p]."""
        params = params.detach().requires_grad_()
        total = torch.zeros_like(params)
        for x, y in zip(examples.x.split(1, 1), examples.y.split(1, 1), strict=True):
            outputs = self.network(params, x)
            for direction in self.compute_fisher_information_factors(
                outputs.detach(), y
            ).unbind(-1):
                (gradient,) = torch.autograd.grad(
                    outputs, params, direction, retain_graph=True
                )
                total += gradient.square()
        return total / examples.y.shape[1]

    def compute_fisher_information_factors(
        self, outputs: Tensor, targets: Tensor
    ) -> Tensor:
        """Return vectors [replica, n, k, m] whose outer products sum to the Fisher.

        With respect to outputs [replica, n, k] the Fisher information is the outer
        product of the residuals. Its mean over targets that the model predicts is the
        second derivative of the loss.
        """
        if self.fisher == "labels":
            return self.likelihood.compute_output_gradients(outputs, targets).unsqueeze(
                -1
            )
        outputs.requires_grad_()
        residuals = self.likelihood.compute_output_gradients(outputs, targets)
        rows = [
            torch.autograd.grad(row.sum(), outputs, retain_graph=True)[0]
            for row in residuals.unbind(-1)
        ]
        values, vectors = torch.linalg.eigh(torch.stack(rows, -2))
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
