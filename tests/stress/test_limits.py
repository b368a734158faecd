"""The Bayes limit: formulas of simple cases, and simulations of the others."""

import math

import pytest
import torch

from cirm.data import create_dataset
from cirm.data.planted import LOGIT_SPREAD
from cirm.randomness import Randomness
from cirm.stress.cells import USUAL, StressTestCell, list_shortcut_kinds
from cirm.stress.limits import (
    build_label_noise_matrix,
    compute_bayes_accuracy_of_channels,
    compute_bayes_optimal_score,
)

KINDS = {kind.name: kind for kind in list_shortcut_kinds("digits")}
HALF = torch.tensor([0.5, 0.5], dtype=torch.double)


def limit(name, **data):
    kind = KINDS[name]
    return compute_bayes_optimal_score(
        StressTestCell(kind, USUAL, {**kind.data, **data})
    )


@pytest.mark.parametrize(("noise", "flip"), [(0.25, 0.9), (0.0, 0.9), (0.35, 0.5)])
def test_of_two_binary_channels_the_better_one_is_used(noise, flip):
    best = 100 * max(1 - noise, flip, 1 - flip)
    assert limit("figure", label_flip=noise, test_flip=flip) == pytest.approx(best)


def test_two_equal_channels_break_ties_with_a_third():
    # Both shortcuts agree with probability 0.82, then they are right in 81 of 82 cases;
    # otherwise the shape decides, right in three of four.
    assert limit("two") == pytest.approx(100 * (0.81 + 0.18 * 0.75))


def test_three_channels_of_equal_quality_vote():
    channel = build_label_noise_matrix(2, 0.2)
    expected = sum(
        math.comb(3, right) * 0.8**right * 0.2 ** (3 - right) for right in (2, 3)
    )
    assert compute_bayes_accuracy_of_channels(
        HALF, channel, channel, channel
    ) == pytest.approx(expected)


def test_a_channel_that_shows_nothing_changes_nothing():
    nothing = torch.full((2, 3), 1 / 3, dtype=torch.double)
    shape = build_label_noise_matrix(2, 0.25)
    assert compute_bayes_accuracy_of_channels(HALF, shape, nothing) == pytest.approx(
        0.75
    )
    assert limit("none") == pytest.approx(75.0)
    assert limit("classes-random", label_flip=0.25) == pytest.approx(75.0)


def test_opposite_hues_tell_the_class_up_to_its_opposite():
    noisy = limit("classes-opposite", label_flip=0.25)
    assert limit("classes-opposite") == pytest.approx(100.0)
    assert 90 < noisy < 100  # hues alone: 90


@pytest.mark.parametrize("name", ["table-binary", "table-numeric", "table-mild"])
def test_the_limit_of_synthetic_tables_is_that_of_a_simulation(name):
    """The exact posterior of the known truth, on rows of many places."""
    kind = KINDS[name]
    dataset = create_dataset(kind.dataset, {**kind.data, "examples": 2, "columns": 2})
    seeds = tuple(range(150))
    drawn, _ = dataset._draw_synthetic_rows(seeds)
    x, y = drawn[-1]
    at = Randomness(seeds).at("planted", "synthetic")
    weights = at.at("weights").normal(2, 1)
    logit = LOGIT_SPREAD * (x @ (weights / weights.norm(dim=1, keepdim=True)))[..., 0]
    test = dataset.draw_problem(seeds).test[0]
    u, flip = test.inputs[..., -1], dataset.test_flip
    if dataset.plant == "binary":
        evidence = (2 * u - 1) * math.log((1 - flip) / flip)
    else:
        evidence = 2 * torch.special.ndtri(torch.tensor(1 - flip)) * u
    accuracy = 100 * ((logit + evidence > 0).long() == y).float().mean().item()
    assert compute_bayes_optimal_score(
        StressTestCell(kind, USUAL, kind.data)
    ) == pytest.approx(accuracy, abs=0.6)


def test_the_limit_of_a_regression_is_that_of_least_squares_on_many_rows():
    data = {**KINDS["table-regression"].data, "columns": 2, "examples": 2000}
    (test,) = create_dataset("planted", data).draw_problem(tuple(range(20))).test
    errors = []
    for x, y in zip(test.inputs, test.targets, strict=True):
        rows = torch.cat([x, torch.ones(len(x), 1)], 1)
        fit = torch.linalg.lstsq(rows, y[:, None]).solution
        errors.append((rows @ fit - y[:, None]).square().mean().item())
    mean = 100 * (1 - sum(errors) / len(errors))
    assert compute_bayes_optimal_score(
        StressTestCell(KINDS["table-regression"], USUAL, data)
    ) == pytest.approx(mean, abs=1.0)


def test_a_real_table_has_no_known_limit(tmp_path):
    data = {"path": str(tmp_path), "target": "ill"}
    assert limit("table-binary", **data) is None
