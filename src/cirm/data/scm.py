"""A linear structural causal model with known coefficients.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant Risk Minimization", 2019,
section 5.1; with noise="target" the variant of table 5 of "Continual Invariant Risk
Minimization" (its third equation prints x1 for x2) and of Creager, Jacobsen and
Zemel, "Environment Inference for Invariant Learning", 2021. With h the hidden
variable, each of h, x1, y and x2 half as long as the observed features:

    x1 = e1,    y = x1 W1 + h Wy + ey,    x2 = y W2 + h W2h + e2

The target is the sum of y, the inputs are (x1, x2). An environment of scale s has
h ~ N(0, s^2) and noise of these standard deviations:

    noise            e1   ey   e2
    homoskedastic    s    1    s
    heteroskedastic  s    s    1
    target           1    s    1

The papers do not say how large the random weights are. Gaussian entries of standard
deviation 1 / dimension, and none from h to x1, were chosen out of some sixty
combinations because least squares then has the errors of the original results with
hidden variables. That agreement is a fit, not a confirmation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cirm.data.base import Dataset
from cirm.environments import Environment, Problem, Task
from cirm.randomness import Randomness

Noise = Literal["homoskedastic", "heteroskedastic", "target"]


class StructuralModelWeights(NamedTuple):
    """One replica's weights: four of [half, half], and the mixing [both, both]."""

    cause_target: Tensor
    target_effect: Tensor
    hidden_target: Tensor
    hidden_effect: Tensor
    mixing: Tensor


@dataclass(frozen=True)
class SCM(Dataset):
    """Regression on causes and effects, in environments that differ in noise.

    The defaults are those of table 5; section 5.1 of IRM has dimension 10 and the other
    two kinds of noise. The sweep keeps the scale of the test environment and multiplies
    the influence of y on x2: the risk of the true coefficients stays the same along it,
    that of others does not.

    Args:
        dimension: The number of observed features, the causes first.
        examples: Examples of each environment.
        scales: The scale of each training environment.
        noise: "homoskedastic", "heteroskedastic" or "target", as in the table above.
        hidden: Whether a hidden variable influences target and effects.
        scramble: Whether the features are mixed by an orthogonal matrix, another one
            for each seed.
        weights: "identity" for one to one, or "random".
        unseen: The scale of the test environment.
        sweep: Factors of the influence of y on x2 in further test environments.

    Example:
        >>> problem = SCM(dimension=2, examples=50).draw_problem(seeds=(0,))
        >>> [environment.name for environment in problem.train]
        ['scale 0.2', 'scale 2', 'scale 5']
        >>> problem.truth.tolist()
        [[[1.0, 0.0], [1.0, 0.0]]]
    """

    dimension: int = 8
    examples: int = 1000
    scales: tuple[float, ...] = (0.2, 2.0, 5.0)
    noise: Noise = "target"
    hidden: bool = False
    scramble: bool = False
    weights: Literal["identity", "random"] = "identity"
    unseen: float = 10.0
    sweep: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0)

    def __post_init__(self) -> None:
        if self.dimension < 2 or self.dimension % 2:
            self._raise_invalid_setting_error(
                "dimension", "Use an even number: half causes, half effects"
            )
        if self.examples < 1:
            self._raise_invalid_setting_error("examples", "Use 1 or more")
        if not self.scales or not all(0 < s < math.inf for s in self.scales):
            self._raise_invalid_setting_error(
                "scales", "Use one or more positive numbers"
            )
        if not 0 < self.unseen < math.inf or self.unseen in self.scales:
            self._raise_invalid_setting_error(
                "unseen", "Use a positive scale that is not in the setting scales"
            )
        if not all(map(math.isfinite, self.sweep)):
            self._raise_invalid_setting_error("sweep", "Use finite numbers")

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return environments [replica, n, dimension] and the true coefficients.

        `truth` is [replica, 2, dimension]; with `scramble` the rows of the mixing
        matrix follow, see `compute_squared_errors_of_coefficients`.
        """
        weights = [
            self._draw_causal_weights(Randomness((seed,)).at("scm")) for seed in seeds
        ]
        return Problem(
            train=tuple(
                self._draw_environment_of_causal_model(seeds, weights, s)
                for s in self.scales
            ),
            test=(self._draw_environment_of_causal_model(seeds, weights, self.unseen),),
            sweep=tuple(
                (
                    strength,
                    self._draw_environment_of_causal_model(
                        seeds, weights, self.unseen, strength
                    ),
                )
                for strength in self.sweep
            ),
            truth=torch.stack([self._get_true_causal_coefficients(w) for w in weights]),
            fresh=tuple(
                self._draw_environment_of_causal_model(
                    seeds, weights, s, environment_name="fresh"
                )
                for s in self.scales
            ),
        )

    def describe(self) -> str:
        """Return the model in one sentence."""
        half = self.dimension // 2
        hidden = " with a hidden common cause" if self.hidden else ""
        mixed = " The features are mixed by a random rotation." if self.scramble else ""
        scales = ", ".join(f"{scale:g}" for scale in self.scales)
        return (
            f"A regression on {half} causes and {half} effects of the target{hidden} "
            f"(noise: {self.noise}).{mixed} Each training environment has "
            f"{self.examples} examples; their scales are {scales}. The test "
            f"environment has the scale {self.unseen:g}."
        )

    def _draw_causal_weights(self, randomness: Randomness) -> StructuralModelWeights:
        half = self.dimension // 2
        none = torch.zeros(half, half)

        def draw_gaussian_matrix(name: str) -> Tensor:
            return randomness.at(name).normal(half, half)[0] / self.dimension

        def draw_direct_effect_matrix(name: str) -> Tensor:
            return (
                draw_gaussian_matrix(name)
                if self.weights == "random"
                else torch.eye(half)
            )

        return StructuralModelWeights(
            cause_target=draw_direct_effect_matrix("cause to target"),
            target_effect=draw_direct_effect_matrix("target to effect"),
            hidden_target=draw_gaussian_matrix("hidden to target")
            if self.hidden
            else none,
            hidden_effect=draw_gaussian_matrix("hidden to effect")
            if self.hidden
            else none,
            mixing=_orthogonalise_matrix(
                randomness.at("mixing").normal(*[self.dimension] * 2)[0]
            )
            if self.scramble
            else torch.eye(self.dimension),
        )

    def _draw_environment_of_causal_model(
        self,
        seeds: tuple[int, ...],
        weights: list[StructuralModelWeights],
        scale: float,
        effect_strength: float | None = None,
        environment_name: str = "",
    ) -> Environment:
        name = (
            f"scale {scale:g}"
            if effect_strength is None
            else f"effect {effect_strength:g}"
        )
        # One replica at a time: a batched product may round differently.
        drawn = [
            self._draw_examples_of_causal_model(
                Randomness((seed,)).at("scm", name, *filter(None, [environment_name])),
                own,
                scale,
                1.0 if effect_strength is None else effect_strength,
            )
            for seed, own in zip(seeds, weights, strict=True)
        ]
        inputs, targets = (torch.stack(part) for part in zip(*drawn, strict=True))
        return Environment(name, inputs, targets, Task.regression(), replicated=True)

    def _draw_examples_of_causal_model(
        self,
        randomness: Randomness,
        weights: StructuralModelWeights,
        scale: float,
        effect_strength: float,
    ) -> tuple[Tensor, Tensor]:
        hidden, cause, target, effect = randomness.normal(
            4, self.examples, self.dimension // 2
        )[0]
        of_cause, of_target, of_effect = _compute_noise_standard_deviations(
            self.noise, scale
        )
        hidden, x1 = scale * hidden, of_cause * cause
        y = x1 @ weights.cause_target + hidden @ weights.hidden_target
        y = y + of_target * target
        x2 = (
            effect_strength * y @ weights.target_effect + hidden @ weights.hidden_effect
        )
        x2 = x2 + of_effect * effect
        return torch.cat([x1, x2], dim=1) @ weights.mixing, y.sum(dim=1)

    def _get_true_causal_coefficients(self, weights: StructuralModelWeights) -> Tensor:
        half = self.dimension // 2
        effects = torch.zeros(half)
        coefficients = torch.cat([weights.cause_target.sum(dim=1), effects])
        causal = torch.cat([torch.ones(half), effects])
        rows = torch.stack([coefficients, causal])
        return torch.cat([rows, weights.mixing]) if self.scramble else rows


def compute_squared_errors_of_coefficients(
    coefficients: Tensor, truth: Tensor
) -> Tensor:
    """Return mean squared errors [replica, 2] of causal and of other coefficients.

    `coefficients` [replica, features] are those of a linear predictor on the observed
    inputs; `truth` is that of a problem. If inputs are mixed, x = z M, a predictor x w
    has the coefficients M w on z, to which the truth belongs; the rows of M follow the
    first two rows of `truth`.
    """
    if truth.shape[1] > 2:
        coefficients = (truth[:, 2:] @ coefficients.unsqueeze(-1)).squeeze(-1)
    squares, causal = (coefficients - truth[:, 0]) ** 2, truth[:, 1]
    groups = torch.stack([causal, 1 - causal], dim=1)
    return (groups * squares.unsqueeze(1)).sum(dim=-1) / groups.sum(dim=-1)


def _compute_noise_standard_deviations(
    noise: Noise, scale: float
) -> tuple[float, float, float]:
    """Return the standard deviations of the noise of x1, y and x2."""
    if noise == "homoskedastic":
        return scale, 1.0, scale
    return scale if noise == "heteroskedastic" else 1.0, scale, 1.0


def _orthogonalise_matrix(gaussian: Tensor) -> Tensor:
    """Return the orthogonal factor of a Gaussian matrix, uniform over all of them."""
    q, r = torch.linalg.qr(gaussian.double())
    # Without the signs of r the factor would prefer some directions.
    return (q * r.diagonal().sign()).float()
