"""The confidence that predictions need, from counts of rows and errors."""

from types import SimpleNamespace

import numpy as np
import pytest

from cirm.environments import Task
from cirm.model import abstention
from cirm.model.conformal import CONFIDENCES

MODEL = SimpleNamespace(
    task=Task.classification(2), threshold=None, history=(), stages=1
)


def make_arrival(rows, wrong):
    """An arrival with this many rows, and errors, in each bin of confidence."""
    return SimpleNamespace(
        answered=np.cumsum(rows[::-1])[::-1].tolist(),
        wrong=np.cumsum(wrong[::-1])[::-1].tolist(),
    )


@pytest.fixture
def choose(monkeypatch):
    def choose(arrivals, rate):
        monkeypatch.setattr(
            abstention, "collect_nonconformity_scores", lambda _: (arrivals, True)
        )
        return abstention.choose_abstention_threshold(MODEL, rate)

    return choose


def make_bins(counts):
    """Numbers of rows in the bins that start at some confidences."""
    return [counts.get(confidence, 0) for confidence in CONFIDENCES]


def test_the_least_confidence_that_reaches_the_rate_is_chosen(choose):
    rows = make_bins({0.5: 2000, 0.7: 2000, 0.9: 2000, 0.99: 2000})
    # As calibrated as the confidences say, except for rounding.
    wrong = [round(n * p) for n, p in zip(rows, abstention.PROMISED, strict=True)]
    arrivals = [make_arrival(rows, wrong)] * 20
    confidences = [choose(arrivals, rate).confidence for rate in (0.4, 0.2, 0.05)]
    assert confidences == sorted(confidences)
    assert confidences[0] == 0.0
    assert 0.5 < confidences[1] < confidences[2] <= 0.99
    chosen = choose(arrivals, 0.2)
    assert chosen.expected <= 0.2
    assert chosen.places == 20
    assert choose(arrivals, 1e-4).confidence == np.inf


def test_places_with_few_confident_rows_do_not_count_at_that_confidence(choose):
    many = make_bins({0.5: 100, 0.99: 900})
    good = make_arrival(many, make_bins({0.5: 45}))
    # Nine confident rows, all of them wrong, are too few to count above 0.5.
    bad = make_arrival(make_bins({0.5: 100, 0.99: 9}), make_bins({0.5: 45, 0.99: 9}))
    alone, both = choose([good] * 5, 0.02), choose([good] * 5 + [bad], 0.02)
    assert alone.confidence < 1
    assert both.confidence > 0.5
    assert both.expected == pytest.approx(alone.expected, abs=0.01)


def test_confidences_are_weighted_as_on_held_out_rows_of_the_last_stage(choose):
    rows = make_bins({0.5: 1000, 0.99: 1000})
    wrong = make_bins({0.5: 450, 0.99: 5})
    arrivals = [make_arrival(rows, wrong)] * 5

    def count(counts, stage):
        confident = np.cumsum(make_bins(counts)[::-1])[::-1].tolist()
        return SimpleNamespace(stage=stage, confident=confident)

    sure, unsure = {0.99: 100}, {0.5: 100}
    for last, share in ((sure, 0.005), (unsure, 0.45)):
        history = (count(unsure if last is sure else sure, 0), count(last, 1))
        model = SimpleNamespace(**{**vars(MODEL), "history": history, "stages": 2})
        choose(arrivals, 0.5)  # so that these arrivals are used
        expected = abstention.choose_abstention_threshold(model, 0.5).expected
        assert expected == pytest.approx(share, rel=0.5)


def test_even_odds_of_an_error_stay_even_however_few_rows_there_are(choose):
    # Half an error and half a correct row are added, which leaves a share of 1/2.
    for count in (20, 2000):
        bins = make_bins({0.7: count})
        arrivals = [make_arrival(bins, make_bins({0.7: count // 2}))] * 3
        assert choose(arrivals, 0.6).expected == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (0, "from held-out rows"),
        (1, "at one place before training there)"),
        (2, "at 2 places before training there)"),
    ],
)
def test_the_number_of_arrivals_behind_an_expected_error_is_named(places, words):
    chosen = abstention.AbstentionThreshold(0.1, 0.8, 0.07, places)
    text = abstention.describe_abstention(chosen, 3, 12)
    assert words in text
    assert "Abstained from 3 of 12 rows (25.0 %)" in text and "7.0 %" in text
