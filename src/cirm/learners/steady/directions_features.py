"""Find the feature behind a change: a function of the inputs with one value per class.

Its first guess is the class as a discriminant reads it from what changed. Discriminants
of the guess, among rows of the same class, then read it from all inputs, again and
again until nothing changes. All functions treat one replica, and rows [n, d] with
statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.learners.steady.directions_search import (
    ChangeTestResult,
    ClassMeansAndScatter,
    PrincipalAxes,
    RowsWithClasses,
    compute_class_moments,
    compute_means_by_group,
    find_principal_axes_within_classes,
    find_telling_entries,
    measure_change_of_means_along_pattern,
)

CHANGED_AXES = (5, 20)  # numbers of axes of a first guess
CHANGED = 3.0  # standard errors of a change that is hardly chance
AS_CLEAR = 0.5  # of the greatest separation, from which on candidates are as clear, if
# they are not read perfectly anyway: a mixture may be as clear as features, where
# statistics of images tell combinations of them
SAME_FEATURE = 0.98  # of the rows: readings of one clear feature differ in fewer
PART_OF_MIXTURE = 0.5  # of the largest change: a mixture of m features that changed
# alike has sqrt(m) times the z of each, which is half for four
SEPARATE = 3.3  # standard deviations between values of a feature after the first: a
# continuum that is cut in the middle has 2.65, features of images 4 to 500
CLEAR_WITHOUT_NETWORK = 10.0  # standard deviations between values, from which on
# discriminants read all
CUT_IN_TWO = 2.65  # standard deviations between halves of a normal distribution
CUT_IN_MANY = 12**0.5  # between neighbouring parts of an even one in equal parts
TURNS = 10  # at most; usually values are the same from the third turn on
FEW = 0.05  # axes for each row, to which a discriminant hardly adapts
NEIGHBOURS = 20  # rows, among which most have the class that their value suggests
MOST_NEIGHBOURS = 2000  # rows that are looked at
GIVEN_CLASS = 3  # turns in which values and what classes say of them are computed
KERNEL_RIDGE = 0.1  # of a kernel that is 1 for equal rows
FAR = 1e6  # coordinates of a value that no row has


class NearestCentreFeature(NamedTuple):
    """A function of rows [n, d]: the value whose centre is nearest.

    `scores` [d, k] are linear scores with unit covariance within values, `centres`
    [value, k] their means. Or, if `is_taught` is 1, the values are the answers of a
    network, and only the distances between centres mean something.
    """

    scores: Tensor
    centres: Tensor
    is_taught: Tensor


class InitialFeature(NamedTuple):
    """A first guess [n] of a feature, and the axes in which it is looked up.

    If `min_separation` is not zero, what it leads to is of use only if values are that
    far apart, and if there are as many as classes: few entries may tell some of many
    values only.
    """

    values: Tensor
    axes: PrincipalAxes
    min_separation: float = 0.0


class FeatureWithValues(NamedTuple):
    """A feature, and its values [n] on the rows that it was learned from.

    `separation` is how far apart rows of different values are, and `change` by how many
    standard errors what it says of the classes has changed.
    """

    feature: NearestCentreFeature
    values: Tensor
    separation: float
    change: float


def compute_feature_values(feature: NearestCentreFeature, rows: Tensor) -> Tensor:
    """Return the values [n] of a feature of rows [n, d]."""
    scores = (rows @ feature.scores.to(rows)).double()
    return torch.cdist(scores, feature.centres.double()).argmin(-1)


def compute_values_given_class(
    feature: NearestCentreFeature, rows: Tensor, targets: Tensor
) -> Tensor:
    """Return the values [n] of a feature where the classes [n] of rows are known.

    Scores are normal within the values of a clear feature, so that the log likelihood
    of a value is minus half the squared distance to its centre. What the class says of
    the value is added. Otherwise the networks would learn to correct what was misread.
    """
    scores = (rows @ feature.scores.to(rows)).double()
    likelihood = -torch.cdist(scores, feature.centres.double()).square() / 2
    k = likelihood.shape[1]
    values = likelihood.argmax(-1)
    for _ in range(GIVEN_CLASS):
        member = F.one_hot(values, k).double()
        table = (compute_means_by_group(member, targets, k) + 1e-3).log()
        values = (likelihood + table[targets]).argmax(-1)
    return values


def fit_nearest_centre_feature(
    rows: Tensor, values: Tensor, targets: Tensor, n_classes: int, axes: PrincipalAxes
) -> NearestCentreFeature:
    """Return the discriminant of values [n], given the classes [n] of rows."""
    scores = fit_value_discriminants(rows, values, targets, n_classes, axes)
    outcome = rows @ scores
    centres = compute_means_by_group(outcome, values, n_classes)
    root = _compute_whitening_within_values(outcome, centres, values)
    centres = centres @ root
    centres[torch.bincount(values, minlength=n_classes) == 0] = FAR
    return NearestCentreFeature(scores @ root, centres, torch.tensor(0.0))


def _compute_whitening_within_values(
    scores: Tensor, centres: Tensor, values: Tensor
) -> Tensor:
    """Return the matrix [k, k] after which scores [n, k] vary by 1 within values."""
    spread = scores - centres[values]
    sizes, turn = torch.linalg.eigh(spread.T @ spread / len(scores))
    return turn * sizes.clamp(min=1e-6 * float(sizes[-1]) + 1e-12).rsqrt()


def build_network_feature(
    values: Tensor, rows: Tensor, n_classes: int, separation: float
) -> FeatureWithValues:
    """Return a feature that a network was taught, with its held-out values [n].

    Its centres are as far apart as a kernel shows rows of different values to be.
    """
    scores = torch.zeros(rows.shape[1], n_classes).to(rows)
    centres = torch.eye(n_classes).to(rows) * separation / 2**0.5
    return FeatureWithValues(
        NearestCentreFeature(scores, centres, torch.tensor(1.0)), values, 0.0, 0.0
    )


def measure_distance_of_nearest_centres(feature: NearestCentreFeature) -> float:
    """Return how far apart the two nearest values are, in standard deviations."""
    gaps = torch.pdist(feature.centres.double())
    return float(gaps.min())


def shrink_centres_to_separation(
    feature: NearestCentreFeature, separation: float
) -> NearestCentreFeature:
    """Return the feature with centres as far apart as rows are that it has not seen.

    Discriminants separate the rows that they were fitted to better than others.
    """
    factor = min(
        1.0, separation / max(measure_distance_of_nearest_centres(feature), 1e-9)
    )
    return feature._replace(
        scores=factor * feature.scores, centres=factor * feature.centres
    )


def do_values_tell_more_about_class(
    values: Tensor, known_values: Tensor, targets: Tensor, n_classes: int
) -> bool:
    """Whether values [n] tell more of the class than the values `known_values` [n] do.

    Of two readings of one feature it is the better one that does: errors take
    information away.
    """
    scores = []
    for v in (values, known_values):
        table = compute_means_by_group(
            F.one_hot(targets, n_classes).double(), v, n_classes
        )
        scores.append(float(table[v, targets].log().sum()))
    return scores[0] > scores[1]


def build_first_feature_guesses(
    rows: Tensor,
    n_statistics: int,
    targets: Tensor,
    change: ChangeTestResult,
    axes: PrincipalAxes,
) -> list[InitialFeature]:
    """Return first guesses: the class as read from the axes that changed most.

    A mark is in few entries of an image, so that the class is also read from those that
    tell most of it, and from the one pixel and the one statistic that do: a single
    number is no mixture of features. With statistics of whole images there is also the
    class that most neighbours have by these alone: values of a feature are clusters of
    rows.
    """
    classes = int(targets.max()) + 1
    none = torch.zeros_like(targets)
    guesses = []
    for count in CHANGED_AXES:
        order = change.axes.argsort()[:count]
        some = PrincipalAxes(axes.vectors[:, order], axes.variances[order])
        feature = fit_nearest_centre_feature(rows, targets, none, classes, some)
        guesses.append(InitialFeature(compute_feature_values(feature, rows), axes))
    if n_statistics:
        means = compute_means_by_group(rows, targets, classes)
        variances = (rows - means[targets]).square().mean(0)
        counts = torch.bincount(targets, minlength=classes)
        every = torch.arange(rows.shape[1])
        pixels, statistics = every[:-n_statistics], every[-n_statistics:]
        telling, statistic = (
            part[find_telling_entries(means[:, part], variances[part], counts)]
            for part in (pixels, statistics)
        )
        for entries in (telling, telling[:1], statistic[:1]):
            few = _find_axes_of_entries(rows, targets, entries, classes)
            feature = fit_nearest_centre_feature(rows, targets, none, classes, few)
            values = compute_feature_values(feature, rows)
            guesses.append(InitialFeature(values, few, CLEAR_WITHOUT_NETWORK))
        few = _find_axes_of_entries(rows, targets, statistics, classes)
        scores = (
            rows @ fit_nearest_centre_feature(rows, targets, none, classes, few).scores
        )
        guesses.append(
            InitialFeature(_predict_values_by_neighbours(scores, targets, classes), few)
        )
    return guesses


def _predict_values_by_neighbours(
    scores: Tensor, values: Tensor, n_classes: int
) -> Tensor:
    """Return the most frequent value [n] among the nearest rows, of some rows."""
    known = scores[:MOST_NEIGHBOURS]
    near = torch.cdist(scores, known).topk(min(NEIGHBOURS, len(known)), largest=False)
    member = F.one_hot(values[:MOST_NEIGHBOURS], n_classes)
    return member[near.indices].sum(1).argmax(-1)


def list_clearest_changed_features(
    rows: Tensor,
    targets: Tensor,
    guesses: list[InitialFeature],
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
    new_rows: RowsWithClasses | None = None,
) -> list[FeatureWithValues]:
    """List the feature that inputs show most clearly, and others as clear as that.

    It is taken out of several first guesses. A mixture of two features, or with what
    tells the class, is mostly shown less clearly than either, but has changed more. So
    clear features come first if they may have changed and have changed by a good part
    of what any other one has. Otherwise it is the clearest one whose change is sure, or
    the one that changed most.
    """
    parts = past_moments, new_moments, axes, new_rows
    findings = [
        finding
        for guess in guesses
        for finding in _measure_features_of_guess(rows, targets, guess, *parts)
    ]
    largest = max((finding.change for finding in findings), default=0.0)
    clear = [
        finding
        for finding in findings
        if finding.separation > SEPARATE and finding.change > PART_OF_MIXTURE * largest
    ]
    if not clear:
        sure = [finding for finding in findings if finding.change > CHANGED]
        by_separation = sorted(sure, key=lambda finding: -finding.separation)
        by_change = sorted(findings, key=lambda finding: -finding.change)
        return (by_separation or by_change)[:1]
    clear.sort(key=lambda finding: -finding.separation)
    listed: list[FeatureWithValues] = []
    for finding in clear:
        least = min(CLEAR_WITHOUT_NETWORK, AS_CLEAR * clear[0].separation)
        is_as_clear = finding is clear[0] or finding.separation > least
        if is_as_clear and not any(_is_same_feature(finding, f) for f in listed):
            listed.append(finding)
    return listed


def _measure_features_of_guess(
    rows: Tensor,
    targets: Tensor,
    guess: InitialFeature,
    past_moments: ClassMeansAndScatter,
    new_moments: ClassMeansAndScatter,
    axes: PrincipalAxes,
    new_rows: RowsWithClasses | None,
) -> list[FeatureWithValues]:
    """Return the features that a guess and what it leads to are, if of any use."""
    classes = len(new_moments.counts)
    findings = []
    for values in (
        guess.values,
        _refine_guess_of_feature(rows, targets, guess, classes),
    ):
        count = len(values.unique())
        if count < 2 or (guess.min_separation and count < len(targets.unique())):
            continue
        pair = values, targets
        apart = _measure_separation_of_values(rows, *pair, classes, guess.axes)
        if apart < guess.min_separation:
            continue
        scores = fit_value_discriminants(rows, *pair, classes, guess.axes)
        z = measure_change_of_means_along_pattern(
            scores.T, past_moments, new_moments, axes, new_rows
        )
        feature = fit_nearest_centre_feature(rows, *pair, classes, guess.axes)
        feature = shrink_centres_to_separation(feature, apart)
        values = compute_feature_values(feature, rows)
        findings.append(FeatureWithValues(feature, values, apart, abs(z)))
    return findings


def _is_same_feature(one: FeatureWithValues, other: FeatureWithValues) -> bool:
    """Whether each tells the other in almost all rows, whatever values are called."""
    k = len(one.feature.centres)
    counts = torch.bincount(one.values * k + other.values, minlength=k * k)
    table = counts.unflatten(0, (k, k))
    return all(
        float(table.amax(axis).sum()) > SAME_FEATURE * len(one.values)
        for axis in (0, 1)
    )


def fit_value_discriminants(
    rows: Tensor, values: Tensor, targets: Tensor, n_classes: int, axes: PrincipalAxes
) -> Tensor:
    """Return linear scores [d, k] of the values of a feature, given the class."""
    member = F.one_hot(values, n_classes).to(rows)
    member = member - compute_means_by_group(member, targets, n_classes)[targets]
    centred = rows - compute_means_by_group(rows, targets, n_classes)[targets]
    along = axes.whiten_rows(centred, ridge=0.1)
    product = along.T @ along + len(rows) * 0.01 * torch.eye(along.shape[1]).to(along)
    solved = torch.linalg.solve(product, along.T @ member)
    spread = (axes.variances + 0.1 * axes.variances.mean()).sqrt()
    return axes.vectors @ (solved / spread[:, None])


def find_directions_of_feature(
    rows: Tensor, values: Tensor, targets: Tensor, n_classes: int
) -> Tensor:
    """Return directions [k, d] in which a feature moves the means of classes.

    For each class it is the difference between rows whose value is the class and
    others. The directions are orthonormal, or zero where there is nothing to compare.
    """
    traces = torch.zeros(n_classes, rows.shape[1]).to(rows)
    for c in range(n_classes):
        own, other = (
            (targets == c) & ((values == c) == same) for same in (True, False)
        )
        if own.any() and other.any():
            traces[c] = rows[own].mean(0) - rows[other].mean(0)
    _, sizes, axes = torch.linalg.svd(traces, full_matrices=False)
    return axes * (sizes > 1e-6 * sizes[0].clamp(min=1e-12))[:, None]


def _find_axes_of_entries(
    rows: Tensor, targets: Tensor, entries: Tensor, n_classes: int
) -> PrincipalAxes:
    """Return the axes of some entries of rows, within classes."""
    axes = find_principal_axes_within_classes(
        compute_class_moments(rows[:, entries], targets, n_classes)
    )
    vectors = torch.zeros(rows.shape[1], axes.vectors.shape[1]).to(rows)
    vectors[entries] = axes.vectors
    return PrincipalAxes(vectors, axes.variances)


def _split_rows_into_halves() -> list[tuple[slice, slice]]:
    """Return pairs of halves: every second row, and the others."""
    first, second = slice(0, None, 2), slice(1, None, 2)
    return [(first, second), (second, first)]


def _refine_guess_of_feature(
    rows: Tensor, targets: Tensor, guess: InitialFeature, n_classes: int
) -> Tensor:
    """Return the values [n] that a guess leads to.

    Along many axes, those of one half of the rows are read by discriminants of the
    other half, since rows would confirm their own values.
    """
    values = guess.values
    every = slice(None)
    is_few = guess.axes.vectors.shape[1] < FEW * len(rows)
    for _ in range(TURNS):
        last, values = values, values.clone()
        for one, other in [(every, every)] if is_few else _split_rows_into_halves():
            pair = last[one], targets[one]
            feature = fit_nearest_centre_feature(
                rows[one], *pair, n_classes, guess.axes
            )
            values[other] = compute_feature_values(feature, rows[other])
        if torch.equal(values, last) or len(values.unique()) < 2:
            break
    return values


def _measure_separation_of_values(
    rows: Tensor, values: Tensor, targets: Tensor, n_classes: int, axes: PrincipalAxes
) -> float:
    """Return how far apart rows with and without a value are along discriminants.

    They are learned from one half of the rows and looked up in the other. A part of a
    continuum that is cut in the middle has 2.65, a mixture of two features little more.
    With more than two classes it is the distance of the two nearest values, scaled so
    that a continuum that is cut in equal parts has 2.65, too.
    """
    scores = torch.zeros(len(rows), n_classes).to(rows)
    gaps = []
    for one, other in _split_rows_into_halves():
        pair = values[one], targets[one]
        found = rows[other] @ fit_value_discriminants(rows[one], *pair, n_classes, axes)
        scores[other] = found / found.std(0).clamp(min=1e-9)
        if n_classes > 2:
            gap = measure_gap_of_nearest_centres(found, values[other], n_classes)
            gaps.append(gap * CUT_IN_TWO / CUT_IN_MANY)
    if gaps:
        return min(gaps)
    return _measure_gap_between_values(scores, values, targets, n_classes)


def measure_gap_of_nearest_centres(
    scores: Tensor, values: Tensor, n_classes: int
) -> float:
    """Return the least distance between mean scores of two values, of scores [n, k].

    In standard deviations within values, along the line between the two means. The
    score of a single value would not do: among ten hues in a circle no line separates
    one from all others.
    """
    centres = compute_means_by_group(scores, values, n_classes)
    root = _compute_whitening_within_values(scores, centres, values)
    known = centres[torch.bincount(values, minlength=n_classes) > 1] @ root
    return float(torch.pdist(known).min()) if len(known) > 1 else 0.0


def measure_separation_by_kernel(
    rows: Tensor, candidates: list[Tensor], targets: Tensor, n_classes: int
) -> list[float]:
    """Return how far apart rows with and without each value of candidates [n] are.

    Along the discriminants of a Gaussian kernel, which reads what a network can: ridge
    regressions of the values, with a level for each class, on rows left out one by one.
    A mixture of features is less far apart than the features themselves.
    """
    rows, targets = rows[:MOST_NEIGHBOURS], targets[:MOST_NEIGHBOURS]
    squares = torch.cdist(rows, rows).square()
    kernel = (-squares / squares.median().clamp(min=1e-12)).exp()
    inverse = torch.linalg.inv(kernel + KERNEL_RIDGE * torch.eye(len(rows)).to(rows))
    level = F.one_hot(targets, n_classes).to(rows)[:, targets.unique()]
    levels = level @ torch.linalg.solve(level.T @ inverse @ level, level.T @ inverse)
    rest = inverse - inverse @ levels
    separations = []
    for values in candidates:
        values = values[:MOST_NEIGHBOURS]
        member = F.one_hot(values, n_classes).to(rows)
        residuals = rest @ member / rest.diagonal()[:, None]
        scores = member - residuals - levels @ member
        separations.append(
            _measure_gap_between_values(scores, values, targets, n_classes)
        )
    return separations


def _measure_gap_between_values(
    scores: Tensor, values: Tensor, targets: Tensor, n_classes: int
) -> float:
    """Return how far apart rows with and without a value are, given the class.

    In standard deviations of the value's score, of scores [n, k].
    """
    member = F.one_hot(values, n_classes).bool()
    total, weight = 0.0, 0.0
    for v in range(n_classes):
        cells = member[:, v] * n_classes + targets
        counts = torch.bincount(cells, minlength=2 * n_classes).unflatten(0, (2, -1))
        means = compute_means_by_group(scores[:, v : v + 1], cells, 2 * n_classes)
        spread = (scores[:, v : v + 1] - means[cells]).square().mean().sqrt()
        shared = (counts.prod(0) / counts.sum(0).clamp(min=1)).to(scores)
        without, having = means[:, 0].unflatten(0, (2, -1))
        gap = (shared * (having - without)).sum() / spread.clamp(min=1e-9)
        total, weight = total + float(gap), weight + float(shared.sum())
    return total / max(weight, 1e-9)
