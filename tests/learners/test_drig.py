"""DRIG extrapolates from the reference along what changes between environments."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.drig import DRIG
from cirm.likelihoods import SquaredError
from cirm.networks import MLP
from tests.learners.places import train

LINEAR = MLP((2, 1))


def make_place(name, spread, size=4000):
    """The first input causes the target, which causes the second one, with noise."""
    generator = torch.Generator().manual_seed(ord(name))
    cause, noise, effect = torch.randn(3, size, generator=generator)
    y = cause + noise
    x = torch.stack([cause, y + spread * effect], 1)
    return Environment(name, x, y, Task.regression())


PLACES = make_place("a", 0.5), make_place("b", 1.0)


def fit(gamma, places=PLACES, order="joint"):
    learner = DRIG(LINEAR, SquaredError(), gamma=gamma)
    return train(learner, *Stream.from_order(places, order), seeds=(3,)).params[0]


def fit_least_squares(*places):
    """Least squares of differences from the means of the first place."""
    first = places[0]
    x = torch.cat([place.inputs - first.inputs.mean(0) for place in places]).double()
    y = torch.cat([place.targets - first.targets.mean() for place in places]).double()
    return torch.linalg.lstsq(x, y[:, None]).solution[:, 0].float()


def test_with_gamma_zero_it_is_least_squares_at_the_reference():
    expected = fit_least_squares(PLACES[0])
    torch.testing.assert_close(fit(0.0)[:2], expected, rtol=1e-4, atol=1e-5)


def test_with_gamma_one_it_is_least_squares_of_all_examples():
    expected = fit_least_squares(*PLACES)
    torch.testing.assert_close(fit(1.0)[:2], expected, rtol=1e-4, atol=1e-5)


def test_a_larger_gamma_relies_less_on_the_input_that_varies_between_environments():
    slopes = [fit(gamma)[1].item() for gamma in (0.0, 1.0, 5.0, 100.0)]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[0] > 0.7 and slopes[-1] < 0.1
    assert fit(100.0)[0].item() == pytest.approx(1.0, abs=0.15)


def test_on_a_sequence_it_is_exactly_the_joint_regression():
    torch.testing.assert_close(fit(5.0), fit(5.0, order="sequential"))


def test_gamma_is_lowered_where_there_would_be_no_minimum():
    found = fit(100.0, (PLACES[1], make_place("c", 0.2)))
    assert found.isfinite().all() and found.abs().max() < 10


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="drig: the setting gamma must be 0 or more"):
        DRIG(gamma=-1.0)


def test_an_environment_counts_as_much_as_its_rows():
    first, second = PLACES
    parts = torch.arange(1000)[None], torch.arange(1000, 4000)[None]
    halves = [second.subset(rows).rename(f"b{n}") for n, rows in enumerate(parts)]
    torch.testing.assert_close(
        fit(3.0, (first, *halves)), fit(3.0), rtol=1e-4, atol=1e-5
    )
