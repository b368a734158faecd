"""Variational continual learning with a coreset that is kept for prediction.

Nguyen, Li, Bui and Turner, "Variational Continual Learning", 2018, algorithm 1. Some
examples of every environment, the coreset, are kept out of training. Before a
prediction the posterior is trained on all of them, and the result is used for
prediction only. Departure: as in `vcl`, the first stage starts from random means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Environment, Examples, Stage
from cirm.learners.base import Learner
from cirm.memory import (
    concatenate_examples,
    create_empty_examples,
    draw_rows_without_replacement,
    list_rows_that_were_not_chosen,
    move_tensors_to_device,
    select_rows_by_k_center,
)
from cirm.objectives import Batch, average_risks_over_examples, compute_expected_risks
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps
from cirm.variational import (
    DiagonalGaussian,
    KLScale,
    check_variational_settings,
    compute_gaussian_kl,
    compute_kl_weight,
    create_diagonal_gaussian,
    create_initial_posterior_of_stage,
    flatten_gaussian_to_vector,
    restore_gaussian_from_vector,
)


class VCLCState(NamedTuple):
    """The posterior of the parameters, for the next stage and for prediction.

    `posterior` is the prior before any data. `predictive` was also trained on the
    `coreset`. `start` holds the means [replica, p] at which the first stage starts; it
    is empty, [replica, 0], afterwards.
    """

    posterior: DiagonalGaussian
    start: Tensor
    predictive: DiagonalGaussian
    coreset: Examples


@dataclass(frozen=True)
class VCLC(Learner[VCLCState]):
    """VCL that keeps some examples of each environment for prediction.

    Args:
        coreset: Number of examples of each environment that are kept, at most half.
        select: Whether they are drawn at "random" or chosen by "k-center" to cover the
            inputs.
        beta: Weight of the KL divergence from the prior.
        kl_scale: Whether the KL divergence is divided by the number of examples
            ("per-example") or not ("sum").
        samples: Number of networks drawn from the posterior in each training step.
        evaluations: Number of networks drawn for a prediction.
        prior_std: Standard deviation of the first prior.
        initial_std: Standard deviation at which training starts.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(VCLC(coreset=5, samples=2)).shape
        torch.Size([1, 20, 2])
    """

    coreset: int = 100
    select: Literal["random", "k-center"] = "random"
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 10
    evaluations: int = 10
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)

    presets = {"paper": {"coreset": 100, "rate": 5e-3, "dropout": 0.0}}

    def __post_init__(self) -> None:
        check_variational_settings("vclc", self)
        self.check_setting("coreset", self.coreset >= 0, "0 or more")
        valid = self.select in ("random", "k-center")
        self.check_setting("select", valid, "random or k-center")

    def init(self, randomness: Randomness) -> VCLCState:
        """Return the prior, random means to start from, and an empty coreset."""
        means = self.network.init(randomness.at("params"))
        prior = create_diagonal_gaussian(means, self.prior_std, is_centred_at_zero=True)
        return VCLCState(prior, means, prior, create_empty_examples(len(means)))

    def observe(
        self,
        state: VCLCState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> VCLCState:
        """Train on the stage without its coreset, then a copy on the coreset."""
        rows = [
            self.select_coreset_examples(e, randomness.at("coreset", e.name))
            for e in stage
        ]
        pairs = list(zip(stage, rows, strict=True))
        rest = tuple(
            e.subset(list_rows_that_were_not_chosen(r, len(e))) for e, r in pairs
        )
        past = move_tensors_to_device(state, self.descent.device)
        start = create_initial_posterior_of_stage(
            past.start, past.posterior, self.initial_std
        )
        posterior = self.train_posterior_on_stage(
            start, past.posterior, rest, randomness, watch
        )
        kept = [state.coreset, *(e.take(r) for e, r in pairs)]
        predictive, coreset = posterior, state.coreset
        if any(piece.y.shape[1] for piece in kept):
            coreset = concatenate_examples(kept)
            last = Environment("coreset", *coreset, stage[0].task, replicated=True)
            source = randomness.at("predictive")
            predictive = self.train_posterior_on_stage(
                posterior, posterior, (last,), source
            )
        none = posterior.mean.new_zeros(len(posterior.mean), 0)
        return VCLCState(posterior, none, predictive, coreset)

    def select_coreset_examples(
        self, environment: Environment, randomness: Randomness
    ) -> Tensor:
        """Return the rows [replica, m] of the examples that are kept."""
        size = min(self.coreset, len(environment) // 2)
        if self.select == "random":
            return draw_rows_without_replacement(randomness, len(environment), size)
        return select_rows_by_k_center(
            environment.take_all(len(randomness.seeds)).x, size
        )

    def train_posterior_on_stage(
        self,
        initial_posterior: DiagonalGaussian,
        prior: DiagonalGaussian,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> DiagonalGaussian:
        """Return the posterior after training on a stage."""
        weight = self.beta * compute_kl_weight(self.kl_scale, sum(map(len, stage)))
        loss = partial(self.compute_loss, kl_weight=weight)
        flat = self.descent.minimise(
            loss,
            flatten_gaussian_to_vector(initial_posterior),
            prior,
            stage,
            randomness,
            watch,
        )
        return restore_gaussian_from_vector(flat)

    def outputs(self, state: VCLCState, inputs: Tensor) -> Tensor:
        """Return outputs [replica, sample, n, k] of networks trained on the coreset."""
        return self.network.sample_outputs_with_fixed_noise(
            state.predictive, inputs, self.evaluations
        )

    def compute_loss(
        self, params: Tensor, past: DiagonalGaussian, batch: Batch, kl_weight: float
    ) -> Terms:
        """Return the expected risk and `kl_weight` times the KL of each replica."""
        q = restore_gaussian_from_vector(params)
        risks = compute_expected_risks(
            self.network, self.likelihood, q, batch, self.samples
        )
        return {
            "risk": average_risks_over_examples(risks, batch),
            "kl": kl_weight * compute_gaussian_kl(q, past),
        }
