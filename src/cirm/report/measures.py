"""Measures of transfer, forgetting and the worst environment, from scores of a run.

Scores of environments after each stage form a matrix. With T stages, R(t, i) is the
score in environment i after stage t, a(i) the stage in which i arrives, and R(0, i) the
score before any training. Scores of which less is better, such as errors, are counted
with the opposite sign, so that positive transfer is always an improvement and positive
forgetting a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from cirm.records import Record, ScoreRecord
from cirm.report.page import PageSection
from cirm.report.summary import (
    METRICS,
    MeanAndStd,
    average_values_over_seeds,
    find_stage_of_first_training,
    group_records_by_learner,
)
from cirm.report.table import ReportTable, Row, build_mean_and_std_cell

Scores = Mapping[int, float]
"""The score in one environment after each stage, from 1; 0 is before any training."""

SEQUENCE = ("backward transfer", "forward transfer", "forgetting")
WORST = ("worst training environment", "worst unseen environment")
FRACTIONS = ("average precision", "Brier score")
EXPLANATION = (
    "After the last stage. Balanced accuracy, F1, average precision, Brier score and "
    "the accuracy of the worst class are means over the unseen environments, or over "
    "the training environments if there are none. Backward transfer is the mean "
    "change of the score in a training environment since the stage in which it "
    "arrived, and forgetting the mean loss since its best stage. Forward transfer is "
    "how much the earlier stages improved the score in an environment before it "
    "arrived, compared with no training."
)


def compute_backward_transfer(
    scores: Mapping[str, Scores], arrival_stages: Mapping[str, int]
) -> float | None:
    """Return the mean of R(T, i) - R(a(i), i) over environments before the last stage.

    Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning", 2017,
    equation 3.

    Args:
        scores: The scores in each training environment after each stage; more is
            better.
        arrival_stages: The stage in which each environment arrives, from 1.

    Returns:
        The mean, or None if all environments arrive in the last stage.

    Example:
        >>> scores = {"a": {1: 90.0, 2: 70.0}, "b": {1: 50.0, 2: 80.0}}
        >>> compute_backward_transfer(scores, {"a": 1, "b": 2})
        -20.0
    """
    changes = [
        own[max(own)] - own[arrival_stages[name]]
        for name, own in scores.items()
        if arrival_stages[name] < max(own)
    ]
    return fmean(changes) if changes else None


def compute_forward_transfer(
    scores: Mapping[str, Scores], arrival_stages: Mapping[str, int]
) -> float | None:
    """Return the mean of R(a(i) - 1, i) - R(0, i) over environments after stage 1.

    Lopez-Paz and Ranzato, 2017, equation 4.

    Example:
        >>> scores = {"a": {0: 50.0, 1: 90.0}, "b": {0: 45.0, 1: 60.0, 2: 80.0}}
        >>> compute_forward_transfer(scores, {"a": 1, "b": 2})
        15.0
    """
    gains = [
        own[arrival_stages[name] - 1] - own[0]
        for name, own in scores.items()
        if arrival_stages[name] > 1 and 0 in own
    ]
    return fmean(gains) if gains else None


def compute_forgetting(
    scores: Mapping[str, Scores], arrival_stages: Mapping[str, int]
) -> float | None:
    """Return the mean of max R(t, i) - R(T, i), t from a(i) to T - 1.

    Chaudhry, Dokania, Ajanthan and Torr, "Riemannian Walk for Incremental Learning",
    2018, section 3.2.

    Example:
        >>> scores = {"a": {1: 80.0, 2: 90.0, 3: 70.0}, "b": {2: 60.0, 3: 65.0}}
        >>> compute_forgetting(scores, {"a": 1, "b": 2})
        7.5
    """
    losses = []
    for name, own in scores.items():
        last = max(own)
        before = [value for t, value in own.items() if arrival_stages[name] <= t < last]
        if before:
            losses.append(max(before) - own[last])
    return fmean(losses) if losses else None


def collect_transfer_measures(
    records: Sequence[Record],
) -> dict[str, dict[str, MeanAndStd]]:
    """Collect the measures of each learner, as statistics over seeds.

    Example:
        >>> where = "erm", "sequential", 0
        >>> rows = [("a", 0, 90.0), ("b", 0, 50.0), ("a", 1, 70.0), ("b", 1, 80.0)]
        >>> records = [
        ...     ScoreRecord(*where, stage, name, "train", "accuracy", value)
        ...     for name, stage, value in rows
        ... ]
        >>> measures = collect_transfer_measures(records)["erm"]
        >>> measures["backward transfer"].mean, measures["forgetting"].mean
        (-20.0, 20.0)
    """
    found = {}
    for learner, scores in group_records_by_learner(records, ScoreRecord).items():
        rows = [
            row
            for seed in dict.fromkeys(score.seed for score in scores)
            for row in _compute_transfer_measures_of_seed(
                [s for s in scores if s.seed == seed]
            )
        ]
        names = dict.fromkeys(row.metric for row in rows)
        found[learner] = {
            name: average_values_over_seeds(row for row in rows if row.metric == name)
            for name in names
        }
    return found


def summarise_transfer_measures(records: Sequence[Record]) -> dict[str, Any]:
    """Return the measures of each learner in plain values, for summary.json."""
    return {
        learner: {name: statistic._asdict() for name, statistic in own.items()}
        for learner, own in collect_transfer_measures(records).items()
    }


def _compute_transfer_measures_of_seed(scores: list[ScoreRecord]) -> list[ScoreRecord]:
    """Return the measures of one learner and seed, as scores of these names."""
    main = [s for s in scores if s.metric in METRICS]
    train = [s for s in main if s.split == "train"]
    if not train:
        return []
    lower_is_better = train[0].metric == "error"
    sign = -1.0 if lower_is_better else 1.0
    names = list(dict.fromkeys(score.environment for score in train))
    stages: dict[str, dict[int, float]] = {name: {} for name in names}
    for score in (s for s in main if s.split in ("train", "untrained")):
        stage = score.stage + 1 if score.split == "train" else 0
        stages[score.environment][stage] = sign * score.value
    arrivals = {
        name: find_stage_of_first_training(train[0].order, index)
        for index, name in enumerate(names)
    }
    values: dict[str, float | None] = {}
    known = {name: stage for name, stage in arrivals.items() if stage is not None}
    if len(known) == len(names):
        values = {
            "backward transfer": compute_backward_transfer(stages, known),
            "forward transfer": compute_forward_transfer(stages, known),
            "forgetting": compute_forgetting(stages, known),
        }
    worst = max if lower_is_better else min
    last = max(score.stage for score in train)
    for name, split in zip(WORST, ("train", "test"), strict=True):
        ends = [s.value for s in main if s.split == split and s.stage == last]
        values[name] = worst(ends) if len(ends) > 1 else None
    rows = [
        ScoreRecord(
            *_get_sort_key_of_environment(train[0]), "all", "measures", name, value
        )
        for name, value in values.items()
        if value is not None
    ]
    unseen = {score.environment for score in main if score.split == "test"}
    kept = [s for s in scores if s.split == "measures"]
    return rows + [s for s in kept if s.environment in (unseen or set(names))]


def _get_sort_key_of_environment(score: ScoreRecord) -> tuple[str, str, int, int]:
    return score.learner, score.order, score.seed, score.stage


def build_transfer_measures_section(
    measures: Mapping[str, Mapping[str, Any]], metric: str
) -> PageSection | None:
    """Build the section of a page with the measures; None without any."""
    names = list(dict.fromkeys(name for own in measures.values() for name in own))
    if not names:
        return None
    ranks = {name: i for i, name in enumerate((*WORST, *SEQUENCE))}
    names.sort(key=lambda name: ranks.get(name, -1))
    rows: list[Row] = [
        [
            learner,
            *(
                build_mean_and_std_cell(
                    own.get(n), "error" if n in FRACTIONS else metric
                )
                for n in names
            ),
        ]
        for learner, own in measures.items()
    ]
    table = ReportTable("Further measures", ["learner", *names], rows)
    return PageSection("Further measures", [EXPLANATION, table])
