"""Scores of predicted classes are those of scikit-learn, and right by hand."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from cirm.data.colored import Colored
from cirm.evaluation import run
from cirm.evaluation.measures import compute_classification_metrics
from cirm.evaluation.metrics import (
    compute_brier_score,
    compute_f1_score,
    compute_worst_group_accuracy,
)
from cirm.records import ScoreRecord


def draw_predictions(classes, size=200):
    """Probabilities with ties, and targets that agree with them more often than not."""
    rng = np.random.default_rng(classes)
    logits = rng.normal(size=(size, classes)).round(1)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    guess = p.argmax(1)
    y = np.where(rng.random(size) < 0.6, guess, rng.integers(0, classes, size))
    return p, y


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_measures_are_those_of_scikit_learn(classes):
    p, y = draw_predictions(classes)
    found = compute_classification_metrics(torch.tensor(p), torch.tensor(y))
    guess, average = p.argmax(1), "binary" if classes == 2 else "macro"
    areas = [
        sklearn_metrics.average_precision_score(y == c, p[:, c])
        for c in ([1] if classes == 2 else range(classes))
    ]
    recalls = sklearn_metrics.recall_score(y, guess, average=None)
    brier = sklearn_metrics.brier_score_loss(y, p[:, 1] if classes == 2 else p)
    assert found == pytest.approx(
        {
            "balanced accuracy": 100
            * sklearn_metrics.balanced_accuracy_score(y, guess),
            "F1": 100 * sklearn_metrics.f1_score(y, guess, average=average),
            "average precision": np.mean(areas),
            "Brier score": brier,
            "worst class": 100 * recalls.min(),
        }
    )


def test_weighted_scores_are_those_of_scikit_learn():
    p, y = draw_predictions(2)
    weights = np.linspace(0.1, 3, len(y))
    args = torch.tensor(y), torch.tensor(weights)
    guess = torch.tensor(p.argmax(1))
    assert compute_f1_score(guess, args[0], 2, args[1]) == pytest.approx(
        100 * sklearn_metrics.f1_score(y, p.argmax(1), sample_weight=weights)
    )
    assert compute_brier_score(torch.tensor(p), *args) == pytest.approx(
        sklearn_metrics.brier_score_loss(y, p[:, 1], sample_weight=weights)
    )


def test_a_class_that_is_never_predicted_has_no_f1():
    never = torch.zeros(4, dtype=torch.int64)
    assert compute_f1_score(never, torch.tensor([0, 0, 1, 1]), 2) == 0.0
    # Of three classes, the third occurs nowhere and does not count.
    found = compute_f1_score(never, torch.tensor([0, 0, 1, 1]), 3)
    assert found == pytest.approx(100 * (2 / 3) / 2)


def test_the_worst_given_group_is_the_one_with_the_lowest_accuracy():
    decided = torch.tensor([0, 1, 1, 0, 0, 1])
    targets = torch.tensor([0, 1, 0, 0, 1, 1])
    groups = torch.tensor([7, 7, 7, 3, 3, 9])
    found = compute_worst_group_accuracy(decided, targets, groups)
    assert found == pytest.approx(50.0)


def test_a_run_with_diagnostics_records_measures_and_untrained_scores():
    problem = Colored(source="digits", examples=60, sweep=()).draw_problem((0,))
    records = list(run("logistic", problem, "sequential", (0,), diagnose=True))
    scores = [r for r in records if isinstance(r, ScoreRecord)]
    measured = [s for s in scores if s.split == "measures"]
    assert {s.environment for s in measured} == {"train-1", "train-2", "test"}
    assert {s.stage for s in measured} == {1}
    assert len(measured) == 3 * 5
    untrained = [s for s in scores if s.split == "untrained"]
    assert [(s.environment, s.metric) for s in untrained] == [
        ("train-1", "accuracy"),
        ("train-2", "accuracy"),
    ]
