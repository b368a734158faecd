"""Bilevel variational IRM: environments agree on a posterior with stationary risks.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023, definition
BVIRM and algorithm 1 with equation bvirm_admm; on a sequence algorithm 2, which makes
it C-BVIRM: the prior is the last posterior, and the past takes part in the consensus.
See `cirm.admm` for the rounds. Here w consists of means and log standard deviations;
both are agreed on and both are constrained. Departures: before any data nothing takes
part in the consensus, unless `past_at_zero` is set (algorithm 2 starts from a past at
zero), and the features move after a batch's rounds instead of before.

The preset "paper" has the objective as printed: the risk is a mean over the examples,
and the KL stays whole, although Bayes' rule divides it by their number. What the paper
leaves open is chosen to come near its table 1: half of the hidden units are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.admm import ADMM, ADMMBatchObjectives, Growth, split_batch_by_environment
from cirm.environments import Stage, count_examples
from cirm.learners.base import Learner
from cirm.objectives import Batch, compute_expected_risks
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


class BVIRMState(NamedTuple):
    """The posterior of the parameters, and the past's part in the consensus.

    `start` holds the means [replica, p] at which the first stage starts; it is empty,
    [replica, 0], afterwards. `last` is the mean over the environments of the last stage
    of the means and log standard deviations of w, [replica, 1, 2q]; before, it is empty
    or zero.
    """

    posterior: DiagonalGaussian
    start: Tensor
    last: Tensor


@dataclass(frozen=True)
class BVIRM(Learner[BVIRMState]):
    """Least expected risk among posteriors of w that are stationary everywhere.

    Args:
        constraint: What w is: the last layer ("head"), on features that minimise the
            sum of the risks, or the whole "network".
        rho0: Weight of the consensus.
        rho1: Weight of the constraint on the gradients.
        growth: Increase of both weights after the threshold.
        growth_kind: Whether `growth` is added ("sum") or multiplied ("factor").
        threshold: Fraction of a stage's training after which the weights grow.
        rounds: Number of consensus rounds on each batch; with 0, each batch has one
            step and a round lasts `inner` epochs.
        inner: Number of steps (or epochs, with `rounds` 0) of a round.
        beta: Weight of the KL divergence from the prior.
        kl_scale: Whether the KL divergence is divided by the number of examples
            ("per-example") or not ("sum").
        samples: Number of networks drawn from the posterior in each training step.
        evaluations: Number of networks drawn for a prediction.
        prior_std: Standard deviation of the first prior.
        initial_std: Standard deviation at which training starts.
        past_at_zero: Whether means and log standard deviations of zero take part in the
            consensus of the first stage.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(BVIRM(inner=1, samples=2)).shape
        torch.Size([1, 20, 2])
    """

    constraint: Literal["head", "network"] = "head"
    rho0: float = 1.0
    rho1: float = 1.0
    growth: float = 0.0
    growth_kind: Growth = "sum"
    threshold: float = 0.5
    rounds: int = 0
    inner: int = 5
    beta: float = 1.0
    kl_scale: KLScale = "per-example"
    samples: int = 5
    evaluations: int = 20
    prior_std: float = 1.0
    initial_std: float = math.exp(-3)
    past_at_zero: bool = False

    weighs_examples = True
    revision = 1
    presets = {
        # The paper has dropout in each layer, but says how much for other methods only.
        "paper": {
            "constraint": "network",
            "rho0": 10.0,
            "rho1": 10.0,
            "growth": 100.0,
            "threshold": 0.5,
            "beta": 1.0,
            "kl_scale": "sum",
            "samples": 5,
            "evaluations": 5,
            "dropout": 0.5,
            "rate": 1e-3,
            "decay": 0.00125,
        },
    }

    def __post_init__(self) -> None:
        check_variational_settings("bvirm", self)
        valid = self.constraint in ("head", "network")
        self.check_setting("constraint", valid, "head or network")
        self.admm.check_settings("bvirm")

    @property
    def admm(self) -> ADMM:
        """The weights and lengths of the consensus rounds."""
        lengths = self.threshold, self.rounds, self.inner
        return ADMM(self.rho0, self.rho1, self.growth, self.growth_kind, *lengths)

    @property
    def _first_head_index(self) -> int:
        """Index of the first parameter that belongs to w."""
        return self.network.head.start if self.constraint == "head" else 0

    def init(self, randomness: Randomness) -> BVIRMState:
        """Return the prior, and random means to start from."""
        means = self.network.init(randomness.at("params")).to(self.descent.device)
        posterior = create_diagonal_gaussian(
            means, self.prior_std, is_centred_at_zero=True
        )
        w_size = 2 * (self.network.size - self._first_head_index)
        past = means.new_zeros(len(means), int(self.past_at_zero), w_size)
        return BVIRMState(posterior, means, past)

    def observe(
        self,
        state: BVIRMState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> BVIRMState:
        """Find the posterior that the stage's environments and the past agree on."""
        view = self.create_batch_objectives_function(
            self.get_prior_parameters(state), count_examples(stage)
        )
        features, shared = self.get_initial_parameters_of_stage(state)
        features, carry = self.admm.solve(
            view, features, shared, state.last, self.descent, stage, randomness, watch
        )
        return self.build_state_after_stage(features, carry.shared, carry.local)

    def get_initial_parameters_of_stage(
        self, state: BVIRMState
    ) -> tuple[Tensor, Tensor]:
        """Return start values of features [replica, 2f] and w [replica, 2q]."""
        start = create_initial_posterior_of_stage(
            state.start, state.posterior, self.initial_std
        )
        features, shared = map(
            flatten_gaussian_to_vector, self.split_posterior_at_head(start)
        )
        return features, shared

    def get_prior_parameters(self, state: BVIRMState) -> Tensor:
        """Return what environments need to know: the posterior, [replica, 2p]."""
        return flatten_gaussian_to_vector(state.posterior)

    def create_batch_objectives_function(
        self, prior: Tensor, n_examples: float
    ) -> Callable[[Tensor, Batch], ADMMBatchObjectives]:
        """Return the function from features and a batch to the view of `ADMM.solve`."""
        kl_weight = self.beta * compute_kl_weight(self.kl_scale, n_examples)
        return partial(
            self.compute_posterior_objectives,
            prior=self.split_posterior_at_head(restore_gaussian_from_vector(prior)),
            kl_weight=kl_weight,
        )

    def build_state_after_stage(
        self, feature_params: Tensor, shared_params: Tensor, local_params: Tensor
    ) -> BVIRMState:
        """Return the state after a stage; `local_params` are those of environments."""
        posterior = join_feature_and_head_posteriors(
            restore_gaussian_from_vector(feature_params),
            restore_gaussian_from_vector(shared_params),
        )
        return BVIRMState(
            posterior, posterior.mean[:, :0], local_params.mean(1, keepdim=True)
        )

    def outputs(self, state: BVIRMState, inputs: Tensor) -> Tensor:
        """Return outputs [replica, sample, n, k] of networks from the posterior."""
        return self.network.sample_outputs_with_fixed_noise(
            state.posterior, inputs, self.evaluations
        )

    def compute_posterior_objectives(
        self,
        feature_params: Tensor,
        batch: Batch,
        prior: tuple[DiagonalGaussian, DiagonalGaussian],
        kl_weight: float,
    ) -> ADMMBatchObjectives:
        """Return expected risks and KLs of posteriors, and their gradients."""
        each, count = split_batch_by_environment(batch), len(batch.sizes)
        fixed = restore_gaussian_from_vector(
            feature_params.detach().repeat_interleave(count, 0)
        )
        expected = DiagonalGaussian(
            *(part.repeat_interleave(count, 0) for part in prior[1])
        )

        def compute_gradients_of_posteriors(
            local_params: Tensor,
        ) -> tuple[Terms, Tensor]:
            w = restore_gaussian_from_vector(local_params.flatten(0, 1))
            risks = self.compute_expected_environment_risks(
                join_feature_and_head_posteriors(fixed, w), each
            )[:, 0]
            terms = {"risk": risks, "kl": kl_weight * compute_gaussian_kl(w, expected)}
            objective = (terms["risk"] + terms["kl"]).sum()
            (gradients,) = torch.autograd.grad(
                objective, local_params, create_graph=True
            )
            return {
                n: t.view(local_params.shape[:2]) for n, t in terms.items()
            }, gradients

        def compute_feature_loss(shared_params: Tensor) -> Tensor:
            moving = restore_gaussian_from_vector(feature_params)
            risks = self.compute_expected_environment_risks(
                join_feature_and_head_posteriors(
                    moving, restore_gaussian_from_vector(shared_params)
                ),
                batch,
            )
            return (
                risks + kl_weight * compute_gaussian_kl(moving, prior[0]).unsqueeze(-1)
            ).sum(-1)

        return ADMMBatchObjectives(
            compute_gradients_of_posteriors, compute_feature_loss
        )

    def compute_expected_environment_risks(
        self, q: DiagonalGaussian, batch: Batch
    ) -> Tensor:
        """Return the expected risk of each environment, [replica, e]."""
        return compute_expected_risks(
            self.network, self.likelihood, q, batch, self.samples
        )

    def split_posterior_at_head(
        self, q: DiagonalGaussian
    ) -> tuple[DiagonalGaussian, DiagonalGaussian]:
        """Return the posteriors of the features and of w."""
        pieces = [part.tensor_split((self._first_head_index,), 1) for part in q]
        features, w = (DiagonalGaussian(*part) for part in zip(*pieces, strict=True))
        return features, w


def join_feature_and_head_posteriors(
    features: DiagonalGaussian, w: DiagonalGaussian
) -> DiagonalGaussian:
    """Return one posterior of all parameters."""
    if not features.mean.shape[1]:
        return w
    mean, log_std = (torch.cat(part, 1) for part in zip(features, w, strict=True))
    return DiagonalGaussian(mean, log_std)
