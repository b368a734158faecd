"""Quantile risk minimisation: minimise a quantile of the risk over environments.

Eastwood et al., "Probable Domain Generalization via Quantile Risk Minimization", 2022,
algorithm 1 (EQRM). The distribution of the risk over environments is estimated by a sum
of normal kernels around the observed risks, with the bandwidth of the Gauss-optimal
rule, and its quantile is minimised after a part of plain training. High quantiles give
the mean plus a multiple of the spread, as in V-REx. The gradient of the quantile
follows from the equation that defines it. Departure: the authors lower the learning
rate after the plain part.

On a sequence some examples of each past environment are kept, and take part as one
more environment. With a single environment the quantile is its risk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cirm.learners.base import Learner
from cirm.learners.rehearsal import (
    ParametersAndMemoryState,
    build_batch_with_past_environments,
    init_parameters_and_memory_state,
    train_and_update_memory,
)
from cirm.objectives import Batch, compute_environment_risks
from cirm.training import Terms

BISECTIONS = 40  # halvings of the interval: 1e-12 of its length


@dataclass(frozen=True)
class EQRM(Learner[ParametersAndMemoryState]):
    """A quantile of the risk over environments, after a part of plain training.

    Args:
        tail: The quantile is that of level 1 - exp(-tail), so that levels very near
            one can be given: 1.386 is the 75 % quantile, 1000 nearly the supremum.
        anneal: Fraction of a stage's training in which the mean risk is minimised.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(EQRM(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    tail: float = -math.log(0.25)
    anneal: float = 0.5
    memory: int = 100

    presets = {  # the authors', on coloured digits
        "colored": {
            "tail": 1000.0,
            "anneal": 2 / 3,
            "hidden": (390, 390),
            "activation": "relu",
            "dropout": 0.2,
            "outputs": 1,
            "epochs": 600,
            "batch": 0,
            "rate": 1e-4,
        },
        "domainbed": {"tail": -math.log(0.25), "anneal": 0.5, "batch": 32},
    }

    init = init_parameters_and_memory_state
    observe = train_and_update_memory

    def __post_init__(self) -> None:
        self.check_setting("tail", 0 < self.tail < math.inf, "above 0")
        self.check_setting("anneal", 0 <= self.anneal <= 1, "from 0 to 1")
        self.check_setting("memory", self.memory >= 0, "0 or more")

    def compute_loss(
        self, params: Tensor, past: ParametersAndMemoryState, batch: Batch
    ) -> Terms:
        """Return the mean risk or the quantile of each replica."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        if batch.progress < self.anneal or risks.shape[1] == 1:
            return {"risk": risks.mean(-1)}
        return {"quantile": compute_risk_quantile(risks, self.tail)}


def compute_risk_quantile(risks: Tensor, tail: float) -> Tensor:
    """Return the quantile of level 1 - exp(-tail) of risks [replica, e], [replica].

    It is found by bisection; one more step of Newton's method, in which only the
    residual is differentiated, gives it the right gradient.
    """
    values = risks.double()
    count = values.shape[1]
    spread = values.std(-1, keepdim=True).clamp(min=1e-12)
    bandwidth = 1.06 * spread * count**-0.2  # the Gauss-optimal rule
    reach = math.sqrt(2 * tail) + 10
    low = (values.amin(-1, keepdim=True) - 10 * bandwidth).detach()
    high = (values.amax(-1, keepdim=True) + reach * bandwidth).detach()
    with torch.no_grad():
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = (
                compute_log_probability_of_higher_risk(middle, values, bandwidth)
                > -tail
            )
            low, high = (
                torch.where(above, middle, low),
                torch.where(above, high, middle),
            )
    point = ((low + high) / 2).requires_grad_()
    rest = compute_log_probability_of_higher_risk(point, values, bandwidth) + tail
    (slope,) = torch.autograd.grad(rest.sum(), point, retain_graph=True)
    fixed = (
        compute_log_probability_of_higher_risk(point.detach(), values, bandwidth) + tail
    )
    return (point.detach() - fixed / slope).squeeze(-1).to(risks.dtype)


def compute_log_probability_of_higher_risk(
    risk: Tensor, risks: Tensor, bandwidth: Tensor
) -> Tensor:
    """Return the log probability of a risk above `risk`, all [replica, ...]."""
    logs = torch.special.log_ndtr((risks - risk) / bandwidth)
    return logs.logsumexp(-1, keepdim=True) - math.log(risks.shape[1])
