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
    judged: HeldOutLogits,
    targets: Tensor,
    places: Tensor,
) -> SteadyNetworkState:
    """Return the state after a stage; its networks are left as they were."""
    classes = judged.logits.shape[1]
    for j, found in enumerate(outcome.found, int(state.found)):
        state = _store_feature_in_state(state, j, found)
    correction = torch.zeros_like(state.correction)
    if len(outcome.values):
        correction[: len(outcome.values)] = judged.correction.to(correction)
    logits = (
        judged.logits
        + tables.convert_counts_to_probabilities(outcome.moments.counts).log()
    )
    right = float((logits.argmax(-1) == targets).double().mean())
    if outcome.taught is not None:
        state = state._replace(taught=outcome.taught)
    state = state._replace(
        correction=correction,
        temperature=torch.tensor(judged.temperature),
        moments=outcome.moments,
        kernel=outcome.kernel,
        found=torch.tensor(float(len(outcome.values))),
        looks=torch.tensor(float(outcome.looks)),
        unexplained=state.unexplained + float(outcome.is_unexplained),
        leak=torch.tensor([judged.leak.size, judged.leak.error, right]),
    )
    for place in range(int(places.max()) + 1):
        here = places == place
        values = outcome.values[:, here]
        counts = tables.count_feature_values_by_class(values, targets[here], classes)
        seen = pool_value_tables_of_environments(state, len(values))
        parts = logits[here], outcome.read[:, here], targets[here]
        gain = measure_gain_of_adapting(*parts, seen)
        state = _store_value_tables_of_environment(state, counts, gain)
    return state


def _store_feature_in_state(
    state: SteadyNetworkState, j: int, found: FoundUnstableFeature
) -> SteadyNetworkState:
    """Return the state with a feature at position j."""

    def put_value_into_tensor(room: Tensor, value: Tensor) -> Tensor:
        room = room.clone()
        room[j] = value.to(room)
        return room

    table, places = state.tables.clone(), int(state.places)
    if places:
        table[:places, j] = found.past.to(table) / places
    known = found.known
    return state._replace(
        features=NearestCentreFeature(
            *map(put_value_into_tensor, state.features, known.feature)
        ),
        views=FeatureHidingView(*map(put_value_into_tensor, state.views, known.view)),
        traces=put_value_into_tensor(state.traces, known.traces),
        p_values=put_value_into_tensor(state.p_values, torch.tensor(found.p_value)),
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
