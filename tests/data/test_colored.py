"""Colouring keeps its promises: rates, disjoint images, draws that stand alone."""

import dataclasses
import itertools
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cirm.data import idx
from cirm.data.colored import Colored
from cirm.data.downloads import load_images_of_source
from cirm.settings import replace_settings_from_text

SCHEMES = ("b01", "b11", "gray")
FLIPS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
SEEDS = st.integers(0, 10**6)


def encoded(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write(folder, train, test, side, classes=10, prefix=""):
    """Four IDX files; the first pixels of an image spell which one it is."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    first = 1 if prefix else 0
    names, start = iter(idx.list_idx_file_names(prefix)), 0
    for count in (train, test):
        images = draw.integers(0, 256, (count, side, side), dtype=np.uint8)
        number = np.arange(start, start + count)
        images[:, 0, 0], images[:, -1, 0] = number % 256, number // 256
        labels = (number % classes + first).astype(np.uint8)
        (folder / next(names)).write_bytes(encoded(images))
        (folder / next(names)).write_bytes(encoded(labels))
        start += count
    return str(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A source of 4,000 images to train and 1,000 to test, 6 by 6 pixels."""
    return write(tmp_path_factory.mktemp("tiny"), 4000, 1000, 6)


def numbers(environment):
    """Which image each example shows, [replica, n], read off its pixels."""
    replicas = len(environment.targets)
    grey = (environment.take_all(replicas).x.sum(2) * 255).round().long()
    if environment.inputs.scheme == "b11":
        grey = grey - 255
    return grey[..., 0, 0] + 256 * grey[..., -1, 0]


def colors(environment):
    """The colour of each example, [replica, n], read off its pixels."""
    brightness = environment.take_all(len(environment.targets)).x.sum((-1, -2))
    return brightness.argmax(-1)


def off(share, probability, count):
    """How many standard errors an observed share is from what was promised."""
    error = math.sqrt(max(probability * (1 - probability), 1e-9) / count)
    return abs(float(share) - probability) / error


@settings(max_examples=25)
@given(
    label_flip=FLIPS,
    flips=st.tuples(FLIPS, FLIPS),
    test_flip=FLIPS,
    scheme=st.sampled_from(["b01", "b11"]),
    seed=SEEDS,
)
def test_labels_and_colours_flip_at_the_promised_rates(
    tiny, label_flip, flips, test_flip, scheme, seed
):
    dataset = Colored(
        source=tiny,
        scheme=scheme,
        examples="all",
        flips=flips,
        label_flip=label_flip,
        test_flip=test_flip,
    )
    problem = dataset.draw_problem((seed,))
    for environment, flip in zip(
        (*problem.train, *problem.test), (*flips, test_flip), strict=True
    ):
        clean = numbers(environment) % 10 % 2
        wrong = (environment.targets != clean).float().mean()
        contrary = (colors(environment) != environment.targets).float().mean()
        assert off(wrong, label_flip, len(environment)) < 5
        assert off(contrary, flip, len(environment)) < 5


@settings(max_examples=20)
@given(
    environments=st.integers(1, 6),
    examples=st.one_of(st.integers(1, 600), st.just("all"), st.none()),
    seed=SEEDS,
)
def test_environments_are_disjoint_and_test_images_are_never_trained_on(
    tiny, environments, examples, seed
):
    problem = Colored(
        source=tiny, environments=environments, examples=examples
    ).draw_problem((seed,))
    trained = torch.cat([numbers(environment)[0] for environment in problem.train])
    assert len(trained.unique()) == len(trained) and trained.max() < 4000
    tested = numbers(problem.test[0])[0]
    assert torch.equal(tested, torch.arange(4000, 5000))


@settings(max_examples=20)
@given(seeds=st.lists(SEEDS, min_size=1, max_size=4, unique=True), data=st.data())
def test_a_draw_does_not_depend_on_the_seeds_beside_it(tiny, seeds, data):
    dataset = Colored(source=tiny, examples=50, sweep=(0.5,))
    seed = data.draw(st.sampled_from(seeds))
    together, alone = dataset.draw_problem(tuple(seeds)), dataset.draw_problem((seed,))
    for ours, own in zip(
        (*together.train, *together.test, together.sweep[0][1]),
        (*alone.train, *alone.test, alone.sweep[0][1]),
        strict=True,
    ):
        place = seeds.index(seed)
        assert torch.equal(ours.targets[place], own.targets[0])
        assert torch.equal(ours.take_all(len(seeds)).x[place], own.take_all(1).x[0])


def test_each_seed_has_its_own_draw(tiny):
    problem = Colored(source=tiny, examples=200).draw_problem((0, 1))
    shown = numbers(problem.train[0])
    assert not torch.equal(shown[0], shown[1])
    for environment in (*problem.train, *problem.test):
        assert not torch.equal(environment.targets[0], environment.targets[1])


def test_flips_of_environments_and_of_labels_and_colours_are_independent(tiny):
    problem = Colored(
        source=tiny, examples="all", flips=(0.5, 0.5), label_flip=0.5, test_flip=0.5
    ).draw_problem((0,))
    draws = []
    for environment in (*problem.train, *problem.test):
        targets = environment.targets[0]
        draws.append(targets != numbers(environment)[0] % 2)
        draws.append(colors(environment)[0] != targets)
    for one, other in itertools.combinations(draws, 2):
        count = min(len(one), len(other))
        agree = (one[:count] == other[:count]).float().mean()
        assert off(agree, 0.5, count) < 5


def test_an_environment_does_not_depend_on_how_many_follow(tiny):
    few = Colored(source=tiny, examples=100, flips=(0.2, 0.1)).draw_problem((3,))
    many = Colored(source=tiny, environments=4, examples=100, flips=(0.2, 0.1, 0, 1))
    for ours, others in zip(few.train, many.draw_problem((3,)).train[:2], strict=True):
        assert torch.equal(ours.take_all(1).x, others.take_all(1).x)
        assert torch.equal(ours.targets, others.targets)


def test_schemes_show_the_same_images_labels_and_colours(tiny):
    problems = [
        Colored(source=tiny, scheme=s, examples=300).draw_problem((5,)) for s in SCHEMES
    ]
    unseen = [(*p.train, *p.test, *(e for _, e in p.sweep)) for p in problems]
    for figure, background, gray in zip(*unseen, strict=True):
        assert torch.equal(figure.targets, gray.targets)
        assert torch.equal(figure.targets, background.targets)
        assert torch.equal(numbers(figure), numbers(gray))
        assert torch.equal(numbers(figure), numbers(background))
        assert torch.equal(colors(figure), colors(background))
        assert figure.features == background.features == gray.features == (2, 6, 6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_inputs_are_the_bytes_of_the_image_in_the_channels_of_the_scheme(tiny, scheme):
    environment = (
        Colored(source=tiny, scheme=scheme, examples=400).draw_problem((1,)).train[0]
    )
    x = environment.take_all(1).x[0]
    image = load_images_of_source(tiny).train_images[numbers(environment)[0]] / 255
    z = torch.as_tensor(environment.inputs.colors[0]).long()
    own, other = (x[torch.arange(400), channel] for channel in (z, 1 - z))
    expected = {
        "b01": (image, torch.zeros_like(image)),
        "b11": (torch.ones_like(image), image),
        "gray": (image / 2, image / 2),
    }[scheme]
    torch.testing.assert_close((own, other), expected, atol=1e-6, rtol=0)
    assert x.dtype == torch.float32 and x.min() >= 0 and x.max() <= 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_standardised_inputs_are_the_same_shifted_and_scaled(tiny, scheme):
    plain = Colored(source=tiny, scheme=scheme, examples="all", label_flip=0.0)
    standard = dataclasses.replace(plain, standardise=True)
    problems = plain.draw_problem((1,)), standard.draw_problem((1,))
    parts = [[*p.train, *p.test, *p.fresh, *(e for _, e in p.sweep)] for p in problems]
    raw, scaled = (torch.cat([e.take_all(1).x for e in some], 1) for some in parts)
    mean, std = (
        statistic(torch.cat([e.take_all(1).x for e in problems[0].train], 1))
        for statistic in (torch.mean, torch.std)
    )
    torch.testing.assert_close(scaled, (raw - mean) / std, atol=2e-3, rtol=0)


def test_gray_does_not_know_the_colour(tiny):
    same, other = (
        Colored(
            source=tiny, scheme="gray", examples=50, flips=(flip, flip)
        ).draw_problem((0,))
        for flip in (0.0, 1.0)
    )
    assert torch.equal(same.train[0].take_all(1).x, other.train[0].take_all(1).x)


def test_flips_fall_evenly_from_a_fifth_to_a_tenth():
    assert Colored().list_flip_probabilities() == (0.2, 0.1)
    assert Colored(environments=3).list_flip_probabilities() == (0.2, 0.15, 0.1)
    assert Colored(environments=1).list_flip_probabilities() == (0.1,)
    assert len(Colored(environments=10).list_flip_probabilities()) == 10


def test_the_sweep_has_the_test_images_and_grows_by_nested_flips(tiny):
    problem = Colored(source=tiny, examples=10).draw_problem((2,))
    positions = [position for position, _ in problem.sweep]
    assert positions == pytest.approx([i / 10 for i in range(11)])
    flipped = [colors(e) != e.targets for _, e in problem.sweep]
    for less, more in itertools.pairwise(flipped):
        assert (less <= more).all()
    assert not flipped[0].any() and flipped[-1].all()
    test, same = problem.test[0], problem.sweep[9][1]
    assert torch.equal(test.targets, same.targets)
    assert torch.equal(test.take_all(1).x, same.take_all(1).x)
    assert Colored(source=tiny, sweep=()).draw_problem((2,)).sweep == ()


def test_the_sweep_may_hold_every_few_of_the_test_images(tiny):
    problem = Colored(source=tiny, examples=10, sweep=(0.9,), sweep_examples=5)
    drawn = problem.draw_problem((2,))
    test, ((_, few),) = drawn.test[0], drawn.sweep
    step = len(test) // 5
    assert step > 1
    assert torch.equal(few.targets, test.targets[:, ::step])
    assert torch.equal(few.take_all(1).x, test.take_all(1).x[:, ::step])


def test_half_the_side_takes_every_second_pixel(tiny):
    full, half = (
        Colored(source=tiny, examples=20, side=side).draw_problem((0,))
        for side in (6, 3)
    )
    for whole, small in zip(
        full.train + full.test, half.train + half.test, strict=True
    ):
        assert small.features == (2, 3, 3)
        assert torch.equal(small.take_all(1).x, whole.take_all(1).x[..., ::2, ::2])
    with pytest.raises(
        ValueError, match=r"side is 14\. The images of .* Use 0, 6 or 3"
    ):
        Colored(source=tiny, side=14).draw_problem((0,))


def test_images_of_28_pixels_come_at_28_and_at_14(tmp_path):
    source = write(tmp_path / "usual", 30, 10, 28)
    for side, got in ((0, 28), (28, 28), (14, 14)):
        problem = Colored(source=source, examples=5, side=side).draw_problem((0, 1))
        assert problem.train[0].inputs.shape == (2, 5, 2, got, got)


@pytest.mark.parametrize(
    ("rule", "ones"),
    [
        ("paper", {1, 3, 5, 7, 9}),
        ("parity", {1, 3, 5, 7, 9}),
        ("below-five", {0, 1, 2, 3, 4}),
        ("0, 8", {0, 8}),
        ("7", {7}),
    ],
)
def test_a_rule_says_which_classes_are_one(tiny, rule, ones):
    dataset = Colored(source=tiny, labels=rule, label_flip=0, examples=500)
    environment = dataset.draw_problem((0,)).train[0]
    got = numbers(environment)[0][environment.targets[0] == 1] % 10
    assert set(got.tolist()) == ones


def test_letters_have_the_list_of_the_paper(tmp_path):
    source = write(tmp_path / "letters", 260, 52, 6, classes=26, prefix=idx.LETTERS)
    problem = Colored(source=source, label_flip=0, test_flip=0).draw_problem((0,))
    is_one = problem.test[0].targets[0] == 1
    letters = load_images_of_source(source).test_labels
    zeros = {chr(ord("a") + i) for i in letters[~is_one].tolist()}
    assert zeros == set("acegikmoqsuvy")
    parity = dataclasses.replace(
        Colored(source=source), labels="parity", label_flip=0
    ).draw_problem((0,))
    assert torch.equal(parity.test[0].targets[0], letters % 2)


def test_the_tail_of_the_training_file_is_tested_on_and_not_trained_on(tmp_path):
    source = write(tmp_path / "long", 10060, 5, 2)
    dataset = Colored(source=source, test_from="train-tail", examples="all", sweep=())
    problem = dataset.draw_problem((0,))
    trained = torch.cat([numbers(environment)[0] for environment in problem.train])
    assert torch.equal(trained.sort().values, torch.arange(60))
    assert torch.equal(numbers(problem.test[0])[0], torch.arange(60, 10060))
    with pytest.raises(
        ValueError, match="digits has only 1438 training images; use test"
    ):
        Colored(test_from="train-tail").draw_problem((0,))


def test_examples_are_counted_per_environment(tiny):
    def size(**chosen):
        return [len(e) for e in Colored(source=tiny, **chosen).draw_problem((0,)).train]

    assert size() == [1000, 1000]
    assert size(examples=7) == [7, 7]
    assert size(examples="all", environments=3) == [1333] * 3
    assert size(environments=8) == [500] * 8


def test_a_source_that_is_too_small_says_so():
    with pytest.raises(
        ValueError, match=r"need more than the 1,438 training images .* examples=719"
    ):
        Colored(examples=1000).draw_problem((0,))
    assert [len(environment) for environment in Colored().draw_problem((0,)).train] == [
        719
    ] * 2


def test_a_drawn_problem_takes_little_more_than_its_grey_bytes(tmp_path):
    source = write(tmp_path / "usual", 5000, 1000, 28)
    problem = Colored(source=source, examples=1000).draw_problem((0, 1, 2, 3, 4))
    held = {}
    for environment in (*problem.train, *problem.test, *(e for _, e in problem.sweep)):
        inputs = environment.inputs
        for tensor in (inputs.grey, inputs.rows, inputs.colors, environment.targets):
            held[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
    assert sum(held.values()) < 1.1 * 6000 * 28 * 28


@given(rows=st.lists(st.lists(st.integers(0, 39), min_size=3, max_size=3), min_size=2))
@settings(max_examples=20)
def test_rows_are_taken_of_each_replica(tiny, rows):
    chosen = torch.tensor(rows).T[:2].contiguous()
    environment = (
        Colored(source=tiny, scheme="b11", examples=40).draw_problem((0, 1)).train[1]
    )
    whole = environment.take_all(2)
    taken = environment.take(chosen)
    replicas = torch.arange(2)[:, None]
    assert torch.equal(taken.x, whole.x[replicas, chosen])
    assert torch.equal(taken.y, whole.y[replicas, chosen])


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"scheme": "b10"}, "scheme is 'b10'. Use one of b01, b11, gray."),
        ({"test_from": "tail"}, "test_from is 'tail'. Use test or train-tail."),
        ({"environments": 0}, "environments is 0. Use 1 or more."),
        ({"examples": 0}, "examples is 0. Use 1 or more, or all."),
        ({"examples": "many"}, "examples is 'many'. Use 1 or more, or all."),
        ({"flips": (0.1,)}, r"flips is \[0.1\]. Give one value for each of the 2 env"),
        (
            {"flips": (0.1, 1.5)},
            r"flips is \[0.1, 1.5\]. Use probabilities from 0 to 1.",
        ),
        ({"label_flip": -0.1}, "label_flip is -0.1. Use probabilities from 0 to 1."),
        ({"test_flip": math.nan}, "test_flip is nan. Use probabilities from 0 to 1."),
        ({"sweep": (0.5, 0.5)}, r"sweep is \[0.5, 0.5\]. Use each value once."),
        (
            {"labels": "even"},
            "labels is 'even'. Use one of paper, parity, below-five, or",
        ),
        (
            {"labels": "1,,2"},
            "labels is '1,,2'. Use one of paper, parity, below-five, or",
        ),
    ],
)
def test_wrong_settings_are_refused_where_they_enter(chosen, reason):
    with pytest.raises(ValueError, match=f"^colored: the setting {reason}"):
        Colored(**chosen)


@pytest.mark.parametrize("listed", ["1,77", "0,1,2,3,4,5,6,7,8,9"])
def test_a_list_of_classes_must_leave_both_labels(listed):
    with pytest.raises(
        ValueError, match="Name some, but not all, of the classes of digits"
    ):
        Colored(labels=listed).draw_problem((0,))


def test_settings_are_read_from_text():
    texts = {"examples": "all", "flips": "0.3,0.1", "labels": "1,3,7", "side": "4"}
    dataset = replace_settings_from_text(Colored(), texts, "colored")
    assert (dataset.examples, dataset.flips) == ("all", (0.3, 0.1))
    assert dataset.draw_problem((0,)).train[0].features == (2, 4, 4)


def test_true_groups_are_the_images_whose_colour_agrees_and_the_others():
    plain = {"examples": 200, "flips": (0.2, 0.1), "sweep": ()}
    problem = Colored(groups=True, **plain).draw_problem((0, 1))
    assert [(e.name, len(e)) for e in problem.train] == [
        ("train-1 agree", 160),
        ("train-1 contradict", 40),
        ("train-2 agree", 180),
        ("train-2 contradict", 20),
    ]
    for environment in problem.train:
        agrees = environment.inputs.colors.long() == environment.targets
        assert bool((agrees == ("agree" in environment.name)).all())
    whole = Colored(**plain).draw_problem((0, 1))
    for place, environment in enumerate(whole.train):
        parts = problem.train[2 * place : 2 * place + 2]
        rows = torch.cat([part.inputs.rows for part in parts], 1)
        assert torch.equal(rows.sort(1).values, environment.inputs.rows.sort(1).values)
    assert torch.equal(problem.test[0].targets, whole.test[0].targets)
