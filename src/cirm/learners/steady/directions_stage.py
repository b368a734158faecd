"""Search one replica's stage for unstable features, until nothing is left."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_features import (
    Finding,
    compute_values,
    find_feature,
    make_guesses,
)
from cirm.learners.steady.directions_reference import Hypothesis, compare_tallies
from cirm.learners.steady.directions_search import Moments
from cirm.learners.steady.directions_state import MOST_FEATURES, Known
from cirm.learners.steady.directions_views import (
    LinearView,
    apply_view,
    count_channels,
    fit_view,
    linearise_view,
)
from cirm.randomness import Randomness

FIRST_LOOK = (
    0.7  # of the level is spent on the first comparison, where most is at stake
)
WEAK = 2.0  # standard errors: a guess with less is compared with the easiest predictor
SAME = 0.3  # correlation within classes above which two features are one


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
    """What a search gives: new features, rows in the view, values, moments to carry."""

    found: list[Found]
    rows: Tensor
    values: Tensor
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
    classes: int,
    randomness: Randomness,
) -> Outcome:
    """Search for features whose meaning changed, one after another."""
    channels = count_channels(shape)
    seen, rows, values = see_rows(stage.rows.double(), features, channels)
    found: list[Found] = []
    comparisons = int(stage.places.max()) + (past is not None)
    alpha = spend_level(level, looks, comparisons)
    while len(features) + len(found) < MOST_FEATURES and comparisons:
        series = _measure_series(rows, stage, past, classes)
        tested = hypothesis if not found else None
        p_value, before, here = _compare_series(series, tested)
        if p_value >= alpha:
            break
        axes = search.find_axes(search.pool_moments(before, here))
        change = search.measure_change(before, here, axes)
        offset = _make_offset(values, stage, classes)
        at = randomness.at("search", len(features) + len(found))
        guesses = make_guesses(rows, stage.targets, change, axes, channels, offset, at)
        parts = before, here, axes, channels, values, at
        finding = find_feature(rows, stage.targets, guesses, *parts)
        if tested is not None and (finding is None or finding.merit < WEAK):
            guesses = [(tested.answers, False)]
            other = find_feature(rows, stage.targets, guesses, *parts)
            finding = _pick_better(finding, other)
        if finding is None or _is_known(finding.values, values, stage.targets, classes):
            break
        pair = finding.values, stage.targets
        view = fit_view(seen, *pair, classes, shape)
        line = linearise_view(fit_view(rows, *pair, classes, shape), rows, *pair, axes)
        table = torch.zeros(classes, classes).double()
        if past is not None:
            scores = rows @ line.scores
            table = tables.infer_past_table(scores, past.means @ line.scores, *pair)
            table = table * past.counts[:, None]
            past = Moments(past.counts, line(past.means), line(past.factor))
        found.append(Found(Known(finding.feature, view, line), p_value, table))
        seen, rows = apply_view(view, seen, finding.values), line(rows)
        values = [*values, finding.values]
    moments, *series = _measure_series(rows, stage, past, classes)
    for one in series:
        moments = search.pool_moments(moments, one)
    none = torch.zeros(0, len(rows)).long()
    stacked = torch.stack(values) if values else none
    return Outcome(found, seen, stacked, moments, looks + comparisons)


def _pick_better(first: Finding | None, second: Finding | None) -> Finding | None:
    """Return the finding of more merit."""
    findings = [finding for finding in (first, second) if finding is not None]
    return max(findings, key=lambda finding: finding.merit, default=None)


def see_rows(
    rows: Tensor, features: list[Known], channels: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return rows [n, d] without the features, and the values [n] of each.

    The first are as the stable model sees them, the second as the search does.
    """
    seen, values = rows, []
    for feature, view, line in features:
        values.append(compute_values(feature, rows, channels))
        seen = apply_view(view, seen, values[-1])
        rows = LinearView(*(part.to(rows) for part in line))(rows)
    return seen, rows, values


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
) -> tuple[float, Moments, Moments]:
    """Return the least p-value of an environment against all before, and the two."""
    results = []
    before = series[0]
    for i, here in enumerate(series[1:]):
        axes = search.find_axes(search.pool_moments(before, here))
        p_values = [search.measure_change(before, here, axes).p_value]
        if hypothesis is not None:
            past = torch.stack(hypothesis.tallies[: i + 1]).sum(0)
            p_values.append(compare_tallies(past, hypothesis.tallies[i + 1]))
        p_value = min(1.0, len(p_values) * min(p_values))
        results.append((p_value, before, here))
        before = search.pool_moments(before, here)
    best = min(results, key=lambda result: result[0])
    return min(1.0, best[0] * len(results)), best[1], best[2]


def _make_offset(values: list[Tensor], stage: StageRows, classes: int) -> Tensor:
    """Return what the known features say of the classes, [n, k]."""
    offset = torch.zeros(len(stage.targets), classes).double()
    if not values:
        return offset
    for place in range(int(stage.places.max()) + 1):
        here = stage.places == place
        known = torch.stack(values)[:, here]
        counts = tables.count_values(known, stage.targets[here], classes)
        offset[here] = tables.score_values(tables.normalise(counts).log(), known)
    return offset


def _is_known(
    values: Tensor, known: list[Tensor], targets: Tensor, classes: int
) -> bool:
    """Whether values are, within classes, much the same as those of another feature."""

    def centre(v: Tensor) -> Tensor:
        member = torch.nn.functional.one_hot(v, classes).double()
        level = torch.nn.functional.one_hot(targets, classes).double()
        return (member - level @ (torch.linalg.pinv(level) @ member)).flatten()

    own = centre(values)
    for other in map(centre, known):
        cosine = own @ other / (own.norm() * other.norm()).clamp(min=1e-9)
        if abs(float(cosine)) > SAME:
            return True
    return False
