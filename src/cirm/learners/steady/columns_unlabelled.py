"""Find features whose meaning has changed at a new place, from its unlabelled rows.

Between the places seen a change may have gone unnoticed: there were too few rows, or
the feature had the same meaning at all of them. Unlabelled rows show it, too. Given the
label, an unstable feature says nothing about the stable ones, so it is related to the
predictions of a model without it only through the label: if it speaks for a class, it
is more frequent where the other features speak for this class. This relation is known
of the places seen, from the moments. If it is gone or reversed here, so is the meaning
of the feature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.special import ndtr
from torch import Tensor

from cirm.learners.steady.columns_changes import (
    MOST_TOGETHER,
    compute_p_values_of_blocks,
    find_features_unrelated_to_target,
    find_units_of_most_columns,
    find_unrelated_clusters,
)
from cirm.learners.steady.columns_refuse import FEWEST_ROWS, is_on_another_scale
from cirm.learners.steady.columns_scores import build_matrix_of_score_weights
from cirm.learners.steady.columns_search import set_features_aside
from cirm.learners.steady.columns_state import (
    SteadyTableState,
    center_moments,
    find_basis_functions_of_features,
)

CLEAR = 2.0  # standard errors by which a block must be related to others at first
LEAST_EVIDENCE = 0.05  # p-value of the rows alone
LOST = 0.5  # part of the relation of the places seen that a stable feature keeps
STRONGER = 2.0  # times the relation of the places seen: no mere change of meaning
MOST_LEFT_OUT = 3  # columns that are left out in turn: those that count most
MOST_TESTED = 8  # blocks, the strongest ones: those can do harm


class FeatureBlock(NamedTuple):
    """Features that may have changed together.

    Attributes:
        features: Which features it has, [d].
        evidence: What it says of each output, as weights of basis functions, [k, p].
        p_value: Of equal effects at the places seen.
    """

    features: Tensor
    evidence: Tensor
    p_value: float


class RelationToStablePredictions(NamedTuple):
    """How the evidence of a block follows the predictions of a model without it.

    Attributes:
        seen: Slope of the evidence on the predictions, at the places seen.
        seen_error: Its standard error.
        here: The slope in the unlabelled rows.
        here_error: Its standard error.
        ratio: Variance of the evidence at the places seen over that here.
    """

    seen: float
    seen_error: float
    here: float
    here_error: float
    ratio: float

    def compute_p_value_of_loss(self) -> float:
        """Return the p-value of a relation that keeps at least half of its size.

        If its variance differs here, either the slope may stay the same or the effect,
        slope over variance, as that of a category that is rare here. The larger p-value
        counts. It is 1 if there was no clear relation that could be lost, and if the
        relation is much stronger than before: another meaning turns a relation around,
        another relation between columns has any size.
        """
        if self.seen <= CLEAR * self.seen_error:
            return 1.0
        if abs(self.here) * min(1.0, self.ratio) > STRONGER * self.seen:
            return 1.0
        p_values = []
        for factor in (1.0, self.ratio):
            error = math.hypot(factor * self.here_error, LOST * self.seen_error)
            z = (factor * self.here - LOST * self.seen) / error
            p_values.append(float(ndtr(z)))
        return max(p_values)


def set_changed_features_aside(
    state: SteadyTableState,
    inputs: Tensor,
    basis: Tensor,
    level: float,
    is_named_stable: Tensor,
    is_regression: bool,
) -> SteadyTableState:
    """Set aside features whose relation to the others is gone or reversed.

    If one block has changed, others may seem to have, too, since it is a part of the
    predictions that they are compared with. So the block is set aside without which
    most others are related as before.

    Args:
        state: The state of one replica.
        inputs: Unlabelled inputs of the new place, [n, d].
        basis: Their basis functions, [n, p].
        level: Probability of setting any feature aside if all are stable.
        is_named_stable: Features that are stable by the user's word, [d].
        is_regression: Whether this is a regression.
    """
    is_old = len(state.stable.mean) == 1 and not state.places.score_effects.shape[1]
    if is_old or len(inputs) < FEWEST_ROWS or not len(state.arrivals.skill):
        return state
    if _has_feature_on_another_scale(state, inputs):
        return state
    before, blocks = state, _list_blocks(state, is_named_stable, is_regression)
    for _ in range(MOST_TOGETHER):
        tried = [
            set_features_aside(state, block.features, is_regression)
            for block in _find_changed_blocks(
                state, blocks, basis, level, is_regression
            )
        ]
        if not tried:
            break
        counts = [
            len(_find_changed_blocks(own, blocks, basis, level, is_regression))
            for own in tried
        ]
        state = tried[counts.index(min(counts))]
    found = state.unstable & ~before.unstable
    # Causes of a number are related to each other given it, whatever has changed.
    if is_regression or len(state.unit[found].unique()) < 2:
        return state
    others = _find_other_related_features(before, found)
    p_values = [_get_least_p_value_seen(before, part) for part in (others, found)]
    if p_values[0] >= p_values[1]:
        return state
    own = set_features_aside(before, others, is_regression)
    changed = _find_changed_blocks(own, blocks, basis, level, is_regression)
    return state if changed else before


def _find_other_related_features(state: SteadyTableState, is_found: Tensor) -> Tensor:
    """Return the stable features [d] that follow one another given the target.

    If they had changed together, it would look as if the columns found had: of two
    groups of columns whose relation is reversed, these rows cannot tell which one has
    turned around. What the places seen show of both groups can.
    """
    is_unrelated = find_features_unrelated_to_target(state, state.unit)
    others = state.needed & ~state.unstable & ~is_found & ~is_unrelated
    return torch.isin(state.unit, state.unit[others])


def _get_least_p_value_seen(state: SteadyTableState, features: Tensor) -> float:
    """Return the least p-value of equal effects of units and clusters in features [d].

    It is multiplied by their number; 1 if there are none. Clusters that have other
    features, too, do not count.
    """
    found = []
    has_clusters = bool(state.places.cluster_effects.shape[1])
    for is_cluster in (False, True)[: 1 + has_clusters]:
        block = state.cluster if is_cluster else state.unit
        outside = block[state.needed & ~features]
        leaders = block[features & state.needed].unique()
        whole = leaders[~torch.isin(leaders, outside)]
        found += compute_p_values_of_blocks(state, is_cluster)[whole].tolist()
    return min(1.0, len(found) * min(found, default=1.0))


def _find_changed_blocks(
    state: SteadyTableState,
    blocks: list[FeatureBlock],
    basis: Tensor,
    level: float,
    is_regression: bool,
) -> list[FeatureBlock]:
    """Return the blocks whose relation to the others has changed, clearest first.

    Unlabelled rows alone cannot tell which of two related blocks has changed. What the
    places seen show about each of them, labels included, is independent of these rows
    if the block is stable; Fisher's method combines both.
    """
    blocks = [b for b in blocks if not bool(state.unstable[b.features].any())]
    p_values = [
        _combine_p_values(
            _test_relation_to_other_columns(
                set_features_aside(state, block.features, is_regression),
                basis,
                block.evidence,
                is_regression,
            ),
            block.p_value,
        )
        for block in blocks
    ]
    order = sorted(range(len(blocks)), key=lambda i: p_values[i])
    return [blocks[i] for i in order if p_values[i] < level / len(blocks)]


def _combine_p_values(p_value_here: float, p_value_seen: float) -> float:
    """Combine two independent p-values by Fisher's method; 1 if the first is 1."""
    product = max(p_value_here * p_value_seen, 1e-300)
    return product * (1 - math.log(product)) if p_value_here < 1 else 1.0


def _has_feature_on_another_scale(state: SteadyTableState, inputs: Tensor) -> bool:
    """Return whether the predictions depend on a feature in another unit."""
    raw = (inputs - state.basis.centre) * state.basis.scale
    used = (state.needed & ~state.unstable).nonzero()[:, 0].tolist()
    return any(
        is_on_another_scale(raw[:, feature], float(state.basis.limit[feature]))
        for feature in used
    )


def _list_blocks(
    state: SteadyTableState, is_named_stable: Tensor, is_regression: bool
) -> list[FeatureBlock]:
    """List the strongest blocks that are unrelated to all others given the target."""
    tested = state.needed & ~state.unstable & ~is_named_stable
    tested &= ~find_units_of_most_columns(state)
    groups = [
        (state.unit, tested & find_features_unrelated_to_target(state, state.unit))
    ]
    if len(state.stable.mean) == 1:
        clusters = find_unrelated_clusters(state, tested, is_regression)
        groups.append((state.cluster, clusters))
    found = []
    for row, (block, chosen) in enumerate(groups):
        p_values = compute_p_values_of_blocks(state, is_cluster=row > 0)
        for leader in block[chosen].unique().tolist():
            own = block == leader
            evidence = _compute_evidence_weights(state, own, leader, row)
            found.append(FeatureBlock(own, evidence, float(p_values[leader])))
    moments = center_moments(state)
    p = len(state.ridge)

    def measure_strength(block: FeatureBlock) -> float:
        targets = moments[p:, :p] @ block.evidence.T
        return float(targets[-len(block.evidence) :].diagonal().sum())

    return sorted(found, key=measure_strength, reverse=True)[:MOST_TESTED]


def _compute_evidence_weights(
    state: SteadyTableState, is_in_block: Tensor, first_feature: int, model_index: int
) -> Tensor:
    """Return weights [k, p] of basis functions in what a block says of each output."""
    outputs, p = state.stable.mean.shape
    evidence = torch.zeros(outputs, p, dtype=torch.float64)
    if outputs == 1:
        q = state.weights.shape[1]
        block = (state.unit, state.cluster)[model_index]
        matrix = build_matrix_of_score_weights(state.weights[model_index], block)
        evidence[0, :q] = matrix[:, first_feature]
    else:
        contrasts = state.places.contrasts
        first = contrasts.slope[0] / contrasts.noise[0]
        evidence[:, : len(is_in_block)] = torch.where(
            is_in_block, (first - first.mean(1, True)).T, 0.0
        )
    return evidence


def _test_relation_to_other_columns(
    state: SteadyTableState, basis: Tensor, evidence: Tensor, is_regression: bool
) -> float:
    """Return the p-value of a relation to the stable model that is not lost.

    Two columns may be related in another way here without any change of what they mean,
    as age and education are in another decade. What has changed its meaning is related
    to *all* others in another way. So the relation must also be lost if the model is
    fitted without any one of the columns that it rests on.

    Args:
        state: The state of one replica, in which the block is set aside.
        basis: Basis functions of the unlabelled rows, [n, p].
        evidence: Weights of the basis functions in the evidence of the block, [k, p].
        is_regression: Whether this is a regression.
    """
    p_value = _measure_relation(state, basis, evidence).compute_p_value_of_loss()
    if p_value > LEAST_EVIDENCE:
        return 1.0
    for features in _list_units_that_count_most(state):
        rest = set_features_aside(state, features, is_regression)
        relation = _measure_relation(rest, basis, evidence)
        if relation.compute_p_value_of_loss() > LEAST_EVIDENCE:
            return 1.0
    return p_value


def _list_units_that_count_most(state: SteadyTableState) -> list[Tensor]:
    """List the units, as features [d], that the predictions vary most with."""
    p = len(state.ridge)
    moments = center_moments(state)[:p, :p]
    sizes = {}
    for unit in state.unit[state.needed & ~state.unstable].unique().tolist():
        own = find_basis_functions_of_features(state, state.unit == unit)
        part = torch.where(own, state.stable.mean, 0.0)
        sizes[unit] = float((part @ moments * part).sum())
    best = sorted(sizes, key=lambda unit: -sizes[unit])[:MOST_LEFT_OUT]
    return [state.unit == unit for unit in best]


def _measure_relation(
    state: SteadyTableState, basis: Tensor, evidence: Tensor
) -> RelationToStablePredictions:
    """Measure how evidence follows the predictions of the stable model.

    With many classes, products are added up over the classes.

    Args:
        state: The state of one replica.
        basis: Basis functions of the unlabelled rows, [n, p].
        evidence: Weights of the basis functions in the evidence of a block, [k, p].
    """
    p, rows = len(state.ridge), float(state.places.rows.sum())
    moments = center_moments(state)[:p, :p] / rows
    model = state.stable.mean
    model = model - model.mean(0) if len(model) > 1 else model
    spread, shared, own = (
        one @ moments @ other.T
        for one, other in ((model, model), (model, evidence), (evidence, evidence))
    )
    total = spread.diagonal().sum().clamp(min=1e-9)
    seen = shared.diagonal().sum() / total
    rest = own - seen * (shared + shared.T) + seen.square() * spread
    seen_error = ((rest * spread).sum() / rows).clamp(min=0).sqrt() / total
    predictions, values = basis @ model.T, basis @ evidence.T
    predictions -= predictions.mean(0)
    values -= values.mean(0)
    total = predictions.square().sum().clamp(min=1e-9)
    here = (predictions * values).sum() / total
    products = ((values - here * predictions) * predictions).sum(1)
    here_error = products.square().sum().sqrt() / total + 1e-9
    ratio = own.diagonal().sum() / values.square().mean(0).sum().clamp(min=1e-9)
    numbers = seen, seen_error, here, here_error, ratio
    return RelationToStablePredictions(*(float(number) for number in numbers))
