"""Class frequencies estimated without labels: known truths and limits."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.steady.columns_frequencies import (
    compute_shifted_class_frequencies,
    estimate_intercept_shifts,
)
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
    told = learner.explain(adapted)["adaptation"]["frequencies"][0]
    assert "94 % and 6 % here, 51 % and 49 %" in told


def test_frequencies_are_not_adapted_after_a_single_arrival():
    places = [make_place(*pair) for pair in zip("abc", (0.5, 0.1, 0.9), strict=True)]
    learner, state = train(Stream.create_sequential(places[:2]))
    adapted = learner.adapt(state, places[2].inputs[None])
    assert not adapted.adaptation.frequencies.any()
    assert learner.explain(adapted)["adaptation"]["frequencies"] == []
