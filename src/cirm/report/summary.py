"""Scores and curves of records, averaged over seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

from cirm.records import (
    AdaptedScoreRecord,
    Record,
    RunRecord,
    ScoreRecord,
    TrainingCurveRecord,
    do_records_share_settings,
)

METRICS = ("accuracy", "error")
# Records of earlier versions describe the choice of settings in other words.
SELECTIONS = {
    "the paper's values (chosen there by test accuracy); what it leaves open was read "
    "with its figures in view": "the paper's values, which were chosen by test "
    "accuracy; settings that the paper leaves open were chosen in view of its results",
    "with the least error in the third environment, which is not trained on; else "
    "values of this project (the paper gives none)": "with the smallest error in the "
    "third environment, which is not used for training; all other values are this "
    "project's (the paper gives none)",
    "; the slope in the head: the reading that comes near the published figures": "; "
    "the gradient is that of the last layer, which comes near the published results",
    "the reading with all environments and a fixed penalty was kept after others had "
    "been tried and their errors seen": "training on all environments with a fixed "
    "penalty was chosen after the errors of other readings had been seen",
    "values of this project that come near the paper's figures (it gives none)": (
        "values of this project, chosen to come near the paper's results (the paper "
        "gives none)"
    ),
    "those of the posterior are the paper's where it gives any, else values of this "
    "project, not tuned": "the settings of the posterior are the paper's where it "
    "gives any, and otherwise this project's, not tuned",
}
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class MeanAndStd(NamedTuple):
    """Mean and sample standard deviation over seeds.

    The mean is None if there are no seeds or a value is not finite; the standard
    deviation is None in these cases and with a single seed.
    """

    mean: float | None
    std: float | None
    seeds: int


class SummaryCurvePoint(NamedTuple):
    """A position on an axis, with the mean and standard deviation over seeds."""

    x: float
    mean: float
    std: float | None


class EnvironmentScoresByStage(NamedTuple):
    """The scores in one environment after each stage; stages count from 1.

    `arrival` is the stage in which it is learned, None if it is never learned.
    """

    environment: str
    split: str
    arrival: int | None
    points: tuple[SummaryCurvePoint, ...]


class AverageTrainingCurve(NamedTuple):
    """A training curve through all stages, and the first step of each stage."""

    points: tuple[SummaryCurvePoint, ...]
    starts: tuple[float, ...]


def summarise_records(records: Sequence[Record]) -> dict[str, Any]:
    """Summarise each learner after its last stage: the content of summary.json.

    Args:
        records: The records of a run.

    Returns:
        By learner, under "learners": its metric, the statistics `train` and `test`,
        the statistics `adapted` by number of unlabelled rows, its settings and how
        they were chosen, its memory and its seconds.

    Raises:
        ValueError: If the runs of a learner have different settings.

    Example:
        >>> score = ScoreRecord("erm", "joint", 0, 0, "a", "train", "accuracy", 80.0)
        >>> summarise_records([score])["learners"]["erm"]["train"]
        {'mean': 80.0, 'std': None, 'seeds': 1}
    """
    runs = group_records_by_learner(records, RunRecord)
    scores = group_records_by_learner(records, ScoreRecord)
    adapted = group_records_by_learner(records, AdaptedScoreRecord)
    return {
        "learners": {
            learner: _summarise_scores_of_learner(
                learner,
                scores.get(learner, []),
                adapted.get(learner, []),
                runs.get(learner, []),
            )
            for learner in dict.fromkeys([*scores, *runs])
        }
    }


def collect_scores_after_each_stage(
    records: Sequence[Record],
) -> dict[str, list[EnvironmentScoresByStage]]:
    """Collect each learner's score in each environment after each stage."""
    return {
        learner: [
            track
            for split in ("train", "test")
            for track in _build_scores_of_environment_by_stage(
                [s for s in _select_scores_of_main_metric(scores) if s.split == split]
            )
        ]
        for learner, scores in group_records_by_learner(records, ScoreRecord).items()
    }


def collect_scores_along_sweep(
    records: Sequence[Record],
) -> dict[str, tuple[SummaryCurvePoint, ...]]:
    """Collect each learner's score along the axis of a sweep, after the last stage."""
    curves = {}
    for learner, scores in group_records_by_learner(records, ScoreRecord).items():
        last = _select_scores_of_last_stage(_select_scores_of_main_metric(scores))
        placed = [s for s in last if s.split == "sweep" and s.position is not None]
        groups = _group_records_by_key(placed, lambda s: s.position or 0.0)
        curves[learner] = _build_curve_points_with_mean(
            (x, average_values_over_seeds(groups[x])) for x in sorted(groups)
        )
    return {learner: points for learner, points in curves.items() if points}


def collect_adapted_sweep_scores(
    records: Sequence[Record],
) -> dict[str, dict[str, tuple[SummaryCurvePoint, ...]]]:
    """Collect scores after adaptation along a sweep, by learner and number of rows."""
    curves: dict[str, dict[str, tuple[SummaryCurvePoint, ...]]] = {}
    for learner, scores in group_records_by_learner(
        records, AdaptedScoreRecord
    ).items():
        placed = [s for s in scores if s.split == "sweep" and s.position is not None]
        for rows, own in _group_records_by_key(placed, lambda s: s.rows).items():
            groups = _group_records_by_key(own, lambda s: s.position or 0.0)
            curves.setdefault(learner, {})[rows] = _build_curve_points_with_mean(
                (x, average_values_over_seeds(groups[x])) for x in sorted(groups)
            )
    return curves


def collect_training_curves(
    records: Sequence[Record],
) -> dict[str, dict[str, AverageTrainingCurve]]:
    """Collect the training curves by metric and learner, each through all stages."""
    traces: dict[str, dict[str, AverageTrainingCurve]] = {}
    for learner, curves in group_records_by_learner(
        records, TrainingCurveRecord
    ).items():
        for metric, rows in _group_records_by_key(curves, lambda c: c.metric).items():
            traces.setdefault(metric, {})[learner] = _build_training_curve(rows)
    return traces


def average_values_over_seeds(
    rows: Iterable[ScoreRecord | AdaptedScoreRecord | TrainingCurveRecord],
) -> MeanAndStd:
    """Average within each seed, then over seeds, with the standard deviation."""
    means = [
        fmean(row.value for row in seed)
        for seed in _group_records_by_key(rows, lambda row: row.seed).values()
    ]
    if not means or not all(map(math.isfinite, means)):
        return MeanAndStd(None, None, len(means))
    return MeanAndStd(
        fmean(means), stdev(means) if len(means) > 1 else None, len(means)
    )


def describe_how_settings_were_chosen(run: RunRecord) -> str:
    """Say how the settings of a run were chosen."""
    words = run.selection
    for earlier, present in SELECTIONS.items():
        words = words.replace(earlier, present)
    return words or "not recorded"


def is_learner_on_grey_images(learner: str) -> bool:
    """Whether a learner is the ceiling: the one that cannot see colour."""
    return re.search(r"^gr[ae]y|\bon gr[ae]y", learner.casefold()) is not None


def _summarise_scores_of_learner(
    learner: str,
    scores: list[ScoreRecord],
    adapted: list[AdaptedScoreRecord],
    runs: list[RunRecord],
) -> dict[str, Any]:
    settings = {repr(run.settings): run.settings for run in runs}
    if not all(
        do_records_share_settings(*pair) for pair in pairwise(settings.values())
    ):
        raise ValueError(
            f"the records of learner {learner!r} come from runs with different "
            f"settings: {' and '.join(settings)}. Put the records of each run into a "
            "file of its own, and report them one by one."
        )
    last = _select_scores_of_last_stage(_select_scores_of_main_metric(scores))
    return {
        "metric": last[0].metric if last else METRICS[0],
        "order": runs[0].order if runs else last[0].order,
        **{
            split: average_values_over_seeds(
                s for s in last if s.split == split
            )._asdict()
            for split in ("train", "test")
        },
        "adapted": {
            rows: average_values_over_seeds(own)._asdict()
            for rows, own in _group_records_by_key(
                (s for s in adapted if s.split == "test"), lambda s: s.rows
            ).items()
        },
        "settings": runs[0].settings if runs else {},
        "selection": describe_how_settings_were_chosen(runs[0])
        if runs
        else "not recorded",
        "memory": runs[0].memory if runs else {},
        "seconds": sum(run.seconds for run in runs) if runs else None,
    }


def _select_scores_of_main_metric(scores: Sequence[ScoreRecord]) -> list[ScoreRecord]:
    """The scores of the metric that tables show."""
    present = dict.fromkeys(score.metric for score in scores)
    chosen = next((m for m in (*METRICS, *present) if m in present), None)
    return [score for score in scores if score.metric == chosen]


def _select_scores_of_last_stage(scores: list[ScoreRecord]) -> list[ScoreRecord]:
    last = max((score.stage for score in scores), default=0)
    return [score for score in scores if score.stage == last]


def _build_scores_of_environment_by_stage(
    scores: list[ScoreRecord],
) -> list[EnvironmentScoresByStage]:
    stages = sorted({score.stage for score in scores})
    environments = _group_records_by_key(scores, lambda s: s.environment)
    tracks = []
    for index, (environment, rows) in enumerate(environments.items()):
        after = _group_records_by_key(rows, lambda s: stages.index(s.stage) + 1)
        points = _build_curve_points_with_mean(
            (stage, average_values_over_seeds(after[stage])) for stage in sorted(after)
        )
        split, order = rows[0].split, rows[0].order
        arrival = (
            find_stage_of_first_training(order, index) if split == "train" else None
        )
        tracks.append(EnvironmentScoresByStage(environment, split, arrival, points))
    return tracks


def find_stage_of_first_training(order: str, environment_index: int) -> int | None:
    """Return the stage, from 1, in which a training environment arrives, if known."""
    if order in ("joint", "sequential"):
        return 1 if order == "joint" else environment_index + 1
    sizes = [int(n) if n.isdecimal() else 0 for n in order.split("+")]
    ends = (sum(sizes[: n + 1]) for n in range(len(sizes)))
    return next((n for n, end in enumerate(ends, 1) if environment_index < end), None)


def _build_training_curve(rows: list[TrainingCurveRecord]) -> AverageTrainingCurve:
    points: list[SummaryCurvePoint] = []
    starts: list[float] = []
    for _, stage in sorted(_group_records_by_key(rows, lambda c: c.stage).items()):
        steps = _group_records_by_key(stage, lambda c: c.step)
        first, end = min(steps), points[-1].x if points else -math.inf
        # Steps that begin anew in each stage continue where the last stage ended.
        shift = end + 1 - first if first <= end else 0
        starts.append(first + shift)
        points += _build_curve_points_with_mean(
            (s + shift, average_values_over_seeds(steps[s])) for s in sorted(steps)
        )
    return AverageTrainingCurve(tuple(points), tuple(starts))


def _build_curve_points_with_mean(
    positions_and_means: Iterable[tuple[float, MeanAndStd]],
) -> tuple[SummaryCurvePoint, ...]:
    """The points that have a mean."""
    return tuple(
        SummaryCurvePoint(x, s.mean, s.std)
        for x, s in positions_and_means
        if s.mean is not None
    )


def group_records_by_learner(
    records: Sequence[Record], kind: type[T]
) -> dict[str, list[T]]:
    """Group records of one kind by learner, and by order if it was run in several."""
    orders: dict[str, set[str]] = {}
    for record in records:
        orders.setdefault(record.learner, set()).add(record.order)
    groups: dict[str, list[T]] = {}
    for record in records:
        if isinstance(record, kind):
            several = len(orders[record.learner]) > 1
            name = f"{record.learner} ({record.order})" if several else record.learner
            groups.setdefault(name, []).append(record)
    return groups


def _group_records_by_key(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
