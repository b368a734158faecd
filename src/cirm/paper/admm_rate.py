"""The rate of stochastic ADMM, measured on problems that meet its conditions.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", section 3.2, cite
Ouyang et al., "Stochastic Alternating Direction Method of Multipliers", 2013: of order
1/sqrt(t) for convex and log(t)/t for strongly convex functions. Here the functions are
squared errors of linear models with a common minimum, so that the constraint of BIRM,
a gradient of zero in each environment, is linear. In step t, environment e draws an
example, and with its gradient g the update of lemma GADMM is

    x_e = argmin g.x + rho0/2 |x - z + u_e|^2 + rho1/2 |A_e x - b_e + v_e|^2
          + |x - x_e|^2 / (2 rate_t),

where A_e x - b_e is the gradient of the risk of e. z, u and v follow as in the lemma.
The rates of learning are those of the theorems: 1/sqrt(t) and 1/t, times a constant.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DIMENSION = 4
ENVIRONMENTS = 2
NOISE = 1.0  # standard deviation of the targets around the common minimum
RHO = 1.0  # of both constraints
STEPS = 20_000
REPEATS = 10  # runs, whose gaps are averaged
POINTS = 40  # at which the gap is computed, evenly spaced on a logarithmic axis


class ADMMConvergenceCurve(NamedTuple):
    """The gap after each of some numbers of steps, and the order that bounds it."""

    label: str
    steps: list[int]
    gaps: list[float]
    bounds: list[float]


def measure_admm_convergence_rates(seed: int = 0) -> list[ADMMConvergenceCurve]:
    """Measure convex and strongly convex problems, averaged over `REPEATS` runs.

    The gap is that of the averages of all x_e so far: the sum of risks above its
    minimum, plus the length of the residuals x_e - z and A_e x_e - b_e.
    """
    curves = []
    for label, weakest in (("convex", 0.0), ("strongly convex", 0.5)):
        steps = np.unique(np.geomspace(10, STEPS, POINTS).astype(int))
        gaps = run_stochastic_admm(weakest, steps, seed)
        order = np.log(steps) / steps if weakest else 1 / np.sqrt(steps)
        # The bound touches the curve once, from above: only its slope is a claim.
        scale = np.max(gaps[len(gaps) // 2 :] / order[len(order) // 2 :])
        bounds = (scale * order).tolist()
        curves.append(
            ADMMConvergenceCurve(label, steps.tolist(), gaps.tolist(), bounds)
        )
    return curves


def run_stochastic_admm(
    min_curvature: float, step_counts: NDArray[np.int64], seed: int
) -> Array:
    """Return the gap after some numbers of steps.

    `min_curvature` is the smallest eigenvalue of the second moments of the inputs; with
    0 the risks are convex, but not strongly.
    """
    rng = np.random.default_rng(seed)
    scales = np.linspace(min_curvature, 2.0, DIMENSION) ** 0.5
    turns = [
        _draw_directions_of_inputs(rng, min_curvature) for _ in range(ENVIRONMENTS)
    ]
    roots = np.stack([turn * scales for turn in turns])  # [e, d, d]: x = root @ noise
    moments = roots @ roots.transpose(0, 2, 1)
    truth = rng.normal(size=DIMENSION)
    targets = moments @ truth
    x = np.zeros((REPEATS, ENVIRONMENTS, DIMENSION))
    z, u, v, total = x.mean(1), 0 * x, 0 * x, 0 * x
    values, vectors = np.linalg.eigh(moments)
    gaps: list[float] = []
    for step in range(1, int(step_counts[-1]) + 1):
        rate = 1 / (min_curvature * step) if min_curvature else 1 / np.sqrt(step)
        inputs = np.einsum("eij,rej->rei", roots, rng.normal(size=x.shape))
        noise = NOISE * rng.normal(size=x.shape[:2])
        error = (inputs * (x - truth)).sum(-1) - noise
        right = x / rate - inputs * error[..., None]
        right += RHO * (z[:, None] - u)
        right += RHO * np.einsum("eij,rej->rei", moments, targets - v)
        turned = np.einsum("eji,rej->rei", vectors, right)
        turned /= RHO + RHO * values**2 + 1 / rate
        x = np.einsum("eij,rej->rei", vectors, turned)
        z = (x + u).mean(1)
        u = u + x - z[:, None]
        v = v + np.einsum("eij,rej->rei", moments, x) - targets
        total = total + x
        if step == step_counts[len(gaps)]:
            gaps.append(
                float(_compute_admm_optimality_gap(total / step, moments, truth).mean())
            )
    return np.array(gaps)


def _draw_directions_of_inputs(rng: np.random.Generator, min_curvature: float) -> Array:
    """Return directions of the inputs; the weakest one is the same everywhere."""
    turn = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0]
    if min_curvature:
        return turn
    inner = np.linalg.qr(rng.normal(size=(DIMENSION - 1, DIMENSION - 1)))[0]
    fixed = np.eye(DIMENSION)
    fixed[1:, 1:] = inner
    return fixed


def _compute_admm_optimality_gap(x: Array, moments: Array, truth: Array) -> Array:
    """Return the gap of averages x [repeat, e, d], [repeat]."""
    off = x - truth
    gradients = np.einsum("eij,rej->rei", moments, off)
    risk = 0.5 * (off * gradients).sum((1, 2))
    apart = x - x.mean(1, keepdims=True)
    residuals = np.sqrt((apart**2).sum((1, 2)) + (gradients**2).sum((1, 2)))
    gap: Array = risk + residuals
    return gap
