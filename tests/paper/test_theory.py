"""What the paper proves or cites, checked by numbers."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from cirm.paper.admm_rate import measure_admm_convergence_rates, run_stochastic_admm
from cirm.paper.environment_count import (
    BOUND,
    DIMENSION,
    compute_invariance_violations,
    count_invariant_predictors,
    draw_environment_moments,
)
from cirm.paper.projections import project_onto_linear_risk

LOSSES = torch.tensor([0.2, 0.5, 1.0, 1.6], dtype=torch.float64)
BELIEF = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def project_exactly(curvature, tolerance):
    """The nearest distribution to the belief of nearly the least risk, by SLSQP.

    The risk is the mean loss plus a quadratic function that is flat at its minimum.
    """
    best, losses, belief = np.eye(4)[0], LOSSES.numpy(), BELIEF.numpy()

    def risk(p):
        return losses @ p + curvature / 2 * ((p - best) ** 2).sum()

    constraints = [
        {"type": "eq", "fun": lambda p: p.sum() - 1},
        {"type": "ineq", "fun": lambda p: risk(best) + tolerance - risk(p)},
    ]
    found = minimize(
        lambda p: (p * np.log(p / belief)).sum(), np.array([0.85, 0.05, 0.05, 0.05]),
        bounds=[(1e-12, 1.0)] * 4, constraints=constraints, method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    return torch.from_numpy(found.x)


def project_by_taylor(tolerance):
    best = torch.eye(4, dtype=torch.float64)[0]
    return project_onto_linear_risk(BELIEF, best, LOSSES, tolerance)


def test_the_taylor_form_is_exact_for_a_mean_loss_and_nearly_so_for_little_curvature():
    taylor = project_by_taylor(0.2)
    gaps = [
        float((project_exactly(c, 0.2) - taylor).abs().max())
        for c in (0.0, 0.01, 0.1, 1.0)
    ]
    assert gaps[0] < 1e-5 and gaps == sorted(gaps)
    assert gaps[2] / gaps[1] == pytest.approx(10, rel=0.2)  # of first order
    assert gaps[3] > 0.01


def test_the_taylor_form_keeps_a_belief_that_is_good_enough_and_ends_at_the_best():
    assert torch.equal(project_by_taylor(10.0), BELIEF)
    divergences = []
    for tolerance in (1.0, 0.5, 0.1, 1e-3):
        p = project_by_taylor(tolerance)
        assert (LOSSES @ p - LOSSES[0]) <= tolerance + 1e-9
        divergences.append(float((p * (p / BELIEF).log()).sum()))
    assert divergences == sorted(divergences)
    assert p[0] > 0.99


def test_the_causal_predictor_is_invariant_in_every_environment():
    moments = draw_environment_moments(20, seed=3)
    causal = np.eye(DIMENSION)[0]
    np.testing.assert_allclose(
        compute_invariance_violations(causal, moments), 0, atol=1e-12
    )


def test_more_environments_than_the_theorem_asks_leave_what_is_invariant_everywhere():
    """Theorem 9 of IRM for BIRM: rank 1 in three dimensions, more than 5."""
    assert BOUND == 5
    few = count_invariant_predictors(2, n_starts=15)
    assert few.solutions and few.violations == few.solutions
    many = count_invariant_predictors(BOUND + 1, n_starts=40)
    assert many.solutions and not many.violations


def test_features_with_a_spread_make_no_predictor_exactly_invariant():
    """Lemma invariant2: s^2 trace(S_e) differs between environments."""
    moments = draw_environment_moments(BOUND + 1, seed=0)
    causal = np.eye(DIMENSION)[0]
    off = compute_invariance_violations(causal, moments, feature_std=0.1)
    traces = np.trace(moments.inputs, axis1=1, axis2=2)
    np.testing.assert_allclose(off, 0.01 * traces)
    assert not count_invariant_predictors(
        BOUND + 1, feature_std=0.05, n_starts=15
    ).solutions


def test_the_mean_over_drawn_features_is_the_moment_of_the_lemma():
    rng = np.random.default_rng(0)
    moments = draw_environment_moments(1, seed=0)
    mean, spread = np.array([1.0, 0.3, -0.2]), 0.4
    draws = mean + spread * rng.normal(size=(400_000, DIMENSION))
    curved = np.einsum("ni,ij,nj->n", draws, moments.inputs[0], draws).mean()
    wanted = (
        compute_invariance_violations(mean, moments, spread)[0]
        + moments.targets[0] @ mean
    )
    assert curved == pytest.approx(wanted, rel=0.01)


def test_stochastic_admm_keeps_to_the_orders_of_the_theorem():
    steps = np.array([100, 400, 1600])
    for weakest, order in ((0.0, lambda t: t**-0.5), (0.5, lambda t: np.log(t) / t)):
        gaps = run_stochastic_admm(weakest, steps, seed=0)
        assert (np.diff(gaps / order(steps)) < 0.1 * gaps[0] / order(100)).all()


@pytest.mark.integration
def test_the_curves_stay_below_their_bounds_in_the_second_half():
    for curve in measure_admm_convergence_rates():
        half = len(curve.steps) // 2
        gaps, bounds = np.array(curve.gaps[half:]), np.array(curve.bounds[half:])
        assert (gaps <= bounds * (1 + 1e-9)).all()
        slope = np.polyfit(np.log(curve.steps[half:]), np.log(gaps), 1)[0]
        assert slope < (-0.45 if curve.label == "convex" else -0.8)


def compute_risks_and_gradients(w, phi, moments):
    """Squared errors of w phi in each environment, and their derivatives in w."""
    curved = np.einsum("i,eij,j->e", phi, moments.inputs, phi)
    linear = moments.targets @ phi
    return 0.5 * w**2 * curved - w * linear, w * curved - linear


def compute_first_risk(w, phi, moments):
    return compute_risks_and_gradients(w[0], phi, moments)[0][0]


def test_a_gradient_of_zero_is_the_minimum_in_every_environment():
    """Lemma equivalent1: BIRM's constraint is IRM's, by the KKT conditions."""
    for seed, phi in enumerate(np.random.default_rng(0).normal(size=(6, DIMENSION))):
        own = draw_environment_moments(1, seed)
        best = minimize(compute_first_risk, [0.0], args=(phi, own)).x[0]
        _, gradient = compute_risks_and_gradients(best, phi, own)
        assert gradient == pytest.approx(0, abs=1e-3)
        stationary = own.targets[0] @ phi / (phi @ own.inputs[0] @ phi)
        assert best == pytest.approx(stationary, abs=1e-4)


def test_bilevel_and_constrained_form_have_the_same_solution():
    """IRM by search over features, BIRM by a growing weight of its constraint."""
    moments = draw_environment_moments(BOUND + 1, seed=0)

    def penalise(v, weight):
        """w = |v| and features of length one, which cannot shrink the gradients."""
        length = np.linalg.norm(v)
        risks, slopes = compute_risks_and_gradients(length, v / length, moments)
        return risks.sum() + weight * (slopes**2).sum()

    pooled = np.linalg.solve(moments.inputs.sum(0), moments.targets.sum(0))
    found = []
    for start in (pooled, *np.random.default_rng(1).normal(size=(4, DIMENSION))):
        for weight in 10.0 ** np.arange(7):  # the more, the nearer to the constraint
            start = minimize(penalise, start, args=(weight,)).x
        found.append((penalise(start, 1e6), start.tolist()))
    predictor = np.array(min(found)[1])
    # IRM: features of length one, and for each the best w of each environment.
    directions = np.random.default_rng(0).normal(size=(4000, DIMENSION))
    directions = np.concatenate([directions, np.eye(DIMENSION)])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    curved = np.einsum("ni,eij,nj->ne", directions, moments.inputs, directions)
    best = directions @ moments.targets.T / curved
    apart = best.std(1) / np.abs(best).mean(1)
    assert apart.argmin() == len(directions) - DIMENSION  # the causal direction alone
    assert apart.min() < 1e-12 and np.sort(apart)[1] > 1e-3
    irm = best[apart.argmin()].mean() * directions[apart.argmin()]
    np.testing.assert_allclose(predictor, irm, atol=1e-3)
