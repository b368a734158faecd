"""What the engine for images keeps of past environments."""

import torch

from cirm.learners.steady.directions_explain import explain_state_of_networks
from cirm.learners.steady.directions_state import (
    MOST_FEATURES,
    MOST_PLACES,
    allocate_directions_state_tensors,
    create_initial_directions_state,
    upgrade_state_of_earlier_version,
)


def test_the_state_has_room_for_all_features_at_all_places():
    first = create_initial_directions_state(torch.zeros(2, 5, 7))
    state = allocate_directions_state_tensors(first, (3, 4, 4), n_classes=2)
    j, k = MOST_FEATURES, 2
    assert state.tables.shape == (2, MOST_PLACES, j, k, k)
    assert state.gains.shape == (2, MOST_PLACES, 5)
    d = state.moments.means.shape[-1]
    assert d > 3 * 4 * 4  # the pixels, and statistics of the whole image
    assert state.traces.shape == (2, j, k, d)
    assert state.views[0].shape == (2, j, k, 3, 3)
    assert state.views[2].shape == (2, j, k, 3 * 4 * 4)


def test_a_state_of_an_earlier_version_gets_room_for_erased_entries():
    first = create_initial_directions_state(torch.zeros(2, 5, 7))
    state = allocate_directions_state_tensors(first, (3, 4, 4), n_classes=2)
    views = state.views._replace(erased=first.views.erased)
    widened = upgrade_state_of_earlier_version(state._replace(views=views))
    assert torch.equal(widened.views.erased, state.views.erased)


def test_one_place_cannot_show_what_is_unstable():
    state = create_initial_directions_state(torch.zeros(1, 5, 7))
    told = explain_state_of_networks(state, "invariant", 1)
    assert told["verdict"] == "One place cannot show what is unstable"
    assert told["evidence"] == told["unstable"] == []
