"""Units of near copies, and several shortcuts in one table."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.steady.columns_basis import group_features_by_column
from tests.learners.steady.test_columns import score, train


def draw_copies(count, slope, seed, values=False, n=800):
    """Copies of one number that tells most of the target, and two weak columns."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    y = draw(n) if values else (draw(n) > 0).long()
    number = slope * (y if values else 2.0 * y - 1) + draw(n)
    copies = number[:, None] + 0.2 * draw(n, count)
    weak = 0.3 * y[:, None] + draw(n, 2)
    task = Task.regression() if values else Task.classification(2)
    inputs = torch.cat([weak, copies, draw(n, 6)], 1)
    return Environment(f"{seed}", inputs, y, task)


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("count", [3, 4])
def test_only_a_few_near_copies_that_tell_most_are_set_aside(count, values):
    places = [draw_copies(count, *p, values) for p in ((1.0, 1), (0.3, 2))]
    learner, state = train(Stream.create_sequential(places))
    copies = [False, False, *[True] * count, *[False] * 6]
    assert (state.unit[0] == 2).tolist() == copies
    assert state.unstable[0].tolist() == (copies if count == 3 else [False] * 12)
    told = " ".join(learner.explain(state)["evidence"])
    assert ("seems to change, but cannot be separated" in told) == (count == 4)


def test_many_copies_that_are_a_minor_part_are_set_aside():
    places = []
    for seed, slope in ((1, 1.2), (2, 0.4)):
        place = draw_copies(4, slope, seed)
        strong = place.inputs[:, 6:].clone()
        strong[:, :2] += 2.0 * place.targets[:, None]
        inputs = torch.cat([place.inputs[:, :6], strong], 1)
        places.append(Environment(place.name, inputs, place.targets, place.task))
    _, state = train(Stream.create_sequential(places))
    assert state.unstable[0].nonzero()[:, 0].tolist() == [2, 3, 4, 5]


def test_columns_with_the_same_missing_values_are_one_unit_of_several_columns():
    generator = torch.Generator().manual_seed(0)
    missing = (torch.rand(200, 1, generator=generator) < 0.3).double()
    values = torch.randn(200, 4, generator=generator).double()
    features = torch.stack([values, missing.expand(-1, 4)], 2).flatten(1)
    column, unit, _ = group_features_by_column(features, (2, 2, 2, 2))
    assert column.tolist() == [0, 0, 2, 2, 4, 4, 6, 6]
    assert unit.tolist() == [0] * 8


def draw_two_shortcuts(seed, agreement, n=800):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    s = torch.randn(n, 4, generator=generator)
    s = s + torch.tensor([1.0, 0.7, 0.4, 0.0]) * y[:, None]
    agrees = torch.rand(n, 2, generator=generator) < agreement
    u = torch.where(agrees, y[:, None], 1 - y[:, None]).float()
    return Environment(f"{seed}", torch.cat([s, u], 1), y, Task.classification(2))


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_two_shortcuts_that_change_alike_are_both_found(seed):
    places = [draw_two_shortcuts(seed + i, a) for i, a in enumerate((0.9, 0.8))]
    learner, state = train(Stream.create_sequential(places))
    assert state.unstable[0].tolist() == [False] * 4 + [True] * 2
    place = draw_two_shortcuts(seed + 50, 0.1, 2000)
    adapted = learner.adapt(state, place.inputs[None, :300])
    assert score(learner, state, place) > 65
    assert score(learner, adapted, place) > 88
