"""Search one replica's stage of a regression for numbers whose meaning changed.

If inputs contain a number u = a y + b + noise along a pattern, another a changes the
slopes of the inputs on y along this pattern. So the pattern is the change of slopes, as
far as it is no noise, and u is read along it by the residual scatter.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_compare import (
    EnvironmentComparison,
    ObservedEnvironment,
    Trend,
    find_most_changed_environment,
)
from cirm.learners.steady.directions_kernel import compute_kernel_features
from cirm.learners.steady.directions_regression_slopes import (
    SlopesOfHalves,
    compute_slope_moments,
    compute_slopes_of_halves,
    get_slope_of_moments,
    pool_slopes_of_halves,
)
from cirm.learners.steady.directions_regression_state import MOST_NUMBERS, NumberReader
from cirm.learners.steady.directions_regression_views import (
    NumberHidingView,
    fit_number_hiding_view,
    hide_number_in_rows,
    measure_visibility_of_number,
)
from cirm.learners.steady.directions_search import (
    ClassMeansAndScatter,
    PrincipalAxes,
    pool_class_moments_of_environments,
)
from cirm.learners.steady.directions_stage import compute_significance_level
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    append_image_statistics,
)
from cirm.learners.steady.directions_views import HIDDEN

RIDGES = (100.0, 10.0, 1.0, 0.1, 0.01)  # in mean variances: directions that vary little
# show more noise
ENTRY_RIDGES = (100.0, 1.0, 0.1)  # the first one reads the entries alone
LARGEST = (1, 3, 10, 30)  # numbers of axes or entries that changed most
SAME = 0.5  # standard errors, by which chance prefers a way that asks for less
CONSTANT = 1e-6  # of the largest variance: entries that vary less say nothing
REST = 0.1  # of the level: a number leaves traces, which are no change of their own
CLEAR = 2.0  # standard errors of a change along a pattern that other rows have shown


class KnownNumber(NamedTuple):
    """An unstable number: how it is read and hidden."""

    reader: NumberReader
    view: NumberHidingView


class FoundNumber(NamedTuple):
    """A number that was found, its p-value, and its effect [4] before, if known."""

    known: KnownNumber
    p_value: float
    past: Tensor


class NumberSearchOutcome(NamedTuple):
    """What a search gives: new numbers, rows in the view, and `values` [number, n]."""

    found: list[FoundNumber]
    rows: Tensor
    values: Tensor
    is_hidden: bool
    is_unexplained: bool
    moments: ClassMeansAndScatter
    kernel: ClassMeansAndScatter
    halves: SlopesOfHalves
    looks: int
    trend: Trend


class PastOfSearch(NamedTuple):
    """What is kept of earlier environments, and of the tests so far.

    `looks` is their number, and `trend` what changed since a number was found. `kernel`
    is missing if its random features are no longer comparable.
    """

    moments: ClassMeansAndScatter | None
    kernel: ClassMeansAndScatter | None
    halves: SlopesOfHalves
    looks: int
    trend: Trend


class NumberSearchSettings(NamedTuple):
    """Level of the tests, shape of an input, scale of statistics, width of kernels."""

    level: float
    shape: tuple[int, ...]
    scale: ImageStatisticsScale
    width: Tensor


def search_for_unstable_numbers(
    rows: Tensor,
    targets: Tensor,
    environment_of_row: Tensor,
    past: PastOfSearch,
    known: list[KnownNumber],
    settings: NumberSearchSettings,
) -> NumberSearchOutcome:
    """Find numbers one after another, until nothing that changed is left.

    `rows` are [n, d], `targets` [n] standardised.
    """
    seen, rows, values = remove_numbers_from_rows(
        rows.double(), known, settings.shape, settings.scale
    )
    places = [environment_of_row == e for e in environment_of_row.unique().tolist()]
    series = [] if past.moments is None else [past.moments]
    halves = [] if past.moments is None else [past.halves]
    series += [compute_slope_moments(rows[here], targets[here]) for here in places]
    halves += [compute_slopes_of_halves(rows[here], targets[here]) for here in places]

    def measure_kernel(past_kernel: ClassMeansAndScatter | None) -> list:  # type: ignore[type-arg]
        features = compute_kernel_features(seen, settings.width)
        own = [compute_slope_moments(features[h], targets[h]) for h in places]
        return own if past_kernel is None else [past_kernel, *own]

    kernels = measure_kernel(past.kernel)
    comparisons = len(series) - 1
    alpha = compute_significance_level(settings.level, past.looks, comparisons)
    found: list[FoundNumber] = []
    is_unexplained, is_hidden, trend = False, True, past.trend
    while len(values) < MOST_NUMBERS and comparisons:
        compared = find_most_changed_environment(
            [ObservedEnvironment(moments) for moments in series],
            [] if found else [ObservedEnvironment(moments) for moments in kernels],
            trend=None if found else past.trend,
        )
        trend = compared.trend or trend
        if compared.p_value >= alpha:
            break
        turn = next(i for i, m in enumerate(series) if m is compared.here)
        before = reduce(pool_slopes_of_halves, halves[:turn])
        reader = fit_reader_of_changed_number(compared, before, halves[turn])
        if reader is None:
            is_unexplained = not found or compared.p_value < REST * alpha
            break
        reader = _standardise_reader(reader, rows)
        own = read_number(reader, rows)
        parts = own, targets, settings.shape, settings.scale
        if values and measure_visibility_of_number(seen, *parts) < HIDDEN:
            break  # a trace of the numbers that are known: the view hides it, too
        view, seen, hides = fit_number_hiding_view(seen, *parts, reader.pattern)
        is_hidden &= hides
        effect = torch.zeros(4).double()
        if past.moments is not None:
            effect = infer_effect_from_moments(reader, series[0])
        found.append(FoundNumber(KnownNumber(reader, view), compared.p_value, effect))
        values = [*values, own]
        rows = remove_pattern_from_rows(rows, reader)
        series = [remove_pattern_from_moments(m, reader) for m in series]
        halves = [
            h._replace(slopes=remove_pattern_from_rows(h.slopes, reader))
            for h in halves
        ]
    if found:
        kernels = measure_kernel(None)
    kernel = reduce(pool_class_moments_of_environments, kernels)
    if not is_hidden:
        kernel = kernel._replace(counts=0 * kernel.counts)
    return NumberSearchOutcome(
        found,
        seen,
        torch.stack(values) if values else torch.zeros(0, len(rows)).double(),
        is_hidden,
        is_unexplained,
        reduce(pool_class_moments_of_environments, series),
        kernel,
        reduce(pool_slopes_of_halves, halves),
        past.looks + comparisons,
        Trend() if found else trend,
    )


def fit_reader_of_changed_number(
    comparison: EnvironmentComparison, before: SlopesOfHalves, here: SlopesOfHalves
) -> NumberReader | None:
    """Return the number behind a change of slopes, or none that is clear.

    The change is noisy, most of all along axes that vary little. Of several ways to
    shrink it, that is taken by which one half of the rows predicts the other best.
    """
    axes = comparison.axes
    standard = axes.vectors / axes.variances.sqrt()
    moments = comparison.before, comparison.here
    spread = torch.cat([m.factor for m in moments]).square().sum(0)
    precision = 1 / (1 / before.precision + 1 / here.precision)
    halves = (here.slopes - before.slopes) * precision.sqrt()[:, None]
    whole = get_slope_of_moments(moments[1]) - get_slope_of_moments(moments[0])
    whole = whole * precision.sum().sqrt()
    first, second = halves @ standard
    ones, others, shrunk = (
        torch.stack(_shrink_change_of_slopes(c, spread, axes)) for c in (*halves, whole)
    )
    z = sum(
        part @ other / part.norm(dim=1).clamp(min=1e-12)
        for part, other in ((ones, second), (others, first))
    )
    z = torch.as_tensor(z) / 2
    if float(z.max()) < CLEAR:
        return None
    along = shrunk[int((z > z.max() - SAME).nonzero()[0])]
    along = along / along.norm()
    return NumberReader(
        standard @ along,
        axes.vectors @ (along * axes.variances.sqrt()),
        torch.tensor(0.0).double(),
    )


def _shrink_change_of_slopes(
    change: Tensor, spread: Tensor, axes: PrincipalAxes
) -> list[Tensor]:
    """Return a change [d], shrunk in several ways, in standard errors along axes [a].

    Those that say most about how it should look come first. `spread` [d] is the sum of
    squares of each entry.
    """

    def keep_largest(values: Tensor, sizes: Tensor, count: int) -> Tensor:
        few = torch.zeros_like(values)
        order = sizes.abs().argsort(descending=True, stable=True)[:count]
        few[order] = values[order]
        return few

    def read_with_ridge(values: Tensor, ridge: float) -> Tensor:
        ridged = axes.variances + ridge * axes.variances.mean()
        return (values @ axes.vectors) * axes.variances.sqrt() / ridged

    along = change @ axes.vectors / axes.variances.sqrt()
    sizes = change / spread.clamp(min=CONSTANT * float(spread.max()) + 1e-12).sqrt()
    entries = [keep_largest(change, sizes, count) for count in LARGEST]
    alone, *ridges = ENTRY_RIDGES
    parts = [read_with_ridge(few, alone) for few in entries]
    parts += [read_with_ridge(few, ridge) for few in entries for ridge in ridges]
    parts += [keep_largest(along, along, count) for count in LARGEST]
    return parts + [read_with_ridge(change, ridge) for ridge in RIDGES]


def _standardise_reader(reader: NumberReader, rows: Tensor) -> NumberReader:
    """Return a reader whose number has mean 0 and variance 1 on rows."""
    numbers = rows @ reader.scores
    spread = numbers.std().clamp(min=1e-9)
    return NumberReader(
        reader.scores / spread, reader.pattern * spread, numbers.mean() / spread
    )


def read_number(reader: NumberReader, rows: Tensor) -> Tensor:
    """Return the number [n] of rows [n, d]."""
    return rows.double() @ reader.scores.double() - reader.centre.double()


def remove_pattern_from_rows(rows: Tensor, reader: NumberReader) -> Tensor:
    """Return rows [n, d] without what a number adds to them."""
    scores, pattern = (part.to(rows) for part in reader[:2])
    return rows - (rows @ scores)[:, None] * pattern


def remove_pattern_from_moments(
    moments: ClassMeansAndScatter, reader: NumberReader
) -> ClassMeansAndScatter:
    """Return the moments of rows without what a number adds to them."""
    parts = (remove_pattern_from_rows(part, reader) for part in moments[1:])
    return ClassMeansAndScatter(moments.counts, *parts)


def remove_numbers_from_rows(
    rows: Tensor,
    known: list[KnownNumber],
    shape: tuple[int, ...],
    scale: ImageStatisticsScale,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return rows [n, d] as the model and as the search see them, and numbers."""
    seen, values = rows, []
    rows = append_image_statistics(rows, shape, scale)
    for reader, view in known:
        values.append(read_number(reader, rows))
        rows = remove_pattern_from_rows(rows, reader)
        seen = hide_number_in_rows(view, seen, values[-1])
    return seen, rows, values


def infer_effect_from_moments(
    reader: NumberReader, moments: ClassMeansAndScatter
) -> Tensor:
    """Return the effect [4] of a number in earlier environments, from their moments.

    Slopes of moments are those on half a standardised target.
    """
    counts = moments.count_rows()
    scores = reader.scores.double()
    slope = float(get_slope_of_moments(moments).double() @ scores) / 2
    noise = float((moments.factor.double() @ scores).square().sum()) / counts
    level = float(moments.means.double().mean(0) @ scores - reader.centre)
    return torch.tensor([slope, noise / counts, level, noise]).double()
