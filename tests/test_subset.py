"""A subset of an environment is an environment of some of its examples."""

import re

import pytest
import torch

from cirm.environments import Environment, Task

TWO = Task.classification(2)
TARGETS = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]])
ROWS = torch.tensor([[3, 0], [1, 2]])


class Numbered:
    """Row number and replica, made on request; it counts what it made."""

    def __init__(self, replicas, examples):
        self.shape = (replicas, examples, 2)
        self.made = 0

    def take(self, rows):
        self.made += rows.numel()
        replicas = torch.arange(len(rows))[:, None].expand_as(rows)
        return torch.stack([rows, replicas], -1).float()


@pytest.fixture(params=["shared", "replicated", "lazy"])
def whole(request):
    if request.param == "shared":
        inputs = Numbered(1, 4).take(torch.arange(4)[None])[0]
        return Environment("a", inputs, TARGETS[0], TWO)
    inputs = Numbered(2, 4)
    if request.param == "replicated":
        inputs = inputs.take(torch.arange(4).expand(2, -1))
    return Environment("a", inputs, TARGETS, TWO, replicated=True)


def test_a_subset_holds_the_chosen_rows_of_each_replica_in_order(whole):
    part, wanted = whole.subset(ROWS), whole.take(ROWS)
    assert (len(part), part.features, part.name) == (2, (2,), "a")
    assert torch.equal(part.take_all(2).x, wanted.x)
    assert torch.equal(part.take_all(2).y, wanted.y)


def test_rows_of_a_subset_count_from_its_own_beginning(whole):
    part = whole.subset(ROWS)
    taken = part.take(torch.tensor([[1, 1, 0], [0, 1, 0]]))
    assert taken.x[..., 0].tolist() == [[0, 0, 3], [1, 2, 1]]
    assert torch.equal(taken.y, whole.take(taken.x[..., 0].long()).y)


def test_a_subset_of_a_subset_is_a_subset(whole):
    part = whole.subset(ROWS).subset(torch.tensor([[1], [0]]))
    assert torch.equal(part.take_all(2).x, whole.take(torch.tensor([[0], [1]])).x)


def test_a_subset_leaves_the_whole_as_it_was(whole):
    before = whole.take_all(2)
    whole.subset(ROWS)
    assert torch.equal(whole.take_all(2).x, before.x)
    assert len(whole) == 4


def test_a_subset_makes_nothing_until_it_is_asked():
    inputs = Numbered(2, 4)
    part = Environment("a", inputs, TARGETS, TWO, replicated=True).subset(ROWS)
    assert inputs.made == 0
    part.take(torch.tensor([[1], [0]]))
    assert inputs.made == 2


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (ROWS[0], "rows have the type torch.int64 and the shape [2]. Pass"),
        (ROWS.float(), "rows have the type torch.float32 and the shape [2, 2]. Pass"),
        (ROWS - 1, "the rows are -1 to 2. Pass numbers from 0 to 3."),
        (ROWS + 1, "the rows are 1 to 4. Pass numbers from 0 to 3."),
        (
            ROWS[:, :0],
            "the inputs are empty: their shape is [2, 0, 2].",
        ),
    ],
)
def test_rows_that_are_not_there_are_refused(whole, rows, complaint):
    with pytest.raises(ValueError, match=re.escape(f"environment 'a': {complaint}")):
        whole.subset(rows)


def test_a_subset_serves_only_the_replicas_it_was_chosen_for(whole):
    with pytest.raises(
        ValueError, match="'a': the environment has examples for 2 replicas, but 3"
    ):
        whole.subset(ROWS).take_all(3)
