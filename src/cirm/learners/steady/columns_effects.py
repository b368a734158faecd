"""What each feature says about the target given all others, environment by environment.

The effect is measured in the generative direction: by how much the feature differs
between classes (or along a numerical target) given the other columns, over its
remaining variance. That is the change of the log odds per unit of the feature. Other
than the coefficient of a regression of the target it can be estimated without labels
later (see `columns_adapt`), and it is unbiased with few rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import ROWS_AT_ONCE
from cirm.learners.steady.meta_analysis import (
    UNKNOWN,
    combine_effects_of_environments,
)

LEAST_ALIGNMENT = (
    0.1  # spread of the mean log likelihood of the true class that matters
)
FEWEST_ROWS = 20  # of an environment, to measure effects at all
FEWEST_CASES = 5  # of each class, and of each value of a two-valued feature
HAUSMAN = 2.0  # standard errors by which plain and partial effects may differ
DIFFERENT = 0.05  # p-value below which the noise of environments is not shared
LEAST_EFFECT = 0.3  # log odds per standard deviation: moves a probability by 7 points
LEAST_VALUE_EFFECT = 0.15  # the same in a regression, per standard deviation of noise


class EffectEstimates(NamedTuple):
    """What an environment shows of effects: tensors [d, k], or [e, d, k] of several.

    The effect is `slope / noise`. Both are kept, since environments often have equal
    noise, and then share its estimate.

    Attributes:
        slope: Change of a standardised feature with the target given other units. For
            a two-valued feature and classes, the log odds ratio per unit.
        variance: Sampling variance of the slope; `UNKNOWN` if there was nothing to see.
        noise: Remaining variance of the feature; 1 where the slope is the effect.
        noise_variance: Sampling variance of the logarithm of the noise.
    """

    slope: Tensor
    variance: Tensor
    noise: Tensor
    noise_variance: Tensor

    def compute_effects_and_variances(self) -> tuple[Tensor, Tensor]:
        """Return the effects of several environments, and their variances.

        Environments share one estimate of the noise, unless theirs differ.
        """
        logs = self.noise.clamp(min=1e-9).log()
        errors = self.noise_variance.clamp(min=1e-12)
        errors = torch.where(self.variance < UNKNOWN, errors, UNKNOWN)
        summary = combine_effects_of_environments(logs, errors)
        between = summary.spread.square()
        part = between / (between + errors)  # of its own estimate that is kept
        part = torch.where(summary.p_value() < DIFFERENT, part, 0.0)
        noise = (part * logs + (1 - part) * summary.mean).exp()
        effects = self.slope / noise
        variances = self.variance / noise.square()
        variances = variances + effects.square() * part * errors
        known = self.variance < UNKNOWN
        return torch.where(known, effects, 0.0), torch.where(known, variances, UNKNOWN)


def compute_standardised_ranks(values: Tensor) -> Tensor:
    """Return the ranks of values [n], with mean 0 and variance 1; equal ones share one.

    The ranks of a target within its environment change with neither its unit nor its
    level, and no outlier counts for more than another row.
    """
    ordered = values.contiguous().sort().values
    below = torch.searchsorted(ordered, values.contiguous())
    above = torch.searchsorted(ordered, values.contiguous(), right=True)
    ranks = (below + above).to(values)
    ranks = ranks - ranks.mean()
    return ranks / ranks.std(correction=0).clamp(min=1e-9)


def measure_feature_effects(
    features: Tensor,
    targets: Tensor,
    unit_of_feature: Tensor,
    past_covariance: Tensor,
    is_regression: bool,
    needs_no_adjustment: Tensor | None = None,
) -> EffectEstimates:
    """Measure what features say about the targets in one environment.

    Args:
        features: Standardised features, [n, d].
        targets: Zeros and ones of each output, or values, [n, k].
        unit_of_feature: Unit of each feature, [d]; others are those of other units.
        past_covariance: Covariance matrix of features within environments seen before,
            [d, d], which is worth as many rows as there are features; empty if there is
            none.
        is_regression: Whether the targets are values of a regression.
        needs_no_adjustment: Which features need no adjustment for others, [d]; chosen
            by these rows if it is missing.
    """
    n = len(features)
    if targets.shape[1] > 1:
        contrasts = _estimate_effects_on_classes(features, targets)
    else:
        parts = _estimate_effects_on_output(
            features,
            targets[:, 0],
            unit_of_feature,
            past_covariance,
            is_regression,
            needs_no_adjustment,
        )
        contrasts = EffectEstimates(*(part[:, None] for part in parts))
    low, high = features.amin(0), features.amax(0)
    constant = (high - low < 1e-9)[:, None]
    binary = ((features == low) | (features == high)).all(0)
    rare = torch.minimum((features == low).sum(0), (features == high).sum(0))
    useless = constant | (binary & (rare < FEWEST_CASES))[:, None]
    if n < FEWEST_ROWS:
        useless |= True
    if not is_regression:
        useless = useless | (
            torch.minimum(targets.sum(0), n - targets.sum(0)) < FEWEST_CASES
        )
    variance = torch.where(useless, UNKNOWN, contrasts.variance)
    return contrasts._replace(variance=variance)


class FeatureAndTargetResiduals(NamedTuple):
    """Features and target of an environment given the features of other units.

    Attributes:
        joint: Features and target, centred, [n, d + 1].
        gram: Their sums of products, [d + 1, d + 1].
        own: Each feature given those of other units, [n, d].
        other: The target given the same features, [n, d].
    """

    joint: Tensor
    gram: Tensor
    own: Tensor
    other: Tensor

    @property
    def degrees_of_freedom_factor(self) -> float:
        """Factor of variances for the degrees of freedom that the features took."""
        n, d = self.own.shape
        return n / max(n - d, n / 2)


def compute_residuals_given_other_columns(
    features: Tensor, target: Tensor, unit_of_feature: Tensor, past_covariance: Tensor
) -> FeatureAndTargetResiduals:
    """Compute what is left of features [n, d] and a target [n] given other units."""
    n, d = features.shape
    joint = torch.cat([features, target[:, None]], 1)
    joint = joint - joint.mean(0)
    gram = joint.T @ joint
    ridge = gram.diagonal().clone() * d / n * 0.1 + 0.5
    ridge[-1] = 0.0 if float(gram[-1, -1]) > 0 else 1.0
    prior = torch.diag(ridge)
    if len(past_covariance):
        prior[:d, :d] += min(n, d) * past_covariance
    inverse = torch.linalg.inv(gram + prior)
    weights = inverse.new_zeros(d + 1, 2, d)
    for leader in unit_of_feature.unique().tolist():
        members = (unit_of_feature == leader).nonzero()[:, 0]
        both = torch.cat([members, torch.tensor([d])])
        corner = torch.linalg.inv(inverse[both][:, both])
        weights[both[:, None], 0, members] = corner[:, :-1]
        weights[both[:, None], 1, members] = corner[:, -1:]
    # One product for all units: reading some columns of many rows would take longer.
    own, other = (joint @ (inverse @ weights.flatten(1))).chunk(2, 1)
    return FeatureAndTargetResiduals(joint, gram, own, other)


def measure_partial_coefficients(
    features: Tensor, target: Tensor, unit_of_feature: Tensor, past_covariance: Tensor
) -> Tensor:
    """Measure what features [n, d] add to a target [n], given those of other units.

    Returns:
        Coefficients and their variances, [d, 2]; `UNKNOWN` if there is nothing to see.
    """
    left = compute_residuals_given_other_columns(
        features, target, unit_of_feature, past_covariance
    )
    found = regress_each_response_on_own_regressor(
        left.other, left.own, left.degrees_of_freedom_factor
    )
    is_seen = left.own.std(0) > 1e-6 if len(features) >= FEWEST_ROWS else False
    variance = torch.where(torch.as_tensor(is_seen), found.variance, UNKNOWN)
    return torch.stack([found.slope, variance], 1)


def _estimate_effects_on_output(
    features: Tensor,
    target: Tensor,
    unit_of_feature: Tensor,
    past_covariance: Tensor,
    is_regression: bool,
    needs_no_adjustment: Tensor | None,
) -> EffectEstimates:
    """Return the contrasts [d] between two classes, or along a value."""
    plain, partial, chosen = _estimate_plain_and_partial_effects(
        features, target, unit_of_feature, past_covariance
    )
    needs_no_adjustment = (
        chosen
        if needs_no_adjustment is None or not len(needs_no_adjustment)
        else needs_no_adjustment
    )
    contrasts = EffectEstimates(
        *(
            torch.where(needs_no_adjustment, a, b)
            for a, b in zip(plain, partial, strict=True)
        )
    )
    if is_regression:
        return contrasts
    return _replace_effects_by_log_odds_ratios(
        features, float(target.mean()), contrasts
    )


def _estimate_plain_and_partial_effects(
    features: Tensor, target: Tensor, unit_of_feature: Tensor, past_covariance: Tensor
) -> tuple[EffectEstimates, EffectEstimates, Tensor]:
    """Return contrasts without and with adjustment, and where the first will do."""
    n, d = features.shape
    left = compute_residuals_given_other_columns(
        features, target, unit_of_feature, past_covariance
    )
    partial = regress_each_response_on_own_regressor(
        left.own, left.other, left.degrees_of_freedom_factor
    )
    plain = regress_each_response_on_own_regressor(
        left.joint[:, :d], left.joint[:, d:], 1.0
    )
    independent = _find_independent_features(left.gram, n)
    return (
        plain,
        partial,
        independent & _find_agreeing_plain_and_partial_effects(plain, partial),
    )


def find_features_needing_no_adjustment(
    features: Tensor, targets: Tensor, unit_of_feature: Tensor
) -> Tensor:
    """Return which features [d] need no adjustment for the others.

    This is decided once, by the first environment: an adjusted effect of one and a
    plain one of another must not be compared.

    Args:
        features: Standardised features, [n, d].
        targets: Zeros and ones of each output, or values, [n, k].
        unit_of_feature: Unit of each feature, [d].
    """
    if targets.shape[1] > 1 or len(features) < FEWEST_ROWS:
        return torch.zeros_like(unit_of_feature, dtype=torch.bool)
    return _estimate_plain_and_partial_effects(
        features, targets[:, 0], unit_of_feature, features[:0]
    )[2]


def regress_each_response_on_own_regressor(
    responses: Tensor, regressors: Tensor, variance_factor: float
) -> EffectEstimates:
    """Regress responses [n, d] each on its own regressor [n, d] or on one [n, 1].

    Args:
        responses: The responses, centred.
        regressors: The regressors, centred.
        variance_factor: Factor of variances for the degrees of freedom that
            were used before.
    """
    n, d = responses.shape
    weight, slope, squared, variance, fourth = responses.new_zeros(5, d)
    parts = list(
        zip(responses.split(ROWS_AT_ONCE), regressors.split(ROWS_AT_ONCE), strict=True)
    )
    for a, b in parts:
        weight += b.square().sum(0)
        slope += (a * b).sum(0)
    weight += 1e-9
    slope /= weight
    for a, b in parts:
        squares = (a - slope * b).square()
        squared += squares.sum(0)
        variance += (squares * b.square()).sum(0)
        fourth += squares.square().sum(0)
    noise = squared / n * variance_factor + 1e-9
    variance = variance / weight.square() * variance_factor
    kurtosis = fourth / n / ((squared / n).square() + 1e-12)
    noise_variance = (kurtosis.clamp(max=20) - 1).clamp(min=0.5) / n * variance_factor
    return EffectEstimates(slope, variance + 1e-9, noise, noise_variance)


def _find_agreeing_plain_and_partial_effects(
    plain: EffectEstimates, partial: EffectEstimates
) -> Tensor:
    """Return for which features plain and partial effects agree, [d].

    That is Hausman's test: if both estimate the same, the variance of their difference
    is that of their variances.
    """
    effects, variances = [], []
    for part in (plain, partial):
        effects.append(part.slope / part.noise)
        variances.append(part.variance / part.noise.square())
    spread = (variances[1] - variances[0]).clamp(min=0) + 0.1 * variances[0]
    return (effects[0] - effects[1]).square() <= HAUSMAN**2 * spread


def _estimate_effects_on_classes(features: Tensor, targets: Tensor) -> EffectEstimates:
    """Return the contrasts of each of many classes with their average, [d, k].

    All classes count alike, so that their frequencies do not matter.
    """
    counts = targets.sum(0).clamp(min=1)
    k = len(counts)
    means = (targets.T @ features) / counts[:, None]
    squares = (features - targets @ means).square()
    within = (targets.T @ squares) / counts[:, None]
    noise = squares.mean(0) + 1e-9
    kurtosis = squares.square().mean(0) / noise.square()
    low, high = features.amin(0), features.amax(0)
    binary = ((features == low) | (features == high)).all(0) & (high > low)
    gap = (high - low).clamp(min=1e-9)
    rates = ((means - low) / gap * counts[:, None] + 0.5) / (counts[:, None] + 1)
    values = torch.where(binary, rates.logit() / gap, means)
    steepness = 1 / (rates * (1 - rates) * counts[:, None]) / gap.square()
    errors = torch.where(binary, steepness, within / counts[:, None])
    # The contrast with the average of all has its own error, less what it shares.
    variance = errors * (1 - 2 / k) + errors.mean(0) / k
    noises = torch.where(binary, 1.0, noise)
    noise_variance = torch.where(
        binary, 1e-12, (kurtosis.clamp(max=20) - 1).clamp(min=0.5) / len(features)
    )
    return EffectEstimates(
        (values - values.mean(0)).T,
        variance.T + 1e-9,
        noises[:, None].expand(-1, k),
        noise_variance[:, None].expand(-1, k),
    )


def measure_alignment_with_first_effects(
    features: Tensor, targets: Tensor, first_effects: Tensor, unit_of_feature: Tensor
) -> tuple[Tensor, Tensor]:
    """Measure how far units speak for the true class, if they mean what they did.

    The evidence of a unit for the true class, less that for an average class, is
    averaged over the rows of each class. With many classes these few numbers show a
    change of the whole table of effects with far more power than its entries do.

    Args:
        features: Standardised features, [n, d].
        targets: Zeros and ones of each class, [n, k].
        first_effects: Effects of the features in the first environment, [d, k].
        unit_of_feature: Unit of each feature, [d].

    Returns:
        The means and their variances, [d, k], at the first feature of each unit; other
        variances are `UNKNOWN`, and those of classes with too few rows.
    """
    mean = torch.zeros_like(first_effects)
    variance = torch.full_like(mean, UNKNOWN)
    counts = targets.sum(0)
    if targets.shape[1] < 3:
        return mean, variance
    own = (first_effects - first_effects.mean(1, keepdim=True)).T  # [k, d]
    evidence = features * (targets @ own)
    rows = counts.clamp(min=1)
    for leader in unit_of_feature.unique().tolist():
        score = evidence[:, unit_of_feature == leader].sum(1, keepdim=True)
        mean[leader] = (targets * score).sum(0) / rows
        spread = (targets * (score - targets @ mean[leader][:, None]).square()).sum(0)
        variance[leader] = spread / rows.square() + 1e-9
    return mean, torch.where(counts < FEWEST_CASES, UNKNOWN, variance)


def average_alignments_over_classes(
    means: Tensor, variances: Tensor, cases: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the alignments of units, and their variances, as one number each.

    Classes count by their rows. By the precision of their alignment, those of which a
    unit says nothing would count most, since their alignment is zero without an error.
    Classes that were not measured everywhere are left out.

    Args:
        means: Alignments [e, d, k] of environments.
        variances: Their sampling variances.
        cases: Rows of each class, [e, k].

    Returns:
        Means and variances, [e, d, 1].
    """
    known = (variances < UNKNOWN).all(0)
    weights = torch.where(known, 1 / (1 / cases.clamp(min=1)).sum(0), 0.0)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    mean = (weights * means).sum(2, keepdim=True)
    variance = (weights.square() * variances).sum(2, keepdim=True)
    is_known = known.any(1, keepdim=True)
    return mean, torch.where(is_known, variance, UNKNOWN)


def _find_independent_features(gram_matrix: Tensor, n_rows: int) -> Tensor:
    """Return which features have no relation to the others given the target, [d].

    Their plain contrast between classes is the partial one, and far more precise.
    """
    d = len(gram_matrix) - 1
    given = gram_matrix[:d, :d] - torch.outer(
        gram_matrix[:d, d], gram_matrix[d, :d]
    ) / (gram_matrix[d, d] + 1e-9)
    norms = given.diagonal().clamp(min=1e-9).sqrt()
    squares = (given / norms / norms[:, None]).square()
    squares.fill_diagonal_(0.0)
    return squares.amax(0) <= compute_least_squared_correlation(n_rows, d)


def compute_least_squared_correlation(n_rows: int, n_features: int) -> float:
    """Return the squared correlation from which on features count as related."""
    return max(0.05, 4 * math.log(n_features + 1) / n_rows)


def _replace_effects_by_log_odds_ratios(
    features: Tensor, frequency: float, contrasts: EffectEstimates
) -> EffectEstimates:
    """Return contrasts in which those of two-valued features are log odds ratios."""
    n = len(features)
    low, high = features.amin(0), features.amax(0)
    binary = ((features == low) | (features == high)).all(0) & (high > low)
    gap = (high - low).clamp(min=1e-9)
    rate = ((features - low) / gap).mean(0)
    least = 0.5 / n
    slope = contrasts.slope / gap
    ones = (rate + slope * (1 - frequency)).clamp(least, 1 - least)
    zeros = (rate - slope * frequency).clamp(least, 1 - least)
    steepness = (1 - frequency) / (ones * (1 - ones))
    steepness = steepness + frequency / (zeros * (1 - zeros))
    ratio = (ones.logit() - zeros.logit()) / gap
    variance = contrasts.variance * (steepness / gap.square()).square()
    return contrasts._replace(
        slope=torch.where(binary, ratio, contrasts.slope),
        variance=torch.where(binary, variance, contrasts.variance),
        noise=torch.where(binary, 1.0, contrasts.noise),
        noise_variance=torch.where(binary, 1e-12, contrasts.noise_variance),
    )
