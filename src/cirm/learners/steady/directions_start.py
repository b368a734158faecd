"""Choose the networks from which the stable model of a stage starts.

Networks that have seen one environment have learned its shortcut and little else, and
its rows are gone when the shortcut is found. A second ensemble therefore learns beside
the answers of the first, which are a guess of the shortcut: it learns what these
answers leave open.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_search import compute_means_by_group
from cirm.learners.steady.directions_stable import (
    RowsWithKnownFeatures,
    subtract_mean_logit,
)
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
CLEARLY = 2.0  # standard errors by which plain networks must tell more of new rows
FEW_ROWS = 30  # of a stage, below which held-out rows cannot tell when to stop: after
# two places of 600 rows, one of 1 to 30 took 70 % to anything from 50 to 87


def choose_start_networks_of_ensemble(
    model: Model,
    state: SteadyNetworkState,
    new_networks: Tensor,
    outcomes: list[FeatureSearchOutcome],
    inputs: Tensor,
    rows_of_replicas: list[RowsWithKnownFeatures],
) -> Tensor:
    """Return the networks [replica, member, p] from which stable models start.

    They are `new_networks` if what changed is gone. When the first features are found,
    they are the networks beside the plain answers: what those of before know of a
    feature can only be subtracted as far as it is read, and in a view they say of all
    `inputs` [replica, n, ...] what the most frequent value said, so strongly at times
    that they learn nothing else. If views hide all features, the networks of before
    are kept if they clearly tell more of the classes.
    """
    start = state.members.clone()
    for r, (outcome, rows) in enumerate(zip(outcomes, rows_of_replicas, strict=True)):
        is_first = bool(outcome.found) and not state.found[r] and bool(state.places[r])
        if outcome.is_changed_axis_constant:
            start[r] = new_networks[r]
        elif is_first and not (
            all(outcome.is_hidden)
            and _do_networks_tell_more(
                model, state.members[r], state.beside[r], inputs[r], rows
            )
        ):
            start[r] = state.beside[r]
    return start


def weigh_training_on_few_rows(
    trained: Tensor, start: Tensor, seen_rows: Tensor, n_new_rows: int
) -> Tensor:
    """Return networks [replica, member, p] that count few new rows as rows seen before.

    Members trained on few rows move from their `start` by the share of these rows in
    all rows so far, of which [replica] were seen before. With more rows, held-out ones
    decide.
    """
    if n_new_rows >= FEW_ROWS:
        return trained
    share = n_new_rows / (n_new_rows + seen_rows)
    return start + share.to(start)[:, None, None] * (trained - start)


def _do_networks_tell_more(
    model: Model,
    params: Tensor,
    other_params: Tensor,
    inputs: Tensor,
    rows: RowsWithKnownFeatures,
) -> bool:
    """Whether networks [member, p] clearly tell more of new rows than others do."""
    first, second = (
        _measure_log_likelihood_of_rows(
            compute_ensemble_member_outputs(model, p[None], inputs[None]).mean(1)[0],
            rows,
        )
        for p in (params, other_params)
    )
    gain = first - second
    return bool(gain.sum() > CLEARLY * len(gain) ** 0.5 * gain.std())


def _measure_log_likelihood_of_rows(
    logits: Tensor, rows: RowsWithKnownFeatures
) -> Tensor:
    """Return the log likelihood [n] of classes by logits [n, k], calibrated.

    What logits say of all rows alike, whatever the class, is left out.
    """
    logits = subtract_mean_logit(logits).double()
    means = compute_means_by_group(logits, rows.targets, rows.classes)
    logits = logits - means[rows.targets.unique()].mean(0)
    known = rows.compute_logits_of_known_features(with_hidden_features=False)
    scale = tables.fit_logit_temperature(logits, known, rows.targets)
    scores = (scale * logits + known).log_softmax(-1)
    return scores.gather(1, rows.targets[:, None])[:, 0]


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
