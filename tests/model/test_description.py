"""The check of a model file's description, part by part."""

from types import SimpleNamespace

import pytest

from cirm.model.conformal import CONFIDENCES, QUANTILES
from cirm.model.description import (
    _check_nonconformity_of_model_file,
    _check_thresholds_and_class_weights,
)
from cirm.model.facts import NonconformitySummary
from cirm.model.threshold import HeldOutProbabilities


def check(rows, quantiles):
    counts = (4,) * len(CONFIDENCES), (1,) * len(CONFIDENCES)
    _check_nonconformity_of_model_file(
        NonconformitySummary(rows, quantiles, *counts), "here", ("no", "yes")
    )


def test_a_class_without_rows_has_no_quantiles_and_any_other_has_all():
    some = tuple(index / QUANTILES for index in range(QUANTILES))
    check({"": 4, "no": 4, "yes": 0}, {"": some, "no": some})
    with pytest.raises(ValueError, match="quantiles are missing"):
        check({"": 4, "no": 4, "yes": 1}, {"": some, "no": some})
    with pytest.raises(ValueError, match="quantiles are missing"):
        check({"": 4, "no": -1}, {"": some, "no": some})
    with pytest.raises(ValueError, match="in increasing order"):
        check({"": 4}, {"": some[::-1]})


@pytest.mark.parametrize("scores", [(-0.1, 0.5), (0.5, 1.1), (0.6, 0.5), (0.1, 0.2)])
def test_held_out_scores_are_probabilities_in_increasing_order(scores):
    description = SimpleNamespace(
        schema=SimpleNamespace(task=SimpleNamespace(classes=("no", "yes"))),
        plan=SimpleNamespace(positive="yes", class_weight={}),
        threshold=None,
        held_out_scores=HeldOutProbabilities((2.0, 2.0), (0.3, 0.9), scores),
    )
    if scores == (0.1, 0.2):
        _check_thresholds_and_class_weights(description)
        return
    with pytest.raises(ValueError, match="probabilities in increasing order"):
        _check_thresholds_and_class_weights(description)
