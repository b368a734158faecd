"""Abstention: leave out predictions so that the others are wrong at most so often.

How often predictions of each confidence were wrong is counted on arrival at each new
place, before the model learned from it. The difference from what the confidence
promised, in log odds, is predicted for a new place. Confidences are taken to be as
frequent there as among held-out rows of the last environment, since a model that has
stopped relying on a column is less confident than it was on earlier arrivals. Chosen is
the least confidence above which the expected error is at most the wanted rate. The
choice depends on the model alone, so that a prediction never depends on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cirm.data.values import Numbers
from cirm.model.conformal import CONFIDENCES, collect_nonconformity_scores
from cirm.model.facts import ModelMetadata
from cirm.model.new_place import predict_quantity_at_new_place

FEWEST_ANSWERED = 10  # rows of a place above a confidence, for it to count
PROMISED = 1 - (np.array(CONFIDENCES) + np.array([*CONFIDENCES[1:], 1.0])) / 2
"""The mean error of each bin according to the confidences."""


class AbstentionThreshold(NamedTuple):
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


def choose_abstention_threshold(
    model: ModelMetadata, max_error_rate: float
) -> AbstentionThreshold:
    """Choose the confidence that predictions need, for an error of at most a rate."""
    _check_abstention_rate_and_model(model, max_error_rate)
    places, is_arrival = collect_nonconformity_scores(model)
    count = len(places) if is_arrival else 0
    arrivals = [
        _count_rows_and_errors_in_bins(one.answered, one.wrong) for one in places
    ]
    mix = _count_held_out_rows_by_confidence(model)
    if mix.sum() < FEWEST_ANSWERED:
        mix = np.sum([rows for rows, _ in arrivals], axis=0)
    for index, confidence in enumerate(CONFIDENCES):
        known = [
            (rows[index:], wrong[index:])
            for rows, wrong in arrivals
            if rows[index:].sum() >= FEWEST_ANSWERED
        ]
        if not known or not mix[index:].any():
            break
        expected = _compute_expected_error_rate(known, mix[index:], PROMISED[index:])
        if expected <= max_error_rate:
            return AbstentionThreshold(max_error_rate, confidence, expected, count)
    return AbstentionThreshold(max_error_rate, np.inf, np.nan, count)


def _check_abstention_rate_and_model(
    model: ModelMetadata, max_error_rate: float
) -> None:
    """Refuse a rate out of range, and models whose predictions have no such error."""
    if not 0 < max_error_rate < 1:
        raise ValueError(
            f"--abstain: {max_error_rate:g} is not between 0 and 1. Give the largest "
            "fraction of wrong predictions that you accept, for example 0.1."
        )
    if not model.task.classes:
        raise ValueError(
            "--abstain: this model is a regression, whose predictions are neither "
            "right nor wrong. Remove the option; the columns low and high show how "
            "uncertain a prediction is, at the coverage that --level sets."
        )
    if model.threshold is not None:
        raise ValueError(
            "--abstain: this option cannot be combined with a decision threshold, "
            "which accepts more errors of one kind on purpose. Leave out --abstain "
            "or --threshold; if the threshold was set by `cirm fit`, fit the model "
            "again without one."
        )


def _count_rows_and_errors_in_bins(
    n_answered: Sequence[int], n_wrong: Sequence[int]
) -> tuple[Numbers, ...]:
    """Return the rows and the errors in each bin of confidence, [c] each."""
    counts = np.array([n_answered, n_wrong], dtype=float)
    return tuple(counts - np.pad(counts[:, 1:], ((0, 0), (0, 1))))


def _count_held_out_rows_by_confidence(model: ModelMetadata) -> Numbers:
    """Return the held-out rows of the last stage in each bin of confidence, [c]."""
    last = [e for e in model.history if e.stage == model.stages - 1 and e.confident]
    empty = [0] * len(CONFIDENCES)
    totals = np.sum([empty, *(entry.confident for entry in last)], axis=0).tolist()
    return _count_rows_and_errors_in_bins(totals, empty)[0]


def _compute_expected_error_rate(
    counts_by_place: Sequence[tuple[Numbers, ...]],
    confidence_counts: Numbers,
    promised_error_rates: Numbers,
) -> float:
    """Return the expected fraction of errors at a new place.

    Args:
        counts_by_place: Rows and errors of each arrival in bins of confidence, [c]
            each.
        confidence_counts: How often the confidences of each bin occur, [c].
        promised_error_rates: The error that the confidence of a bin promises, [c].
    """
    logits = np.log(promised_error_rates / (1 - promised_error_rates))
    shifts, variances = zip(
        *(
            _estimate_shift_of_error_log_odds(rows, wrong, logits)
            for rows, wrong in counts_by_place
        ),
        strict=True,
    )
    new = predict_quantity_at_new_place(np.array(shifts), np.array(variances))
    errors = [
        new._replace(means=new.means + logit).compute_expected_probability()
        for logit in logits
    ]
    return float(confidence_counts @ errors / confidence_counts.sum())


def _estimate_shift_of_error_log_odds(
    n_rows: Numbers, n_wrong: Numbers, logits: Numbers
) -> tuple[float, float]:
    """Return by how much the log odds of an error exceed what was promised.

    Half an error and half a correct row are added, so that the estimate is finite.
    """
    from scipy import optimize

    share = (n_wrong.sum() + 0.5) / (n_rows.sum() + 1)

    def compute_excess_error_rate(shift: float) -> float:
        return float(
            n_rows @ (1 / (1 + np.exp(-logits - shift))) / n_rows.sum() - share
        )

    shift = float(optimize.brentq(compute_excess_error_rate, -30.0, 30.0, xtol=1e-4))
    errors = 1 / (1 + np.exp(-logits - shift))
    return shift, 1 / float(n_rows @ (errors * (1 - errors)))


def describe_abstention(
    abstention: AbstentionThreshold, n_abstained: int, n_rows: int
) -> str:
    """Say from how many rows a model abstained, and what is expected of the others."""
    share = f"{n_abstained:,} of {n_rows:,} rows ({100 * n_abstained / n_rows:.1f} %)"
    if not np.isfinite(abstention.confidence):
        return (
            f"Abstained on all {n_rows:,} rows: even among the most confident "
            f"predictions, more than {100 * abstention.rate:.3g} % are expected to be "
            "wrong at a new place. Allow a larger error rate with --abstain"
        )
    basis = f"the scores at {abstention.places} places before training there"
    if abstention.places == 1:
        basis = "the scores at one place before training there"
    if not abstention.places:
        basis = (
            "held-out rows, because the model was never scored at a place before it "
            "was trained on it"
        )
    least = f"Abstained from {share}"
    if abstention.confidence > 0:
        least += (
            f", whose predicted class has a probability below {abstention.confidence:g}"
        )
    return (
        f"{least}. Of the other predictions {100 * abstention.expected:.1f} % are "
        f"expected to be wrong at a new place (estimated from {basis})"
    )
