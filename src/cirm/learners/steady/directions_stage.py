"""Search one replica's stage for unstable features, until nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_features import (
    Guess,
    compute_values,
    find_feature,
    find_traces,
    make_guesses,
    make_taught,
)
from cirm.learners.steady.directions_reference import Hypothesis, compare_tallies
from cirm.learners.steady.directions_search import Axes, Change, Moments
from cirm.learners.steady.directions_state import MOST_FEATURES, Known
from cirm.learners.steady.directions_statistics import (
    Scale,
    append_statistics,
    count_statistics,
)
from cirm.learners.steady.directions_views import (
    apply_view,
    fit_view,
    hides_feature,
    make_identity,
)

FIRST_LOOK = (
    0.7  # of the level is spent on the first comparison, where most is at stake
)
SEPARATE = 3.3  # standard deviations between values of a feature after the first: a
# continuum that is cut in the middle has 2.65, features of images 4 to 500
GONE = 0.1  # of the variance before: what varies less cannot be read any more


Teacher = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Teaches values [n] to a network: its parameters, and held-out answers [n]."""


class Found(NamedTuple):
    """A feature that was found, its p-value, and its table [class, value] before."""

    known: Known
    p_value: float
    past: Tensor


class StageRows(NamedTuple):
    """Rows [n, d] of a stage, classes [n], and the environment [n] of each row."""

    rows: Tensor
    targets: Tensor
    places: Tensor


class Outcome(NamedTuple):
    """What a search gives: new features, rows in the view, values, moments to carry.

    `is_hidden` tells for each feature whether the view hides it, and `is_gone` whether
    something changed that can no longer be seen in the rows. `taught` [member, p] is a
    network for a feature, if there is one.
    """

    found: list[Found]
    rows: Tensor
    values: Tensor
    is_hidden: list[bool]
    is_gone: bool
    taught: Tensor | None
    moments: Moments
    looks: int


def search_stage(
    stage: StageRows,
    past: Moments | None,
    features: list[Known],
    hypothesis: Hypothesis | None,
    looks: int,
    level: float,
    shape: tuple[int, ...],
    scale: Scale,
    classes: int,
    answers: Tensor,
    teach: Teacher,
) -> Outcome:
    """Search for features whose meaning changed, one after another.

    A feature that no discriminant reads is taught to a network, from the answers of the
    easiest predictor; `answers` [n] are those of a network taught before.
    """
    targets = stage.targets
    seen, rows, values = see_rows(stage.rows.double(), features, shape, scale, answers)
    found: list[Found] = []
    is_gone, taught = False, None
    hidden = [known.view.changes_rows() for known in features]
    comparisons = int(stage.places.max()) + (past is not None)
    alpha = spend_level(level, looks, comparisons)
    series = _measure_series(rows, stage, past, classes)
    while len(values) < MOST_FEATURES and comparisons:
        tested = hypothesis if not found else None
        p_value, before, here, axes = _compare_series(series, tested)
        if p_value >= alpha:
            break
        change = search.measure_change(before, here, axes)
        count = count_statistics(shape)
        guesses = make_guesses(rows, count, targets, change, axes)
        if tested is not None:
            guesses.append(Guess(tested.answers, axes))
        finding = find_feature(rows, targets, guesses, before, here, axes)
        is_clear = finding is not None and finding.separation > SEPARATE
        if not is_clear and tested is not None and not values:
            taught, held_out = teach(tested.answers)
            finding = make_taught(held_out, rows, classes)
        elif finding is None or (values and not is_clear):
            is_gone = _is_gone(change, before, here, axes)
            break
        pair = finding.values, targets
        view = fit_view(seen, *pair, classes, shape)
        apart = apply_view(view, seen, finding.values)
        if not hides_feature(apart, *pair, classes, shape, scale):
            view, apart = make_identity(view), seen
        scores = finding.feature.scores.to(rows)
        table = torch.zeros(classes, classes).double()
        traces = find_traces(rows, *pair, classes)
        if past is not None and not finding.feature.is_taught:
            table = tables.infer_past_table(rows @ scores, past.means @ scores, *pair)
            table = table * past.counts[:, None]
        found.append(Found(Known(finding.feature, view, traces), p_value, table))
        values = [*values, finding.values]
        hidden.append(view.changes_rows())
        seen, rows = apart, set_aside(rows, traces)
        series = [
            Moments(m.counts, *(set_aside(part, traces) for part in m[1:]))
            for m in series
        ]
    moments = series[0]
    for one in series[1:]:
        moments = search.pool_moments(moments, one)
    none = torch.zeros(0, len(rows)).long()
    stacked = torch.stack(values) if values else none
    looks += comparisons
    return Outcome(found, seen, stacked, hidden, is_gone, taught, moments, looks)


def see_rows(
    rows: Tensor,
    features: list[Known],
    shape: tuple[int, ...],
    scale: Scale,
    answers: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return rows [n, d] without the features, and the values [n] of each.

    The first are as the stable model sees them, the second as the search does.
    """
    seen, values = rows, []
    rows = append_statistics(rows, shape, scale)
    for feature, view, traces in features:
        is_taught = bool(feature.is_taught)
        values.append(answers if is_taught else compute_values(feature, rows))
        seen = apply_view(view, seen, values[-1])
        rows = set_aside(rows, traces)
    return seen, rows, values


def set_aside(rows: Tensor, traces: Tensor) -> Tensor:
    """Return rows [n, d] without what they have along orthonormal traces [k, d]."""
    traces = traces.to(rows)
    return rows - rows @ traces.T @ traces


def spend_level(level: float, looks: int, comparisons: int) -> float:
    """Return the level of the next comparisons, after so many earlier ones.

    All levels of a sequence, however long, add up to `level`.
    """
    total = 0.0
    for look in range(looks, looks + comparisons):
        rest = (1 - FIRST_LOOK) * 6 / torch.pi**2 / max(1, look) ** 2
        total += level * (FIRST_LOOK if look == 0 else rest)
    return total


def _measure_series(
    rows: Tensor, stage: StageRows, past: Moments | None, classes: int
) -> list[Moments]:
    """Return the moments of the past, if any, and of each environment."""
    series = [] if past is None else [past]
    for place in range(int(stage.places.max()) + 1):
        here = stage.places == place
        series.append(
            search.measure_moments(rows[here].double(), stage.targets[here], classes)
        )
    return series


def _compare_series(
    series: list[Moments], hypothesis: Hypothesis | None
) -> tuple[float, Moments, Moments, Axes]:
    """Return the least p-value of an environment against all before, both, and axes."""
    results = []
    before = series[0]
    for i, here in enumerate(series[1:]):
        pooled = search.pool_moments(before, here)
        axes = search.find_axes(pooled)
        p_values = [search.measure_change(before, here, axes).p_value]
        if hypothesis is not None:
            past = torch.stack(hypothesis.tallies[: i + 1]).sum(0)
            p_values.append(compare_tallies(past, hypothesis.tallies[i + 1]))
        p_value = min(1.0, len(p_values) * min(p_values))
        results.append((p_value, before, here, axes))
        before = pooled
    best = min(results, key=lambda result: result[0])
    return min(1.0, best[0] * len(results)), *best[1:]


def _is_gone(change: Change, past: Moments, new: Moments, axes: Axes) -> bool:
    """Whether the axis that changed most varied before, and no longer does."""
    axis = axes.vectors[:, int(change.axes.argmin())]
    before, here = (
        float((m.factor @ axis).square().sum()) / m.count_rows() for m in (past, new)
    )
    return here < GONE * before
