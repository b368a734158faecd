"""Update the state of one replica after a stage."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_adapt import (
    measure_gain_of_adapting,
    pool_value_tables_of_environments,
)
from cirm.learners.steady.directions_features import NearestCentreFeature
from cirm.learners.steady.directions_stable import HeldOutLogits
from cirm.learners.steady.directions_stage import (
    FeatureSearchOutcome,
    FoundUnstableFeature,
)
from cirm.learners.steady.directions_state import MOST_PLACES, SteadyNetworkState
from cirm.learners.steady.directions_views import FeatureHidingView


def build_state_after_feature_search(
    state: SteadyNetworkState,
    outcome: FeatureSearchOutcome,
    held_out_logits: HeldOutLogits,
    targets: Tensor,
    environment_of_row: Tensor,
) -> SteadyNetworkState:
    """Return the state after a stage; its networks are left as they were."""
    classes = held_out_logits.logits.shape[1]
    for j, found in enumerate(outcome.found, int(state.found)):
        state = _store_feature_in_state(state, j, found)
    correction = torch.zeros_like(state.correction)
    if len(outcome.values):
        correction[: len(outcome.values)] = held_out_logits.correction.to(correction)
    logits = (
        held_out_logits.logits
        + tables.convert_counts_to_probabilities(outcome.moments.counts).log()
    )
    right = float((logits.argmax(-1) == targets).double().mean())
    if outcome.taught is not None:
        state = state._replace(taught=outcome.taught)
    state = state._replace(
        correction=correction,
        calibration=held_out_logits.calibration.float(),
        moments=outcome.moments,
        kernel=outcome.kernel,
        found=torch.tensor(float(len(outcome.values))),
        looks=torch.tensor(float(outcome.looks)),
        trend=torch.tensor([outcome.trend.total, float(outcome.trend.n_changes)]),
        unexplained=state.unexplained + float(outcome.is_unexplained),
        leak=torch.tensor(
            [held_out_logits.leak.size, held_out_logits.leak.error, right]
        ),
    )
    for place in range(int(environment_of_row.max()) + 1):
        here = environment_of_row == place
        values = outcome.values[:, here]
        counts = tables.count_feature_values_by_class(values, targets[here], classes)
        seen = pool_value_tables_of_environments(state, len(values))
        parts = logits[here], outcome.read[:, here], targets[here]
        gain = measure_gain_of_adapting(*parts, seen)
        state = _store_value_tables_of_environment(state, counts, gain)
    return state


def _store_feature_in_state(
    state: SteadyNetworkState, index: int, feature: FoundUnstableFeature
) -> SteadyNetworkState:
    """Return the state with a feature at an index."""

    def copy_tensor_with_value_at_index(tensor: Tensor, value: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[index] = value.to(tensor)
        return tensor

    table, places = state.tables.clone(), int(state.places)
    if places:
        table[:places, index] = feature.past.to(table) / places
    known = feature.known
    return state._replace(
        features=NearestCentreFeature(
            *map(copy_tensor_with_value_at_index, state.features, known.feature)
        ),
        views=FeatureHidingView(
            *map(copy_tensor_with_value_at_index, state.views, known.view)
        ),
        traces=copy_tensor_with_value_at_index(state.traces, known.traces),
        p_values=copy_tensor_with_value_at_index(
            state.p_values, torch.tensor(feature.p_value)
        ),
        tables=table,
    )


def _store_value_tables_of_environment(
    state: SteadyNetworkState, counts: Tensor, gain: Tensor
) -> SteadyNetworkState:
    """Return the state with the tables and the gain of one more place."""
    place = int(state.places)
    table, gains = state.tables.clone(), state.gains.clone()
    if place == MOST_PLACES:  # the two oldest places become one
        table = torch.cat([table[:1] + table[1:2], table[2:], 0 * table[:1]])
        gains = torch.cat([gains[1:], 0 * gains[:1]])
        place -= 1
    table[place, : len(counts)] = counts.to(table)
    gains[place] = gain.to(gains)
    return state._replace(
        tables=table, gains=gains, places=torch.tensor(float(place + 1))
    )
