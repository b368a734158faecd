"""Abstention: leave out predictions so that the others are wrong at most so often.

How often predictions of at least some confidence were wrong is counted on arrival at
each new place. The least confidence is chosen whose expected error at a new place is
at most the wanted rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cirm.model.conformal import CONFIDENCES, collect_nonconformity
from cirm.model.model import Model
from cirm.model.new_place import predict_new_place

FEWEST_ANSWERED = 10  # rows of a place above a confidence, for it to count


class Abstention(NamedTuple):
    """From which rows a model abstains.

    Attributes:
        rate: The largest fraction of wrong predictions that is wanted.
        confidence: The least probability of a predicted class; infinite if the rate
            cannot be reached.
        expected: The expected fraction of wrong predictions at a new place.
        places: Number of arrivals at new places behind it.
    """

    rate: float
    confidence: float
    expected: float
    places: int


def choose_abstention(model: Model, rate: float) -> Abstention:
    """Choose the confidence that predictions need, for an error of at most a rate.

    Raises:
        ValueError: If the rate is not between 0 and 1, if the model predicts values,
            or if its file is too old to have what is needed.
    """
    if not 0 < rate < 1:
        raise ValueError(
            f"--abstain: {rate:g} is not between 0 and 1. Give the largest fraction of "
            "wrong predictions, for example 0.1."
        )
    if not model.task.classes:
        raise ValueError(
            "--abstain: the model predicts values, which are neither right nor wrong. "
            "Use the interval from low to high, and --level for its coverage."
        )
    places, is_arrival = collect_nonconformity(model)
    count = len(places) if is_arrival else 0
    for index, confidence in enumerate(CONFIDENCES):
        known = [
            (one.answered[index], one.wrong[index])
            for one in places
            if one.answered[index] >= FEWEST_ANSWERED
        ]
        if known and (expected := _expect_error(known)) <= rate:
            return Abstention(rate, confidence, expected, count)
    return Abstention(rate, np.inf, np.nan, count)


def _expect_error(known: list[tuple[int, int]]) -> float:
    """Return the expected fraction of errors at a new place, from rows and errors."""
    rows, wrong = np.array(known, dtype=float).T
    rates = (wrong + 0.5) / (rows + 1)
    logits = np.log(rates / (1 - rates))
    variances = 1 / ((rows + 1) * rates * (1 - rates))
    return predict_new_place(logits, variances).expect_probability()


def describe_abstention(abstention: Abstention, abstained: int, rows: int) -> str:
    """Say from how many rows a model abstained, and what is expected of the others."""
    share = f"{abstained:,} of {rows:,} rows ({100 * abstained / rows:.1f} %)"
    if not np.isfinite(abstention.confidence):
        return (
            f"Abstained from all {rows:,} rows: at no confidence are at most "
            f"{100 * abstention.rate:.3g} % of the predictions expected to be wrong at "
            "a new environment. Use a larger rate"
        )
    basis = f"{abstention.places} arrivals at new environments"
    if abstention.places == 1:
        basis = "one arrival at a new environment"
    if not abstention.places:
        basis = "held-out rows, as no arrival at a new environment was measured"
    return (
        f"Abstained from {share}, where the probability of the predicted class is "
        f"below {abstention.confidence:g}. Of the other predictions "
        f"{100 * abstention.expected:.1f} % are expected to be wrong at a new "
        f"environment, by {basis}"
    )
