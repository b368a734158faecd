"""What features say of the classes in an environment: tables P(value | class).

With the probabilities f(y | s) of a model that does not see the features u, the rows of
an environment are a mixture over classes, sum_y f(y | s) prod_j P(u_j | y). With labels
its tables are counted; without, they are estimated by expectation maximisation. All
functions treat one replica; tables are [feature, class, value].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.randomness import Randomness

PSEUDO_ROWS = 1.0  # of the even prior, for each class: it rules out nothing
STEPS = 300  # of EM at most; it ends when no probability moves by 1e-5
CONCENTRATIONS = (1.0, 4.0, 16.0, 64.0)  # pseudo-rows of a class's prior
SAME = 0.01  # largest difference of two tables that EM has found twice
SEEN = 16.0  # pseudo-rows of the environments seen, and of their mirror image
NOISE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # shares of rows with a random label
FACTORS = torch.logspace(-1.5, 1.5, 46).double()  # of logits, that are compared
FACTOR_SPREAD = 1.5  # of the prior of the logarithm of a factor: networks are rarely
# wrong by more than 20 times
MOST_CALIBRATION_ROWS = 5000  # enough for two digits
SILENT = 0.2  # prior probability that a feature says nothing, as for columns
DRAWS = 32  # tables drawn from the posterior, in pairs of opposite noise


class ValueTableEstimate(NamedTuple):
    """Estimated tables, and log tables drawn from their posterior [draw, ...].

    `error` [feature, class, value] is the standard error of each log probability, and
    `nothing` the posterior probability that features say nothing.
    """

    tables: Tensor
    draws: Tensor
    error: Tensor
    nothing: float


def count_feature_values_by_class(
    values: Tensor, targets: Tensor, n_classes: int
) -> Tensor:
    """Return how often each value [feature, n] comes with each class."""
    counts = torch.zeros(len(values), n_classes * n_classes, dtype=torch.float64)
    for row, feature in zip(counts, values, strict=True):
        row += torch.bincount(targets * n_classes + feature, minlength=n_classes**2)
    return counts.unflatten(1, (n_classes, n_classes))


def convert_counts_to_probabilities(counts: Tensor) -> Tensor:
    """Return the tables of counts, with the pseudo-rows of the prior."""
    counts = counts + PSEUDO_ROWS / counts.shape[-1]
    return counts / counts.sum(-1, keepdim=True)


def compute_class_log_likelihoods(log_tables: Tensor, values: Tensor) -> Tensor:
    """Return what values [feature, n] say of each class, [..., n, class].

    `log_tables` are [..., feature, class, value]; the evidence of features adds up.
    """
    total = torch.zeros(*log_tables.shape[:-3], values.shape[1], log_tables.shape[-2])
    total = total.to(log_tables)
    for j, feature in enumerate(values):
        total = total + log_tables[..., j, :, :][..., feature].transpose(-1, -2)
    return total


def estimate_value_tables_by_em(
    logits: Tensor, values: Tensor, known_tables: Tensor | None = None
) -> ValueTableEstimate:
    """Estimate the tables of rows without labels, by EM from the stable logits [n, k].

    Class frequencies are those of the logits. The prior of a class's table is a
    Dirichlet distribution, about the frequencies of the values in the rows and more or
    less concentrated, or about the tables of environments with labels, if
    `known_tables` are given. With two classes EM may also lead to the mirror image, in
    which the tables of the classes are exchanged. Each of these is weighted by its
    evidence (Laplace's approximation), and so is "features say nothing here".
    """
    logits = logits.double()
    member = F.one_hot(values, logits.shape[1]).double()  # [feature, n, value]
    even = convert_counts_to_probabilities(member.sum(1))[:, None].expand(
        -1, logits.shape[1], -1
    )
    weights = logits.softmax(-1)
    start = convert_counts_to_probabilities(
        torch.einsum("nc,jnv->jcv", weights, member)
    )
    starts = [start, start.flip(1)] if logits.shape[1] == 2 else [start]
    modes: list[_ValueTablePosteriorMode] = []
    for tables in starts:
        for i, rows in enumerate(CONCENTRATIONS):
            tables = _estimate_value_tables_from_start(
                tables, rows * even, logits, values, member
            )
            known = modes[i].tables if len(modes) > i else None
            if known is None or (known - tables).abs().max() > SAME:
                parts = rows * even, logits, values, member
                modes.append(_approximate_posterior_of_value_tables(tables, *parts))
    images = (
        []
        if known_tables is None
        else [known_tables.double(), known_tables.double().flip(1)]
    )
    for tables in images[: len(starts)]:
        parts = SEEN * tables, logits, values, member
        modes.append(
            _approximate_posterior_of_value_tables(
                _estimate_value_tables_from_start(tables, *parts), *parts
            )
        )
    nothing = float(_compute_total_log_likelihood(even, logits, values))
    evidence = torch.tensor([*(mode.evidence for mode in modes), nothing])
    shares = evidence.softmax(0)
    best = modes[int(shares[:-1].argmax())]
    return ValueTableEstimate(
        best.tables,
        _draw_log_value_tables(modes, even, shares),
        best.compute_standard_errors_of_value_tables(),
        float(shares[-1]),
    )


def draw_value_tables_near_estimate(
    estimated_tables: Tensor, logits: Tensor, values: Tensor
) -> Tensor:
    """Return log tables [draw, ...] of the mode that is nearest to an estimate.

    The estimate may come from logits that were calibrated otherwise. As before, some
    draws are those of features that say nothing.
    """
    logits = logits.double()
    member = F.one_hot(values, logits.shape[1]).double()
    even = convert_counts_to_probabilities(member.sum(1))[:, None].expand(
        -1, logits.shape[1], -1
    )
    parts = CONCENTRATIONS[0] * even, logits, values, member
    found = _estimate_value_tables_from_start(estimated_tables.double(), *parts)
    mode = _approximate_posterior_of_value_tables(found, *parts)
    nothing = float(_compute_total_log_likelihood(even, logits, values))
    prior = math.log(1 - SILENT), math.log(SILENT)
    shares = torch.tensor([mode.evidence + prior[0], nothing + prior[1]]).softmax(0)
    return _draw_log_value_tables([mode], even, shares)


class _ValueTablePosteriorMode(NamedTuple):
    """Tables to which EM leads, a root of their covariance, and the evidence."""

    tables: Tensor
    root: Tensor
    evidence: float

    def compute_standard_errors_of_value_tables(self) -> Tensor:
        """Return the standard error of each log probability.

        It is that of the logit less the mean logit of the class.
        """
        spread = self.root.unflatten(0, self.tables.shape)
        spread = spread - (self.tables[..., None] * spread).sum(2, keepdim=True)
        return spread.square().sum(-1).sqrt()


def _draw_log_value_tables(
    modes: list[_ValueTablePosteriorMode], even: Tensor, shares: Tensor
) -> Tensor:
    """Return log tables [draw, ...] from modes, the last share being that of `even`."""
    bounds = (DRAWS * shares.cumsum(0)).round().long().tolist()
    draws = even.log().expand(DRAWS, *even.shape).clone()
    noise = Randomness((0,), ("posterior",)).normal(DRAWS // 2, even.numel())[0]
    noise = torch.cat([noise, -noise]).double()
    noise = noise.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)  # opposite pairs
    if even.shape[1] > 2:  # few draws of many odds are noise: their mean is used
        noise = 0 * noise
    for mode, first, last in zip(modes, [0, *bounds], bounds, strict=False):
        shift = (noise[first:last] @ mode.root.T).unflatten(1, even.shape)
        draws[first:last] = (mode.tables.log() + shift).log_softmax(-1)
    return draws


def _estimate_value_tables_from_start(
    tables: Tensor,
    prior: Tensor,
    logits: Tensor,
    values: Tensor,
    one_hot_values: Tensor,
) -> Tensor:
    """Return the tables to which EM leads with the pseudo-rows of a prior."""
    for _ in range(STEPS):
        weights = (
            logits + compute_class_log_likelihoods(tables.log(), values)
        ).softmax(-1)
        last = tables
        tables = torch.einsum("nc,jnv->jcv", weights, one_hot_values) + prior
        tables = tables / tables.sum(-1, keepdim=True)
        if (tables - last).abs().max() < 1e-4:
            break
    return tables


def _compute_total_log_likelihood(
    tables: Tensor, logits: Tensor, values: Tensor
) -> Tensor:
    """Return the log likelihood of the values of all rows."""
    scores = logits.log_softmax(-1) + compute_class_log_likelihoods(
        tables.log(), values
    )
    return scores.logsumexp(-1).sum()


def _approximate_posterior_of_value_tables(
    tables: Tensor,
    prior: Tensor,
    logits: Tensor,
    values: Tensor,
    one_hot_values: Tensor,
) -> _ValueTablePosteriorMode:
    """Return a mode with its covariance in the log odds, and its evidence.

    The information is that of the rows (the scatter of their scores) and of the prior.
    """
    weights = (logits + compute_class_log_likelihoods(tables.log(), values)).softmax(-1)
    # The derivative of a row's log likelihood in the log odds of the tables.
    slopes = weights[None, :, :, None] * (one_hot_values[:, :, None] - tables[:, None])
    slopes = slopes.transpose(0, 1).flatten(1)
    spread = torch.diag_embed(tables) - tables[..., :, None] * tables[..., None, :]
    size = tables.shape[-1]
    # Only differences within a class matter; a unit is added along their mean.
    blocks = prior.sum(-1)[..., None, None] * spread + 1 / size
    blocks = torch.block_diag(*blocks.flatten(0, 1))
    information, axes = torch.linalg.eigh(slopes.T @ slopes + blocks)
    information = information.clamp(min=1e-6)
    density = (prior * tables.log()).sum() - prior.lgamma().sum()
    density = density + prior.sum(-1).lgamma().sum()
    count = tables.shape[0] * tables.shape[1]
    volume = count * ((size - 1) * math.log(2 * math.pi) + math.log(size)) / 2
    evidence = _compute_total_log_likelihood(tables, logits, values) + density + volume
    evidence = evidence - information.log().sum() / 2
    return _ValueTablePosteriorMode(tables, axes / information.sqrt(), float(evidence))


def fit_logit_temperature(logits: Tensor, offset: Tensor, targets: Tensor) -> float:
    """Return the factor of logits [n, k] that makes held-out rows most likely.

    Newton's method on the only number, with the offset [n, k] in place.
    """
    logits, scale = logits.double(), 1.0
    for _ in range(20):
        p = (scale * logits + offset).softmax(-1)
        mean = (p * logits).sum(-1)
        slope = (logits.gather(1, targets[:, None])[:, 0] - mean).sum()
        bend = ((p * logits.square()).sum(-1) - mean.square()).sum()
        step = float(slope - (scale - 1)) / float(bend + 1)  # held to 1 by one row
        scale = min(max(scale + step, 0.05), 5.0)
    return scale


def fit_logit_calibration(logits: Tensor, offset: Tensor, targets: Tensor) -> Tensor:
    """Return factors of logits and their weights [share, 2], for each share of noise.

    If the label of a share of rows is random, no row is certain, however clear the
    inputs are. A factor alone would then make clear rows too certain or all others too
    uncertain, and an adaptation would hear too much of the features. For each share the
    factor is the most likely one; shares are weighted by their likelihood on held-out
    rows, with the offset [n, k] in place.
    """
    thin = slice(None, None, -(-len(targets) // MOST_CALIBRATION_ROWS))
    logits, offset, chosen = logits[thin].double(), offset[thin], targets[thin, None]
    prior = -(FACTORS.log() / FACTOR_SPREAD).square() / 2
    fits = torch.zeros(len(NOISE), len(FACTORS)).double()
    for j, factor in enumerate(FACTORS):
        beliefs = (factor * logits).softmax(-1)
        for i, share in enumerate(NOISE):
            scores = (_add_label_noise(beliefs, share).log() + offset).log_softmax(-1)
            fits[i, j] = scores.gather(1, chosen).sum() + prior[j]
    best = fits.max(1)
    return torch.stack([FACTORS[best.indices], best.values.softmax(0)], 1)


def calibrate_logits(logits: Tensor, calibration: Tensor) -> Tensor:
    """Return logits [n, k] averaged over shares of noise, given their calibration."""
    total = torch.zeros_like(logits, dtype=torch.float64)
    for share, (factor, weight) in zip(NOISE, calibration.double(), strict=True):
        beliefs = (factor * logits.double()).softmax(-1)
        total = total + weight * _add_label_noise(beliefs, share)
    scores = total.clamp(min=1e-30).log()
    return (scores - scores.mean(-1, keepdim=True)).to(logits)


def _add_label_noise(beliefs: Tensor, share: float) -> Tensor:
    """Return probabilities [n, k] if the labels of a share of rows are random."""
    return (1 - share) * beliefs.clamp(min=1e-30) + share / beliefs.shape[1]


class FeatureLeakIntoLogits(NamedTuple):
    """What logits say of features beyond the class: [feature, value, class].

    `parts` are shrunk by their noise. `size` is the root mean square before, and
    `error` that of the noise, in units of the separation of classes by the logits.
    """

    parts: Tensor
    size: float
    error: float


def measure_feature_leak_into_logits(
    logits: Tensor, values: Tensor, targets: Tensor
) -> FeatureLeakIntoLogits:
    """Regress logits [n, k] on values [feature, n], with a level for each class."""
    logits = logits.double()
    classes = logits.shape[1]
    if not len(values):
        return FeatureLeakIntoLogits(
            torch.zeros(0, classes, classes).double(), 0.0, 0.0
        )
    design = F.one_hot(values, classes).double().transpose(0, 1).flatten(1)
    level = F.one_hot(targets, classes).double()
    inverse = torch.linalg.pinv(level)
    rest, outcome = (t - level @ (inverse @ t) for t in (design, logits))
    square = rest.T @ rest
    parts = torch.linalg.pinv(square, rtol=1e-6) @ (rest.T @ outcome)
    fitted = rest @ parts
    freedom = int((torch.linalg.eigvalsh(square) > 1e-6 * len(rest)).sum())
    size = fitted.square().mean().sqrt()
    error = ((outcome - fitted).square().mean() * freedom / len(rest)).sqrt()
    means = inverse @ logits
    own = means.diagonal()
    others = (means.sum(0) - own) / max(1, classes - 1)
    separation = (own - others).mean().clamp(min=1e-6)
    kept = (1 - (error / size.clamp(min=1e-12)).square()).clamp(min=0)
    parts = kept * parts.unflatten(0, (len(values), classes))
    parts = parts - parts.mean(1, keepdim=True)
    return FeatureLeakIntoLogits(
        parts, float(size / separation), float(error / separation)
    )


def infer_value_table_of_past_rows(
    scores: Tensor, means: Tensor, values: Tensor, targets: Tensor
) -> Tensor:
    """Return the table [class, value] of earlier rows, of which only means are known.

    `scores` [n, s] of the rows at hand are a level of the class plus a part of the
    value; with `means` [class, s] of the same scores in earlier rows, the share of each
    value follows by least squares. It is zero if scores have fewer dimensions than
    values differ in, so that several tables have the same means.
    """
    classes = len(means)
    design = torch.cat([F.one_hot(v, classes) for v in (values, targets)], 1).to(scores)
    parts = torch.linalg.pinv(design, rtol=1e-6) @ scores
    by_value, by_class = parts.split(classes)
    centred = by_value - by_value.mean(0)
    if int(torch.linalg.matrix_rank(centred, rtol=1e-3)) < classes - 1:
        return torch.zeros(classes, classes).to(scores)
    wanted = means - by_class
    ones = torch.ones(classes, 1).to(scores)
    spread = scores.std() * len(by_value)  # makes shares add up to one
    left = torch.cat([by_value, spread * ones], 1)
    right = torch.cat([wanted, spread * ones], 1)
    table = right @ torch.linalg.pinv(left, rtol=1e-3)
    table = table.clamp(min=1e-3)
    return table / table.sum(1, keepdim=True)
