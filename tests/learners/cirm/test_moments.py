import pytest
import torch

from cirm.learners.cirm.moments import (
    compute_moments,
    compute_similarity_weights,
    find_changed_columns,
    make_empty_moments,
    pool_moments,
)

ALIKE = 0.01


def place(seed, strength, rows=400, replicas=1, noise=0.5):
    """Three causes of y, and a column that follows from y as strongly as said."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    x = normal(replicas, rows, 3)
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    y = y + noise * normal(replicas, rows)
    effect = strength * y + 0.5 * normal(replicas, rows)
    return torch.cat([x, effect.unsqueeze(-1)], 2), y


def unhidden(replicas=1, width=4):
    return torch.zeros(replicas, 0, width)


def found(*places, hidden=None, rank=4):
    parts = [compute_moments(*p) for p in places]
    hidden = unhidden(len(parts[0].number)) if hidden is None else hidden
    return find_changed_columns(parts, hidden, ALIKE, rank)


def test_moments_are_the_covariance():
    x, y = place(0, 1.0)
    seen = compute_moments(x, y)
    both = torch.cat([x[0], y[0].unsqueeze(-1)], 1)
    torch.testing.assert_close(
        seen.second[0].double(), both.T.cov(correction=0), rtol=1e-5, atol=1e-6
    )
    assert seen.number.tolist() == [400]


def test_pooled_moments_are_those_within_both():
    one, other = place(0, 1.0), place(1, 1.0, rows=200)
    far = other[0] + 100, other[1] - 7
    both = pool_moments(compute_moments(*one), compute_moments(*far))
    inner = [
        torch.cat([x, y.unsqueeze(-1)], 2) - torch.cat([x, y.unsqueeze(-1)], 2).mean(1)
        for x, y in (one, far)
    ]
    wanted = torch.cat(inner, 1).double()
    torch.testing.assert_close(
        both.second.double(), wanted.mT @ wanted / 600, rtol=1e-4, atol=1e-4
    )
    assert both.number.tolist() == [600]


def test_even_noise_is_not_heavy_and_noise_that_grows_is():
    x, y = place(0, 1.0, rows=4000)
    assert float(compute_moments(x, y).heavy) == pytest.approx(1, abs=0.1)
    assert float(compute_moments(x, y + 2 * x[..., 0] * x[..., 1]).heavy) > 1.3


def test_by_chance_the_probability_is_even():
    _, chance = found(place(0, 1.0, replicas=400), place(1, 1.0, replicas=400), rank=0)
    for part in (0.1, 0.5, 0.9):
        assert float((chance < part).double().mean()) == pytest.approx(part, abs=0.08)


def test_the_column_that_changed_its_meaning_is_found():
    columns, chance = found(place(0, 1.0), place(1, 0.5))
    assert columns.tolist() == [[False, False, False, True]]
    assert float(chance) >= ALIKE


def test_nothing_is_found_where_nothing_changed():
    columns, chance = found(place(0, 1.0), place(1, 1.0))
    assert not columns.any()
    assert float(chance) >= ALIKE


def test_a_cause_that_spreads_otherwise_is_no_change():
    x, y = place(1, 1.0)
    wide = x.clone()
    wide[..., 0] *= 3
    moved = y + wide[..., 0] - x[..., 0]
    columns, _ = found((x[..., :3], y), (wide[..., :3], moved), hidden=unhidden(1, 3))
    assert not columns.any()


def test_replicas_are_searched_apart():
    one, other = place(0, 1.0, replicas=2), place(1, 1.0, replicas=2)
    x, y = other
    x = x.clone()
    x[1, :, 3] *= 0.4
    columns, _ = found(one, (x, y))
    assert columns.tolist() == [[False] * 4, [False] * 3 + [True]]


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_units_of_a_column_do_not_matter(unit):
    places = [place(0, 1.0), place(1, 0.5)]
    columns, chance = found(*places)
    scale = torch.tensor([unit, 1, 1, 1 / unit], dtype=torch.float64)
    again, same = found(*((x * scale, y) for x, y in places))
    assert torch.equal(again, columns)
    assert float(same) == pytest.approx(float(chance), rel=1e-2)


def test_what_is_hidden_need_not_be_found():
    axis = torch.tensor([[[0.0, 0.0, 0.0, 1.0]]])
    columns, chance = found(place(0, 1.0), place(1, 0.5), hidden=axis)
    assert not columns.any()
    assert float(chance) >= ALIKE


def test_few_examples_tell_nothing():
    columns, chance = found(place(0, 1.0), place(1, 0.5, rows=57))
    assert float(chance) == 1
    assert not columns.any()


def test_columns_that_depend_on_each_other_do_no_harm():
    places = [place(0, 1.0), place(1, 0.5)]
    twice = [(torch.cat([x, x[..., :1], 0 * y.unsqueeze(-1)], 2), y) for x, y in places]
    columns, _ = found(*twice, hidden=unhidden(1, 6))
    assert columns.tolist() == [[False, False, False, True, False, False]]


def test_pooling_with_nothing_changes_nothing():
    seen = compute_moments(*place(0, 1.0))
    assert pool_moments(make_empty_moments(1), seen) is seen


def test_weights_bring_inputs_to_where_others_lie():
    one, other = place(0, 1.0, rows=4000), place(1, 1.0, rows=4000)
    far = other[0] + torch.tensor([0.5, 0, 0, 0]), other[1]
    like, there = compute_moments(*one), compute_moments(*far)
    here = compute_moments(*far, compute_similarity_weights(far[0], there, like))
    assert float(there.mean[0, 0] - like.mean[0, 0]) == pytest.approx(0.5, abs=0.1)
    torch.testing.assert_close(here.mean[:, :4], like.mean[:, :4], rtol=0, atol=0.12)
    assert 100 < float(here.number) < 4000


def test_a_curved_dependence_seen_elsewhere_is_no_change_but_looks_like_one():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4000, 2, generator=source, dtype=torch.float64)
    noise = 0.3 * torch.randn(1, 8000, generator=source, dtype=torch.float64)
    one, other = (x, x[..., 0].square() + noise[:, :4000]), x.roll(1, 1) + 0.7
    other = other, other[..., 0].square() + noise[:, 4000:]
    like, there = compute_moments(*one), compute_moments(*other)
    bare = unhidden(1, 2)
    assert find_changed_columns([like, there], bare, ALIKE, 0)[1] < 1e-6
    here = compute_moments(*other, compute_similarity_weights(other[0], there, like))
    assert find_changed_columns([like, here], bare, ALIKE, 0)[1] > ALIKE
