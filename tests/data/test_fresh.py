"""Spare examples of training environments: alike, but never trained or tested on."""

import pytest
import torch

from cirm.data.colored import FEWEST_FRESH, MOST_FRESH, Colored
from cirm.data.scm import SCM
from cirm.environments import Environment, Problem, Task

SEEDS = (0, 1)


def images(environment):
    return [set(rows.tolist()) for rows in environment.inputs.rows]


def test_spare_images_are_neither_trained_on_nor_shared_between_environments():
    drawn = Colored(examples=300, environments=3, sweep=()).draw_problem(SEEDS)
    assert [e.name for e in drawn.fresh] == [e.name for e in drawn.train]
    for replica in range(len(SEEDS)):
        parts = [images(e)[replica] for e in (*drawn.train, *drawn.fresh)]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_spare_images_have_the_flips_of_their_environment():
    drawn = Colored(examples=200, flips=(0.0, 1.0), sweep=()).draw_problem(SEEDS)
    for environment, flip in zip(drawn.fresh, (0, 1), strict=True):
        assert ((environment.inputs.colors ^ environment.targets) == flip).all()


def test_there_are_spare_images_only_where_enough_are_left():
    every = Colored(examples="all", sweep=()).draw_problem((0,))
    assert every.fresh == ()
    most = len(every.train[0])
    enough = Colored(examples=most - FEWEST_FRESH, sweep=()).draw_problem((0,))
    assert len(enough.fresh[0]) == FEWEST_FRESH <= MOST_FRESH
    assert (
        Colored(examples=most - FEWEST_FRESH + 1, sweep=()).draw_problem((0,)).fresh
        == ()
    )


def test_a_draw_of_spare_examples_does_not_depend_on_the_seeds_beside_it():
    for data in (Colored(examples=100), SCM(examples=20)):
        both, alone = data.draw_problem((0, 1)), data.draw_problem((1,))
        for many, one in zip(both.fresh, alone.fresh, strict=True):
            assert torch.equal(many.take_all(2).x[1:], one.take_all(1).x)
            assert torch.equal(many.targets[1:], one.targets)


def test_the_model_gives_new_examples_of_the_same_distribution():
    drawn = SCM(examples=20_000, sweep=(), weights="random").draw_problem((0,))
    for train, fresh in zip(drawn.train, drawn.fresh, strict=True):
        assert not torch.equal(train.targets, fresh.targets)
        both = torch.cat([train.inputs, train.targets[..., None]], -1)[0]
        more = torch.cat([fresh.inputs, fresh.targets[..., None]], -1)[0]
        scale = both.std(0)
        gap = (both.T.cov() - more.T.cov()) / (scale[:, None] * scale)
        assert gap.abs().max() < 0.05


def environment(name, width=2):
    y = torch.tensor([0, 1, 0])
    return Environment(name, torch.ones(3, width), y, Task.classification(2))


@pytest.mark.parametrize(
    ("fresh", "complaint"),
    [
        (
            ("b",),
            r"are named \['b'\], but the environments in `train` are named \['a'\]",
        ),
        (("a", "b"), r"are named \['a', 'b'\], but the environments in `train`"),
    ],
)
def test_spare_examples_of_other_environments_are_refused(fresh, complaint):
    with pytest.raises(ValueError, match=complaint):
        Problem((environment("a"),), fresh=tuple(map(environment, fresh)))


def test_spare_examples_with_other_features_are_refused():
    with pytest.raises(
        ValueError,
        match=r"'a, fresh': the inputs of .* \[3\], but in .* 'a' they have \[2\]",
    ):
        Problem((environment("a"),), fresh=(environment("a", width=3),))
