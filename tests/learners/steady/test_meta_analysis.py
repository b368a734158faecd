"""Random-effects meta-analysis against a textbook example and its limits."""

import pytest
import torch

from cirm.learners.steady.meta_analysis import UNKNOWN, combine_effects_of_environments

# BCG vaccine against tuberculosis: cases and others among the vaccinated, and among
# the controls, of 13 trials (Colditz et al. 1994), as in R's package metafor.
TRIALS = [
    (4, 119, 11, 128),
    (6, 300, 29, 274),
    (3, 228, 11, 209),
    (62, 13536, 248, 12619),
    (33, 5036, 47, 5761),
    (180, 1361, 372, 1079),
    (8, 2537, 10, 619),
    (505, 87886, 499, 87892),
    (29, 7470, 45, 7232),
    (17, 1699, 65, 1600),
    (186, 50448, 141, 27197),
    (5, 2493, 3, 2338),
    (27, 16886, 29, 17825),
]


def summarise():
    ill, well, control_ill, control_well = torch.tensor(TRIALS).double().unbind(1)
    vaccinated, controls = ill + well, control_ill + control_well
    effects = (ill / vaccinated).log() - (control_ill / controls).log()
    variances = 1 / ill - 1 / vaccinated + 1 / control_ill - 1 / controls
    return combine_effects_of_environments(effects, variances)


def test_the_bcg_trials_give_the_published_summary():
    summary = summarise()
    assert float(summary.heterogeneity) == pytest.approx(152.23, abs=0.01)
    assert float(summary.spread) ** 2 == pytest.approx(0.3088, abs=1e-4)
    assert float(summary.mean) == pytest.approx(-0.7141, abs=1e-4)
    assert float(summary.error) == pytest.approx(0.1787, abs=1e-4)
    assert float(summary.p_value()) < 1e-20


def test_the_prediction_interval_has_a_student_tail():
    summary = summarise()
    low, high = summary.compute_prediction_interval()
    half = 2.1788 * float(summary.prediction_error)  # t of 12 degrees of freedom
    assert float(high - low) / 2 == pytest.approx(half, rel=1e-4)


def test_equal_effects_have_no_spread():
    summary = combine_effects_of_environments(torch.ones(5), torch.full((5,), 0.2))
    assert float(summary.spread) == 0
    assert float(summary.error) == pytest.approx(0.2, abs=1e-6)
    assert float(summary.p_value()) == 1


def test_an_effect_that_was_not_measured_changes_nothing():
    effects, variances = torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.3])
    alone = combine_effects_of_environments(effects, variances)
    more = combine_effects_of_environments(
        torch.cat([effects, torch.tensor([9.0])]),
        torch.cat([variances, torch.tensor([UNKNOWN])]),
    )
    for one, other in zip(alone, more, strict=True):
        assert one == pytest.approx(other)


def test_between_two_environments_a_drift_is_the_difference():
    effects, variances = torch.tensor([1.0, 2.5]), torch.tensor([0.1, 0.3])
    summary = combine_effects_of_environments(effects, variances)
    assert float(summary.trend) == pytest.approx(float(summary.heterogeneity))
    assert summary.compute_p_value_against_spread_and_drift() == summary.p_value()


def test_a_drift_has_more_power_than_q():
    """Equal steps are all of Q, with one degree of freedom instead of nine."""
    effects = torch.arange(10).double()
    summary = combine_effects_of_environments(
        0.2 * effects, torch.ones(10).double() * 0.1
    )
    assert float(summary.trend) == pytest.approx(float(summary.heterogeneity))
    assert (
        float(summary.compute_p_value_against_spread_and_drift())
        < 1e-6
        < float(summary.p_value())
    )
    turned = combine_effects_of_environments(
        0.2 * effects[[0, 9, 1, 8, 2, 7, 3, 6, 4, 5]], torch.ones(10).double() * 0.1
    )
    twice = 2 * float(turned.p_value())
    assert float(turned.compute_p_value_against_spread_and_drift()) == pytest.approx(
        twice
    )


def test_p_values_of_change_are_not_too_small():
    generator = torch.Generator().manual_seed(0)
    effects = torch.randn(5, 4000, generator=generator).double()
    found = combine_effects_of_environments(
        effects, torch.ones_like(effects)
    ).compute_p_value_against_spread_and_drift()
    assert 0.03 < float((found < 0.05).double().mean()) < 0.06
