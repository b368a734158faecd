"""Metrics agree with closed forms and scikit-learn."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics

from cirm.environments import Task
from cirm.evaluation.metrics import compute_average_precision
from cirm.intervals import compute_wilson_interval
from cirm.model.class_metrics import (
    compute_average_precision_interval,
    compute_class_metrics,
    describe_confusion_matrix,
)
from cirm.model.evaluate import (
    compute_reliability_bins,
    compute_standard_error_of_score,
)
from cirm.model.metrics import (
    PredictionsWithDeviation,
    compute_delong_variance,
    compute_expected_calibration_error,
    compute_metrics,
    compute_roc_auc,
)


def regression(history=(), scale=1.0):
    """The parts of a regression model that metrics need."""
    target = SimpleNamespace(scale=scale, centre=0.0)
    return SimpleNamespace(
        task=Task(), schema=SimpleNamespace(target=target), history=history
    )


def predictions(mean, std=None):
    mean = torch.as_tensor(mean)
    return PredictionsWithDeviation(
        mean, torch.zeros_like(mean) if std is None else std
    )


def test_regression_metrics_are_those_of_scikit_learn_in_units_of_the_target():
    rng = np.random.default_rng(0)
    y, guess = rng.normal(size=(2, 50))
    found = compute_metrics(
        regression(scale=7.0), predictions(guess[:, None]), torch.tensor(y)
    )
    assert found == pytest.approx(
        {
            "rmse": sklearn_metrics.root_mean_squared_error(7 * y, 7 * guess),
            "mae": sklearn_metrics.mean_absolute_error(7 * y, 7 * guess),
            "r2": sklearn_metrics.r2_score(y, guess),
        }
    )
    constant = compute_metrics(
        regression(), predictions(torch.zeros(3, 1)), torch.ones(3)
    )
    assert "r2" not in constant


@pytest.mark.parametrize("classes", ["no yes", "a b c"])
@pytest.mark.parametrize("weighted", [False, True])
def test_classification_metrics_are_those_of_scikit_learn(classes, weighted):
    names = tuple(classes.split())
    rng = np.random.default_rng(0)
    mean = rng.dirichlet(np.ones(len(names)), 60).round(1) + 1e-3  # with ties
    mean /= mean.sum(1, keepdims=True)
    y = rng.integers(0, len(names), 60)
    w = rng.integers(1, 5, 60) / 2 if weighted else None
    model = SimpleNamespace(task=Task(names), threshold=None, positive=names[1])
    arguments = (
        predictions(mean),
        torch.tensor(y),
        None if w is None else torch.tensor(w),
    )
    found = compute_metrics(model, *arguments)
    guess, own = mean.argmax(1), {"sample_weight": w}
    accuracy = sklearn_metrics.accuracy_score(y, guess, **own)
    assert found["accuracy"] == pytest.approx(100 * accuracy)
    assert found["log_loss"] == pytest.approx(sklearn_metrics.log_loss(y, mean, **own))
    balanced = sklearn_metrics.balanced_accuracy_score(y, guess, **own)
    assert found["balanced_accuracy"] == pytest.approx(100 * balanced)
    assert ("roc_auc" in found) == (len(names) == 2)
    if len(names) == 2:
        auc = sklearn_metrics.roc_auc_score(y, mean[:, 1], **own)
        assert found["roc_auc"] == pytest.approx(auc)
        area = sklearn_metrics.average_precision_score(y, mean[:, 1], **own)
        assert found["average_precision"] == pytest.approx(area)
        only = compute_metrics(model, predictions(mean), torch.ones(60).long())
        assert not {"roc_auc", "average_precision", "balanced_accuracy"} & set(only)


@pytest.mark.parametrize("weighted", [False, True])
def test_precision_recall_and_confusions_are_those_of_scikit_learn(weighted):
    names, rng = ("a", "b", "c"), np.random.default_rng(1)
    mean = rng.dirichlet(np.ones(3), 80)
    y, guess = rng.integers(0, 3, 80), mean.argmax(1)
    w = rng.integers(1, 5, 80) / 2 if weighted else None
    tensors = [torch.tensor(part) for part in (mean, guess, y)]
    mass = None if w is None else torch.tensor(w)
    found = compute_class_metrics(*tensors, names, mass)
    precision, recall, _, _ = sklearn_metrics.precision_recall_fscore_support(
        y, guess, sample_weight=w
    )
    for index, name in enumerate(names):
        scores = found[name]
        assert scores["recall"] == pytest.approx(100 * recall[index])
        assert scores["precision"] == pytest.approx(100 * precision[index])
        area = sklearn_metrics.average_precision_score(
            y == index, mean[:, index], sample_weight=w
        )
        assert scores["average_precision"] == pytest.approx(area)
        for rate in ("recall", "precision", "average_precision"):
            assert scores[f"{rate}_low"] < scores[rate] < scores[f"{rate}_high"]
    matrix = describe_confusion_matrix(*tensors[1:], names, mass)
    expected = sklearn_metrics.confusion_matrix(y, guess, sample_weight=w)
    assert np.allclose(matrix["counts"], expected)
    assert np.allclose(np.array(matrix["percent"]).sum(1), 100)


@pytest.mark.parametrize(("count", "rows"), [(0, 10), (3, 10), (9, 10), (50, 1000)])
def test_intervals_of_rates_are_wilson_intervals(count, rows):
    expected = stats.binomtest(count, rows).proportion_ci(0.95, "wilson")
    assert compute_wilson_interval(count, rows) == pytest.approx(expected, abs=1e-6)


def test_the_interval_of_a_precision_recall_area_covers_it():
    rng = np.random.default_rng(2)

    def draw(rows):
        y = rng.random(rows) < 0.1
        return torch.tensor(rng.normal(size=rows) + 2 * y), torch.tensor(y)

    truth = compute_average_precision(*draw(200_000))
    covered = 0
    for _ in range(200):
        scores, is_positive = draw(1000)
        area = compute_average_precision(scores, is_positive)
        low, high = compute_average_precision_interval(area, is_positive)
        covered += low < truth < high
    assert 0.9 < covered / 200 <= 0.995


def test_the_area_under_the_curve_counts_pairs_in_the_right_order():
    probabilities = torch.tensor([0.1, 0.4, 0.4, 0.8])
    # Pairs (0.4, 0.1), (0.8, 0.1), (0.8, 0.4) are in order, (0.4, 0.4) is a tie.
    assert compute_roc_auc(probabilities, torch.tensor([0, 1, 0, 1])) == pytest.approx(
        3.5 / 4
    )


def test_the_variance_of_the_area_is_that_of_delong():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3 == 0
    scores = (torch.rand(90, generator=generator) + 0.3 * labels).round(decimals=1)
    pairs = scores[labels][:, None] - scores[~labels][None]
    wins = (pairs > 0).double() + 0.5 * (pairs == 0).double()
    expected = sum(float(wins.mean(1 - a).var() / wins.shape[a]) for a in (0, 1))
    assert compute_delong_variance(scores, labels.long()) == pytest.approx(expected)
    perfect = compute_delong_variance(labels.float(), labels.long())
    assert perfect == pytest.approx(1 / 32**2)  # the bound for 30 positive rows


def test_calibration_gaps_cancel_within_a_bin_and_add_up_between_bins():
    confidence = torch.tensor([0.75, 0.75, 0.75, 0.75, 0.95, 1.0])
    mean = torch.stack([confidence, 1 - confidence], 1)
    targets = torch.tensor([0, 0, 0, 1, 1, 1])
    # Three of four are right at 75 %: no gap. Two at 97.5 % are both wrong.
    assert compute_expected_calibration_error(mean, targets) == pytest.approx(
        100 * 1.95 / 6
    )
    assert compute_reliability_bins(mean, targets) == [
        pytest.approx({"confidence": 75, "accuracy": 75, "rows": 4}),
        pytest.approx({"confidence": 97.5, "accuracy": 0, "rows": 2}),
    ]


def test_the_standard_error_is_how_far_the_score_varies_between_samples():
    generator = torch.Generator().manual_seed(0)
    y = torch.zeros(400)
    samples = torch.randn(2000, 400, generator=generator)
    roots = samples.square().mean(1).sqrt()
    model = regression(scale=3.0)
    errors = [
        compute_standard_error_of_score(model, sample[:, None], y)
        for sample in samples[:200]
    ]
    assert np.mean(errors) == pytest.approx(3 * float(roots.std()), rel=0.05)
    mean = torch.tensor([[0.2, 0.8]] * 36 + [[0.8, 0.2]] * 64)
    model = SimpleNamespace(task=Task(("no", "yes")), threshold=None)
    assert compute_standard_error_of_score(
        model, mean, torch.ones(100)
    ) == pytest.approx(4.8)
