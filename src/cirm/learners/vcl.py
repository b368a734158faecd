"""Variational continual learning: the posterior of a stage is the prior of the next.

Nguyen, Li, Bui and Turner, "Variational Continual Learning", 2018, equation 4, with
the local reparametrisation of Swaroop, Nguyen, Bui and Turner, "Improving and
Understanding Variational Continual Learning", 2019. Departures: the parameters are the
logarithms of standard deviations instead of variances, and the first stage starts from
random means instead of those of a trained network. With `start="trained"` it starts
from the latter; with `mean_std=0.1` the random means are those of the authors' code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from cirm.environments import Stage, count_examples
from cirm.learners.base import Learner
from cirm.memory import move_tensors_to_device
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_expected_risks,
    compute_mean_risk,
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
    create_initial_posterior_of_stage,
    flatten_gaussian_to_vector,
    restore_gaussian_from_vector,
)


class VCLState(NamedTuple):
    """The posterior of the parameters, which is the prior before any data.

    `start` holds the means [replica, p] at which the first stage starts. Later stages
    start at the posterior, and it is empty, [replica, 0].
    """

    posterior: DiagonalGaussian
    start: Tensor


@dataclass(frozen=True)
class VCL(Learner[VCLState]):
    """Expected risk plus the KL divergence from the last posterior.

    Args:
        beta: Weight of the KL divergence from the prior.
        kl_scale: Whether the KL divergence is divided by the number of examples
            ("per-example") or not ("sum").
        samples: Number of networks drawn from the posterior in each training step.
        evaluations: Number of networks drawn for a prediction.
        prior_std: Standard deviation of the first prior.
        initial_std: Standard deviation at which training starts.
        restart: Start every stage from new random means instead of the last posterior.
        start: Whether the means of the first stage start at "random", or where training
            without a prior or uncertainty ends ("trained").
        mean_std: Standard deviation of random means; 0 for the network's own start.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(VCL(samples=2)).shape
        torch.Size([1, 20, 2])
    """

    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 10
    evaluations: int = 10
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)
    restart: bool = False
    start: Literal["random", "trained"] = "random"
    mean_std: float = 0.0

    weighs_examples = True
    presets = {"paper": {"rate": 5e-3, "dropout": 0.0}}

    def __post_init__(self) -> None:
        check_variational_settings("vcl", self)
        valid = self.start in ("random", "trained")
        self.check_setting("start", valid, "random or trained")
        self.check_setting("mean_std", self.mean_std >= 0, "0 or more")

    def init(self, randomness: Randomness) -> VCLState:
        """Return the prior, and random means to start from."""
        means = self._draw_initial_means(randomness.at("params"))
        return VCLState(
            create_diagonal_gaussian(means, self.prior_std, is_centred_at_zero=True),
            means,
        )

    def observe(
        self,
        state: VCLState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> VCLState:
        """Minimise the expected risk near the last posterior."""
        past = move_tensors_to_device(state, self.descent.device)
        if self.start == "trained" and past.start.shape[1]:
            past = past._replace(
                start=self._train_initial_means(past.start, stage, randomness)
            )
        start = create_initial_posterior_of_stage(
            past.start, past.posterior, self.initial_std
        )
        if self.restart:
            means = self._draw_initial_means(randomness.at("params"))
            start = create_diagonal_gaussian(means, self.initial_std)
        weight = self.beta * compute_kl_weight(self.kl_scale, count_examples(stage))
        loss = partial(self.compute_loss, kl_weight=weight)
        flat = self.descent.minimise(
            loss, flatten_gaussian_to_vector(start), past, stage, randomness, watch
        )
        return VCLState(
            restore_gaussian_from_vector(flat), flat.new_zeros(len(flat), 0)
        )

    def outputs(self, state: VCLState, inputs: Tensor) -> Tensor:
        """Return outputs [replica, sample, n, k] of networks from the posterior."""
        return self.network.sample_outputs_with_fixed_noise(
            state.posterior, inputs, self.evaluations
        )

    def compute_loss(
        self, params: Tensor, past: VCLState, batch: Batch, kl_weight: float
    ) -> Terms:
        """Return the expected risk and `kl_weight` times the KL of each replica."""
        q = restore_gaussian_from_vector(params)
        risks = compute_expected_risks(
            self.network, self.likelihood, q, batch, self.samples
        )
        return {
            "risk": average_risks_over_examples(risks, batch),
            "kl": kl_weight * compute_gaussian_kl(q, past.posterior),
        }

    def _draw_initial_means(self, randomness: Randomness) -> Tensor:
        """Return random means, [replica, p]."""
        if self.mean_std:
            return self.mean_std * randomness.normal(self.network.size)
        return self.network.init(randomness)

    def _train_initial_means(
        self, means: Tensor, stage: Stage, randomness: Randomness
    ) -> Tensor:
        """Return the parameters at which minimising the plain risk ends."""
        return self.descent.minimise(
            self._compute_loss_without_kl, means, None, stage, randomness.at("trained")
        )

    def _compute_loss_without_kl(
        self, params: Tensor, past: None, batch: Batch
    ) -> Terms:
        return {"risk": compute_mean_risk(self.network, self.likelihood, params, batch)}
