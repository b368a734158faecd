"""Effects of columns and their changes, against formulas by hand."""

import math

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.steady.columns_changes import (
    _find_effects_that_change,
    compute_p_values_given_usual_spread,
    compute_prior_probability_of_shortcuts,
    compute_share_of_significance_level,
    estimate_usual_spread_of_effects,
)
from cirm.learners.steady.columns_effects import (
    compute_standardised_ranks,
    measure_feature_effects,
    measure_partial_coefficients,
)
from cirm.learners.steady.columns_residual import (
    compute_explained_fractions,
    has_most_information,
)
from cirm.learners.steady.meta_analysis import combine_effects_of_environments
from cirm.memory import select_state_of_replica
from tests.learners.steady.test_columns import train


@pytest.mark.parametrize("frequency", [0.2, 0.5, 0.7])
def test_the_effect_of_a_binary_column_is_the_log_odds_ratio(frequency):
    # Exact counts: the column is 1 in 70 % of the rows of class 1, in 40 % of class 0.
    n, high, low = 4000, 0.7, 0.4
    ones = int(n * frequency)
    y = (torch.arange(n) < ones).double()
    x = torch.zeros(n).double()
    x[: int(ones * high)] = 1.0
    x[ones : ones + int((n - ones) * low)] = 1.0
    scaled = (x - x.mean()) / x.std()
    unit, past = torch.zeros(1).long(), torch.zeros(0, 1).double()
    found = measure_feature_effects(
        scaled[:, None], y[:, None], unit, past, is_regression=False
    )
    counts = (ones * high, ones * (1 - high), (n - ones) * low, (n - ones) * (1 - low))
    a, b, c, d = (torch.tensor(count) for count in counts)
    ratio = float((a * d / (b * c)).log() * x.std())  # per standard deviation
    woolf = float((1 / a + 1 / b + 1 / c + 1 / d) * x.var())
    assert float(found.slope) == pytest.approx(ratio, rel=0.01)
    assert float(found.variance) == pytest.approx(woolf, rel=0.03)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_change_that_all_effects_share_is_no_shortcut(noise):
    # Six columns whose effects double together; then one of them changes alone.
    effects = torch.tensor([[1.0] * 6, [2.0] * 6]).double()[..., None]
    variances = torch.full_like(effects, 1e-3)
    every, unit = torch.ones(6).bool(), torch.arange(6)

    def find(values):
        found = _find_effects_that_change(
            (values, variances), every, every, unit, 0.05, noise, 0.03 * every
        )
        return found[:, 0].tolist()

    assert find(effects) == [False] * 6
    alone = effects.clone()
    alone[1, 1:] = 1.0
    assert find(alone) == [True] + [False] * 5
    assert find(effects[:1].expand(2, -1, -1)) == [False] * 6


def test_the_usual_spread_is_that_of_other_units():
    """Effects of 200 columns vary by 30 %; without peers only a little is usual."""
    generator = torch.Generator().manual_seed(0)
    usual = torch.rand(200, generator=generator).double() + 0.5
    effects = usual * (1 + 0.3 * torch.randn(3, 200, generator=generator).double())
    effects = (effects + 0.1 * torch.randn(3, 200, generator=generator))[..., None]
    variances, unit = torch.full_like(effects, 0.01), torch.arange(200)
    every = torch.ones(200).bool()
    prior = 0.03 * every
    found = estimate_usual_spread_of_effects(effects, variances, every, unit, prior)
    assert found.flatten().tolist() == pytest.approx([0.3] * 200, abs=0.04)
    few = estimate_usual_spread_of_effects(effects, variances, ~every, unit, prior)
    assert few.flatten().tolist() == pytest.approx([0.05] * 200, abs=0.01)


def test_the_prior_of_a_shortcut_follows_from_how_related_it_is():
    """Of 1,000 units 27 + 3 are shortcuts, and 194 + 776 are not."""
    found = compute_prior_probability_of_shortcuts(torch.tensor([True, False]))
    assert found.tolist() == pytest.approx([27 / (27 + 194), 3 / (3 + 776)])


def test_a_likely_shortcut_does_not_show_what_is_usual():
    # Two of eight columns change alike; the others do not.
    effects = torch.ones(2, 8, 1).double()
    effects[0, :2], effects[1, :2] = 3.0, 2.0
    variances, unit = torch.full_like(effects, 0.03), torch.arange(8)
    every = torch.ones(8).bool()
    low, high = (
        float(
            compute_p_values_given_usual_spread(
                effects, variances, every, unit, prior * every
            )[0, 0]
        )
        for prior in (0.3, 0.001)
    )
    assert low < 0.5 * high


def test_effects_that_vary_as_usual_are_rarely_called_changed():
    generator = torch.Generator().manual_seed(1)
    shape = 300, 2, 12, 1  # tables, places, columns
    usual = torch.rand(300, 1, 12, 1, generator=generator).double() + 0.5
    effects = usual * (1 + 0.2 * torch.randn(shape, generator=generator))
    effects = effects + 0.1 * torch.randn(shape, generator=generator)
    variances, unit = torch.full_like(effects[0], 0.01), torch.arange(12)
    every = torch.ones(12).bool()
    p_values = torch.stack(
        [
            compute_p_values_given_usual_spread(
                own, variances, every, unit, 0.03 * every
            )
            for own in effects
        ]
    )
    assert float((p_values < 0.01).double().mean()) < 0.08
    plain = combine_effects_of_environments(
        effects.movedim(1, 0), variances[:, None]
    ).p_value()
    assert float((plain < 0.01).double().mean()) > 0.25  # as if none were usual


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("changes", [True, False])
def test_two_related_columns_that_change_are_found_together(values, changes):
    # Given the label, each of the last two explains 0.4 of the other's variance, too
    # much to test them one by one, and nothing of the first two.
    task = Task.regression() if values else Task.classification(2)

    def make_place(name, slope, seed):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(2, (3000,), generator=generator)
        if values:
            y = torch.randn(3000, generator=generator)
        x = torch.randn(3000, 4, generator=generator)
        x[:, 3] = 0.63 * x[:, 2] + 0.77 * x[:, 3]
        x += torch.tensor([0.8, 0.5, slope, slope]) * y[:, None]
        return Environment(name, x, y, task)

    places = [make_place("a", 0.7, 0), make_place("b", -0.2 if changes else 0.7, 1)]
    learner, state = train(Stream.create_sequential(places))
    assert state.unstable.tolist() == [[False, False, changes, changes]]
    names = ["column 3", "column 4"] if changes else []
    assert learner.list_unstable_features(state) == [names]


def test_ranks_do_not_depend_on_unit_level_or_outliers():
    values = torch.tensor([3.0, -1.0, 3.0, 7.0, 100.0]).double()
    ranks = compute_standardised_ranks(values)
    plain = torch.tensor([1.5, 0.0, 1.5, 3.0, 4.0]).double()
    expected = (plain - plain.mean()) / plain.std(correction=0)
    assert ranks.tolist() == pytest.approx(expected.tolist())
    moved = compute_standardised_ranks((values / 10).exp() - 5)
    assert moved.tolist() == pytest.approx(ranks.tolist())
    assert not compute_standardised_ranks(torch.ones(4).double()).any()


def test_causes_of_the_target_are_related_given_it_and_a_mark_of_it_is_not():
    """For y = a x1 + b x2 + noise, the partial correlation given y is known."""
    places = []
    for name in "ab":
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(40_000, 3, generator=generator)
        y = x[:, 0] + 0.7 * x[:, 1] + torch.randn(40_000, generator=generator)
        x[:, 2] += 0.8 * y
        places.append(Environment(name, x, y, Task.regression()))
    _, state = train(Stream.create_sequential(places))
    state = select_state_of_replica(state, 0)
    found = compute_explained_fractions(state, torch.arange(3))
    first, second = 1 / 2.49, 0.49 / 2.49  # squared correlations with y
    expected = first * second / ((1 - first) * (1 - second))
    assert found.tolist() == pytest.approx([expected, expected, 0.0], abs=0.01)
    assert not state.unstable.any()


@pytest.mark.parametrize("slope", [1.2, 1.8])
def test_most_information_is_half_of_a_logarithm(slope):
    """x1 and x2 explain a² and 1 of a target with noise 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 3, generator=generator)
    y = slope * x[:, 0] + x[:, 1] + torch.randn(20_000, generator=generator)
    place = Environment("a", x, y, Task.regression())
    _, state = train(Stream.create_sequential([place]))
    state = select_state_of_replica(state, 0)
    total = slope**2 + 2
    for kept, explained in ((0, slope**2), (1, 1.0)):
        part = torch.arange(3) == kept
        expected = math.log(1 - explained / total) < math.log(1 / total) / 2
        found = has_most_information(state, part, torch.ones(3, dtype=torch.bool))
        assert found == expected


@pytest.mark.parametrize("growth", [1.0, 1.5])
def test_all_looks_together_keep_the_level(growth):
    """20 places arrive one by one, of equal size or growing; nothing changes."""
    level, count, places = 0.05, 40_000, 20
    generator = torch.Generator().manual_seed(0)
    variances = growth ** -torch.arange(places).double()[:, None]
    noise = torch.randn(places, count, generator=generator).double()
    effects = variances.sqrt() * noise
    named = torch.zeros(count, dtype=torch.bool)
    for look in range(1, places):
        seen = slice(look + 1)
        summary = combine_effects_of_environments(
            effects[seen], variances[seen].expand(-1, count)
        )
        share = level * compute_share_of_significance_level(look)
        named |= summary.compute_p_value_against_spread_and_drift() < share
    rate = float(named.double().mean())
    assert 0.7 * level < rate < level


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


@pytest.mark.parametrize("later", [0.8, 1.3])
def test_a_mark_of_large_values_is_found_where_the_noise_changes_too(later):
    """More noise weakens the effects of causes as much as contradictions the mark's."""
    places = []
    for name, flip, noise in (("a", 0.1, 1.0), ("b", 0.2, later)):
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(1000, 4, generator=generator)
        y = x.sum(1) + noise * torch.randn(1000, generator=generator)
        agrees = torch.rand(1000, generator=generator) >= flip
        u = torch.where(agrees, y > 0, y <= 0).float()
        inputs = torch.cat([x, u[:, None]], 1)
        places.append(Environment(name, inputs, y, Task.regression()))
    _, state = train(Stream.create_sequential(places))
    assert state.unstable.tolist() == [[False] * 4 + [True]]
