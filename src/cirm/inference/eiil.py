"""EIIL: find the two groups of examples on which plain training is least invariant.

Creager, Jacobsen and Zemel, "Environment Inference for Invariant Learning", 2021,
equation (EI). A reference model is trained by plain risk minimisation on the whole
stage. Each example then gets a soft assignment to the first or the second group. The
assignments maximise the mean squared derivative of the groups' risks with respect to a
scalar that multiplies the outputs; each group's losses are weighted by the assignments
and averaged over all examples. The derivative of an example's loss does not depend on
its assignment, so the gradient is written out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cirm.environments import Environment, Stage, check_environments_match
from cirm.likelihoods import Likelihood, choose_likelihood
from cirm.networks import MLP, Activation
from cirm.objectives import (
    Batch,
    average_risks_over_examples,
    compute_environment_risks,
)
from cirm.randomness import Randomness
from cirm.training import Descent, Terms, Watch, ignore_training_steps

CHUNK = 4096  # examples that the reference model evaluates at once


@dataclass(frozen=True)
class EIIL:
    """Splits the examples of a stage into two inferred environments.

    More than two groups would be of no use, since the others are empty at the maximum.

    Args:
        hidden: Widths of the reference model's hidden layers.
        activation: Activation function of the reference model.
        outputs: Number of outputs of the reference model; 0 for as many as the task
            needs.
        epochs: Number of epochs of the reference model.
        batch: Batch size of the reference model; 0 for all examples at once.
        reference_rate: Learning rate of the reference model.
        l2: Weight of the squared parameters of the reference model.
        steps: Number of steps that maximise the penalty. With 0 each example is put
            where the exact maximum has it, by the sign of its derivative.
        rate: Learning rate of these steps.

    Example:
        >>> import torch
        >>> from cirm import Environment, Randomness, Task
        >>> x, y = torch.randn(20, 2), torch.arange(20) % 2
        >>> stage = (Environment("a", x, y, Task.classification(2)),)
        >>> groups = EIIL(epochs=2, steps=5)(stage, Randomness((0,)))
        >>> sum(len(group) for group in groups)
        20
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
        for name in ("steps", "l2", "outputs", "rate"):
            value = getattr(self, name)
            if value < 0 or (name == "rate" and value == 0):
                allowed = "above 0" if name == "rate" else "0 or more"
                raise ValueError(
                    f"eiil: the setting {name} must be {allowed}, but is {value}. Pass "
                    "another value."
                )
        self._build_descent()

    def _build_descent(self) -> Descent:
        return Descent(self.epochs, self.batch, self.reference_rate)

    def __call__(
        self, stage: Stage, randomness: Randomness, watch: Watch = ignore_training_steps
    ) -> Stage:
        """Return the environments "inferred 0" and "inferred 1" of a stage's examples.

        If one group is empty, there is only "inferred 0".
        """
        pool = pool_environments(stage)
        return split_environment_by_group(
            pool, self.infer_groups(pool, randomness, watch)
        )

    def infer_groups(
        self,
        pooled_environment: Environment,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Tensor:
        """Return which examples of the pool are in the second group, [n].

        Groups of different seeds differ in size, so only one seed is possible.
        """
        if len(randomness.seeds) != 1:
            raise ValueError(
                "eiil: environments can be inferred for one seed at a time, but "
                f"{len(randomness.seeds)} seeds were given. Give a single seed, and "
                "repeat the call for each of the others."
            )
        slopes = self.compute_loss_derivatives(
            pooled_environment, randomness.at("reference"), watch
        )
        if not self.steps:
            return slopes > 0
        start = randomness.at("places").normal(len(pooled_environment))[0]
        return (
            find_groups_of_highest_irm_penalty(slopes, start, self.steps, self.rate) > 0
        )

    def compute_loss_derivatives(
        self,
        pooled_environment: Environment,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Tensor:
        """Train a reference model; return the derivatives of its losses, [n]."""
        likelihood = choose_likelihood(pooled_environment.task)
        outputs = self.outputs or max(1, len(pooled_environment.task.classes))
        inputs = torch.Size(pooled_environment.features).numel()
        network = MLP((inputs, *self.hidden, outputs), self.activation)
        params = self._build_descent().minimise(
            self._compute_loss,
            network.init(randomness.at("params")),
            (network, likelihood),
            (pooled_environment,),
            randomness,
            watch,
        )
        rows = torch.arange(len(pooled_environment)).unsqueeze(0)
        slopes = []
        with torch.no_grad():
            for some in rows.split(CHUNK, 1):
                x, y = pooled_environment.take(some)
                slopes.append(
                    likelihood.compute_output_scale_gradients(network(params, x), y)
                )
        return torch.cat(slopes, 1)[0]

    def _compute_loss(
        self, params: Tensor, model: tuple[MLP, Likelihood], batch: Batch
    ) -> Terms:
        risk = average_risks_over_examples(
            compute_environment_risks(*model, params, batch), batch
        )
        return {"risk": risk, "l2": self.l2 * params.square().sum(-1)}


def find_groups_of_highest_irm_penalty(
    loss_derivatives: Tensor, initial_logits: Tensor, n_steps: int, learning_rate: float
) -> Tensor:
    """Maximise the mean penalty with Adam; return logits [n] of the second group.

    With probabilities q and derivatives s, the penalties are (mean q s)^2 and
    (mean (1 - q) s)^2. Their mean has the gradient g q (1 - q) s / n, where g is the
    difference of the two means.
    """
    scaled, mean = loss_derivatives / len(loss_derivatives), loss_derivatives.mean()
    initial_logits = initial_logits.clone()
    optimiser = torch.optim.Adam(
        [initial_logits], lr=learning_rate, maximize=True, fused=True
    )
    for _ in range(n_steps):
        q = initial_logits.sigmoid()
        gap = 2 * q.dot(scaled) - mean
        initial_logits.grad = q.addcmul_(q, q, value=-1).mul_(scaled).mul_(gap)
        optimiser.step()
    return initial_logits


def split_environment_by_group(
    pooled_environment: Environment, is_in_second_group: Tensor
) -> Stage:
    """Return the groups that are not empty as environments; the flags are [n]."""
    groups = [(is_in_second_group == side).nonzero().T for side in (False, True)]
    filled = [rows for rows in groups if rows.numel()]
    return tuple(
        pooled_environment.subset(rows).rename(f"inferred {index}")
        for index, rows in enumerate(filled)
    )


def pool_environments(stage: Stage) -> Environment:
    """Return the examples of all environments of a stage as one environment."""
    if len(stage) == 1:
        return stage[0]
    check_environments_match(stage)
    targets = [e.targets if e.replicated else e.targets[None] for e in stage]
    name = " and ".join(environment.name for environment in stage)
    return Environment(
        name, PooledInputs(stage), torch.cat(targets, 1), stage[0].task, replicated=True
    )


@dataclass(frozen=True)
class PooledInputs:
    """Inputs of several environments, concatenated when they are taken."""

    environments: Stage

    @property
    def shape(self) -> tuple[int, ...]:
        """[1, n, *features]."""
        total = sum(map(len, self.environments))
        return (1, total, *self.environments[0].features)

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [1, m, *features] of the rows [1, m]."""
        pieces, places, start = [], [], 0
        for environment in self.environments:
            inside = (rows >= start) & (rows < start + len(environment))
            pieces.append(environment.take(rows[inside][None] - start).x)
            places.append(inside[0].nonzero()[:, 0])
            start += len(environment)
        return torch.cat(pieces, 1)[:, torch.cat(places).argsort()]
