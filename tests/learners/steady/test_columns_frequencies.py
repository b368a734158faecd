"""Class frequencies estimated without labels: known truths and limits."""

import re

import numpy as np
import pytest
import scipy.optimize
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.base import TableNames
from cirm.learners.steady.columns_adapt import (
    add_evidence_of_unstable_features,
    sort_rows_and_limit_their_number,
)
from cirm.learners.steady.columns_frequencies import (
    WITHIN,
    compute_shifted_class_frequencies,
    estimate_confirmed_intercept_shifts,
    estimate_intercept_shifts,
)
from cirm.learners.steady.columns_learn import (
    draw_coefficients_of_stable_model,
    summarise_effects_over_environments,
)
from cirm.learners.steady.columns_predict import compute_outputs_of_predictor
from cirm.learners.steady.columns_state import SAMPLES
from cirm.memory import select_state_of_replica
from tests.learners.steady.test_columns import score, train

USUAL = torch.tensor([0.5, 0.3, 0.2]).double()
WIDE = torch.full((3,), 10.0).double()


def draw_logits(n, truth, seed=0):
    """Return log odds that are exact at the usual frequencies, of rows with others."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.multinomial(truth.float(), n, True, generator=generator)
    centres = 2.0 * torch.eye(3).double()
    x = centres[classes] + torch.randn(n, 3, generator=generator).double()
    return -0.5 * torch.cdist(x, centres).square() + USUAL.log()


@pytest.mark.parametrize("truth", [(0.2, 0.2, 0.6), (0.5, 0.3, 0.2), (0.05, 0.9, 0.05)])
def test_known_frequencies_are_recovered(truth):
    truth = torch.tensor(truth).double()
    found = estimate_intercept_shifts(draw_logits(20_000, truth), USUAL, WIDE)
    assert torch.allclose(
        compute_shifted_class_frequencies(found.mean, USUAL), truth, atol=0.02
    )


def test_the_maximum_is_that_of_em():
    logits = draw_logits(500, torch.tensor([0.2, 0.2, 0.6]))
    soft, share = logits.softmax(1), USUAL
    for _ in range(2000):  # Saerens et al. 2002
        weighted = soft * share / USUAL
        share = (weighted / weighted.sum(1, keepdim=True)).mean(0)
    found = estimate_intercept_shifts(logits, USUAL, 1e3 * WIDE)
    assert torch.allclose(
        compute_shifted_class_frequencies(found.mean, USUAL), share, atol=1e-4
    )


def test_without_rows_the_prior_is_left():
    found = estimate_intercept_shifts(
        torch.zeros(0, 3).double(), USUAL, 0.3 * WIDE / 10
    )
    assert torch.equal(found.mean, torch.zeros(3).double())
    assert torch.allclose(found.samples.std(0, correction=0), 0.3 * WIDE / 10)


def test_a_shift_that_rows_always_showed_rightly_is_that_of_the_rows():
    logits = draw_logits(500, torch.tensor([0.4, 0.3, 0.3]))
    spread = torch.ones(3).double()
    plain = estimate_intercept_shifts(logits, USUAL, spread)
    found = estimate_confirmed_intercept_shifts(logits, USUAL, spread, 1e-9 * spread)
    torch.testing.assert_close(found, plain)


def test_of_what_rows_show_the_share_is_believed_that_was_true_on_arrival():
    spread, miss = torch.full((3,), 0.8).double(), torch.full((3,), 0.6).double()
    logits = draw_logits(2000, torch.tensor([0.4, 0.3, 0.3]))
    found = estimate_confirmed_intercept_shifts(logits, USUAL, spread, miss)
    shown = estimate_intercept_shifts(logits, USUAL, torch.ones(3).double())
    share = 0.8**2 / (0.8**2 + 0.6**2)
    torch.testing.assert_close(found.mean, share * shown.mean)
    # What is left of the variance: that of the shift given its sum with the error, and
    # that of the sum.
    wanted = share * 0.6**2 + share**2 * shown.samples.var(0, correction=0)
    torch.testing.assert_close(found.samples.var(0, correction=0), wanted)


def test_no_shift_is_believed_that_is_far_beyond_those_of_earlier_places():
    logits = draw_logits(2000, torch.tensor([0.02, 0.08, 0.9]))
    spread = torch.full((3,), 0.2).double()
    found = estimate_confirmed_intercept_shifts(logits, USUAL, spread, 0.01 * spread)
    shown = estimate_intercept_shifts(logits, USUAL, spread)
    assert float(shown.mean.abs().max()) > WITHIN * 0.2
    assert float(found.mean.abs().max()) == pytest.approx(WITHIN * 0.2)


def make_place(name, frequency, n=1500):
    generator = torch.Generator().manual_seed(ord(name))
    y = (torch.rand(n, generator=generator) < frequency).long()
    x = torch.randn(n, 3, generator=generator) + 1.2 * y[:, None]
    return Environment(name, x, y, Task.classification(2))


def test_frequencies_are_adapted_once_that_has_helped_on_two_arrivals():
    places = [
        make_place(*pair) for pair in zip("abcd", (0.5, 0.1, 0.9, 0.05), strict=True)
    ]
    learner, state = train(Stream.create_sequential(places[:3]))
    adapted = learner.adapt(state, places[3].inputs[None])
    assert float(adapted.adaptation.frequencies[0, 1]) == pytest.approx(0.05, abs=0.03)
    assert score(learner, adapted, places[3]) > score(learner, state, places[3]) + 1
    explanation = learner.explain(adapted, {}, 3, TableNames((), "ab"))
    told = explanation["adaptation"]["frequencies"][0]
    words = r"(\d+) % for class `b` here \(95 % interval of class `b` (\d+) to (\d+) %"
    share, low, high = map(int, re.search(words, told).groups())
    assert share == round(100 * float(adapted.adaptation.frequencies[0, 1]))
    assert low <= 5 <= high
    assert "51 % and 49 % at the places seen" in told


def test_frequencies_are_not_adapted_after_a_single_arrival():
    places = [make_place(*pair) for pair in zip("abc", (0.5, 0.1, 0.9), strict=True)]
    learner, state = train(Stream.create_sequential(places[:2]))
    adapted = learner.adapt(state, places[2].inputs[None])
    assert not adapted.adaptation.frequencies.any()
    assert learner.explain(adapted)["adaptation"]["frequencies"] == []


def test_inputs_that_move_otherwise_do_not_move_the_frequencies_far():
    """Each place has the same frequency; its inputs move along the prediction."""

    def make_moved_place(name, move):
        place = make_place(name, 0.3)
        return Environment(name, place.inputs + move, place.targets, place.task)

    moves = zip("abcd", (0.0, 0.4, -0.4, 0.8), strict=True)
    places = [make_moved_place(*pair) for pair in moves]
    learner, state = train(Stream.create_sequential(places[:3]))
    misses = state.arrivals.frequency_misses[0, :, 0]
    assert misses.abs().min() > 0.3  # the rows showed shifts that were not there
    earned = state._replace(
        arrivals=state.arrivals._replace(
            frequency_gains=torch.ones_like(state.arrivals.frequency_gains)
        )
    )
    adapted = learner.adapt(earned, places[3].inputs[None])
    naive = learner.adapt(
        earned._replace(
            arrivals=earned.arrivals._replace(
                frequency_misses=earned.arrivals.frequency_misses[:, :0]
            )
        ),
        places[3].inputs[None],
    )
    shown, believed = (
        float(one.adaptation.frequencies[0, 1]) for one in (naive, adapted)
    )
    assert abs(believed - 0.3) < abs(shown - 0.3)
    assert believed < 0.5


def test_a_model_of_less_extreme_predictions_keeps_its_intercept():
    """The slope on arrival moves the intercept, too: towards the usual frequencies."""
    places = [
        make_place(*pair) for pair in zip("abcd", (0.1, 0.05, 0.2, 0.1), strict=True)
    ]
    _, state = train(Stream.create_sequential(places[:3]))
    arrivals = state.arrivals._replace(
        slopes=torch.full_like(state.arrivals.slopes, 0.4),
        frequency_gains=torch.ones_like(state.arrivals.frequency_gains),
    )
    own = select_state_of_replica(state._replace(arrivals=arrivals), 0)
    normals = torch.zeros(SAMPLES // 2, 1, len(own.ridge)).double()
    own = own._replace(base=draw_coefficients_of_stable_model(own, normals))
    assert float(own.base.levels.mean()) < -0.5
    basis = own.basis.expand(places[3].inputs.double())
    summary = summarise_effects_over_environments(own)
    adapted = add_evidence_of_unstable_features(
        own, basis, summary, [], "invariant", has_frequencies=True
    )
    rows = sort_rows_and_limit_their_number(
        basis, compute_outputs_of_predictor(own.base, basis).mean(0)[:, 0]
    )
    outputs = compute_outputs_of_predictor(adapted.predictor, basis[rows]).mean(0)
    torch.testing.assert_close(outputs, adapted.outputs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_estimate_is_the_maximum_however_weak_the_prior(n_classes, seed):
    """Classes that overlap, frequencies far from the usual ones, a wide prior."""
    rng = np.random.default_rng(seed)
    usual, here = (rng.dirichlet(np.full(n_classes, a)) for a in (1.0, 0.5))
    centres = rng.normal(size=(n_classes, 3))
    y = rng.choice(n_classes, 300, p=here)
    x = centres[y] + rng.normal(size=(300, 3))
    logs = np.log(usual) - 0.5 * ((x[:, None] - centres) ** 2).sum(2)
    logits = logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs
    soft = np.exp(logs) / np.exp(logs).sum(1, keepdims=True)
    k = logits.shape[1]

    def measure_loss(shift):
        weights = np.exp(np.append(np.zeros(n_classes - k), shift))
        fit = np.log(soft @ weights).sum() - 300 * np.log(usual @ weights)
        return (shift**2).sum() / (2 * 3.0**2) - fit

    spread = torch.full((k,), 3.0).double()
    found = estimate_intercept_shifts(
        torch.tensor(logits), torch.tensor(usual), spread
    ).mean.numpy()
    best = scipy.optimize.minimize(measure_loss, np.zeros(k)).fun
    assert measure_loss(found) < best + 0.01


@pytest.mark.parametrize("order", ["abcd", "cdba"])
def test_places_of_one_class_do_not_bias_the_estimate(order):
    """The model learns nothing from such a place, so its intercepts do not move."""
    frequencies = {"a": 0.5, "b": 1.0, "c": 0.2, "d": 0.6}
    places = [make_place(name, frequencies[name]) for name in order]
    learner, state = train(Stream.create_sequential(places))
    is_mixed = [name != "b" for name in order[1:]]
    misses = state.arrivals.frequency_misses[0, is_mixed]
    assert float(misses.abs().max()) < 0.5
    new = make_place("e", 0.9)
    adapted = learner.adapt(state, new.inputs[None])
    assert float(adapted.adaptation.frequencies[0, 1]) == pytest.approx(0.9, abs=0.05)
    assert score(learner, adapted, new) > score(learner, state, new) + 1
