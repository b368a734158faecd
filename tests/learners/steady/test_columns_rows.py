"""A large environment is represented by enough of its rows."""

import torch

from cirm import Environment, Randomness, Task
from cirm.learners.steady import columns_rows
from cirm.learners.steady.columns_rows import (
    count_rows_within_limit,
    take_rows_up_to_limit,
)


def test_a_small_environment_is_learned_whole():
    x, y = torch.randn(50, 2), torch.arange(50) % 2
    environment = Environment("a", x, y, Task.classification(2))
    examples = take_rows_up_to_limit(environment, Randomness((0,)), 2)
    assert torch.equal(examples.x[0], x)


def test_a_part_is_drawn_at_random_and_every_row_at_most_once(monkeypatch):
    monkeypatch.setattr(columns_rows, "MOST_ROWS", 40)
    monkeypatch.setattr(columns_rows, "ENOUGH_ROWS", 10)
    x = torch.arange(100.0)[:, None]
    environment = Environment("a", x, torch.arange(100) % 2, Task.classification(2))
    parts = take_rows_up_to_limit(environment, Randomness((0, 1)), 2).x[..., 0]
    assert parts.shape == (2, 40)
    assert all(len(part.unique()) == 40 for part in parts)
    assert not torch.equal(parts[0], parts[1])


def test_a_rare_class_keeps_all_rows_that_it_needs():
    rare = torch.zeros(1, 1_000_000, dtype=torch.int64)
    rare[0, :3000] = 1
    assert count_rows_within_limit(rare, 2) == 1_000_000
    rare[0, :25_000] = 1
    assert count_rows_within_limit(rare, 2) == 200_000
    rare[0, :400_000] = 1
    assert count_rows_within_limit(rare, 2) == 100_000
    assert count_rows_within_limit(rare.float(), 0) == 100_000
