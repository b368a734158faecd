"""Diagonal Gaussians: divergence, scaling, and two ways to draw a network's outputs."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from cirm.networks import MLP, Network
from cirm.randomness import Randomness
from cirm.variational import (
    DiagonalGaussian,
    check_variational_settings,
    compute_gaussian_kl,
    compute_kl_weight,
    create_diagonal_gaussian,
    create_initial_posterior_of_stage,
    draw_samples_of_gaussian,
    flatten_gaussian_to_vector,
    restore_gaussian_from_vector,
)


def gaussian(name, replicas=3, size=7):
    source = Randomness(tuple(range(replicas))).at(name)
    return DiagonalGaussian(
        source.at("mean").normal(size), source.at("log").normal(size)
    )


def torchs(q):
    return Independent(Normal(q.mean, q.log_std.exp()), 1)


def leaves(*gaussians):
    return [t.double().requires_grad_() for g in gaussians for t in g]


def test_the_divergence_is_that_of_torch():
    q, p = gaussian("q"), gaussian("p")
    torch.testing.assert_close(
        compute_gaussian_kl(q, p), kl_divergence(torchs(q), torchs(p))
    )


def test_the_gradient_of_the_divergence_is_that_of_torch():
    ours, theirs = (leaves(gaussian("q"), gaussian("p")) for _ in range(2))
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    found = (
        compute_gaussian_kl(DiagonalGaussian(*ours[:2]), DiagonalGaussian(*ours[2:]))
        @ weights
    )
    wanted = kl_divergence(
        *(torchs(DiagonalGaussian(*theirs[i : i + 2])) for i in (0, 2))
    )
    torch.testing.assert_close(
        torch.autograd.grad(found, ours), torch.autograd.grad(wanted @ weights, theirs)
    )


def test_the_divergence_can_be_differentiated_twice():
    q, p = gaussian("q", 2, 3), gaussian("p", 2, 3)

    def divergence(*parts):
        return compute_gaussian_kl(
            DiagonalGaussian(*parts[:2]), DiagonalGaussian(*parts[2:])
        )

    assert torch.autograd.gradgradcheck(divergence, leaves(q, p))


def test_several_gaussians_can_share_a_prior():
    q, p = leaves(gaussian("q", 6)), leaves(gaussian("p"))
    several = DiagonalGaussian(*(t.view(3, 2, 7) for t in q))
    shared = compute_gaussian_kl(
        several, DiagonalGaussian(*(t.unsqueeze(1) for t in p))
    )
    apart = compute_gaussian_kl(
        DiagonalGaussian(*q), DiagonalGaussian(*(t.repeat_interleave(2, 0) for t in p))
    )
    torch.testing.assert_close(shared.flatten(), apart)
    torch.testing.assert_close(
        torch.autograd.grad(shared.sum(), (*q, *p)),
        torch.autograd.grad(apart.sum(), (*q, *p)),
    )


def test_a_gaussian_does_not_diverge_from_itself():
    q = gaussian("q")
    assert compute_gaussian_kl(q, q).tolist() == [0, 0, 0]


def test_a_standard_normal_has_a_known_divergence():
    mean = torch.tensor([[3.0, 4.0]])
    apart = compute_gaussian_kl(
        create_diagonal_gaussian(mean, 1.0),
        create_diagonal_gaussian(mean, 1.0, is_centred_at_zero=True),
    )
    torch.testing.assert_close(apart, torch.tensor([25 / 2]))
    wide = compute_gaussian_kl(
        create_diagonal_gaussian(mean, math.e), create_diagonal_gaussian(mean, 1.0)
    )
    torch.testing.assert_close(wide, torch.tensor([math.e**2 - 1 - 2]))


def test_the_divergence_is_scaled_as_it_is_or_by_the_number_of_examples():
    assert compute_kl_weight("sum", 50) == 1
    assert compute_kl_weight("per-example", 50) == 1 / 50


def test_what_is_joined_can_be_parted():
    q = gaussian("q")
    assert flatten_gaussian_to_vector(q).shape == (3, 14)
    for one, other in zip(
        restore_gaussian_from_vector(flatten_gaussian_to_vector(q)), q, strict=True
    ):
        assert torch.equal(one, other)


def test_a_stage_starts_at_given_means_or_else_at_the_posterior():
    q = gaussian("q")
    means = torch.ones(3, 7)
    start = create_initial_posterior_of_stage(means, q, 0.5)
    assert torch.equal(start.mean, means)
    torch.testing.assert_close(start.log_std.exp(), torch.full((3, 7), 0.5))
    assert create_initial_posterior_of_stage(means[:, :0], q, 0.5) is q


GOOD = {
    "beta": 1.0,
    "kl_scale": "sum",
    "samples": 1,
    "evaluations": 1,
    "prior_std": 1.0,
    "initial_std": 0.1,
}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (
            {"kl_scale": "mean"},
            "kl_scale must be one of sum, per-example, but is 'mean'.",
        ),
        ({"beta": -1.0}, "beta must not be negative, but is -1.0."),
        ({"samples": 0}, "samples must be 1 or more, but is 0."),
        ({"evaluations": 0}, "evaluations must be 1 or more, but is 0."),
        ({"prior_std": 0.0}, "prior_std must be positive, but is 0.0."),
        ({"initial_std": 0.0}, "initial_std must be positive, but is 0.0."),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, complaint):
    check_variational_settings("vcl", SimpleNamespace(**GOOD))
    with pytest.raises(ValueError, match=re.escape(complaint)) as refusal:
        check_variational_settings("vcl", SimpleNamespace(**{**GOOD, **wrong}))
    assert str(refusal.value).startswith("vcl: ")


SAMPLES = 8_000
WAYS = {"sums": MLP.sample_outputs, "weights": Network.sample_outputs}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def moments(way, network, q, x):
    """Mean and variance over the samples, [replica, n, outputs] each."""
    outputs = way(network, q, x, Randomness((0, 1)).at("check").start_draws(), SAMPLES)
    assert outputs.shape == (2, SAMPLES, *x.shape[1:2], network.outputs)
    return outputs.mean(1), outputs.var(1)


@each_way
def test_outputs_of_a_drawn_linear_network_have_the_moments_of_theory(way):
    network = MLP((4, 3))
    q = DiagonalGaussian(*(t / 2 for t in gaussian("q", 2, network.size)))
    x = Randomness((5, 6)).normal(2, 4)
    (weights, biases), *_ = network.split_parameters_into_layers(q.mean)
    (variances, bias_variances), *_ = network.split_parameters_into_layers(
        (2 * q.log_std).exp()
    )
    mean, variance = moments(way, network, q, x)
    wanted = x.square() @ variances + bias_variances
    error = (mean - (x @ weights + biases)).abs() / wanted.sqrt()
    assert error.max() < 4.5 / SAMPLES**0.5
    assert (variance / wanted - 1).abs().max() < 4.5 * (2 / SAMPLES) ** 0.5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_drawing_sums_gives_the_same_moments_as_drawing_weights(dropout):
    network = MLP((3, 6, 1), dropout=dropout)
    q = DiagonalGaussian(*(t / 3 - 0.3 for t in gaussian("q", 2, network.size)))
    x = Randomness((5, 6)).normal(1, 3)
    (mean, variance), (other_mean, other_variance) = (
        moments(way, network, q, x) for way in WAYS.values()
    )
    error = (mean - other_mean) / variance.sqrt()
    assert error.abs().max() < 4.5 * (2 / SAMPLES) ** 0.5
    # The outputs have heavier tails than a normal: twice its error of the variance.
    assert (variance / other_variance - 1).abs().max() < 9 * (4 / SAMPLES) ** 0.5


def test_drawn_parameters_have_the_mean_and_the_spread_of_the_gaussian():
    q = gaussian("q", 2, 4)
    drawn = draw_samples_of_gaussian(
        q, Randomness((0, 1)).at("check").normal(SAMPLES, 4)
    )
    error = (drawn.mean(1) - q.mean) / q.log_std.exp()
    assert error.abs().max() < 4.5 / SAMPLES**0.5
    spread = drawn.std(1) / q.log_std.exp()
    assert (spread - 1).abs().max() < 4.5 / (2 * SAMPLES) ** 0.5
