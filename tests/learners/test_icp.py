import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.icp import agreement, invariant_sets, least_squares, products
from cirm.memory import leaves
from cirm.randomness import Randomness


def environments(scales=(0.5, 1.0, 2.0), rows=800, seed=0, effect=1.0):
    """x0, x1 -> y -> x2; all but the noise of y differs between environments."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for scale in scales:
        x0, x1, noise, end = torch.randn(4, rows, generator=generator)
        x0, x1 = scale * x0, x1 + scale
        y = x0 - 2 * x1 + noise
        x2 = effect * y + scale * end
        x = torch.stack([x0, x1, x2], -1)
        made.append(Environment(f"scale {scale}", x, y, Task.regression()))
    return made


def learned(made, order, level=0.05):
    learner = create("icp", made[0], {"level": level})
    randomness = Randomness((0,))
    state = learner.init(randomness)
    for stage in Stream.ordered(made, order):
        state = learner.observe(state, stage, randomness)
    return learner, state


def sums(made):
    return torch.stack([products(*e.all(1))[0] for e in made]).numpy()


def test_the_true_parents_are_found_and_their_coefficients_too():
    _, state = learned(environments(), "joint")
    weights = state.coefficients[0]
    torch.testing.assert_close(
        weights[:2], torch.tensor([1.0, -2.0]), atol=0.1, rtol=0.05
    )
    assert weights[2] == 0


def test_false_parents_are_found_no_more_often_than_the_level_says():
    wrong = 0
    for seed in range(60):
        made = environments(rows=200, seed=seed)
        wrong += 2 in invariant_sets(sums(made), 0.05).parents
    # 60 runs at 5 %: more than 8 has a probability below one in a hundred.
    assert wrong <= 8


def test_a_sequence_gives_exactly_what_all_data_at_once_give():
    made = environments()
    (_, joint), (_, later) = (learned(made, o) for o in ("joint", "sequential"))
    for a, b in zip(leaves(joint), leaves(later), strict=True):
        assert torch.equal(a, b)


def test_one_environment_identifies_nothing():
    verdict = invariant_sets(sums(environments()[:1]), 0.05)
    assert verdict.parents == ()
    assert len(verdict.accepted) == 8


def test_no_set_is_accepted_when_the_targets_noise_changes():
    generator = torch.Generator().manual_seed(0)
    made = []
    for scale in (0.2, 5.0):
        x = torch.randn(500, 2, generator=generator)
        y = x[:, 0] + scale * torch.randn(500, generator=generator)
        made.append(Environment(f"{scale}", x, y, Task.regression()))
    verdict = invariant_sets(sums(made), 0.05)
    assert verdict.accepted == ()
    assert np.isnan(verdict.intervals).all()
    _, state = learned(made, "joint")
    assert (state.coefficients[0, :2] == 0).all()


def test_fits_are_those_of_least_squares_on_each_set():
    made = environments()
    x = torch.cat([e.inputs for e in made]).double().numpy()
    y = torch.cat([e.targets for e in made]).double().numpy()
    sets = np.array(list(itertools.product((False, True), repeat=3)))
    for chosen, fit in zip(sets, least_squares(sums(made).sum(0), sets), strict=True):
        columns = np.column_stack([x[:, chosen], np.ones(len(x))])
        expected = np.linalg.lstsq(columns, y, rcond=None)[0]
        np.testing.assert_allclose(fit[[*chosen, True]], expected, rtol=1e-6)
        assert (fit[:-1][~chosen] == 0).all()


def test_p_values_are_those_of_the_tests_on_the_residuals_themselves():
    made = environments(scales=(1.0, 1.2), rows=150)
    fit = least_squares(sums(made).sum(0), np.array([[True, False, True]]))
    residuals = [
        e.targets.double().numpy()
        - np.column_stack([e.inputs.double().numpy(), np.ones(len(e))]) @ fit[0]
        for e in made
    ]
    means = stats.ttest_ind(*residuals, equal_var=False).pvalue
    ratio = residuals[0].var(ddof=1) / residuals[1].var(ddof=1)
    below = stats.f.cdf(ratio, 149, 149)
    smallest = min(means, 2 * min(below, 1 - below))
    expected = min(1.0, 4 * smallest)
    np.testing.assert_allclose(agreement(sums(made), fit), [expected], rtol=1e-6)


def test_intervals_cover_the_true_coefficients():
    verdict = invariant_sets(sums(environments()), 0.05)
    low, high = verdict.intervals.T
    assert low[0] < 1 < high[0]
    assert low[1] < -2 < high[1]
    assert (verdict.p_values[:2] < 0.05).all()
    assert verdict.p_values[2] > 0.05


@pytest.mark.parametrize(
    ("features", "task", "message"),
    [
        (3, Task.classification(2), "icp: the task must be regression"),
        (16, Task.regression(), "icp: there may be 15 features at most; got 16"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_sentence(features, task, message):
    targets = torch.zeros(5).long() if task.classes else torch.zeros(5)
    made = Environment("a", torch.randn(5, features), targets, task)
    with pytest.raises(ValueError, match=message):
        learned([made], "joint")
