"""What features say of the classes in an environment: tables P(value | class).

With the probabilities f(y | s) of a model that does not see the features u, the rows of
an environment are a mixture over classes, sum_y f(y | s) prod_j P(u_j | y). With labels
its tables are counted; without, they are estimated by expectation maximisation. All
functions treat one replica; tables are [feature, class, value].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.randomness import Randomness

PSEUDO_ROWS = 1.0  # of the even prior, for each class: it rules out nothing
STEPS = 300  # of EM at most; it ends when no probability moves by 1e-5
CAUTION = 0.5  # power of the likelihoods that two mirror images are weighed by, since
# errors of the stable model are shared by rows; matters below 100 rows only
DRAWS = 16  # tables drawn from the posterior, in pairs of opposite noise


class Estimate(NamedTuple):
    """Estimated tables, and log tables drawn from their posterior [draw, ...].

    `error` [feature, class, value] is the standard error of each log probability.
    """

    tables: Tensor
    draws: Tensor
    error: Tensor


def count_values(values: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return how often each value [feature, n] comes with each class."""
    counts = torch.zeros(len(values), classes * classes, dtype=torch.float64)
    for row, feature in zip(counts, values, strict=True):
        row += torch.bincount(targets * classes + feature, minlength=classes**2)
    return counts.unflatten(1, (classes, classes))


def normalise(counts: Tensor) -> Tensor:
    """Return the tables of counts, with the pseudo-rows of the prior."""
    counts = counts + PSEUDO_ROWS / counts.shape[-1]
    return counts / counts.sum(-1, keepdim=True)


def score_values(log_tables: Tensor, values: Tensor) -> Tensor:
    """Return what values [feature, n] say of each class, [..., n, class].

    `log_tables` are [..., feature, class, value]; the evidence of features adds up.
    """
    total = torch.zeros(*log_tables.shape[:-3], values.shape[1], log_tables.shape[-2])
    total = total.to(log_tables)
    for j, feature in enumerate(values):
        total = total + log_tables[..., j, :, :][..., feature].transpose(-1, -2)
    return total


def estimate_tables(logits: Tensor, values: Tensor) -> Estimate:
    """Estimate the tables of rows without labels, by EM from the stable logits [n, k].

    Class frequencies are those of the logits. The posterior is normal in the logarithms
    of the tables, with the information of the rows (the scatter of their scores) and of
    the prior. With two classes the mirror image, in which the tables of the classes are
    exchanged, gets its share of the draws: few rows may not tell the two apart.
    """
    logits = logits.double()
    member = F.one_hot(values, logits.shape[1]).double()  # [feature, n, value]
    weights = logits.softmax(-1)
    start = normalise(torch.einsum("nc,jnv->jcv", weights, member))
    modes = [_climb(start, logits, values, member)]
    if logits.shape[1] == 2:
        modes.append(_climb(modes[0][0].flip(1), logits, values, member))
    modes.sort(key=lambda mode: -mode[1])
    draws, errors = [], []
    for tables, _ in modes:
        root = _invert_information(tables, logits, values, member)
        noise = Randomness((0,), ("posterior",)).normal(DRAWS // 2, len(root))[0]
        noise = torch.cat([noise, -noise]).double() @ root.T
        logs = tables.log() + noise.unflatten(1, tables.shape)
        draws.append(logs.log_softmax(-1))
        # The error of a log probability is that of its logit less the mean logit's.
        spread = root.unflatten(0, tables.shape)
        spread = spread - (tables[..., None] * spread).sum(2, keepdim=True)
        errors.append(spread.square().sum(-1).sqrt())
    scores = torch.tensor([score for _, score in modes])
    share = (CAUTION * scores).softmax(0)
    first = round(DRAWS * float(share[0]))
    return Estimate(
        modes[0][0], torch.cat([draws[0][:first], draws[-1][first:]]), errors[0]
    )


def _climb(
    tables: Tensor, logits: Tensor, values: Tensor, member: Tensor
) -> tuple[Tensor, float]:
    """Return the tables to which EM leads, and their log posterior density."""
    for _ in range(STEPS):
        weights = (logits + score_values(tables.log(), values)).softmax(-1)
        last = tables
        tables = normalise(torch.einsum("nc,jnv->jcv", weights, member))
        if (tables - last).abs().max() < 1e-5:
            break
    rows = (logits.log_softmax(-1) + score_values(tables.log(), values)).logsumexp(-1)
    prior = PSEUDO_ROWS / tables.shape[-1] * tables.log().sum()
    return tables, float(rows.sum() + prior)


def _invert_information(
    tables: Tensor, logits: Tensor, values: Tensor, member: Tensor
) -> Tensor:
    """Return a root of the inverse information of the log odds of tables."""
    classes = logits.shape[1]
    weights = (logits + score_values(tables.log(), values)).softmax(-1)
    # The derivative of a row's log likelihood in the log odds of the tables.
    slopes = weights[None, :, :, None] * (member[:, :, None] - tables[:, None])
    slopes = slopes.transpose(0, 1).flatten(1)
    prior = torch.diag_embed(tables) - tables[..., :, None] * tables[..., None, :]
    prior = prior + 1 / classes**2  # only differences within a class matter
    blocks = PSEUDO_ROWS * torch.block_diag(*prior.flatten(0, 1))
    information, axes = torch.linalg.eigh(slopes.T @ slopes + blocks)
    return axes / information.clamp(min=1e-6).sqrt()


def fit_temperature(logits: Tensor, offset: Tensor, targets: Tensor) -> float:
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


class Leak(NamedTuple):
    """What logits say of features beyond the class: [feature, value, class].

    `parts` are shrunk by their noise. `size` is the root mean square before, and
    `error` that of the noise, in units of the separation of classes by the logits.
    """

    parts: Tensor
    size: float
    error: float


def measure_leak(logits: Tensor, values: Tensor, targets: Tensor) -> Leak:
    """Regress logits [n, k] on values [feature, n], with a level for each class."""
    logits = logits.double()
    classes = logits.shape[1]
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
    return Leak(parts, float(size / separation), float(error / separation))


def infer_past_table(
    scores: Tensor, means: Tensor, values: Tensor, targets: Tensor
) -> Tensor:
    """Return the table [class, value] of earlier rows, of which only means are known.

    `scores` [n, s] of the rows at hand are a level of the class plus a part of the
    value; with `means` [class, s] of the same scores in earlier rows, the share of each
    value follows by least squares.
    """
    classes = len(means)
    design = torch.cat([F.one_hot(v, classes) for v in (values, targets)], 1).to(scores)
    parts = torch.linalg.pinv(design, rtol=1e-6) @ scores
    by_value, by_class = parts.split(classes)
    wanted = means - by_class
    ones = torch.ones(classes, 1).to(scores)
    spread = scores.std() * len(by_value)  # makes shares add up to one
    left = torch.cat([by_value, spread * ones], 1)
    right = torch.cat([wanted, spread * ones], 1)
    table = right @ torch.linalg.pinv(left, rtol=1e-3)
    table = table.clamp(min=1e-3)
    return table / table.sum(1, keepdim=True)
