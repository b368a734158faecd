"""Sections of a page with the figures of a run, each with the same looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cirm.records import Record
from cirm.report import blocks, plots
from cirm.report.blocks import Picture
from cirm.report.drawing import CEILING
from cirm.report.markup import Markup
from cirm.report.page import Section
from cirm.report.plots import Line, ScorePair
from cirm.report.summary import (
    Point,
    Statistic,
    Trace,
    along_stream,
    is_ceiling,
    sweep,
    training,
)
from cirm.report.text import describe_metric


@dataclass(frozen=True)
class View:
    """Records, their learners as in summary.json, and chance in percent if known."""

    records: Sequence[Record]
    learners: Mapping[str, Mapping[str, Any]]
    chance: float | None = None

    @property
    def metric(self) -> str:
        """The metric that the page shows."""
        return next((str(e["metric"]) for e in self.learners.values()), "accuracy")

    @property
    def bands(self) -> str:
        """What the bands in figures are; nothing where there are none."""
        several = any(entry["train"]["seeds"] > 1 for entry in self.learners.values())
        return "; bands are one standard deviation over seeds" if several else ""

    def style(self, learner: str) -> int:
        """A learner's look, the same in every figure."""
        if is_ceiling(learner):
            return CEILING
        return [name for name in self.learners if not is_ceiling(name)].index(learner)

    def name(self, learner: str) -> str:
        """A learner's name in plots."""
        if not is_ceiling(learner):
            return learner
        only = sum(map(is_ceiling, self.learners)) == 1
        return "colour-blind ceiling" if only else f"ceiling: {learner}"

    def line(self, learner: str, points: tuple[Point, ...]) -> Line:
        """A learner's line."""
        return Line(self.name(learner), points, self.style(learner))

    def pair(self, learner: str) -> ScorePair:
        """A learner's training and unseen score."""
        entry = self.learners[learner]
        train, test = Statistic(**entry["train"]), Statistic(**entry["test"])
        return ScorePair(self.name(learner), train, test, self.style(learner))


def pictures(shown: Sequence[Picture]) -> Section | None:
    """Pictures of the data."""
    if not shown:
        return None
    return Section("What the learners see", tuple(map(blocks.picture, shown)))


def across(view: View, axis: str, trained: Sequence[float] = ()) -> Section | None:
    """The score over the whole sweep; none without a sweep."""
    lines = [view.line(name, points) for name, points in sweep(view.records).items()]
    if not lines:
        return None
    draw = partial(
        plots.plot_sweep,
        lines,
        axis=axis,
        metric=view.metric,
        chance=view.chance,
        trained=trained,
    )
    caption = "Each point is an unseen environment, scored after the last stage"
    return Section("Across unseen environments", (_both(draw, caption + view.bands),))


def along(view: View) -> Section | None:
    """The score on each environment after each stage; none with a single stage."""
    stream = along_stream(view.records)
    points = (p for tracks in stream.values() for t in tracks for p in t.points)
    if max((point.x for point in points), default=1) < 2:
        return None
    drawn = [
        plots.plot_stream(
            view.name(name),
            tracks,
            style=view.style(name),
            metric=view.metric,
            chance=view.chance,
        )
        for name, tracks in stream.items()
    ]
    caption = (
        f"{describe_metric(view.metric).capitalize()}, after each stage. Grey: the "
        "training environments, later arrivals darker, rings before they arrive. "
        "In colour: the unseen environments."
    )
    return Section("Along the stream", (blocks.panels(caption, drawn),))


def against(view: View) -> Section | None:
    """Training against unseen score; none without an unseen environment."""
    pairs = [view.pair(name) for name in view.learners]
    if all(pair.test.mean is None for pair in pairs):
        return None
    draw = partial(
        plots.plot_training_against_unseen,
        pairs,
        metric=view.metric,
        chance=view.chance,
    )
    caption = "The further from the diagonal, the more was learned that does not last."
    return Section("Training against unseen", (_both(draw, caption),))


def curves(view: View) -> Section | None:
    """A figure for each quantity recorded in training; none without records of it."""
    drawn = [
        _both(_curve(view, metric, traces))
        for metric, traces in training(view.records).items()
    ]
    text = f"Means over seeds{view.bands}. A dotted rule is the start of a stage."
    return Section("Training", (text, *drawn)) if drawn else None


def _curve(view: View, metric: str, traces: Mapping[str, Trace]) -> partial[Markup]:
    lines = [view.line(name, trace.points) for name, trace in traces.items()]
    means = [point.mean for line in lines for point in line.points]
    # Quantities that fall by orders of magnitude are flat on a linear axis.
    log = bool(means) and min(means) > 0 and max(means) > 100 * min(means)
    starts = {trace.starts for trace in traces.values()}
    return partial(
        plots.plot_curves,
        lines,
        metric=metric,
        starts=starts.pop() if len(starts) == 1 else (),
        log=log,
    )


def _both(draw: partial[Markup], caption: str = "") -> Markup:
    """A figure as drawn for a wide page and for a phone."""
    sentence = f"{caption.rstrip('.')}." if caption else ""
    wide, narrow = draw(width=plots.WIDE), draw(width=plots.NARROW)
    return blocks.figure(sentence, wide, narrow)
