"""Search one replica's stage for unstable features, until nothing is left."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from cirm.learners.steady import directions_search as search
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_features import (
    Feature,
    compute_values,
    find_feature,
    make_guesses,
)
from cirm.learners.steady.directions_search import Moments
from cirm.learners.steady.directions_state import MOST_FEATURES
from cirm.learners.steady.directions_views import (
    View,
    apply_view,
    fit_view,
    linearise_view,
)
from cirm.randomness import Randomness

FIRST_LOOK = (
    0.7  # of the level is spent on the first comparison, where most is at stake
)
SAME = 0.3  # correlation within classes above which two features are one


class Known(NamedTuple):
    """The unstable features of a replica: feature, view, p-value and past table."""

    feature: Feature
    view: View
    p_value: float
    past: Tensor


class Stage(NamedTuple):
    """Rows [n, d] of a stage, classes [n], and the environment [n] of each row."""

    rows: Tensor
    targets: Tensor
    places: Tensor


class Hypothesis(NamedTuple):
    """The easiest predictor: its answers [n], how often it was right, before and here.

    `before` and `here` are lists of tallies [k, 3] of environments.
    """

    answers: Tensor
    before: list[Tensor]
    here: list[Tensor]


class Outcome(NamedTuple):
    """What a search gives: new features, rows in the view, values, moments to carry."""

    known: list[Known]
    rows: Tensor
    values: list[Tensor]
    moments: Moments
    looks: int


def search_stage(
    stage: Stage,
    past: Moments | None,
    features: list[tuple[Feature, View]],
    hypothesis: Hypothesis | None,
    looks: int,
    level: float,
    channels: int,
    classes: int,
    randomness: Randomness,
) -> Outcome:
    """Search for features whose meaning changed, one after another."""
    rows, values = see_rows(stage.rows, features, channels)
    known: list[Known] = []
    environments = int(stage.places.max()) + 1
    comparisons = environments - 1 + (past is not None)
    alpha = spend_level(level, looks, comparisons)
    while len(features) + len(known) < MOST_FEATURES and comparisons:
        series = _measure_series(rows, stage, past, classes)
        p_value, before, here = _compare_series(
            series, hypothesis if not known else None
        )
        if p_value >= alpha:
            break
        pooled = search.pool_moments(before, here)
        axes = search.find_axes(pooled)
        offset = _make_offset(values, stage, classes)
        change = search.measure_change(before, here, axes)
        at = randomness.at("search", len(features) + len(known))
        wide = rows.double()
        guesses = make_guesses(wide, stage.targets, change, axes, channels, offset, at)
        if hypothesis is not None and not known:
            guesses.append(hypothesis.answers)
        finding = find_feature(
            wide, stage.targets, guesses, before, here, axes, channels, values, at
        )
        if finding is None or _is_known(finding.values, values, stage.targets, classes):
            break
        view = fit_view(wide, finding.values, stage.targets, classes, channels)
        straight = linearise_view(view, wide, finding.values, stage.targets, axes)
        table = torch.full((classes, classes), 0.0).double()
        if past is not None:
            scores, means = wide @ straight.scores, past.means @ straight.scores
            table = tables.infer_past_table(
                scores, means, finding.values, stage.targets
            )
            table = table * past.counts[:, None]
            past = Moments(past.counts, straight(past.means), straight(past.factor))
        known.append(Known(finding.feature, view, p_value, table))
        rows = apply_view(view, wide, finding.values).float()
        values = [*values, finding.values]
    series = _measure_series(rows, stage, past, classes)
    moments = series[0]
    for one in series[1:]:
        moments = search.pool_moments(moments, one)
    return Outcome(known, rows, values, moments, looks + comparisons)


def see_rows(
    rows: Tensor, features: list[tuple[Feature, View]], channels: int
) -> tuple[Tensor, list[Tensor]]:
    """Return rows [n, d] without the features, and the values [n] of each."""
    values = []
    for feature, view in features:
        values.append(compute_values(feature, rows, channels))
        rows = apply_view(view, rows, values[-1])
    return rows, values


def spend_level(level: float, looks: int, comparisons: int) -> float:
    """Return the level of the next comparisons, after so many earlier ones.

    All levels of a sequence, however long, add up to `level`.
    """
    total = 0.0
    for look in range(looks, looks + comparisons):
        rest = (1 - FIRST_LOOK) * 6 / torch.pi**2 / max(1, look) ** 2
        total += level * (FIRST_LOOK if look == 0 else rest)
    return total


def tally_answers(right: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return [k, 3]: rows of a class, and sums of `right` [n] and of its square."""
    tally = torch.zeros(classes, 3, dtype=torch.float64)
    parts = torch.stack([torch.ones_like(right), right, right.square()], 1).double()
    return tally.index_add_(0, targets.cpu(), parts.cpu())


def compare_tallies(before: Tensor, here: Tensor) -> float:
    """Return the p-value of a change of the mean share of right answers of a class."""
    change, variance = 0.0, 0.0
    for first, second in zip(before.tolist(), here.tolist(), strict=True):
        if min(first[0], second[0]) < 2:
            continue
        for sign, (n, total, square) in ((1, first), (-1, second)):
            change += sign * total / n
            variance += max(square / n - (total / n) ** 2, 0.25 / n) / n
    return float(2 * stats.norm.sf(abs(change) / max(variance, 1e-12) ** 0.5))


def _measure_series(
    rows: Tensor, stage: Stage, past: Moments | None, classes: int
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
            tallies = [*hypothesis.before, *hypothesis.here]
            first = len(tallies) - len(series[1:])
            past = torch.stack(tallies[: first + i]).sum(0)
            p_values.append(compare_tallies(past, tallies[first + i]))
        p_value = min(1.0, len(p_values) * min(p_values))
        results.append((p_value, before, here))
        before = search.pool_moments(before, here)
    best = min(results, key=lambda result: result[0])
    return min(1.0, best[0] * len(results)), best[1], best[2]


def _make_offset(values: list[Tensor], stage: Stage, classes: int) -> Tensor:
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
