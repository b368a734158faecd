"""Drift: slopes of like environments agree up to chance, and a change is found."""

import math

import pytest
import torch

from cirm.learners.cirm import drift
from cirm.learners.cirm.drift import Evaluation

WIDTH = 6
STABLE = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0, 0.0])


def drawn(seed, extra=0.0, count=1500, replicas=20, bias=0.0, scale=1.0):
    """Samples in which the last input has `extra` weight that the model lacks."""
    source = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(replicas, count, WIDTH, generator=source)
    known = x @ STABLE
    truth = known + extra * x[..., -1] + bias
    y = (torch.rand(truth.shape, generator=source) < truth.sigmoid()).long()
    logits = torch.stack([-known / 2, known / 2], -1)
    answers = (torch.rand(truth.shape, generator=source) < 0.5).long()
    return Evaluation(x, logits, y, answers)


def test_like_environments_are_as_far_apart_as_chance_says():
    chances = drift.disagreement_p_value(
        drift.compute_slope(drawn(1)), drift.compute_slope(drawn(2))
    )
    assert abs(chances.mean() - 0.5) < 3 / math.sqrt(12 * 20)
    assert chances.min() > 1e-3


def test_a_feature_that_means_something_else_is_not_chance():
    chances = drift.disagreement_p_value(
        drift.compute_slope(drawn(1)), drift.compute_slope(drawn(2, extra=0.6))
    )
    assert (chances < 1e-3).all()


@pytest.mark.parametrize("change", [{"bias": 1.0}, {"scale": 1.3}])
def test_other_frequencies_of_classes_or_inputs_are_like_chance(change):
    chances = drift.disagreement_p_value(
        drift.compute_slope(drawn(1)), drift.compute_slope(drawn(2, **change))
    )
    assert chances.min() > 1e-3 and chances.mean() > 0.3


def test_the_slope_is_the_gradient_of_the_risk_at_the_best_bias():
    sample = drawn(3, extra=0.5, bias=0.7, replicas=1)
    linear = torch.zeros(2, WIDTH, requires_grad=True)
    bias = torch.zeros(2, requires_grad=True)
    risk = torch.nn.CrossEntropyLoss()
    solver = torch.optim.LBFGS([bias], max_iter=50, tolerance_grad=1e-9)

    def closure():
        solver.zero_grad()
        loss = risk((sample.logits + bias)[0], sample.targets[0])
        loss.backward()
        return loss

    solver.step(closure)
    logits = sample.logits[0] + sample.inputs[0] @ linear.mT + bias.detach()
    risk(logits, sample.targets[0]).backward()
    torch.testing.assert_close(
        drift.compute_slope(sample).mean[0], -linear.grad, rtol=1e-3, atol=1e-4
    )


def test_the_noise_is_the_variance_between_samples():
    slopes = drift.compute_slope(drawn(4, replicas=300, count=200))
    between = slopes.mean.var(0)
    torch.testing.assert_close(slopes.noise.mean(0), between, rtol=0.35, atol=1e-5)


def test_freedom_counts_the_directions_of_inputs():
    sample = drawn(5)
    assert (drift.compute_slope(sample).freedom - WIDTH).abs().max() < 1
    flat = sample._replace(inputs=sample.inputs[..., :1].repeat(1, 1, WIDTH))
    assert (drift.compute_slope(flat).freedom < 1.5).all()


def test_weights_make_cells_alike():
    """A sample with some cells doubled, weighted back, slopes as it did."""
    sample = drawn(6, extra=0.4, replicas=1)
    whole = drift.compute_slope(sample)
    right = sample.targets == sample.answers
    twice = Evaluation(*(torch.cat([p, p[right].unsqueeze(0)], 1) for p in sample))
    back = drift.compute_slope(twice, whole.cells)
    torch.testing.assert_close(back.mean, whole.mean, rtol=1e-4, atol=1e-5)
    assert torch.equal(back.cells[..., 1], 2 * whole.cells[..., 1])


def test_weights_may_be_of_classes_alone():
    sample = drawn(7, replicas=1)
    whole = drift.compute_slope(sample)
    ill = sample.targets == 1
    twice = Evaluation(*(torch.cat([p, p[ill].unsqueeze(0)], 1) for p in sample))
    back = drift.compute_slope(twice, whole.cells.sum(2, keepdim=True))
    torch.testing.assert_close(back.mean, whole.mean, rtol=1e-4, atol=1e-5)


def test_the_changed_feature_is_found_and_no_other():
    one, other = drawn(8, extra=1.0, count=3000), drawn(9, count=3000)
    found = drift.fit_change(one, drift.compute_slope(one), drift.compute_slope(other))
    assert (found[:, 1, -1] > 0).all() and (found[:, 0, -1] < 0).all()
    assert (found[..., :-1].abs() < 0.2 * found[:, 1:, -1:]).all()


def test_like_environments_show_no_feature():
    one, other = drawn(8), drawn(9)
    found = drift.fit_change(one, drift.compute_slope(one), drift.compute_slope(other))
    assert (found == 0).all((1, 2)).float().mean() > 0.9


@pytest.mark.integration
def test_units_of_the_inputs_do_not_matter():
    one, other = (
        drift.compute_slope(drawn(seed, extra)) for seed, extra in ((1, 0), (2, 0.3))
    )
    larger = [
        drift.compute_slope(s._replace(inputs=1000 * s.inputs))
        for s in (drawn(1), drawn(2, 0.3))
    ]
    torch.testing.assert_close(
        drift.disagreement_p_value(one, other),
        drift.disagreement_p_value(*larger),
        rtol=1e-2,
        atol=1e-6,
    )


def test_the_nearest_centre_answers():
    seen = torch.tensor([[[0.0], [1.0], [9.0], [11.0]]])
    centres = drift.compute_centroids(seen, torch.tensor([[0, 0, 1, 1]]), 2)
    assert centres.flatten().tolist() == [0.5, 10.0]
    assert drift.find_nearest(seen, centres).tolist() == [[0, 0, 1, 1]]
    third = drift.compute_centroids(seen, torch.tensor([[0, 0, 2, 2]]), 3)
    assert drift.find_nearest(seen - 5, third - 5).tolist() == [[0, 0, 2, 2]]


@pytest.mark.parametrize("count", [1, 2, drift.ENOUGH - 1])
def test_a_handful_of_examples_shows_nothing(count):
    few, many = (drift.compute_slope(drawn(1, count=n)) for n in (count, 1000))
    assert torch.isfinite(few.mean).all()
    assert (drift.disagreement_p_value(few, many) == 1).all()
