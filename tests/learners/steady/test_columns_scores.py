"""Scores of columns and blocks, and how far predictions are trusted elsewhere."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.steady.columns_basis import fit_feature_basis
from cirm.learners.steady.columns_predict import (
    fit_calibration_slope,
    predict_calibration_slope,
)
from cirm.learners.steady.columns_scores import (
    compute_block_scores,
    cross_fit_block_scores,
    learn_weights_of_block_scores,
)
from cirm.learners.steady.columns_state import create_empty_columns_state
from tests.learners.steady.test_columns import train


def draw_columns(n, seed=0):
    """A straight column, a column that matters by its size, and one with two values."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator).double()
    x[:, 2] = (x[:, 2] > 0).double()
    y = x[:, 0] - 2 * x[:, 1].abs() + x[:, 2]
    return x, y + torch.randn(n, generator=generator)


def correlate(one, other):
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def test_scores_have_the_shape_of_the_effect():
    x, y = draw_columns(2000)
    basis, block = fit_feature_basis(x, 1), torch.arange(3)
    weights = learn_weights_of_block_scores(basis, x, y, block)
    scores = compute_block_scores(basis, x, weights, block)
    assert correlate(scores[:, 0], x[:, 0]) > 0.99
    assert correlate(scores[:, 1], -x[:, 1].abs()) > 0.95
    assert len(scores[:, 2].unique()) == 2
    assert scores.std(0).tolist() == pytest.approx([1.0] * 3, rel=0.01)


def test_a_block_has_one_score_at_its_first_feature():
    x, y = draw_columns(500)
    basis, block = fit_feature_basis(x, 1), torch.tensor([0, 0, 2])
    weights = learn_weights_of_block_scores(basis, x, y, block)
    scores = compute_block_scores(basis, x, weights, block)
    assert not scores[:, 1].any()
    assert correlate(scores[:, 0], x[:, 0] - 2 * x[:, 1].abs()) > 0.9


def test_halves_have_one_centre_one_sign_and_two_values():
    """Even where the target says nothing, and each half learns its own noise."""
    x, _ = draw_columns(400)
    y = torch.randn(400, generator=torch.Generator().manual_seed(3)).double()
    basis, block = fit_feature_basis(x, 1), torch.arange(3)
    weights = learn_weights_of_block_scores(basis, x, y, block)
    scores = cross_fit_block_scores(basis, x, y, weights, block)
    whole = compute_block_scores(basis, x, weights, block)
    for half in (slice(0, None, 2), slice(1, None, 2)):
        assert scores[half].mean(0).tolist() == pytest.approx([0.0] * 3, abs=0.2)
        for column in range(3):
            assert correlate(scores[half, column], whole[half, column]) > 0
    assert len(scores[:, 2].unique()) == 2


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("kind", ["heavy tails", "in the middle", "skewed"])
def test_a_shortcut_of_any_shape_is_found(kind, values):
    task = Task.regression() if values else Task.classification(2)

    def make_place(name, flip):
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(1500, 3, generator=generator)
        y = x.sum(1) + torch.randn(1500, generator=generator)
        mark = (y > 0) ^ (torch.rand(1500, generator=generator) < flip)
        sign, noise = 2.0 * mark - 1, torch.randn(1500, generator=generator)
        if kind == "heavy tails":
            other = torch.randn(1500, generator=generator).abs().clamp(min=0.05)
            u = sign + 0.5 * noise / other
        elif kind == "skewed":
            u = (sign + 0.7 * noise).exp()
        else:
            far = 1.5 * torch.randn(1500, generator=generator).sign()
            u = torch.where(mark, 0.0, far) + 0.4 * noise
        inputs = torch.cat([x, u[:, None]], 1)
        return Environment(name, inputs, y if values else (y > 0).long(), task)

    places = [make_place("a", 0.1), make_place("b", 0.25)]
    _, state = train(Stream.create_sequential(places))
    assert state.unstable.tolist() == [[False] * 3 + [True]]


@pytest.mark.parametrize("slope", [0.5, 1.0])
def test_the_slope_on_arrival_is_that_of_least_squares_or_of_the_log_odds(slope):
    generator = torch.Generator().manual_seed(0)
    outputs = 2 * torch.randn(20_000, 1, generator=generator).double() + 1
    noise = torch.randn(20_000, 1, generator=generator)
    found, variance = fit_calibration_slope(
        outputs, 3 + slope * outputs + noise, is_regression=True
    )
    assert float(found) == pytest.approx(slope, abs=0.02)
    assert float(variance) == pytest.approx(1 / (20_000 * 4), rel=0.05)
    shares = (slope * outputs - 0.5).sigmoid()
    y = (torch.rand(20_000, 1, generator=generator) < shares).double()
    found, variance = fit_calibration_slope(outputs, y, is_regression=False)
    assert float(found) == pytest.approx(slope, abs=4 * float(variance) ** 0.5)
    three = torch.randn(20_000, 3, generator=generator).double() * 2
    labels = torch.multinomial((slope * three).softmax(1), 1, generator=generator)
    aims = torch.nn.functional.one_hot(labels[:, 0], 3).double()
    found, _ = fit_calibration_slope(three, aims, is_regression=False)
    assert float(found) == pytest.approx(slope, abs=0.05)


def test_the_slope_for_a_new_place_is_between_one_and_that_on_arrival():
    arrivals = create_empty_columns_state(1, 2, 1, 2, 0, 0, 0).arrivals
    assert float(predict_calibration_slope(arrivals)) == 1.0

    def predict(slopes, variance):
        known = torch.tensor(slopes).double()
        return float(
            predict_calibration_slope(
                arrivals._replace(
                    slopes=known, slope_variances=torch.full_like(known, variance)
                )
            )
        )

    assert predict([0.5], 0.0) == pytest.approx(0.75)
    assert predict([0.5] * 9, 0.0) == pytest.approx(0.55)
    assert predict([0.5], 100.0) > 0.99  # not known
    assert predict([1.4], 0.0) == 1.0  # never more than the model says
