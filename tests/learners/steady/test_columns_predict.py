"""What the columns engine expects of new places: limits and identities."""

import math

import pytest
import torch
from torch.nn import functional as F

from cirm.learners.steady import columns_search
from cirm.learners.steady.columns_changes import compute_share_of_significance_level
from cirm.learners.steady.columns_frequencies import estimate_intercept_shifts
from cirm.learners.steady.columns_learn import (
    create_state_from_first_environment,
    update_state_with_environment,
)
from cirm.learners.steady.columns_posterior import (
    StudentEffectPrior,
    estimate_slope_on_numerical_target,
)
from cirm.learners.steady.columns_predict import USUAL_SPREAD, measure_intercept_spread
from cirm.learners.steady.columns_refuse import is_on_another_scale
from cirm.learners.steady.columns_search import (
    find_and_set_aside_unstable_features,
    remove_features_from_stable_model,
    summarise_environment,
)
from tests.learners.steady.test_columns import make_place


def get_data(place, shift=0.0):
    return place.inputs.double() + shift, F.one_hot(place.targets, 2).double()


@pytest.fixture(scope="module")
def two_places():
    """The state after two places whose inputs have other means."""
    first, second = get_data(make_place("a")), get_data(make_place("b"), 1.5)
    state = create_state_from_first_environment(*first, (), is_regression=False)
    for x, y in (first, second):
        summary = summarise_environment(state, x, y, is_regression=False)
        state = update_state_with_environment(state, x, y, summary, is_regression=False)
    return state


def test_the_mean_output_stays_when_a_feature_is_removed(two_places):
    kept = two_places.without
    state = two_places._replace(without=kept._replace(ratio=kept.ratio * 0))
    new = torch.tensor([True, False, False, False, False])
    after = remove_features_from_stable_model(state._replace(unstable=new), new)
    centre = state.places.rows @ state.places.inputs / state.places.rows.sum()
    active = state.basis.active
    before = (state.stable.mean * active) @ centre
    torch.testing.assert_close(after.stable.mean @ centre, before)
    assert not torch.equal(after.stable.mean, state.stable.mean)


def test_each_look_spends_its_share_of_the_level(two_places, monkeypatch):
    spent = []

    def record_level(state, known, level, noise):
        spent.append(level)
        return torch.zeros_like(known), torch.zeros_like(known)

    monkeypatch.setattr(columns_search, "find_unstable_features", record_level)
    none = torch.zeros(5, dtype=torch.bool)
    state, summary = two_places, None
    x, y = get_data(make_place("c"))
    for _ in range(40):
        summary = summary or summarise_environment(state, x, y, is_regression=False)
        state = find_and_set_aside_unstable_features(
            state, [summary], 0.05, none, none, False
        )
    shares = [0.05 * compute_share_of_significance_level(look) for look in range(1, 41)]
    assert spent == pytest.approx(shares)


def test_shifts_that_are_no_larger_than_their_noise_leave_the_usual_spread(two_places):
    noise = torch.tensor([[0.04], [0.09], [0.01]]).double()
    arrivals = two_places.arrivals._replace(shifts=noise.sqrt(), shift_variances=noise)
    spread = measure_intercept_spread(arrivals, noise=0.0)
    assert float(spread) == pytest.approx(math.sqrt(USUAL_SPREAD**2 / 4))


def test_the_posterior_of_a_shift_is_as_wide_as_its_curvature_says():
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(400, 1, generator=generator).double() + 0.4
    usual, prior = torch.tensor([0.6, 0.4]).double(), torch.tensor([2.0]).double()
    found = estimate_intercept_shifts(logits, usual, prior)
    soft = logits[:, 0].sigmoid()

    def log_posterior(shift):
        rows = ((1 - soft) + soft * shift.exp()).log().sum()
        base = (usual[0] + usual[1] * shift.exp()).log()
        return rows - len(soft) * base - 0.5 * (shift / prior[0]) ** 2

    curvature = torch.autograd.functional.hessian(log_posterior, found.mean[0])
    spread = float(found.samples.std(correction=0))
    assert spread == pytest.approx(float(-curvature) ** -0.5, rel=0.02)


def test_rows_that_say_nothing_leave_the_prior_of_an_effect():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, generator=generator).double()
    prediction = 1e-9 * torch.randn(50, generator=generator).double()
    prior = StudentEffectPrior(0.4, 0.5, 5.0)
    found, _, total = estimate_slope_on_numerical_target(prediction, values, 1.0, prior)
    limit = 0.98 * total**0.5
    last = limit / (total - limit**2)
    effects = torch.linspace(-last, last, 400_001).double()
    weights = prior.compute_log_density(effects).exp()
    below = weights.cumsum(0) / weights.sum()
    levels = torch.tensor([0.25, 0.5, 0.75]).double()
    wanted = effects[torch.searchsorted(below, levels)]
    torch.testing.assert_close(found.samples.quantile(levels), wanted, rtol=0, atol=0.1)


@pytest.mark.parametrize("shift", [0.0, 15.0, -15.0])
def test_values_far_from_all_seen_are_in_another_unit(shift):
    values = torch.randn(500, generator=torch.Generator().manual_seed(0)) + shift
    assert is_on_another_scale(values, limit=5.0) is bool(shift)
