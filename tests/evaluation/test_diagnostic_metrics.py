import math

import pytest
import torch
from torch.nn import functional as F

from cirm.environments import Task
from cirm.evaluation.diagnostics import (
    PredictionsWithTargets,
    are_predictions_constant,
    compute_agreement_with_reference,
    compute_calibration_errors,
    compute_irm_penalty,
    compute_range_of_finite_values,
    compute_score_of_reference,
    compute_worst_group_score,
    concatenate_predictions_of_environments,
)
from cirm.evaluation.groups import THIRDS, GroupOfEachExample
from cirm.likelihoods import CrossEntropy, SquaredError

TWO, REAL = Task.classification(2), Task.regression()
NAMES = ("0, wrong", "0, right", "1, wrong", "1, right")


def sure(classes, confidence=1.0):
    """Predictions of these classes, all with the same confidence."""
    hit = F.one_hot(classes, 2).float()
    return confidence * hit + (1 - confidence) * (1 - hit)


def look(predicted, y, answers, confidence=1.0):
    predicted, y, answers = (torch.tensor([v]) for v in (predicted, y, answers))
    groups = GroupOfEachExample(2 * y + (answers == y), NAMES, answers)
    return PredictionsWithTargets(sure(predicted, confidence), y, groups)


def look_at_values(predicted, y, answers):
    predicted, y, answers = (torch.tensor([v]) for v in (predicted, y, answers))
    order = (y - answers).argsort(-1).argsort(-1)
    groups = GroupOfEachExample(3 * order // y.shape[1], THIRDS, answers)
    return PredictionsWithTargets(predicted.unsqueeze(-1), y, groups)


def test_calibration_error_is_the_gap_between_confidence_and_accuracy():
    y = [0] * 40 + [1] * 40
    right = look([0] * 30 + [1] * 10 + [1] * 30 + [0] * 10, y, y, confidence=0.75)
    assert compute_calibration_errors(TWO, right)[0, 0].item() == pytest.approx(
        0.0, abs=1e-4
    )
    proud = look([0] * 30 + [1] * 10 + [1] * 30 + [0] * 10, y, y, confidence=0.95)
    assert compute_calibration_errors(TWO, proud)[0, 0].item() == pytest.approx(
        20.0, abs=1e-4
    )


def test_groups_can_be_off_where_the_whole_is_not():
    y = [0] * 50 + [1] * 50
    answers = [0] * 40 + [1] * 10 + [1] * 40 + [0] * 10
    errors = compute_calibration_errors(TWO, look(answers, y, answers, confidence=0.8))[
        0
    ]
    assert errors[0].item() == pytest.approx(0.0, abs=1e-4)
    assert errors[1:].tolist() == pytest.approx([80.0, 20.0, 80.0, 20.0], abs=1e-3)
    assert compute_range_of_finite_values(errors[None]).item() == pytest.approx(
        80.0, abs=1e-3
    )


def test_values_are_calibrated_where_their_means_are_right():
    y = [float(n % 10) for n in range(100)]
    good = look_at_values(y, y, y)
    assert compute_calibration_errors(REAL, good)[0, 0].item() == pytest.approx(
        0.0, abs=1e-4
    )
    shifted = look_at_values([v + 2 for v in y], y, y)
    deviation = torch.tensor(y).std().item()
    expected = pytest.approx(200 / deviation, rel=1e-4)
    assert compute_calibration_errors(REAL, shifted)[0, 0].item() == expected


def test_a_group_without_examples_has_no_part_in_the_spread():
    errors = torch.tensor([[3.0, math.nan, 1.0], [2.0, 2.0, math.nan]])
    assert compute_range_of_finite_values(errors).tolist() == [2.0, 0.0]


def test_the_slope_penalty_is_that_of_the_logits_by_autograd():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 50, 3, generator=generator)
    y = torch.randint(3, (2, 50), generator=generator)
    groups = GroupOfEachExample(torch.zeros_like(y), ("all",), y)
    found = compute_irm_penalty(
        CrossEntropy(3), PredictionsWithTargets(logits.softmax(-1), y, groups)
    )
    for row in range(2):
        factor = torch.ones((), requires_grad=True)
        F.cross_entropy(factor * logits[row], y[row]).backward()
        assert found[row].item() == pytest.approx(factor.grad.item() ** 2, rel=1e-3)


def test_the_slope_penalty_of_values_is_that_of_the_squared_error():
    y = [1.0, 2.0, 3.0, 6.0]
    seen = look_at_values([2.0, 2.0, 2.0, 2.0], y, y)
    # The derivative in a factor w of the mean of (2 w - y)^2 at one: 4 (2 - mean y).
    assert compute_irm_penalty(SquaredError(), seen).item() == pytest.approx(16.0)


def test_agreement_is_with_the_reference_and_not_with_the_truth():
    y, answers = [0, 0, 1, 1], [0, 1, 1, 0]
    assert (
        compute_agreement_with_reference(TWO, look(answers, y, answers)).item() == 100
    )
    assert compute_agreement_with_reference(TWO, look(y, y, answers)).item() == 50
    assert compute_score_of_reference(TWO, look(y, y, answers)).item() == 50


def test_agreement_of_values_is_their_correlation():
    y = [0.0, 1.0, 2.0, 3.0]
    same = look_at_values([5.0, 7.0, 9.0, 11.0], y, y)
    assert compute_agreement_with_reference(REAL, same).item() == pytest.approx(100)
    flat = look_at_values([1.0, 1.0, 1.0, 1.0], y, y)
    assert compute_agreement_with_reference(REAL, flat).item() == 0


def test_one_answer_for_all_is_a_collapse_to_constant_however_rare_the_others_are():
    y = [0] * 50 + [1] * 50
    assert are_predictions_constant(TWO, look([1] * 100, y, y)).item()
    assert not are_predictions_constant(TWO, look(y, y, y)).item()
    rare = [0] * 6 + [1] * 94
    assert are_predictions_constant(TWO, look([1] * 100, rare, rare)).item()
    found = [0] * 2 + [1] * 98  # two of the six rare ones
    assert not are_predictions_constant(TWO, look(found, rare, rare)).item()
    enough = [0] * 5 + [1] * 95
    assert are_predictions_constant(TWO, look([1] * 100, enough, rare)).item()
    too_rare = [0] * 4 + [1] * 96  # to tell
    assert not are_predictions_constant(TWO, look([1] * 100, too_rare, rare)).item()


def test_flat_values_are_a_collapse_only_where_there_is_something_to_learn():
    y = [float(n) for n in range(60)]
    middle = [29.5 + 0.001 * n for n in range(60)]
    assert are_predictions_constant(REAL, look_at_values(middle, y, y)).item()
    assert not are_predictions_constant(REAL, look_at_values(y, y, y)).item()
    assert not are_predictions_constant(REAL, look_at_values(middle, y, middle)).item()


def test_the_worst_group_of_values_has_the_most_error():
    y = [0.0] * 10 + [1.0] * 10 + [2.0] * 10
    seen = look_at_values([0.0] * 30, y, [1.0] * 30)
    assert compute_worst_group_score(SquaredError(), seen).item() == pytest.approx(4.0)


def test_looks_at_several_environments_are_put_together():
    y = [0, 1, 1]
    one = look(y, y, y)
    both = concatenate_predictions_of_environments([one, one])
    assert both.predictions.shape == (1, 6, 2)
    assert both.y.tolist() == [y * 2]


def test_the_order_of_rows_does_not_matter_for_the_calibration_of_values():
    values = torch.linspace(-1, 1, 40)
    y = 2 * values  # too low above zero, and too high below
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    errors = [
        compute_calibration_errors(
            REAL, look_at_values(*(v[rows].tolist() for v in (values, y, values)))
        )
        for rows in (torch.arange(40), order)
    ]
    torch.testing.assert_close(*errors)


def test_groups_that_are_off_in_opposite_ways_leave_the_whole_calibrated():
    # Of both classes of the reference, all or none are right, at a confidence of 0.5.
    y, answers = [0] * 20 + [1] * 20, [0] * 40
    errors = compute_calibration_errors(TWO, look([0] * 40, y, answers, confidence=0.5))
    assert errors[0, 0].item() == pytest.approx(0.0, abs=1e-4)
    assert errors[0, 2].item() == pytest.approx(50.0, abs=1e-4)
    assert errors[0, 3].isnan() or errors[0, 1].isnan()
