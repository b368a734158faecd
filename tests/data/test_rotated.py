"""Rotated digits: angles as environments."""

import pytest
import torch

from cirm.data.rotated import Rotated, rotate_images


def test_each_environment_shows_other_images_at_its_own_angle():
    problem = Rotated(angles=(0, 90), examples=100, sweep=(45, 180)).draw_problem(
        (0, 1)
    )
    assert [e.name for e in problem.train] == ["0", "90"]
    assert [e.name for e in problem.test] == ["75"]
    assert [(at, e.name) for at, e in problem.sweep] == [
        (45, "sweep-45"),
        (180, "sweep-180"),
    ]
    assert problem.train[0].targets.shape == (2, 100)
    assert len(problem.test[0]) == 359
    assert len(problem.train[0].task.classes) == 10


def test_a_quarter_turn_moves_pixels_and_loses_nothing():
    grey = torch.arange(49, dtype=torch.uint8).reshape(1, 7, 7)
    assert torch.equal(rotate_images(grey, 90), grey.rot90(1, (1, 2)))
    assert torch.equal(rotate_images(grey, 360), grey)
    assert torch.equal(rotate_images(grey, -90), grey.rot90(-1, (1, 2)))


def test_inputs_are_the_turned_images_with_their_own_labels():
    upright = Rotated(angles=(0,), examples=50).draw_problem((0,)).train[0]
    turned = Rotated(angles=(90,), examples=50).draw_problem((0,)).train[0]
    assert torch.equal(upright.targets, turned.targets)
    torch.testing.assert_close(
        turned.take_all(1).x, upright.take_all(1).x.rot90(1, (3, 4))
    )


def test_a_draw_depends_on_its_own_seed_only():
    both, alone = (Rotated(examples=40).draw_problem(seeds) for seeds in ((0, 1), (1,)))
    torch.testing.assert_close(
        both.train[2].take_all(2).x[1], alone.train[2].take_all(1).x[0]
    )
    assert torch.equal(both.train[2].targets[1], alone.train[2].targets[0])


def test_training_images_are_disjoint():
    problem = Rotated(angles=(0, 360), examples=700).draw_problem((0,))
    first, second = (e.take_all(1).x[0].flatten(1) for e in problem.train)
    same = (first[:, None] == second[None]).all(-1)
    assert same.sum() < 5  # a few digits of the source occur twice


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"angles": ()}, "Use one or more different angles"),
        ({"angles": (5, 5)}, "Use one or more different angles"),
        ({"angles": (0, 75)}, "test_angle is 75. Use an angle that is not trained"),
        ({"examples": 0}, "examples is 0. Use 1 or more"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Rotated(**settings)


def test_more_examples_than_there_are_is_refused():
    with pytest.raises(
        ValueError, match="5 environments with 1,000 examples each need more"
    ):
        Rotated(examples=1000).draw_problem((0,))
