"""IB-IRM: the penalty of IRMv1 together with an information bottleneck.

Ahuja et al., "Invariance Principle Meets Information Bottleneck for Out-of-Distribution
Generalization", 2021, equation 7 with IRMv1 (Arjovsky et al., 2019) for the constraint.
The entropy of the features is bounded by their variance, which is added to the loss:
here the mean over features and environments. Without the penalty of IRMv1 it is the
paper's IB-ERM. As in `irmv1` both penalties are annealed, and the loss is divided by a
weight above one.

On a sequence some examples of each past environment are kept, and take part as one
more environment.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cirm.learners.base import ORIGINAL, Learner
from cirm.learners.rehearsal import (
    ParametersAndMemoryState,
    build_batch_with_past_environments,
    init_parameters_and_memory_state,
    train_and_update_memory,
)
from cirm.objectives import (
    Batch,
    build_terms_of_penalised_loss,
    check_penalty_settings,
    compute_features_and_risk,
    compute_irm_penalties,
    get_annealed_penalty_weight,
)
from cirm.training import Terms


@dataclass(frozen=True)
class IBIRM(Learner[ParametersAndMemoryState]):
    """Mean risk, squared gradients of environments' risks, and variance of features.

    Args:
        penalty: Weight of the squared gradients.
        bottleneck: Weight of the variance of the features.
        anneal: Fraction of a stage's training after which both weights are as given;
            before, they are at most one.
        l2: Weight of the squared parameters.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(IBIRM(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 100.0
    bottleneck: float = 1.0
    anneal: float = 0.5
    l2: float = 0.0
    memory: int = 100

    presets = {  # IRM's settings; the defaults of "In Search of Lost Domain ..."
        "irm": {"penalty": 91257.18613115903, **ORIGINAL},
        "domainbed-small": {
            "penalty": 100.0,
            "bottleneck": 100.0,
            "anneal": 0.1,
            "batch": 64,
            "rate": 1e-3,
        },
    }

    init = init_parameters_and_memory_state
    observe = train_and_update_memory

    def __post_init__(self) -> None:
        check_penalty_settings("ib-irm", self.penalty, self.anneal, self.l2)
        self.check_setting("bottleneck", self.bottleneck >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 0, "0 or more")

    def compute_loss(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Terms:
        """Return the penalised risk of each replica."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        features, outputs, risk = compute_features_and_risk(
            self.network, self.likelihood, params, batch
        )
        slopes = compute_irm_penalties(self.likelihood, outputs, batch).mean(-1)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        terms = build_terms_of_penalised_loss(risk, slopes, weight, params, self.l2)
        if self.bottleneck:
            own = get_annealed_penalty_weight(
                self.bottleneck, self.anneal, batch.progress
            )
            spread = compute_feature_variance(features, batch.share)
            terms["bottleneck"] = own / max(1.0, weight) * spread
        return terms


def compute_feature_variance(features: Tensor, share: Tensor) -> Tensor:
    """Return the variance, averaged over features and environments, [replica]."""
    means = share @ features
    variances = share @ features.square() - means.square()
    return variances.mean((-2, -1))
