"""Random features of a kernel, and the test of a change along their discriminant."""

import pytest
import torch

from cirm.learners.steady import directions_search as search
from cirm.learners.steady.directions_kernel import (
    DISCRIMINANT_RIDGE,
    FEATURES,
    compute_kernel_features,
    fit_kernel_width,
)


def test_products_of_features_are_the_gaussian_kernel():
    rows = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    width = torch.tensor(4.0)
    features = compute_kernel_features(rows, width)
    kernel = (-torch.cdist(rows, rows).square() / width).exp()
    assert (features @ features.T - kernel).abs().max() < 5 * FEATURES**-0.5


def test_features_do_not_depend_on_the_unit_of_inputs():
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    one, other = (
        compute_kernel_features(part, fit_kernel_width(part))
        for part in (rows, 255 * rows)
    )
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_equal_rows_have_a_width():
    assert fit_kernel_width(torch.ones(5, 3)) == 1


def test_p_values_have_their_level_although_directions_are_fitted_to_the_same_rows():
    generator = torch.Generator().manual_seed(0)
    squares, uncorrected = [], []
    for _ in range(60):
        targets = torch.arange(300) % 2
        moments = [
            search.compute_class_moments(
                torch.randn(300, 200, generator=generator).double(), targets, 2
            )
            for _ in range(2)
        ]
        axes = search.find_principal_axes_within_classes(
            search.pool_class_moments_of_environments(*moments)
        )
        z = search.compute_z_along_discriminant(*moments, axes, 0.1)
        squares.append(torch.tensor(z).square())
        freedom = 200 / 1.1
        uncorrected.append(squares[-1] / (1 - freedom / 600) ** 2)
    assert torch.stack(squares).mean() == pytest.approx(1, abs=0.4)
    assert torch.stack(uncorrected).mean() > 1.6


def draw_products(n, right, seed):
    """Rows whose shortcut is the sign of a product: it moves no mean."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (n,), generator=generator)
    agrees = torch.rand(n, generator=generator) < right
    sign = 2.0 * torch.where(agrees, targets, 1 - targets) - 1
    first = torch.randn(n, generator=generator)
    first = first.sign() * (1 + first.abs())
    noise = torch.randn(n, 2, generator=generator)
    return torch.cat([first[:, None], (first * sign)[:, None], noise], 1), targets


@pytest.mark.parametrize(("right", "is_found"), [((0.8, 0.95), True), ((0.8,) * 2, 0)])
def test_a_change_that_moves_no_mean_of_inputs_is_found(right, is_found):
    drawn = [draw_products(800, part, seed) for seed, part in enumerate(right)]
    width = fit_kernel_width(drawn[0][0])
    p_values = {}
    for name in ("inputs", "kernel"):
        moments = [
            search.compute_class_moments(
                (x if name == "inputs" else compute_kernel_features(x, width)).double(),
                y,
                2,
            )
            for x, y in drawn
        ]
        axes = search.find_principal_axes_within_classes(
            search.pool_class_moments_of_environments(*moments)
        )
        z = search.compute_z_along_discriminant(*moments, axes, DISCRIMINANT_RIDGE)
        p_values[name] = search.convert_z_to_p_value(z)
    assert p_values["inputs"] > 0.01
    assert (p_values["kernel"] < 1e-3) == is_found
