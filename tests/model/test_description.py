"""The check of a model file's description, part by part."""

import pytest

from cirm.model.conformal import CONFIDENCES, QUANTILES
from cirm.model.description import _check_nonconformity
from cirm.model.facts import Nonconformity


def check(rows, quantiles):
    counts = (4,) * len(CONFIDENCES), (1,) * len(CONFIDENCES)
    _check_nonconformity(Nonconformity(rows, quantiles, *counts), "here", ("no", "yes"))


def test_a_class_without_rows_has_no_quantiles_and_any_other_has_all():
    some = tuple(index / QUANTILES for index in range(QUANTILES))
    check({"": 4, "no": 4, "yes": 0}, {"": some, "no": some})
    with pytest.raises(ValueError, match="quantiles are missing"):
        check({"": 4, "no": 4, "yes": 1}, {"": some, "no": some})
    with pytest.raises(ValueError, match="quantiles are missing"):
        check({"": 4, "no": -1}, {"": some, "no": some})
    with pytest.raises(ValueError, match="in increasing order"):
        check({"": 4}, {"": some[::-1]})
