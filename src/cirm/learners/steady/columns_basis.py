"""How the columns engine sees inputs: standardised features, hinges and units.

The first environment fixes everything, so that what was learned keeps its meaning. A
feature is standardised; if it has enough different values, hinges bend its effect at
four quantiles. Features that are tested and set aside together form a unit: those of
one column of the table, and columns that are nearly copies of each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import chdtri
from torch import Tensor

KNOTS = (0.1, 0.33, 0.67, 0.9)  # quantiles; four knots follow most smooth curves
FEWEST_VALUES = 10  # with fewer different values a hinge has nothing to bend between
MOST_NUMBERS = 1_000_000  # of an information matrix: 8 MB; else there are no hinges
LIMIT = 5.0  # standard deviations beyond which no effect is extrapolated
MOST_PAIRS = 12  # products of two features; each is one more column of all matrices
PAIR_LEVEL = 0.01  # probability of any product if the truth is additive
COPY = 0.8  # correlation from which on one column hides the effect of the other
ROWS_AT_ONCE = 4_096  # whose basis functions stay in the cache
QUANTILE_ROWS = 100_000  # rows that fix quantiles, well within a percent


class HingeFeatureBasis(NamedTuple):
    """Where features [d] are centred and scaled, and where their hinges bend.

    Attributes:
        centre: Centre of each feature, [d].
        scale: Factor that each centred feature is multiplied by; 0 if constant, [d].
        limit: Largest absolute value of a standardised feature, [d].
        knots: Standardised values at which hinges start, [hinges, d].
        slopes: Factor of each hinge, 0 if it is not used, [hinges, d].
        pairs: Features whose products are basis functions, [m, 2].
        factors: Factor of each product, 0 if it is not used, [m].
    """

    centre: Tensor
    scale: Tensor
    limit: Tensor
    knots: Tensor
    slopes: Tensor
    pairs: Tensor
    factors: Tensor

    @property
    def active(self) -> Tensor:
        """Which basis functions are used, [p]."""
        used = torch.cat([self.scale, self.slopes.flatten(), self.factors]) > 0
        return torch.cat([used, used.new_ones(1)])

    def expand(self, inputs: Tensor, selected: Tensor | None = None) -> Tensor:
        """Return the basis functions [n, p] of inputs [n, d], or some columns of them.

        The features come first, then all first hinges, and so on, then products, and a
        constant last. They have the precision of the inputs.
        """
        p = len(self.scale) + self.slopes.numel() + len(self.factors) + 1
        whole = inputs.new_empty(len(inputs), p if selected is None else len(selected))
        for start in range(0, len(inputs), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            part = self._evaluate_basis_functions_of_rows(inputs[rows])
            whole[rows] = part if selected is None else part[:, selected]
        return whole

    def _evaluate_basis_functions_of_rows(self, inputs: Tensor) -> Tensor:
        features = self.standardise(inputs).to(inputs.dtype)
        knots, slopes = self.knots.to(inputs.dtype), self.slopes.to(inputs.dtype)
        hinges = (features[:, None] - knots).clamp_(min=0).mul_(slopes)
        products = features[:, self.pairs[:, 0]] * features[:, self.pairs[:, 1]]
        products.mul_(self.factors.to(inputs.dtype))
        one = features.new_ones(len(features), 1)
        return torch.cat([features, hinges.flatten(1), products, one], 1)

    def standardise(self, inputs: Tensor) -> Tensor:
        """Return standardised features [n, d] of inputs [n, d]."""
        features = (inputs.double() - self.centre) * self.scale
        return torch.maximum(torch.minimum(features, self.limit), -self.limit)


def fit_feature_basis(inputs: Tensor, n_outputs: int) -> HingeFeatureBasis:
    """Fit the basis to inputs [n, d] for a model with several outputs."""
    inputs = inputs[:: -(-len(inputs) // QUANTILE_ROWS)].double()
    levels = torch.tensor((0.01, *KNOTS, 0.99), dtype=torch.float64)
    ordered = inputs.sort(0).values
    quantiles = ordered[(levels * (len(inputs) - 1)).round().long()]
    distinct = (ordered[1:] != ordered[:-1]).sum(0) + 1
    is_number = distinct > 2
    trimmed = torch.minimum(torch.maximum(inputs, quantiles[0]), quantiles[-1])
    # A number of which 99 % are equal has no spread between these quantiles.
    use_trimmed = is_number & (trimmed.amax(0) > trimmed.amin(0))
    values = torch.where(use_trimmed, trimmed, inputs)
    centre, spread = values.mean(0), values.std(0, correction=0)
    constant = (distinct < 2) | (spread < 1e-12 * (1 + centre.abs()))
    scale = torch.where(constant, 0.0, 1 / spread.clamp(min=1e-300))
    limit = torch.where(is_number, LIMIT, 1e6).double()
    d = inputs.shape[1]
    count = len(KNOTS) if n_outputs * (d * (1 + len(KNOTS))) ** 2 <= MOST_NUMBERS else 0
    knots = (quantiles[1 : 1 + count] - centre) * scale
    slots = min(MOST_PAIRS, d * (d - 1) // 2) if count else 0
    pairs = torch.zeros(slots, 2, dtype=torch.int64)
    factors = torch.zeros(slots, dtype=torch.float64)
    basis = HingeFeatureBasis(
        centre, scale, limit, knots, torch.ones_like(knots), pairs, factors
    )
    if not count:
        return basis
    features = basis.standardise(inputs)
    spread = torch.stack(
        [(features - knot).clamp_(min=0).std(0, correction=0) for knot in knots]
    )
    bends = (distinct >= FEWEST_VALUES) & (spread > 0.05)
    return basis._replace(slopes=torch.where(bends, 1 / spread.clamp(min=0.05), 0.0))


def choose_products_of_features(
    basis: HingeFeatureBasis,
    unit_of_feature: Tensor,
    features: Tensor,
    residuals: Tensor,
) -> HingeFeatureBasis:
    """Add products of features that explain what an additive model leaves over.

    The score test of each product, with a robust variance and Bonferroni's correction,
    takes one matrix product for all of them.

    Args:
        basis: The basis without products.
        unit_of_feature: Unit of each feature, [d]; products within a unit are left
            out.
        features: Standardised features, [n, d].
        residuals: Residuals of the additive model, [n, k].
    """
    d, slots = len(unit_of_feature), len(basis.factors)
    if not slots:
        return basis
    centred = features - features.mean(0)
    squares = centred.square()
    scores = torch.zeros(d, d, dtype=torch.float64)
    for own in residuals.T:
        sums = (centred * own[:, None]).T @ centred
        variances = (squares * own.square()[:, None]).T @ squares
        scores = torch.maximum(scores, sums.square() / (variances + 1e-9))
    first, second = torch.triu_indices(d, d, 1)
    is_new = unit_of_feature[first] != unit_of_feature[second]
    scores = torch.where(is_new, scores[first, second], 0.0)
    tests = max(1, int(is_new.sum())) * residuals.shape[1]
    least = float(chdtri(1, PAIR_LEVEL / tests))
    best = scores.argsort(descending=True, stable=True)[:slots]
    pairs = torch.stack([first[best], second[best]], 1)
    spread = (features[:, pairs[:, 0]] * features[:, pairs[:, 1]]).std(0, correction=0)
    factors = torch.where(scores[best] > least, 1 / spread.clamp(min=0.05), 0.0)
    return basis._replace(pairs=pairs, factors=factors)


def find_one_hot_feature_blocks(features: Tensor) -> tuple[int, ...]:
    """Return the widths of columns, given that categories are one-hot encoded.

    A block is the shortest run of three or more two-valued features of which exactly
    one has its higher value in each row.
    """
    low, high = features.amin(0), features.amax(0)
    ups = (features == high) & (high > low)
    is_binary = (ups | (features == low)).all(0).tolist()
    counts = ups.long().cumsum(1)
    widths, start, d = [], 0, features.shape[1]
    while start < d:
        before = counts[:, start - 1] if start else 0
        width = 1
        for end in range(start, d):
            total = counts[:, end] - before
            if not is_binary[end] or int(total.max()) > 1:
                break
            if end - start >= 2 and int(total.min()) == 1:
                width = end - start + 1
                break
        widths.append(width)
        start += width
    return tuple(widths)


def group_features_by_column(
    features: Tensor, widths: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the column and the unit of each feature, and which represent units, [d].

    Args:
        features: Standardised features of the first environment, [n, d].
        widths: Number of features of each column; if empty, neighbouring features of
            which exactly one is up in each row are one column.

    Returns:
        The indices of the first feature of the column and of the unit, and whether the
        feature is needed: constant features and the most frequent category of a column
        are not.
    """
    d = features.shape[1]
    sizes = widths or find_one_hot_feature_blocks(features)
    starts = torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)
    column = starts.repeat_interleave(torch.tensor(sizes))
    needed = features.amax(0) > features.amin(0)
    for start, width in zip(starts.tolist(), sizes, strict=True):
        block = features[:, start : start + width]
        ups = block > block.amin(0)
        if width > 1 and bool((ups.sum(1) == 1).all()):
            needed[start + int(ups.sum(0).argmax())] = False
    centred = features - features.mean(0)
    norms = centred.square().sum(0).sqrt().clamp(min=1e-12)
    correlations = (centred.T @ centred / norms / norms[:, None]).abs()
    unit = column.clone()
    copies = (correlations > COPY) & (column[:, None] > column)
    for feature in range(d):
        # Only the first column of a unit attracts copies, so units do not chain.
        leaders = column[copies[feature] & (unit == column)]
        if len(leaders):
            unit[column == column[feature]] = leaders.min()
    return column, unit, needed
