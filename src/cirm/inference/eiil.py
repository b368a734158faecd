"""Environment inference: the two groups on which a plain model is least invariant.

Creager, Jacobsen and Zemel, "Environment Inference for Invariant Learning", 2021,
equation (EI). A reference model is trained by plain risk minimisation on the whole
stage. Each example then gets a soft place in the first or second group, and the places
maximise the mean of the groups' squared slopes of the risk in a factor on the outputs,
each group's losses weighted by the places and averaged over all examples. The slope of
an example does not depend on its place, so that the gradient is written out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cirm.environments import Environment, Stage, check_compatible
from cirm.likelihoods import Likelihood, make_likelihood
from cirm.networks import MLP, Activation
from cirm.objectives import Batch, environment_risks, pool_risks
from cirm.randomness import Randomness
from cirm.training import Descent, Terms, Watch, ignore_steps

CHUNK = 4096  # examples that the reference model is asked about at once


@dataclass(frozen=True)
class EIIL:
    """Settings, and a function from a stage to the stage of inferred environments.

    `hidden`, `activation`, `outputs` (0: as many as the task has), `epochs`, `batch`,
    `reference_rate` and `l2`, the weight of the squared parameters, belong to the
    reference model; `steps` and `rate` to the inference. With no steps each example
    goes where the maximum has it: to one group if its slope is positive, else to the
    other. More than two groups are of no use: the others would be empty at the
    maximum.
    """

    hidden: tuple[int, ...] = (100, 100)
    activation: Activation = "elu"
    outputs: int = 0
    epochs: int = 100
    batch: int = 256
    reference_rate: float = 1e-3
    l2: float = 0.0
    steps: int = 10_000
    rate: float = 1e-3

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        name: {
            "hidden": (390, 390),
            "activation": "relu",
            "outputs": 1,
            "epochs": 501,
            "batch": 0,
            "reference_rate": 0.0004898536566546834,
            "l2": 0.00110794568,
        }
        for name in ("paper", "eiil")
    }

    def __post_init__(self) -> None:
        if self.steps < 0 or self.rate <= 0 or self.l2 < 0 or self.outputs < 0:
            raise ValueError(
                "eiil: rate must be positive, steps, l2 and outputs not negative; "
                f"got {self}"
            )
        self._descent()

    def _descent(self) -> Descent:
        return Descent(self.epochs, self.batch, self.reference_rate)

    def __call__(
        self, stage: Stage, randomness: Randomness, watch: Watch = ignore_steps
    ) -> Stage:
        """Two environments, "inferred 0" and "inferred 1", of the stage's examples.

        If one group is empty there is one environment, "inferred 0".
        """
        pool = pool_stage(stage)
        return split_groups(pool, self.second(pool, randomness, watch))

    def second(
        self, pool: Environment, randomness: Randomness, watch: Watch = ignore_steps
    ) -> Tensor:
        """Which examples of the pool are in the second group, [n].

        The groups of different seeds differ in size, so there is one replica at a time.
        """
        if len(randomness.seeds) != 1:
            raise ValueError(
                "eiil: environments are inferred for one seed at a time; "
                f"got {len(randomness.seeds)} seeds"
            )
        slopes = self.slopes(pool, randomness.at("reference"), watch)
        if not self.steps:
            return slopes > 0
        start = randomness.at("places").normal(len(pool))[0]
        return maximise_penalty(slopes, start, self.steps, self.rate) > 0

    def slopes(
        self, pool: Environment, randomness: Randomness, watch: Watch = ignore_steps
    ) -> Tensor:
        """Slope of each example's loss under a reference model trained here, [n]."""
        likelihood = make_likelihood(pool.task)
        outputs = self.outputs or max(1, len(pool.task.classes))
        inputs = torch.Size(pool.features).numel()
        network = MLP((inputs, *self.hidden, outputs), self.activation)
        params = self._descent().minimise(
            self._loss,
            network.init(randomness.at("params")),
            (network, likelihood),
            (pool,),
            randomness,
            watch,
        )
        rows = torch.arange(len(pool)).unsqueeze(0)
        slopes = []
        with torch.no_grad():
            for some in rows.split(CHUNK, 1):
                x, y = pool.take(some)
                slopes.append(likelihood.scale_gradients(network(params, x), y))
        return torch.cat(slopes, 1)[0]

    def _loss(
        self, params: Tensor, model: tuple[MLP, Likelihood], batch: Batch
    ) -> Terms:
        risk = pool_risks(environment_risks(*model, params, batch), batch)
        return {"risk": risk, "l2": self.l2 * params.square().sum(-1)}


def maximise_penalty(slopes: Tensor, logits: Tensor, steps: int, rate: float) -> Tensor:
    """Logits [n] of the second group after Adam's ascent of the mean penalty.

    With the chances q and the slopes s, the penalties are (mean q s)^2 and
    (mean (1 - q) s)^2; their mean has the gradient g q (1 - q) s / n, where g is the
    difference of the two means.
    """
    pull, whole = slopes / len(slopes), slopes.mean()
    logits = logits.clone()
    optimiser = torch.optim.Adam([logits], lr=rate, maximize=True, fused=True)
    for _ in range(steps):
        chances = logits.sigmoid()
        gap = 2 * chances.dot(pull) - whole
        logits.grad = chances.addcmul_(chances, chances, value=-1).mul_(pull).mul_(gap)
        optimiser.step()
    return logits


def split_groups(pool: Environment, second: Tensor) -> Stage:
    """The groups that are not empty, "inferred 0" and so on, by `second` [n]."""
    groups = [(second == side).nonzero().T for side in (False, True)]
    found = [rows for rows in groups if rows.numel()]
    return tuple(
        pool.subset(rows).rename(f"inferred {index}")
        for index, rows in enumerate(found)
    )


def pool_stage(stage: Stage) -> Environment:
    """The examples of all environments of a stage as one environment."""
    if len(stage) == 1:
        return stage[0]
    check_compatible(stage)
    targets = [e.targets if e.replicated else e.targets[None] for e in stage]
    name = " and ".join(environment.name for environment in stage)
    return Environment(
        name, PooledInputs(stage), torch.cat(targets, 1), stage[0].task, replicated=True
    )


@dataclass(frozen=True)
class PooledInputs:
    """Inputs of environments one after another, taken from them on request."""

    environments: Stage

    @property
    def shape(self) -> tuple[int, ...]:
        """[1, n, *features]."""
        total = sum(map(len, self.environments))
        return (1, total, *self.environments[0].features)

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [1, m, *features] of the rows [1, m]."""
        pieces, places, start = [], [], 0
        for environment in self.environments:
            inside = (rows >= start) & (rows < start + len(environment))
            pieces.append(environment.take(rows[inside][None] - start).x)
            places.append(inside[0].nonzero()[:, 0])
            start += len(environment)
        return torch.cat(pieces, 1)[:, torch.cat(places).argsort()]
