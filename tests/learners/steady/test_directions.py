"""The engine of steady for images and embeddings."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from cirm.data.colored import Colored
from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady import Steady
from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_views import apply_view, fit_view, linearise_view
from cirm.randomness import Randomness


def draw_rows(seed, n=4000, right=(0.9, 0.2), strength=1.5, classes=2):
    """Logits of a stable model, values of features, and classes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    s = torch.randn(n, generator=generator) + strength * (2 * y - 1)
    logits = torch.stack([-strength * s, strength * s], 1)
    values = torch.stack(
        [torch.where(torch.rand(n, generator=generator) < p, y, 1 - y) for p in right]
    )
    return logits, values, y


def test_em_recovers_the_tables_of_two_features():
    logits, values, _ = draw_rows(0, n=20_000)
    estimate = tables.estimate_tables(logits, values)
    truth = torch.tensor([[[0.9, 0.1], [0.1, 0.9]], [[0.2, 0.8], [0.8, 0.2]]])
    torch.testing.assert_close(estimate.tables, truth.double(), atol=0.02, rtol=0)


def test_em_does_not_depend_on_the_order_of_rows_and_is_deterministic():
    logits, values, _ = draw_rows(1)
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    first = tables.estimate_tables(logits, values)
    again = tables.estimate_tables(logits, values)
    other = tables.estimate_tables(logits[order], values[:, order])
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, atol=1e-6, rtol=1e-6)


def test_em_with_a_perfect_model_counts_as_if_there_were_labels():
    _, values, y = draw_rows(2)
    logits = 100 * torch.nn.functional.one_hot(y, 2).float()
    counted = tables.normalise(tables.count_values(values, y, 2))
    estimate = tables.estimate_tables(logits, values)
    torch.testing.assert_close(estimate.tables, counted, atol=1e-6, rtol=1e-6)


def test_em_without_rows_gives_the_even_prior():
    estimate = tables.estimate_tables(torch.zeros(0, 2), torch.zeros(1, 0).long())
    torch.testing.assert_close(estimate.tables, torch.full((1, 2, 2), 0.5).double())
    assert estimate.error.min() >= 1 - 1e-9


def test_the_interval_of_a_table_covers_the_truth():
    inside = []
    for seed in range(60):
        logits, values, _ = draw_rows(seed, n=300, right=(0.85,))
        estimate = tables.estimate_tables(logits, values)
        z = (estimate.tables[0, 0, 1].log() - torch.tensor(0.15).log()).item()
        inside.append(abs(z) < 1.96 * estimate.error[0, 0, 1].item())
    assert sum(inside) >= 52


def test_a_leak_is_measured_and_taken_out():
    logits, values, y = draw_rows(3, right=(0.8,))
    clean = tables.measure_leak(logits, values, y)
    assert clean.size < 3 * clean.error
    shift = torch.tensor([[0.7, -0.7], [-0.7, 0.7]])
    leaky = logits + shift[values[0]]
    leak = tables.measure_leak(leaky, values, y)
    assert leak.size > 5 * leak.error
    corrected = leaky - leak.parts[0][values[0]].float()
    assert tables.measure_leak(corrected, values, y).size < 3 * leak.error


def test_the_temperature_of_logits_that_are_too_large_brings_them_back():
    logits, _, y = draw_rows(4, n=20_000)
    none = torch.zeros(len(y), 2).double()
    assert tables.fit_temperature(3 * logits, none, y) == pytest.approx(1 / 3, rel=0.1)


def test_tables_of_earlier_rows_follow_from_their_class_means():
    generator = torch.Generator().manual_seed(5)
    direction = torch.randn(1, 6, generator=generator)

    def draw(right):
        y = torch.randint(2, (20_000,), generator=generator)
        u = torch.where(torch.rand(len(y), generator=generator) < right, y, 1 - y)
        noise = torch.randn(len(y), 6, generator=generator)
        return noise + y[:, None] + 2 * u[:, None] * direction, u, y

    rows, values, targets = draw(0.9)
    past, _, earlier = draw(0.6)
    means = torch.stack([past[earlier == c].mean(0) for c in (0, 1)])
    table = tables.infer_past_table(rows, means, values, targets)
    expected = torch.tensor([[0.6, 0.4], [0.4, 0.6]])
    torch.testing.assert_close(table, expected, atol=0.04, rtol=0)


def draw_moments(seed, shift=0.0, n=400, d=60):
    """Moments of two environments whose class contrast differs by a shift."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(3, 0.3, d).double()
    made = []
    for change in (0.0, shift):
        y = torch.randint(2, (n,), generator=generator)
        x = scale * torch.randn(n, d, generator=generator).double()
        x[:, 0] += y * (2 + change)
        made.append(search.measure_moments(x, y, 2))
    return made


def test_p_values_are_uniform_if_nothing_changed():
    p_values = []
    for seed in range(150):
        past, new = draw_moments(seed)
        axes = search.find_axes(search.pool_moments(past, new))
        p_values.append(search.measure_change(past, new, axes).discriminant)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_the_family_of_tests_has_its_level_and_power():
    def count(shift):
        found = 0
        for seed in range(100):
            past, new = draw_moments(seed, shift)
            axes = search.find_axes(search.pool_moments(past, new))
            found += search.measure_change(past, new, axes).p_value < 0.05
        return found

    assert count(0.0) <= 12  # 5 are expected; twice as many would be a fault
    assert count(1.5) >= 80


def paint(kind, n=600, seed=0, right=0.8):
    """Small pictures with a class, and a colour or a bright corner."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    u = torch.where(torch.rand(n, generator=generator) < right, y, 1 - y)
    grey = torch.rand(n, 6, 6, generator=generator)
    grey[:, 3] += y[:, None]
    if kind == "colour":
        x = torch.zeros(n, 2, 6, 6)
        x[torch.arange(n), u] = grey
        return x.flatten(1).double(), u, y, grey.flatten(1)
    grey[u == 1, :2, :2] = 3.0
    return grey.flatten(1).double(), u, y, None


def test_a_view_takes_a_colour_out_of_pictures_exactly():
    rows, values, targets, grey = paint("colour")
    view = fit_view(rows, values, targets, 2, (2, 6, 6))
    seen = apply_view(view, rows, values).unflatten(1, (2, -1))
    common = int(torch.bincount(values).argmax())
    torch.testing.assert_close(seen[:, common].float(), grey, atol=0.02, rtol=0)
    assert seen[:, 1 - common].abs().max() < 0.02


@pytest.mark.parametrize(("kind", "channels"), [("colour", 2), ("corner", 1)])
def test_the_linear_form_of_a_view_agrees_with_it(kind, channels):
    rows, values, targets, _ = paint(kind)
    view = fit_view(rows, values, targets, 2, (channels, 6, 6))
    moments = search.measure_moments(rows, targets, 2)
    axes = search.find_axes(moments)
    line = linearise_view(view, rows, values, targets, axes)
    gap = apply_view(view, rows, values) - line(rows)
    seen = apply_view(view, rows, values)
    share = (gap - gap.mean(0)).square().sum() / (seen - seen.mean(0)).square().sum()
    assert share < 0.05


def train(problem, seeds, order="sequential"):
    learner = create(Steady(view="directions"), problem.train[0])
    randomness = Randomness(seeds)
    state = learner.init(randomness.at("init"))
    for i, stage in enumerate(Stream.from_order(problem.train, order)):
        state = learner.observe(state, stage, randomness.at("stage", i))
    return learner, state


def score(learner, state, environment):
    with torch.no_grad():
        p = learner.predict(state, environment.take_all(len(state.members)).x)
    return (p.argmax(-1) == environment.targets).float().mean(-1)


@pytest.mark.integration
@pytest.mark.parametrize("order", ["sequential", "joint"])
def test_an_inverted_colour_is_found_left_out_and_learned_again(order):
    problem = Colored(examples=600, label_flip=0.1).draw((0, 1))
    learner, state = train(problem, (0, 1), order)
    test = problem.test[0]
    assert state.found.tolist() == [1, 1]
    stable = score(learner, state, test)
    assert (stable > 0.7).all()
    adapted = learner.adapt(state, test.take_all(2).x)
    assert (score(learner, adapted, test) > stable + 0.02).all()
    again = learner.adapt(adapted, test.take_all(2).x)
    for a, b in zip(adapted.adaptation, again.adaptation, strict=True):
        assert torch.equal(a, b)


@pytest.mark.integration
def test_nothing_is_adapted_where_nothing_was_found():
    problem = Colored(examples=300, scheme="gray").draw((1,))
    learner, state = train(problem, (1,))
    assert state.found.tolist() == [0]
    inputs = problem.test[0].take_all(1).x
    adapted = learner.adapt(state, inputs)
    with torch.no_grad():
        before, after = (learner.predict(s, inputs) for s in (state, adapted))
    torch.testing.assert_close(before, after)


def test_numbers_are_predicted_from_long_vectors():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 600, generator=generator)
    y = 5 + 3 * x[:, 0]
    environment = Environment("a", x, y, Task.regression())
    learner = create(Steady(view="directions"), environment)
    state = learner.init(Randomness((0,)))
    state = learner.observe(state, (environment,), Randomness((0,)))
    with torch.no_grad():
        p = learner.predict(state, x[None])[0, :, 0]
    assert (p - y).square().mean() < 0.8 * y.var()


@pytest.mark.integration
def test_sentences_tell_what_a_direction_meant_and_means_here():
    problem = Colored(examples=600, label_flip=0.1).draw((0,))
    learner, state = train(problem, (0,))
    (entry,) = learner.explain(state)["unstable"]
    rates = [effect["effect"] for effect in entry["effects"]]
    assert rates == pytest.approx([0.8, 0.9], abs=0.05)
    adapted = learner.adapt(state, problem.test[0].take_all(1).x)
    (effect,) = learner.explain(adapted)["adaptation"]["effects"]
    assert effect["low"] < 0.1 < effect["high"] < 0.3
    few = learner.adapt(state, problem.test[0].take_all(1).x[:, :10])
    assert "fewer than 30 rows" in learner.explain(few)["adaptation"]["refusals"][0]
    seen = problem.train[1]
    average = replace(learner, trust="average")
    assert score(average, state, seen) > score(learner, state, seen)
