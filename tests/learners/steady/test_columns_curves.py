"""Curves of two-valued features over the target of a regression."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady.columns_curves import (
    fit_feature_curves,
    measure_slopes_on_curves,
)
from cirm.learners.steady.columns_effects import measure_partial_coefficients
from cirm.learners.steady.meta_analysis import UNKNOWN
from cirm.randomness import Randomness


def draw_rows(n, flip, seed):
    """A normal target, and a feature that marks values above zero, with flips."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(n, generator=generator).double()
    agrees = torch.rand(n, generator=generator) >= flip
    u = torch.where(agrees, y > 0, y <= 0).double()
    return (2 * u - 1)[:, None], y


def measure(rows, curves, is_first):
    unadjusted = torch.tensor([True])
    empty = torch.zeros(0, 1).double()
    return measure_slopes_on_curves(*rows, curves, empty, unadjusted, is_first)[0]


def test_the_slope_on_the_curve_is_that_of_the_threshold():
    """With a threshold at the middle the curve is 1 - 2 flip times the sign."""
    rows = draw_rows(200_000, 0.1, 0)
    curves = fit_feature_curves(*rows)
    # The curve has the spread of the target, times the noise 1 - 0.8^2.
    heights = curves.evaluate(torch.tensor([-2.0, 2.0]).double())[:, 0]
    assert heights.tolist() == pytest.approx([-0.36, 0.36], abs=0.01)
    first = measure(rows, curves, True)
    later = measure(draw_rows(200_000, 0.2, 1), curves, False)
    assert float(first[0]) == pytest.approx(0.8 / 0.36, rel=0.02)
    assert float(later[0] / first[0]) == pytest.approx(0.75, abs=0.02)


def test_equal_places_differ_by_chance_only():
    """Halves, and curves shrunk by their noise, leave no bias at the first place."""
    squares, differences = [], []
    for seed in range(300):
        rows = draw_rows(300, 0.1, 2 * seed)
        curves = fit_feature_curves(*rows)
        one, two = (
            measure(rows, curves, True),
            measure(draw_rows(300, 0.1, 2 * seed + 1), curves, False),
        )
        error = float((one[1] + two[1]).sqrt())
        differences.append(float(one[0] - two[0]) / error)
        squares.append(differences[-1] ** 2)
    assert abs(sum(differences) / 300) < 3 / 300**0.5 + 0.15
    # 300 squares of a standard normal number have a standard error of 0.08.
    assert 0.7 < sum(squares) / 300 < 1.3


def test_a_straight_number_has_no_curve_and_neither_has_a_feature_of_chance():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(500, generator=generator).double()
    number = y + torch.randn(500, generator=generator)
    chance = torch.randint(2, (500,), generator=generator).double()
    curves = fit_feature_curves(torch.stack([number, chance], 1), y)
    assert not curves.values.any()
    empty, simple = torch.zeros(0, 2).double(), torch.ones(2, dtype=torch.bool)
    rows = torch.stack([number, chance], 1), y
    found = measure_slopes_on_curves(*rows, curves, empty, simple, True)
    assert (found[:, 1] == UNKNOWN).all()


def test_a_number_that_marks_large_values_has_a_curve():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(1000, generator=generator).double()
    number = y.sign() + 0.5 * torch.randn(1000, generator=generator)
    curves = fit_feature_curves(number[:, None], y)
    heights = curves.evaluate(torch.tensor([-2.0, -0.2, 0.2, 2.0]).double())[:, 0]
    assert heights[:2].tolist() == pytest.approx([float(heights[0])] * 2, rel=0.2)
    assert heights[2:].tolist() == pytest.approx([-float(heights[0])] * 2, rel=0.2)


def test_coefficients_are_those_of_least_squares():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, 3, generator=generator).double()
    x[:, 1] += 0.5 * x[:, 0]
    y = x @ torch.tensor([1.0, -2.0, 0.0]).double()
    y = y + torch.randn(len(y), generator=generator)
    x, y = x - x.mean(0), y - y.mean()
    found = measure_partial_coefficients(
        x, y, torch.arange(3), torch.zeros(0, 3).double()
    )
    solved = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    assert found[:, 0].tolist() == pytest.approx(solved.tolist(), abs=1e-3)
    covariance = torch.linalg.inv(x.T @ x)  # the noise has variance 1
    assert found[:, 1].tolist() == pytest.approx(
        covariance.diagonal().tolist(), rel=0.05
    )


def test_a_feature_that_marks_large_values_is_found_where_the_noise_changes_too():
    places = []
    for name, flip, noise in (("a", 0.1, 1.0), ("b", 0.2, 1.3)):
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(1000, 4, generator=generator)
        y = x.sum(1) + noise * torch.randn(1000, generator=generator)
        agrees = torch.rand(1000, generator=generator) >= flip
        u = torch.where(agrees, y > 0, y <= 0).float()
        inputs = torch.cat([x, u[:, None]], 1)
        places.append(Environment(name, inputs, y, Task.regression()))
    learner = create("steady", places[0], {})
    state = learner.init(Randomness((0,)).at("init"))
    for index, stage in enumerate(Stream.create_sequential(places)):
        state = learner.observe(state, stage, Randomness((0,)).at("stage", index))
    assert state.unstable.tolist() == [[False] * 4 + [True]]
