"""Kinds of shortcut: how often each contradicts the label, and its oracle's data."""

import pytest
import torch

from cirm.data.colored import Colored
from cirm.data.shortcut_images import FAINT, SQUARE, make_color_of_each_label
from cirm.data.shortcuts import CUES, Shortcuts

KINDS = list(CUES)


def everything(environment, replicas=1):
    x, y = environment.take_all(replicas)
    return x, y


def environments(problem):
    return (*problem.train, *problem.test)


@pytest.mark.parametrize("kind", KINDS)
def test_each_shortcut_contradicts_the_label_as_often_as_it_should(kind):
    problem = Shortcuts(kind=kind, flips=(0.3, 0.05)).draw_problem((0, 1))
    places = zip(environments(problem), (0.3, 0.05, 0.9), strict=True)
    for environment, flip in places:
        for name, shown in environment.inputs.cues.items():
            differs = (shown.long() != environment.targets).float().mean().item()
            if environment.name == "test" and kind == "classes-random":
                flip = 0.9  # ten hues, of which nine are another one's
            error = 4 * (flip * (1 - flip) / shown.numel()) ** 0.5
            assert differs == pytest.approx(flip, abs=error), (environment.name, name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_has_the_same_images_and_labels_without_the_shortcut(kind):
    there = Shortcuts(kind=kind, examples=60).draw_problem((3,))
    gone = Shortcuts(kind=kind, examples=60, shortcut=False).draw_problem((3,))
    for one, other in zip(environments(there), environments(gone), strict=True):
        assert (one.targets == other.targets).all()
        assert (one.inputs.rows == other.inputs.rows).all()
        assert one.inputs.shape == other.inputs.shape
        assert other.inputs.cues == {}
        x = everything(other)[0]
        assert (x == x[:, :, :1]).all() or kind.startswith("classes")


def test_images_and_labels_are_the_same_for_every_kind_of_two_classes():
    drawn = [Shortcuts(kind=kind, examples=60).draw_problem((3,)) for kind in KINDS]
    two = [p for k, p in zip(KINDS, drawn, strict=True) if "classes" not in k]
    assert all(
        (p.train[1].inputs.rows == drawn[0].train[1].inputs.rows).all() for p in drawn
    )
    assert all((p.train[1].targets == two[0].train[1].targets).all() for p in two)


def test_colours_are_drawn_as_those_of_the_paper():
    for kind, scheme in (("figure", "b01"), ("background", "b11")):
        (place,) = (
            Shortcuts(kind=kind, examples=40, environments=1).draw_problem((0,)).train
        )
        (same,) = (
            Colored(scheme=scheme, examples=40, environments=1).draw_problem((0,)).train
        )
        x = everything(place)[0]
        inputs = same.inputs.__class__(
            place.inputs.grey, place.inputs.rows, place.inputs.cues[kind], scheme
        )
        every = torch.arange(40)[None]
        torch.testing.assert_close(x, inputs.take(every))


def test_a_square_and_stripes_are_added_to_grey_images_if_they_show_a_one():
    for kind in ("corner", "stripes"):
        there = Shortcuts(kind=kind, examples=60).draw_problem((0,)).train[0]
        gone = (
            Shortcuts(kind=kind, examples=60, shortcut=False)
            .draw_problem((0,))
            .train[0]
        )
        x, grey = everything(there)[0][0], everything(gone)[0][0]
        is_shown = there.inputs.cues[kind][0].bool()
        assert (x[~is_shown] == grey[~is_shown]).all()
        change = (x - grey)[is_shown]
        if kind == "corner":
            assert (x[is_shown][..., :SQUARE, :SQUARE] == 1).all()
            change[..., :SQUARE, :SQUARE] = 0
            assert (change == 0).all()
        else:
            assert (change[..., 1::2, :] == 0).all()
            assert change.min() >= 0 and change.max() <= FAINT + 1e-6
            assert x.max() <= 1


def test_two_shortcuts_are_drawn_independently_given_the_label():
    problem = Shortcuts(kind="two", flips=(0.2, 0.2)).draw_problem(tuple(range(8)))
    (place, _) = problem.train
    y, (one, two) = place.targets, place.inputs.cues.values()
    wrong = [(u.long() != y).float() for u in (one, two)]
    both = (wrong[0] * wrong[1]).mean().item()
    assert both == pytest.approx(0.04, abs=4 * (0.04 * 0.96 / y.numel()) ** 0.5)


def test_each_place_of_the_kind_new_has_its_own_shortcut_and_the_unseen_one_has_all():
    problem = Shortcuts(kind="new", environments=3, examples=50).draw_problem((0,))
    shown = [tuple(place.inputs.cues) for place in environments(problem)]
    assert shown == [("figure",), ("corner",), ("stripes",), CUES["new"]]
    with pytest.raises(
        ValueError, match=r"environments is 4\. With kind=new .* at most 3"
    ):
        Shortcuts(kind="new", environments=4)


def test_hues_are_random_or_opposite_at_the_unseen_place():
    random = (
        Shortcuts(kind="classes-random", label_flip=0.0).draw_problem((0, 1)).test[0]
    )
    counts = torch.bincount(random.inputs.cues["hue"].flatten().long(), minlength=10)
    assert counts.min() > 40  # 72 expected of each hue
    opposite = (
        Shortcuts(kind="classes-opposite", label_flip=0.0).draw_problem((0,)).test[0]
    )
    step = (opposite.inputs.cues["hue"].long() - opposite.targets) % 10
    assert set(step.flatten().tolist()) == {0, 5}
    assert make_color_of_each_label(10).unique(dim=0).shape == (10, 3)


def test_a_replica_is_the_same_alone_and_beside_others():
    both = Shortcuts(kind="two", examples=30).draw_problem((4, 9))
    alone = Shortcuts(kind="two", examples=30).draw_problem((9,))
    for one, other in zip(environments(both), environments(alone), strict=True):
        assert (everything(one, 2)[0][1] == everything(other)[0][0]).all()


def test_training_images_are_used_once_and_the_sweep_has_the_same_labels():
    problem = Shortcuts(environments=6, sweep=(0.0, 1.0)).draw_problem((0,))
    rows = torch.cat([place.inputs.rows[0] for place in problem.train])
    assert len(rows.unique()) == len(rows)
    (_, low), (_, high) = problem.sweep
    assert (low.targets == problem.test[0].targets).all()
    assert (low.inputs.cues["figure"] == low.targets).all()
    assert (high.inputs.cues["figure"] == 1 - high.targets).all()


def test_noise_of_labels_replaces_them_by_others():
    clean, noisy = (
        Shortcuts(kind="classes-random", label_flip=flip)
        .draw_problem((0,))
        .test[0]
        .targets
        for flip in (0.0, 1.0)
    )
    assert (clean != noisy).all() and noisy.max() < 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "smell"}, "kind is 'smell'. Use one of figure, background"),
        ({"environments": 0}, "environments is 0. Use 1 or more"),
        ({"examples": 0}, "examples is 0. Use 1 or more"),
        ({"flips": (0.1,)}, r"flips is \[0.1\]. Give one value for each of the 2"),
        ({"test_flip": 1.5}, "test_flip is 1.5. Use probabilities from 0 to 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Shortcuts(**settings)


def test_more_examples_than_there_are_images_are_refused():
    with pytest.raises(ValueError, match="Use at most examples=719, or fewer"):
        Shortcuts(examples=720).draw_problem((0,))
