"""Environments refuse what is wrong at the door, and give what they hold."""

import re

import numpy as np
import pytest
import torch

from cirm.environments import Environment, Problem, Stream, Task

TWO = Task.classification(2)
VALUE = Task.regression()


def environment(name="a", examples=3, features=2, task=TWO):
    targets = torch.arange(examples) % 2
    if not task.classes:
        targets = targets.float()
    return Environment(name, torch.ones(examples, features), targets, task)


class Squares:
    """Row number and seed, squared, made on request; it counts what it made."""

    def __init__(self, replicas, examples):
        self.shape = (replicas, examples, 2)
        self.made = 0

    def take(self, rows):
        self.made += rows.numel()
        replicas = torch.arange(len(rows))[:, None].expand_as(rows)
        return torch.stack([rows, replicas], -1).float() ** 2


@pytest.fixture
def shared():
    return Environment("a", torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 0]), TWO)


@pytest.fixture
def replicated():
    inputs = torch.arange(12.0).view(2, 3, 2)
    targets = torch.tensor([[0, 1, 0], [1, 1, 0]])
    return Environment("a", inputs, targets, TWO, replicated=True)


@pytest.fixture
def lazy():
    targets = torch.tensor([[0, 1, 0], [1, 1, 0]])
    return Environment("a", Squares(2, 3), targets, TWO, replicated=True)


@pytest.mark.parametrize(
    ("classes", "complaint"),
    [
        (("cat",), "needs two or more classes, but there is only 'cat'. Name all"),
        (("cat", "dog", "cat"), "The class 'cat' is named twice. Name each class once"),
    ],
)
def test_a_task_needs_two_different_classes_or_none(classes, complaint):
    with pytest.raises(ValueError, match=complaint):
        Task(classes)


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_a_classification_needs_two_classes(count):
    with pytest.raises(ValueError, match=rf"needs two .* number is {count}\. Give"):
        Task.classification(count)


def test_a_task_says_what_it_is():
    assert Task(("cat", "dog")).kind == "classification"
    assert Task.classification(3).classes == ("0", "1", "2")
    assert Task.regression().kind == "regression"


ONES, ZEROS = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)
HOLES = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [float("inf"), 0.0]])


@pytest.mark.parametrize(
    ("inputs", "targets", "task", "complaint"),
    [
        (
            ONES,
            ZEROS[:2],
            TWO,
            "the inputs have the shape [3, 2] and the targets [2]. Pass inputs of the "
            "shape [n, ...] and targets of the shape [n].",
        ),
        (
            ONES[:, 0],
            ZEROS,
            TWO,
            "the inputs have the shape [3] and the targets [3]. Pass inputs of the "
            "shape [n, ...] and targets of the shape [n].",
        ),
        (
            ONES,
            ZEROS[:, None],
            TWO,
            "the inputs have the shape [3, 2] and the targets [3, 1]. Pass inputs of "
            "the shape [n, ...] and targets of the shape [n].",
        ),
        (
            ONES[:0],
            ZEROS[:0],
            TWO,
            "the inputs are empty: their shape is [0, 2]. Pass at least one example "
            "with at least one feature.",
        ),
        (
            ONES[:, :0],
            ZEROS,
            TWO,
            "the inputs are empty: their shape is [3, 0]. Pass at least one example "
            "with at least one feature.",
        ),
        (
            ONES.int(),
            ZEROS,
            TWO,
            "the inputs have the type torch.int32. Convert them with inputs.float().",
        ),
        (
            HOLES,
            ZEROS,
            TWO,
            "the inputs contain NaN or infinite values (2 in total), the first at "
            "[1, 0]. Replace or remove them.",
        ),
        (
            ONES,
            HOLES[:, 0],
            VALUE,
            "the targets contain NaN or infinite values (2 in total), the first at "
            "[1]. Replace or remove them.",
        ),
        (
            ONES,
            ZEROS,
            VALUE,
            "the targets of the regression have the type torch.int64. Convert them "
            "with targets.float().",
        ),
        (
            ONES,
            ZEROS.float(),
            TWO,
            "the targets of the classification have the type torch.float32. Pass the "
            "index of each class as int64.",
        ),
        (
            ONES,
            torch.tensor([-1, 7, 7]),
            TWO,
            "the targets contain [-1, 7]. Pass class indices from 0 to 1.",
        ),
        (ONES, None, TWO, "the targets are of type NoneType. Pass a torch tensor."),
        (
            ONES,
            np.zeros(3, int),
            TWO,
            "the targets are of type ndarray. Pass a torch tensor.",
        ),
        (
            ONES.numpy(),
            ZEROS,
            TWO,
            "the inputs are of type ndarray. Pass a torch tensor.",
        ),
        (
            Squares(1, 3),
            ZEROS,
            TWO,
            "the inputs are of type Squares. Pass a torch tensor.",
        ),
    ],
)
def test_an_environment_refuses_what_is_wrong(inputs, targets, task, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)) as refusal:
        Environment("clinic", inputs, targets, task)
    assert str(refusal.value) == f"environment 'clinic': {complaint}"


@pytest.mark.parametrize(
    ("inputs", "targets", "complaint"),
    [
        (
            torch.ones(2, 3),
            torch.zeros(2, 3, dtype=torch.int64),
            "the inputs have the shape [2, 3] and the targets [2, 3]. Pass inputs of "
            "the shape [replica, n, ...] and targets of the shape [replica, n].",
        ),
        (
            torch.ones(2, 3, 4),
            torch.zeros(3, dtype=torch.int64),
            "the inputs have the shape [2, 3, 4] and the targets [3]. Pass inputs of "
            "the shape [replica, n, ...] and targets of the shape [replica, n].",
        ),
        (
            np.ones((2, 3, 4)),
            torch.zeros(2, 3, dtype=torch.int64),
            "the inputs are of type ndarray. Pass a torch tensor or an object with a "
            "method take.",
        ),
        (
            Squares(2, 4),
            torch.zeros(2, 3, dtype=torch.int64),
            "the inputs have the shape [2, 4, 2] and the targets [2, 3]. Pass inputs "
            "of the shape [replica, n, ...] and targets of the shape [replica, n].",
        ),
    ],
)
def test_a_replicated_environment_refuses_what_is_wrong(inputs, targets, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Environment("clinic", inputs, targets, TWO, replicated=True)


def test_images_tables_and_values_are_welcome():
    images = Environment("a", torch.rand(4, 1, 8, 8), torch.arange(4) % 2, TWO)
    values = Environment("b", torch.rand(4, 5), torch.rand(4), VALUE)
    assert (len(images), images.features) == (4, (1, 8, 8))
    assert (len(values), values.features) == (4, (5,))


def test_a_shared_environment_gives_each_replica_its_rows(shared):
    taken = shared.take(torch.tensor([[2, 0], [1, 1]]))
    assert taken.x.tolist() == [[[4, 5], [0, 1]], [[2, 3], [2, 3]]]
    assert taken.y.tolist() == [[0, 0], [1, 1]]


def test_a_replicated_environment_gives_each_replica_its_own(replicated):
    assert (len(replicated), replicated.features) == (3, (2,))
    taken = replicated.take(torch.tensor([[2, 0], [2, 0]]))
    assert taken.x.tolist() == [[[4, 5], [0, 1]], [[10, 11], [6, 7]]]
    assert taken.y.tolist() == [[0, 0], [0, 1]]


def test_lazy_inputs_are_made_only_when_taken(lazy):
    assert lazy.inputs.made == 0
    taken = lazy.take(torch.tensor([[2], [1]]))
    assert lazy.inputs.made == 2
    assert taken.x.tolist() == [[[4, 0]], [[1, 1]]]
    assert taken.y.tolist() == [[0], [1]]


@pytest.mark.parametrize("kind", ["shared", "replicated", "lazy"])
def test_all_is_every_row_in_order(kind, request):
    held = request.getfixturevalue(kind)
    everything, rows = held.take_all(2), held.take(torch.arange(3).expand(2, -1))
    assert everything.x.shape == (2, 3, 2)
    assert torch.equal(everything.x, rows.x)
    assert torch.equal(everything.y, rows.y)


def test_all_of_a_shared_environment_is_no_copy(shared):
    assert shared.take_all(5).x.data_ptr() == shared.inputs.data_ptr()


@pytest.mark.parametrize("kind", ["replicated", "lazy"])
def test_a_replicated_environment_serves_only_the_replicas_it_was_drawn_for(
    kind, request
):
    held = request.getfixturevalue(kind)
    for ask in (lambda: held.take(torch.zeros(3, 1).long()), lambda: held.take_all(3)):
        with pytest.raises(
            ValueError, match="'a': the environment has examples for 2 replicas, but 3"
        ):
            ask()


def test_a_renamed_environment_holds_the_same_examples(shared):
    other = shared.rename("b")
    assert other.name == "b"
    assert other.inputs is shared.inputs


def names(stream):
    return [[e.name for e in stage] for stage in stream]


@pytest.mark.parametrize(
    ("order", "stages"),
    [
        ("joint", [["a", "b", "c"]]),
        ("sequential", [["a"], ["b"], ["c"]]),
        ("2+1", [["a", "b"], ["c"]]),
        ("1+2", [["a"], ["b", "c"]]),
        ("3", [["a", "b", "c"]]),
    ],
)
def test_an_order_makes_its_stages(order, stages):
    stream = Stream.from_order((environment(name) for name in "abc"), order)
    assert names(stream) == stages
    assert len(stream) == len(stages)


@pytest.mark.parametrize("order", ["", "2", "2+2", "0+3", "3+0", "1+-1+3", "random"])
def test_an_order_that_does_not_add_up_is_refused(order):
    complaint = rf"^The order '{re.escape(order)}' does not fit .*, 3\. Use joint"
    with pytest.raises(ValueError, match=complaint):
        Stream.from_order([environment(name) for name in "abc"], order)


@pytest.mark.parametrize("make", [Stream.create_joint, Stream.create_sequential])
def test_a_stream_of_nothing_is_refused(make):
    with pytest.raises(ValueError, match=r"^A stream needs at least one stage"):
        make([])


def test_an_empty_stage_is_refused():
    complaint = (
        r"each stage at least one environment, but the stages have \[1, 0\] environm"
    )
    with pytest.raises(ValueError, match=complaint):
        Stream(((environment("a"),), ()))


CLASHES = [
    (
        environment("a"),
        "Two environments are named 'a'. Give them different names.",
    ),
    (
        environment("b", features=3),
        "environment 'b': the inputs of an example have the shape [3], but in the "
        "environment 'a' they have [2]. Give all environments inputs of the same "
        "shape.",
    ),
    (
        environment("b", task=VALUE),
        "environment 'b': the task is Task(classes=()), but in the environment 'a' it "
        "is Task(classes=('0', '1')). Give all environments the same task.",
    ),
]


@pytest.mark.parametrize(("other", "complaint"), CLASHES)
@pytest.mark.parametrize("make", [Stream.create_joint, Stream.create_sequential])
def test_a_stream_refuses_environments_that_do_not_match(make, other, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        make([environment("a"), other])


@pytest.mark.parametrize(("other", "complaint"), CLASHES)
@pytest.mark.parametrize("place", ["test", "sweep"])
def test_a_problem_refuses_environments_that_do_not_match(place, other, complaint):
    unseen = (other,) if place == "test" else ((0.5, other),)
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        Problem((environment("a"),), **{place: unseen})


def test_a_problem_needs_a_place_to_learn_from():
    with pytest.raises(
        ValueError, match="A problem needs at least one training environment"
    ):
        Problem(())


def test_real_numbers_of_another_precision_become_single():
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    made = Environment("a", x, y, Task.regression())
    assert made.inputs.dtype == made.targets.dtype == torch.float32
    with pytest.raises(ValueError, match=r"NaN or infinite values \(6 in total\)"):
        Environment("a", 1e300 * x, y, Task.regression())
