"""Effects estimated without labels: known truths, closed forms and limits."""

import math

import pytest
import torch

from cirm.learners.steady.columns_posterior import (
    StudentEffectPrior,
    convert_effects_to_logits,
    estimate_category_frequencies_by_class,
    estimate_effect_on_log_odds,
    estimate_slope_on_numerical_target,
)

FLAT = StudentEffectPrior(0.0, 100.0, 1.0)


def draw_classes(n, agreement, seed=0):
    """Return exact probabilities of a class by s, and a feature that agrees with it."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=generator) < 0.4).double()
    s = torch.randn(n, generator=generator).double() + 2.0 * y
    soft = (2.0 * s - 2.0 + math.log(0.4 / 0.6)).sigmoid()
    agrees = torch.rand(n, generator=generator) < agreement
    return soft.clamp(1e-3, 1 - 1e-3), torch.where(agrees, y, 1 - y), y


@pytest.mark.parametrize("agreement", [0.1, 0.3, 0.5, 0.8])
def test_the_known_effect_of_a_binary_feature_is_recovered(agreement):
    soft, u, _ = draw_classes(20_000, agreement)
    truth = 2 * math.log(agreement / (1 - agreement))
    posterior = estimate_effect_on_log_odds(soft, u, FLAT)
    assert posterior.low < truth < posterior.high
    assert posterior.median == pytest.approx(truth, abs=0.25)


def test_soft_labels_that_are_certain_give_the_labelled_estimate():
    _, u, y = draw_classes(4_000, 0.8)
    posterior = estimate_effect_on_log_odds(y.clamp(1e-3, 1 - 1e-3), u, FLAT)
    table = [[((y == a) & (u == b)).sum() for b in (0, 1)] for a in (0, 1)]
    ratio = math.log(table[1][1] * table[0][0] / (table[0][1] * table[1][0]))
    assert posterior.median == pytest.approx(ratio, abs=0.05)


def test_soft_labels_that_say_nothing_leave_the_prior():
    _, u, _ = draw_classes(500, 0.8)
    prior = StudentEffectPrior(1.0, 0.5, 30.0)
    posterior = estimate_effect_on_log_odds(torch.full_like(u, 0.4), u, prior)
    assert posterior.median == pytest.approx(1.0, abs=0.15)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    truth = 2 * math.log(0.3 / 0.7)
    hits = 0
    for seed in range(40):
        soft, u, _ = draw_classes(400, 0.3, seed)
        posterior = estimate_effect_on_log_odds(soft, u, FLAT)
        hits += posterior.low < truth < posterior.high
    assert hits >= 34


def test_the_constant_of_two_classes_keeps_the_mean_probability():
    _, u, _ = draw_classes(3_000, 0.9)
    slope, level = convert_effects_to_logits(torch.tensor([1.5]).double(), u, 0.4, 1)
    shifted = slope * u[:, None] + level + math.log(0.4 / 0.6)
    assert float(shifted.sigmoid().mean()) == pytest.approx(0.4, abs=1e-4)


def test_the_regression_form_is_exact_for_normal_variables():
    generator = torch.Generator().manual_seed(0)
    n, slope, noise, rest = 200_000, -0.7, 0.5, 0.8
    f = torch.randn(n, generator=generator).double()
    y = f + rest**0.5 * torch.randn(n, generator=generator).double()
    u = slope * y + noise**0.5 * torch.randn(n, generator=generator).double() + 3.0
    posterior, slopes, total = estimate_slope_on_numerical_target(
        f, u, rest, StudentEffectPrior(0.0, 100.0, 1.0)
    )
    assert total == pytest.approx(noise + slope**2 * rest, rel=0.02)
    assert float(slopes.mean()) == pytest.approx(slope, abs=0.01)
    assert posterior.median == pytest.approx(slope / noise, rel=0.05)
    gain = float(slopes.mean()) * rest / total
    combined = f + gain * (u - 3.0 - slope * f)
    best = 1 / (1 / rest + slope**2 / noise)  # precisions add up
    assert float((combined - y).square().mean()) == pytest.approx(best, rel=0.02)


def draw_categories(n, seed=0):
    """Return exact probabilities of three classes, categories, and their table."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    s = torch.randn(n, 3, generator=generator).double()
    s[torch.arange(n), y] += 2.0
    table = torch.tensor([[0.1, 0.1, 0.8], [0.8, 0.2, 0.1], [0.1, 0.7, 0.1]]).double()
    u = torch.multinomial(table.T[y], 1, generator=generator)[:, 0]
    return (2.0 * s).softmax(-1), torch.nn.functional.one_hot(u, 3).double(), table


def test_em_recovers_the_known_table_of_a_category():
    soft, members, truth = draw_categories(20_000)
    table = estimate_category_frequencies_by_class(soft, members)
    assert torch.allclose(table.logs.exp(), truth, atol=0.03)
    assert torch.allclose(table.overall, truth.mean(1), atol=0.02)


def test_the_errors_of_a_table_match_its_spread_over_draws():
    tables = [
        estimate_category_frequencies_by_class(*draw_categories(600, seed)[:2])
        for seed in range(40)
    ]
    spread = torch.stack([table.logs for table in tables]).std(0)
    claimed = torch.stack([table.errors for table in tables]).mean(0)
    assert 0.6 < float((claimed / spread).median()) < 1.8


def test_a_category_that_says_nothing_gives_no_evidence():
    soft, members, _ = draw_categories(5_000)
    members = members[torch.randperm(5_000, generator=torch.Generator().manual_seed(1))]
    evidence = (
        estimate_category_frequencies_by_class(soft, members)
        .draw_log_likelihood_ratios()
        .mean(0)
    )
    assert float(evidence.abs().max()) < 0.15
