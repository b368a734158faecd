"""Records -> what the learners reached: means over seeds, and how far seeds differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

from cirm.records import Curve, Record, Run, Score, has_same_settings

METRICS = ("accuracy", "error")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Statistic(NamedTuple):
    """Mean and sample standard deviation over seeds.

    The mean is None without seeds or if a seed's value is not finite, the standard
    deviation also with one seed only.
    """

    mean: float | None
    std: float | None
    seeds: int


class Point(NamedTuple):
    """A place on an axis, and the mean and standard deviation over seeds there."""

    x: float
    mean: float
    std: float | None


class Track(NamedTuple):
    """One environment along the stream: a point per stage, counted from 1.

    `arrival` is the stage that brings it, None for an environment never learned.
    """

    environment: str
    split: str
    arrival: int | None
    points: tuple[Point, ...]


class Trace(NamedTuple):
    """A training curve through all stages, and the steps at which stages begin."""

    points: tuple[Point, ...]
    starts: tuple[float, ...]


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """The content of summary.json: each learner after its last stage."""
    runs = by_learner(records, Run)
    scores = by_learner(records, Score)
    return {
        "learners": {
            learner: _entry(learner, scores.get(learner, []), runs.get(learner, []))
            for learner in dict.fromkeys([*scores, *runs])
        }
    }


def along_stream(records: Sequence[Record]) -> dict[str, list[Track]]:
    """Each learner's score on each training and test environment after each stage."""
    return {
        learner: [
            track
            for split in ("train", "test")
            for track in _tracks([s for s in _headline(scores) if s.split == split])
        ]
        for learner, scores in by_learner(records, Score).items()
    }


def sweep(records: Sequence[Record]) -> dict[str, tuple[Point, ...]]:
    """Each learner's score over the sweep's axis after the last stage."""
    curves = {}
    for learner, scores in by_learner(records, Score).items():
        last = _last_stage(_headline(scores))
        placed = [s for s in last if s.split == "sweep" and s.position is not None]
        groups = _grouped(placed, lambda s: s.position or 0.0)
        curves[learner] = _points((x, over_seeds(groups[x])) for x in sorted(groups))
    return {learner: points for learner, points in curves.items() if points}


def training(records: Sequence[Record]) -> dict[str, dict[str, Trace]]:
    """Training curves by metric and learner, each through all stages."""
    traces: dict[str, dict[str, Trace]] = {}
    for learner, curves in by_learner(records, Curve).items():
        for metric, rows in _grouped(curves, lambda c: c.metric).items():
            traces.setdefault(metric, {})[learner] = _trace(rows)
    return traces


def over_seeds(rows: Iterable[Score | Curve]) -> Statistic:
    """Mean within each seed, then mean and sample standard deviation over seeds."""
    means = [
        fmean(row.value for row in seed)
        for seed in _grouped(rows, lambda row: row.seed).values()
    ]
    if not means or not all(map(math.isfinite, means)):
        return Statistic(None, None, len(means))
    return Statistic(fmean(means), stdev(means) if len(means) > 1 else None, len(means))


def is_ceiling(learner: str) -> bool:
    """Whether a learner is the one that cannot see colour."""
    return re.search(r"^gr[ae]y|\bon gr[ae]y", learner.casefold()) is not None


def _entry(learner: str, scores: list[Score], runs: list[Run]) -> dict[str, Any]:
    settings = {repr(run.settings): run.settings for run in runs}
    if not all(has_same_settings(*pair) for pair in pairwise(settings.values())):
        raise ValueError(
            f"records: the runs of learner {learner!r} must have the same settings; "
            f"got {' and '.join(settings)}"
        )
    last = _last_stage(_headline(scores))
    return {
        "metric": last[0].metric if last else METRICS[0],
        "order": runs[0].order if runs else last[0].order,
        **{
            split: over_seeds(s for s in last if s.split == split)._asdict()
            for split in ("train", "test")
        },
        "settings": runs[0].settings if runs else {},
        "selection": (runs[0].selection if runs else "") or "not recorded",
        "memory": runs[0].memory if runs else {},
        "seconds": sum(run.seconds for run in runs) if runs else None,
    }


def _headline(scores: Sequence[Score]) -> list[Score]:
    """Scores of the one metric that tables show."""
    present = dict.fromkeys(score.metric for score in scores)
    chosen = next((m for m in (*METRICS, *present) if m in present), None)
    return [score for score in scores if score.metric == chosen]


def _last_stage(scores: list[Score]) -> list[Score]:
    last = max((score.stage for score in scores), default=0)
    return [score for score in scores if score.stage == last]


def _tracks(scores: list[Score]) -> list[Track]:
    stages = sorted({score.stage for score in scores})
    environments = _grouped(scores, lambda s: s.environment)
    tracks = []
    for index, (environment, rows) in enumerate(environments.items()):
        after = _grouped(rows, lambda s: stages.index(s.stage) + 1)
        points = _points((stage, over_seeds(after[stage])) for stage in sorted(after))
        split, order = rows[0].split, rows[0].order
        seen = _arrival(order, index) if split == "train" else None
        tracks.append(Track(environment, split, seen, points))
    return tracks


def _arrival(order: str, index: int) -> int | None:
    """The stage that brings the training environment of this index, if known."""
    if order in ("joint", "sequential"):
        return 1 if order == "joint" else index + 1
    sizes = [int(n) if n.isdecimal() else 0 for n in order.split("+")]
    ends = (sum(sizes[: n + 1]) for n in range(len(sizes)))
    return next((n for n, end in enumerate(ends, 1) if index < end), None)


def _trace(rows: list[Curve]) -> Trace:
    points: list[Point] = []
    starts: list[float] = []
    for _, stage in sorted(_grouped(rows, lambda c: c.stage).items()):
        steps = _grouped(stage, lambda c: c.step)
        first, end = min(steps), points[-1].x if points else -math.inf
        # Steps that begin anew in each stage continue where the last stage ended.
        shift = end + 1 - first if first <= end else 0
        starts.append(first + shift)
        points += _points((s + shift, over_seeds(steps[s])) for s in sorted(steps))
    return Trace(tuple(points), tuple(starts))


def _points(places: Iterable[tuple[float, Statistic]]) -> tuple[Point, ...]:
    """Points where the mean exists."""
    return tuple(Point(x, s.mean, s.std) for x, s in places if s.mean is not None)


def by_learner(records: Sequence[Record], kind: type[T]) -> dict[str, list[T]]:
    """Records of one kind by learner; by learner and order where one had several."""
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


def _grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
