"""The easiest predictor, by which the engine for images notices a change."""

import pytest
import torch

from cirm.learners.steady import directions_reference as reference


def test_new_rows_are_answered_by_the_mean_and_counted_by_the_members(monkeypatch):
    # One replica, two members, three rows: the members agree on the first row only.
    logits = [[[4.0, 0.0], [0.0, 3.0], [0.0, 9.0]], [[2.0, 0.0], [1.0, 0.0], [5.0, 0]]]
    monkeypatch.setattr(
        reference, "compute_ensemble_member_outputs", lambda *_: torch.tensor([logits])
    )
    targets = torch.tensor([[0, 1, 0]])
    answers, right = reference.predict_with_easiest_feature_ensemble(
        None, None, None, targets
    )
    assert answers.tolist() == [[0, 1, 1]]
    assert right.tolist() == [[1.0, 0.5, 0.5]]


def test_correct_answers_are_counted_by_class():
    right, targets = torch.tensor([1.0, 0.5, 0.0, 1.0]), torch.tensor([0, 0, 2, 2])
    tally = reference.count_correct_answers_by_class(right, targets, 3)
    assert tally.tolist() == [[2.0, 1.5, 1.25], [0.0, 0.0, 0.0], [2.0, 1.0, 1.0]]


def test_a_change_of_the_share_of_right_answers_is_in_standard_errors():
    before = torch.tensor([[400.0, 320.0, 320.0], [1.0, 0.0, 0.0]])
    here = torch.tensor([[100.0, 60.0, 60.0], [50.0, 50.0, 50.0]])
    # Of the second class there are too few rows before.
    z = (0.6 - 0.8) / (0.16 / 400 + 0.24 / 100) ** 0.5
    assert reference.compute_z_of_correct_counts(before, here) == pytest.approx(z)
    assert reference.compute_z_of_correct_counts(here, before) == pytest.approx(-z)
    assert reference.compute_z_of_correct_counts(before, before) == 0.0
