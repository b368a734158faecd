"""A draw depends on its seed and its address, and on nothing else."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cirm.randomness import Randomness

DRAWS = {
    "normal": lambda source: source.normal(40),
    "uniform": lambda source: source.uniform(40),
    "integers": lambda source: source.integers(1000, 40),
    "permutation": lambda source: source.permutation(40),
    "chances": lambda source: source.start_draws().bernoulli(0.5, 40),
    "noise": lambda source: source.start_draws().approximate_normal(3, 5),
}
each_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
seeds = st.integers(-(2**40), 2**40)
paths = st.lists(st.text(max_size=5) | st.integers(-9, 9), max_size=3).map(tuple)


@each_draw
def test_a_replica_draws_the_same_alone_and_beside_others(draw):
    beside = draw(Randomness((7, 3, 11)).at("noise"))
    alone = draw(Randomness((3,)).at("noise"))
    assert torch.equal(beside[1], alone[0])


@each_draw
def test_a_draw_is_the_same_whatever_was_drawn_before(draw):
    source = Randomness((1, 2))
    first = draw(source.at("noise"))
    torch.manual_seed(5)
    source.at("other").normal(17)
    torch.randn(3)
    assert torch.equal(draw(source.at("noise")), first)


@each_draw
def test_drawing_leaves_the_global_source_alone(draw):
    before = torch.get_rng_state()
    draw(Randomness((1, 2)).at("noise"))
    assert torch.equal(torch.get_rng_state(), before)


@given(seeds, paths, st.lists(seeds, max_size=4), st.data())
def test_neighbours_never_matter(seed, path, others, data):
    place = data.draw(st.integers(0, len(others)))
    company = (*others[:place], seed, *others[place:])
    beside = Randomness(company, path).normal(5)
    assert torch.equal(beside[place], Randomness((seed,), path).normal(5)[0])


@given(st.lists(st.tuples(seeds, paths), min_size=2, max_size=6, unique=True))
def test_different_addresses_draw_differently(addresses):
    drawn = [Randomness((seed,), path).uniform(8) for seed, path in addresses]
    assert len({tuple(draw.flatten().tolist()) for draw in drawn}) == len(addresses)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("stage", 1), ("stage", "1")),
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), ("a', 'b",)),
        (("a",), ("a", 0)),
        (("a", 1), (1, "a")),
    ],
)
def test_paths_that_look_alike_are_different(one, other):
    source = Randomness((0,))
    assert not torch.equal(source.at(*one).uniform(8), source.at(*other).uniform(8))


def test_a_seed_is_not_a_step_of_the_path():
    assert not torch.equal(
        Randomness((1,), (2,)).uniform(8), Randomness((2,), (1,)).uniform(8)
    )


@given(paths, paths)
def test_a_path_may_be_walked_in_steps(first, then):
    source = Randomness((4,))
    assert source.at(*first).at(*then) == source.at(*first, *then)


def test_integers_of_numpy_address_the_same_draw():
    plain = Randomness((3,)).at("stage", 2).normal(8)
    numpys = Randomness((np.int64(3),)).at("stage", np.int32(2)).normal(8)
    assert torch.equal(plain, numpys)


def test_a_seed_must_be_whole():
    with pytest.raises(TypeError, match="float"):
        Randomness((0.5,)).normal(1)


APART = """
import json, sys, torch
from cirm.randomness import Randomness
torch.set_num_threads(int(sys.argv[1]))
draws = Randomness(tuple(map(int, sys.argv[2:]))).at("stage", 2).start_draws()
made = [draws.normal(70_000), draws.uniform(70_000), draws.bernoulli(0.3, 70_000)]
print(json.dumps(torch.cat(made, 1).double().cumsum(1)[:, ::997].tolist()))
"""


def drawn_by_processes(*commands):
    """What processes print that run at once, each with its threads and seeds."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", APART, *command.split()], stdout=subprocess.PIPE
        )
        for command in commands
    ]
    return [json.loads(process.communicate()[0]) for process in started]


@pytest.mark.integration
def test_draws_do_not_depend_on_the_number_of_processes_or_threads():
    together, first, rest = drawn_by_processes("1 0 1 2", "3 0", "2 1 2")
    assert together == first + rest


def test_an_address_means_the_same_draw_in_every_release():
    drawn = Randomness((0,)).at("stage", 1).integers(1000, 6)
    assert drawn.tolist() == [[693, 204, 964, 784, 627, 249]]


def test_members_of_one_replica_come_after_those_of_another():
    both = Randomness((3, 9)).at("plain").spawn(3).at("noise").normal(5)
    first, second = (
        Randomness((seed,)).at("plain").spawn(3).at("noise").normal(5)
        for seed in (3, 9)
    )
    assert torch.equal(both, torch.cat([first, second]))


def test_a_member_draws_the_same_however_many_there_are():
    few, many = (Randomness((3,)).spawn(count).normal(5) for count in (2, 4))
    assert torch.equal(many[:2], few)


def test_members_draw_by_their_address():
    source = Randomness((3,))
    drawn = [
        source.normal(5),
        *source.spawn(2).normal(5)[:, None],
        *source.spawn(2).at("member", 0).normal(5)[:, None],
        *source.at("member", 0).spawn(2).normal(5)[:, None],
        *source.spawn(2).spawn(2).normal(5)[:, None],
    ]
    assert len({tuple(draw.flatten().tolist()) for draw in drawn}) == 11
    numpys = Randomness((np.int64(3),)).spawn(2).normal(5)
    assert torch.equal(numpys, source.spawn(2).normal(5))


def test_members_are_uncorrelated():
    drawn = Randomness((0, 1, 2)).spawn(10).at("check").normal(2000)
    correlations = torch.corrcoef(drawn) - torch.eye(30)
    assert correlations.abs().max() < 4.5 / 2000**0.5


def test_successive_draws_go_on_from_one_another():
    draws, again = (Randomness((0, 1)).at("loop").start_draws() for _ in range(2))
    first, second = draws.normal(4), draws.normal(4)
    assert not torch.equal(first, second)
    assert torch.equal(
        torch.stack([again.normal(4), again.normal(4)]), torch.stack([first, second])
    )


def test_draws_have_the_shape_that_was_asked_for():
    source = Randomness((0, 1, 2))
    assert source.normal(4, 5).shape == (3, 4, 5)
    assert source.uniform().shape == (3,)
    assert source.integers(9, 2).dtype == torch.int64
    assert source.permutation(6).sort(1).values.tolist() == [list(range(6))] * 3
    assert source.start_draws().bernoulli(0.5, 4).dtype == torch.float32
    assert source.start_draws().approximate_normal(2, 3).shape == (3, 2, 3)
    assert source.start_draws().approximate_normal(4).dtype == torch.float32


def test_uniform_draws_fill_their_range_evenly():
    drawn = Randomness(tuple(range(20))).at("check").uniform(1000).flatten()
    counts = torch.histc(drawn, 10, 0, 1)
    assert drawn.min() >= 0 and drawn.max() < 1
    # Chi-squared with 9 degrees of freedom exceeds 27.9 once in a thousand.
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9


def test_normal_draws_have_mean_zero_and_variance_one():
    drawn = Randomness(tuple(range(20))).at("check").normal(1000)
    assert abs(drawn.mean()) < 4 / 20_000**0.5
    assert abs(drawn.var() - 1) < 4 * (2 / 20_000) ** 0.5


def test_chances_have_their_probability():
    drawn = Randomness(tuple(range(20))).start_draws().bernoulli(0.3, 1000)
    assert set(drawn.unique().tolist()) == {0, 1}
    assert abs(drawn.mean() - 0.3) < 4 * (0.3 * 0.7 / 20_000) ** 0.5


@pytest.fixture(scope="module")
def noise():
    return (
        Randomness(tuple(range(4)))
        .at("check")
        .start_draws()
        .approximate_normal(250_000)
        .double()
    )


@pytest.mark.parametrize(
    ("power", "moment", "variance"), [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]
)
def test_noise_has_the_moments_of_a_normal(noise, power, moment, variance):
    error = 4 * (variance / noise.numel()) ** 0.5
    # With so few values the fourth moment is a thousandth below that of a normal.
    assert abs(noise.pow(power).mean() - moment) < error + 0.002 * (power == 4)


def test_noise_is_distributed_as_a_normal(noise):
    ordered = noise.flatten().sort().values
    below = torch.arange(1, ordered.numel() + 1) / ordered.numel()
    distance = (torch.special.ndtr(ordered) - below).abs().max()
    # Kolmogorov's distance exceeds 1.95 / sqrt(n) once in a thousand; 65536 values
    # cannot be nearer to a normal than half of one of their parts.
    assert distance < 1.95 / ordered.numel() ** 0.5 + 1 / 131072


@pytest.mark.parametrize("limit", [1.0, 2.0, 3.0, 4.0])
def test_noise_has_the_tails_of_a_normal(noise, limit):
    for tail in (noise > limit, noise < -limit):
        chance = 1 - torch.special.ndtr(torch.tensor(limit, dtype=torch.float64))
        error = 4 * (chance / tail.numel()) ** 0.5 + 1 / 65536
        assert abs(tail.double().mean() - chance) < error
    assert noise.abs().max() < 4.4


def test_neighbouring_noise_is_uncorrelated(noise):
    for apart in (1, 2, 3, 4):  # four of them share one draw of 64 bits
        product = (noise[:, apart:] * noise[:, :-apart]).mean()
        assert abs(product) < 4 / noise.numel() ** 0.5


def test_neighbouring_seeds_are_uncorrelated():
    drawn = Randomness(tuple(range(30))).at("check").normal(2000)
    correlations = torch.corrcoef(drawn) - torch.eye(30)
    assert correlations.abs().max() < 4.5 / 2000**0.5
