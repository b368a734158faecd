import pytest
import torch

from cirm.environments import Environment, Task
from cirm.evaluation.groups import (
    GroupOfEachExample,
    GroupReferenceModel,
    compute_group_means,
    compute_worst_group_mean,
    concatenate_example_groups,
    count_group_sizes,
    find_groups_with_enough_examples,
)
from cirm.randomness import Randomness

SEEDS = (3, 5)


def shortcut(name="a", rows=600, flip=0.1, seed=0):
    """Labels that a loud input tells in 1 - flip of the cases, and a faint one always.

    Gives the environment and which examples contradict the loud input.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=generator)
    wrong = torch.rand(rows, generator=generator) < flip
    x = 0.2 * torch.randn(rows, 6, generator=generator)
    x[:, 0] += 3.0 * torch.where(wrong, 1 - y, y)
    x[:, 1] += 0.15 * y
    return Environment(name, x, y, Task.classification(2)), wrong


def values(rows=400, scale=50.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator)
    y = 100.0 + scale * (x[:, 0] + 0.3 * torch.randn(rows, generator=generator))
    return Environment("v", x, y, Task.regression())


def groups_of(environment, seeds=SEEDS):
    reference = GroupReferenceModel.fit(environment, Randomness(seeds).at("reference"))
    x, y = environment.take_all(len(seeds))
    return reference.group_examples_by_reference_error(environment.task, x, y)


def test_the_reference_errs_where_the_shortcut_does():
    environment, wrong = shortcut()
    groups = groups_of(environment)
    erred = groups.indices % 2 == 0
    assert ((erred == wrong).float().mean(-1) > 0.95).all()


def test_a_group_is_a_class_and_whether_the_reference_is_right():
    environment, _ = shortcut(rows=100)
    groups = groups_of(environment)
    assert torch.equal(groups.indices // 2, environment.targets.expand(2, -1))
    right = groups.reference == environment.targets
    assert torch.equal(groups.indices % 2 == 1, right)
    assert groups.names[1] == "0, reference right"
    assert groups.names[2] == "1, reference wrong"


def test_groups_of_values_are_thirds_of_the_residuals():
    environment = values(rows=300)
    groups = groups_of(environment)
    assert count_group_sizes(groups).tolist() == [[100.0] * 3] * 2
    residuals = environment.targets - groups.reference
    means = compute_group_means(residuals, groups)
    assert (means[:, 0] < means[:, 1]).all() and (means[:, 1] < means[:, 2]).all()
    top = residuals.topk(100, -1).indices
    assert (groups.indices.gather(1, top) == 2).all()


def test_the_reference_of_values_learns_whatever_their_units_are():
    environment = values(scale=50.0)
    groups = groups_of(environment)
    error = (groups.reference - environment.targets).square().mean(-1)
    assert (error < 0.2 * environment.targets.var()).all()


def test_a_replica_has_the_same_groups_alone_as_beside_others():
    environment, _ = shortcut(flip=0.3)
    beside, alone = groups_of(environment), groups_of(environment, SEEDS[1:])
    assert torch.equal(beside.indices[1:], alone.indices)


def test_replicas_with_data_of_their_own_have_groups_of_their_own():
    one, two = shortcut(seed=1)[0], shortcut(seed=2)[0]
    both = Environment(
        "a",
        torch.stack([one.inputs, two.inputs]),
        torch.stack([one.targets, two.targets]),
        one.task,
        replicated=True,
    )
    number = groups_of(both).indices
    for row, single in enumerate((one, two)):
        assert torch.equal(number[row], groups_of(single).indices[row])


def test_means_and_the_worst_are_taken_by_group():
    number = torch.tensor([[0] * 5 + [1] * 10 + [3]])
    groups = GroupOfEachExample(number, ("a", "b", "c", "d"), number)
    values = torch.tensor([[1.0] * 5 + [0.5] * 10 + [0.0]])
    means = compute_group_means(values, groups)
    assert means[0, [0, 1, 3]].tolist() == [1.0, 0.5, 0.0]
    assert means[0, 2].isnan()
    # The group of one example is too small to count.
    assert find_groups_with_enough_examples(groups).tolist() == [
        [True, True, False, False]
    ]
    assert compute_worst_group_mean(
        values, groups, is_highest_worst=False
    ).tolist() == [0.5]
    assert compute_worst_group_mean(values, groups, is_highest_worst=True).tolist() == [
        1.0
    ]


def test_small_groups_count_where_all_are_small():
    number = torch.tensor([[0, 1, 1]])
    groups = GroupOfEachExample(number, ("a", "b", "c"), number)
    assert find_groups_with_enough_examples(groups).tolist() == [[True, True, False]]
    assert compute_worst_group_mean(
        torch.tensor([[1.0, 0.0, 1.0]]), groups, False
    ).tolist() == [0.5]


@pytest.mark.parametrize("parts", [1, 3])
def test_groups_of_several_environments_lie_one_after_another(parts):
    single = groups_of(shortcut(rows=50)[0])
    both = concatenate_example_groups([single] * parts)
    assert (
        count_group_sizes(both).tolist() == (parts * count_group_sizes(single)).tolist()
    )


def test_the_reference_learns_targets_in_units_of_their_population_deviation():
    environment = values(rows=4)
    reference = GroupReferenceModel.fit(environment, Randomness((0,)).at("reference"))
    expected = environment.targets.std(correction=0)
    assert reference.scale.item() == pytest.approx(expected.item(), rel=1e-6)
    assert reference.centre.item() == pytest.approx(environment.targets.mean().item())


@pytest.mark.parametrize(
    ("rows", "inputs", "epochs"),
    [(640, 6, 6), (64, 6, 60), (640, 256, 4), (9999, 6, 1)],
)
def test_the_reference_takes_few_steps_whatever_the_size(rows, inputs, epochs):
    x, y = torch.zeros(rows, inputs), torch.arange(rows) % 2
    environment = Environment("a", x, y, Task.classification(2))
    reference = GroupReferenceModel.fit(environment, Randomness((0,)).at("reference"))
    assert reference.learner.descent.epochs == epochs
