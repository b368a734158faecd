"""VCL with a coreset: what is kept, what it is kept out of, and what it is for."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.vcl import VCL
from cirm.learners.vclc import VCLC
from cirm.memory import (
    draw_rows_without_replacement,
    list_rows_that_were_not_chosen,
    measure_state_size,
    select_rows_by_k_center,
)
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (0, 4)
TASK = Task.classification(2)
QUICK = Descent(epochs=3, batch=16, rate=0.01)


def blobs(name, size, start=0):
    """Inputs whose last feature numbers the example."""
    x = Randomness((2,)).at(name).normal(size, 4)[0]
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).long()
    x = torch.cat([x, torch.arange(start, start + size)[:, None] / 1000], 1)
    return Environment(name, x, y, TASK)


@pytest.fixture
def places():
    return [blobs("a", 40), blobs("b", 30, 40)]


def numbers(examples):
    """The numbers of kept examples, [replica, k]."""
    return (1000 * examples.x[..., -1]).round().long()


def train(learner, stream, seeds=SEEDS):
    randomness = Randomness(seeds)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return state


def learner(coreset=8, select="random", **settings):
    return VCLC(
        MLP((5, 8, 2)), descent=QUICK, coreset=coreset, select=select, **settings
    )


def test_random_rows_are_drawn_without_replacement():
    rows = draw_rows_without_replacement(Randomness((0, 1, 2)), 10, 6)
    assert rows.shape == (3, 6)
    assert all(len(set(row)) == 6 for row in rows.tolist())
    assert len(set(map(tuple, rows.tolist()))) == 3


def test_k_center_takes_the_farthest_from_all_that_it_has():
    line = torch.tensor([[0.0], [1.0], [10.0], [4.0], [5.0], [9.0]])
    corner = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0], [3.0, 1.0]])
    # 0, then 10; of 1, 4, 5 and 9 the one farthest from both is 5; then 1, 4 and 9 are
    # all 1 away, and the first of them comes first.
    assert select_rows_by_k_center(line[None], 5).tolist() == [[0, 2, 4, 1, 3]]
    assert select_rows_by_k_center(corner[None], 3).tolist() == [[0, 3, 1]]


def test_k_center_agrees_with_its_definition():
    x = Randomness((0, 1)).normal(30, 2, 3)
    for row, chosen in zip(
        x.flatten(2), select_rows_by_k_center(x, 12).tolist(), strict=True
    ):
        wanted = [0]
        while len(wanted) < 12:
            wanted.append(int(torch.cdist(row, row[wanted]).amin(1).argmax()))
        assert chosen == wanted


def test_k_center_never_takes_a_row_twice():
    x = torch.ones(2, 6, 3)
    assert select_rows_by_k_center(x, 6).sort(1).values.tolist() == [list(range(6))] * 2


def test_other_rows_are_all_that_were_not_chosen():
    rows = torch.tensor([[3, 0], [1, 2]])
    assert list_rows_that_were_not_chosen(rows, 5).tolist() == [[1, 2, 4], [0, 3, 4]]


@pytest.mark.parametrize("select", ["random", "k-center"])
def test_so_many_examples_of_every_environment_are_kept(places, select):
    state = train(learner(select=select), Stream.create_sequential(places))
    kept = numbers(state.coreset)
    assert kept.shape == (2, 16)
    for row in kept.tolist():
        assert len(set(row)) == 16
        assert sum(number < 40 for number in row) == 8
    everything = torch.cat([place.targets for place in places])
    assert torch.equal(state.coreset.y, everything[kept])
    assert measure_state_size(state)["coreset"]["examples"] == 16


def test_k_center_keeps_what_the_rule_says(places):
    state = train(learner(select="k-center"), Stream.create_joint(places[:1]))
    assert torch.equal(
        numbers(state.coreset), select_rows_by_k_center(places[0].take_all(2).x, 8)
    )


def test_an_environment_gives_at_most_half_of_its_examples():
    state = train(learner(coreset=100), Stream.create_joint([blobs("a", 7)]))
    assert state.coreset.y.shape == (2, 3)


def test_the_propagated_posterior_never_sees_the_coreset(places):
    (place, _), model = places, learner()
    before = train(model, Stream.create_joint([place]), seeds=(0,))
    targets = place.targets.clone()
    targets[numbers(before.coreset)[0]] = 1 - before.coreset.y[0]
    changed = Environment("a", place.inputs, targets, TASK)
    after = train(model, Stream.create_joint([changed]), seeds=(0,))
    assert torch.equal(numbers(after.coreset), numbers(before.coreset))
    torch.testing.assert_close(after.posterior, before.posterior, atol=0, rtol=0)
    assert not torch.equal(after.predictive.mean, before.predictive.mean)


def test_the_propagated_posterior_is_that_of_vcl_on_the_rest(places):
    model, randomness = learner(), Randomness(SEEDS)
    start, stage = model.init(randomness.at("init")), tuple(places)
    state = model.observe(start, stage, randomness.at("stage", 0))
    rest = []
    for place, kept in zip(stage, numbers(state.coreset).split(8, 1), strict=True):
        first = 0 if place.name == "a" else 40
        rest.append(
            place.subset(list_rows_that_were_not_chosen(kept - first, len(place)))
        )
    vcl = VCL(MLP((5, 8, 2)), descent=QUICK)
    other = vcl.observe(
        vcl.init(randomness.at("init")), tuple(rest), randomness.at("stage", 0)
    )
    torch.testing.assert_close(state.posterior, other.posterior, atol=0, rtol=0)


def test_the_coreset_pass_is_a_stage_of_vcl_that_is_not_propagated(places):
    state = train(learner(), Stream.create_joint(places))
    vcl, randomness = VCL(MLP((5, 8, 2)), descent=QUICK), Randomness(SEEDS)
    past = vcl.init(randomness)._replace(posterior=state.posterior, start=state.start)
    kept = Environment("coreset", *state.coreset, TASK, replicated=True)
    source = randomness.at("stage", 0, "predictive")
    seen = vcl.observe(past, (kept,), source).posterior
    torch.testing.assert_close(state.predictive, seen, atol=0, rtol=0)
    x = places[0].take_all(2).x
    assert torch.equal(
        learner().outputs(state, x), vcl.outputs(past._replace(posterior=seen), x)
    )


@pytest.mark.parametrize("order", ["joint", "sequential"])
def test_without_a_coreset_it_is_vcl(places, order):
    stream = Stream.from_order(places, order)
    state = train(learner(coreset=0), stream)
    other = train(VCL(MLP((5, 8, 2)), descent=QUICK), stream)
    torch.testing.assert_close(state.posterior, other.posterior, atol=0, rtol=0)
    torch.testing.assert_close(state.predictive, other.posterior, atol=0, rtol=0)
    assert "coreset" not in measure_state_size(state)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"coreset": -1}, "^vclc: the setting coreset must be 0 or more, but is -1"),
        (
            {"select": "nearest"},
            "select must be random or k-center, but is 'nearest'",
        ),
        ({"samples": 0}, "^vclc: the setting samples must be 1 or more, but is 0"),
    ],
)
def test_settings_are_checked(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        learner(**settings)
