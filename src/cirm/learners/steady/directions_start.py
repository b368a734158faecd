"""Choose the networks from which the stable model of a stage starts.

Networks that have seen one environment have learned its shortcut and little else, and
its rows are gone when the shortcut is found. A second ensemble therefore learns beside
the answers of the first, which are a guess of the shortcut: it learns what these
answers leave open.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady.directions_stable import RowsWithKnownFeatures
from cirm.learners.steady.directions_stage import FeatureSearchOutcome
from cirm.learners.steady.directions_state import SteadyNetworkState
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    Model,
    NetworkEnsemble,
    compute_ensemble_member_outputs,
    select_held_out_outputs_of_members,
    train_ensemble_members,
)
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent

BESIDE = 3  # networks that learn beside plain answers; five are no better


def choose_start_networks_of_ensemble(
    state: SteadyNetworkState,
    new_networks: Tensor,
    outcomes: list[FeatureSearchOutcome],
) -> Tensor:
    """Return the networks [replica, member, p] from which stable models start.

    They are `new_networks` if what changed is gone. When the first features are found
    and no view hides them, they are the networks beside the plain answers: what those
    of before know of a feature can only be subtracted as far as it is read.
    """
    start = state.members.clone()
    for r, outcome in enumerate(outcomes):
        is_first = bool(outcome.found) and not state.found[r] and bool(state.places[r])
        if outcome.is_changed_axis_constant:
            start[r] = new_networks[r]
        elif is_first and not all(outcome.is_hidden):
            start[r] = state.beside[r]
    return start


def train_members_beside_plain_ensemble(
    model: Model,
    state: SteadyNetworkState,
    ensemble: NetworkEnsemble,
    inputs: Tensor,
    rows_of_replicas: list[RowsWithKnownFeatures],
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
) -> SteadyNetworkState:
    """Return the state with networks trained beside plain answers, if needed.

    They are needed until a feature was found. The answers are those of the networks of
    `ensemble` on held-out rows. To save time a few networks are trained, which members
    share.
    """
    if state.found.all():
        return state._replace(beside=ensemble.params)
    outputs = compute_ensemble_member_outputs(model, ensemble.params, inputs)
    plain = select_held_out_outputs_of_members(outputs, ensemble.folds).argmax(-1)
    seen = [
        s._replace(values=own[None], is_hidden=[False])
        for s, own in zip(rows_of_replicas, plain, strict=True)
    ]
    offset = torch.stack(
        [s.compute_logits_of_known_features(with_hidden_features=True) for s in seen]
    ).float()
    targets = torch.stack([s.targets for s in seen])
    rows = LabelledTrainingRows(inputs, targets, offset)
    few = state.beside[:, :BESIDE]
    params = train_ensemble_members(
        model, few, rows, likelihood, descent, randomness
    ).params
    params = params[:, torch.arange(ensemble.params.shape[1]) % params.shape[1]]
    is_found = state.found.bool()[:, None, None]
    return state._replace(beside=torch.where(is_found, ensemble.params, params))
