"""What is kept of the past is a fair draw of it, within its budget, and counted."""

from typing import NamedTuple

import pytest
import torch

from cirm.environments import Environment, Examples, Task
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    concatenate_examples,
    create_empty_examples,
    create_empty_memory,
    draw_examples_without_replacement,
    list_state_tensors,
    measure_state_size,
    move_tensors_to_device,
    select_examples_at_rows,
    take_first_examples_of_replicas,
    update_example_reservoir,
)
from cirm.randomness import Randomness

SEEDS = (3, 5)
MANY = Randomness(tuple(range(4000)))


class State(NamedTuple):
    params: torch.Tensor
    memory: PastExampleMemory


def numbered(start, count, replicas):
    """Examples whose target is their number and whose input is twice that."""
    y = torch.arange(float(start), start + count).repeat(replicas, 1)
    return Examples(2 * y.unsqueeze(-1), y)


def environment(name, start, count):
    return Environment(name, *(p[0] for p in numbered(start, count, 1)), Task())


def after(sizes, budget, total):
    """The memory after environments of these sizes arrived one by one."""
    memory = create_empty_memory(len(SEEDS))
    for stage, size in enumerate(sizes):
        arriving = (environment(f"e{stage}", 100 * stage, size),)
        at = Randomness(SEEDS).at(stage)
        memory = add_examples_of_stage_to_memory(memory, arriving, budget, at, total)
    return memory


def test_the_ledger_tells_raw_examples_from_parameters():
    memory = after([5, 5], 3, total=False)
    state = State(torch.zeros(2, 7), memory)
    assert measure_state_size(state) == {
        "params": {"examples": 0, "parameters": 7, "bytes": 28},
        "memory": {"examples": 6, "parameters": 0, "bytes": 6 * (4 + 4 + 8)},
    }


def test_an_absent_memory_is_not_in_the_ledger():
    assert list(
        measure_state_size(State(torch.zeros(2, 7), create_empty_memory(2)))
    ) == ["params"]


def test_some_of_an_environment_is_drawn_without_replacement():
    drawn = draw_examples_without_replacement(
        environment("a", 0, 10), 6, Randomness(SEEDS)
    )
    assert drawn.x.shape == (2, 6, 1) and drawn.y.shape == (2, 6)
    assert all(len(row.unique()) == 6 for row in drawn.y)
    assert torch.equal(drawn.x[..., 0], 2 * drawn.y)


def test_all_of_an_environment_are_kept_if_there_are_fewer():
    drawn = draw_examples_without_replacement(
        environment("a", 0, 4), 6, Randomness(SEEDS)
    )
    assert torch.equal(drawn.y.sort().values, torch.arange(4.0).repeat(2, 1))


def test_each_environment_has_its_own_budget():
    memory = after([5, 2, 5], 3, total=False)
    assert memory.sizes == (3, 2, 3)
    assert torch.equal(memory.owner, torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]] * 2))
    for number, piece in enumerate(memory.split_by_environment()):
        assert (piece.y // 100 == number).all()
        assert torch.equal(piece.x[..., 0], 2 * piece.y)


@pytest.mark.parametrize(
    ("environments", "sizes"),
    [(1, (7,)), (2, (4, 3)), (3, (3, 2, 2)), (9, (1, 1, 1, 1, 1, 1, 1))],
)
def test_a_total_budget_is_shared_evenly(environments, sizes):
    memory = after([20] * environments, 7, total=True)
    assert memory.sizes == sizes


def test_the_past_gives_up_examples_but_never_gets_new_ones():
    before, now = (after([20] * n, 8, total=True) for n in (1, 2))
    for old, new in zip(before.kept.y, now.split_by_environment()[0].y, strict=True):
        assert set(new.tolist()) < set(old.tolist())


def test_a_budget_of_nothing_keeps_nothing():
    for total in (False, True):
        memory = after([5, 5], 0, total)
        assert memory.sizes == () and memory.split_by_environment() == []


def test_pieces_without_examples_do_not_count():
    whole = concatenate_examples(
        [create_empty_examples(2), numbered(0, 3, 2), numbered(3, 1, 2)]
    )
    assert torch.equal(whole.y, torch.arange(4.0).repeat(2, 1))
    assert torch.equal(take_first_examples_of_replicas(whole, 2).x, whole.x[:, :2])


def test_each_replica_takes_its_own_rows():
    pool = numbered(0, 6, 2)
    found = select_examples_at_rows(pool, torch.tensor([[1, 1, 4], [5, 0, 2]]))
    assert found.y.tolist() == [[1, 1, 4], [5, 0, 2]]
    assert torch.equal(found.x[..., 0], 2 * found.y)


def filled(portions, size, randomness):
    """A reservoir after arrivals numbered from zero, in portions of these lengths."""
    replicas = len(randomness.seeds)
    kept, seen = (
        create_empty_examples(replicas),
        torch.zeros(replicas, dtype=torch.int64),
    )
    draws, start = randomness.start_draws(), 0
    for portion in portions:
        arriving = numbered(start, portion, replicas)
        kept, seen = update_example_reservoir(kept, seen, arriving, size, draws)
        start += portion
    assert (seen == start).all()
    return kept


def test_a_reservoir_keeps_every_arrival_until_it_is_full():
    assert filled([2, 1], 5, Randomness(SEEDS)).y.tolist() == [[0, 1, 2]] * 2
    assert filled([3, 2], 5, Randomness(SEEDS)).y.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_reservoir_keeps_every_set_of_arrivals_alike_often():
    arrivals, size = 9, 3
    kept = filled([2, 4, 3], size, MANY)
    held = torch.zeros(4000, arrivals).scatter(1, kept.y.long(), 1.0)
    assert (held.sum(1) == size).all()
    pairs = held.T @ held / 4000
    alone, both = size / arrivals, size * (size - 1) / (arrivals * (arrivals - 1))
    expected = torch.full((arrivals, arrivals), both).fill_diagonal_(alone)
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((pairs - expected).abs() < 4 * error).all()


def test_a_reservoir_does_not_depend_on_the_portions_of_the_arrivals():
    many = [filled(p, 4, Randomness(SEEDS)) for p in ([30], [1] * 30, [7, 23])]
    assert torch.equal(many[0].y, many[1].y) and torch.equal(many[0].y, many[2].y)
    assert torch.equal(many[0].x[..., 0], 2 * many[0].y)


def test_a_reservoir_without_places_stays_empty():
    assert filled([3, 4], 0, Randomness(SEEDS)).y.shape == (2, 0)


def test_moving_a_state_keeps_its_form():
    state = State(torch.zeros(2, 7), after([5], 3, total=False))
    other = move_tensors_to_device(state, "cpu")
    assert type(other.memory.kept) is Examples
    for a, b in zip(list_state_tensors(state), list_state_tensors(other), strict=True):
        assert torch.equal(a, b)
