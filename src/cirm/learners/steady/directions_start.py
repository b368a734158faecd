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
from cirm.learners.steady.directions_stable import (
    Seen,
    centre_logits,
    look_up_correction,
)
from cirm.learners.steady.directions_stage import Outcome
from cirm.learners.steady.directions_state import State
from cirm.learners.steady.directions_training import (
    Ensemble,
    Model,
    Rows,
    compute_member_outputs,
    select_held_out_outputs,
    train_members,
)
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent

BESIDE = 3  # networks that learn beside plain answers; five are no better


def choose_start(
    model: Model,
    state: State,
    new: Tensor,
    outcomes: list[Outcome],
    inputs: Tensor,
    known: list[Seen],
) -> Tensor:
    """Return the networks [replica, member, p] from which stable models start.

    They are `new` if what changed is gone. When the first features were found, they are
    the ones of before or those beside the plain answers: whichever tell more of the
    classes of the new rows, in the view without the features. If networks read the
    feature, what the ones of before know of it beyond their answers would count in
    their favour; so then it is always the second.
    """
    start = state.members.clone()
    for r, outcome in enumerate(outcomes):
        if outcome.is_gone:
            start[r] = new[r]
        elif not outcome.found or state.found[r] or not state.places[r]:
            continue
        elif outcome.taught is not None:
            start[r] = state.beside[r]
        else:
            choices = torch.stack([state.members[r], state.beside[r]])
            twice = inputs[r].expand(2, *inputs[r].shape)
            logits = centre_logits(compute_member_outputs(model, choices, twice))
            scores = [score_start(one, known[r]) for one in logits.mean(1)]
            start[r] = choices[int(scores[1] > scores[0])]
    return start


def score_start(logits: Tensor, seen: Seen) -> float:
    """Return the mean log likelihood of classes by logits [n, k] of earlier networks.

    Their scale and what they say of features that can be seen are left out.
    """
    correction = tables.measure_leak(logits, seen.values, seen.targets).parts
    logits = logits.double() - look_up_correction(correction, seen.values)
    offset = seen.make_offset(hidden_too=True)
    scale = tables.fit_temperature(logits, offset, seen.targets)
    scores = (scale * logits + offset).log_softmax(-1)
    return float(scores.gather(1, seen.targets[:, None]).mean())


def train_beside_plain_answers(
    model: Model,
    state: State,
    fit: Ensemble,
    inputs: Tensor,
    known: list[Seen],
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
) -> State:
    """Return the state with networks trained beside plain answers, if needed.

    They are needed until a feature was found. The answers are those of the networks of
    `fit` on held-out rows. To save time a few networks are trained, which members
    share.
    """
    if state.found.all():
        return state._replace(beside=fit.params)
    outputs = compute_member_outputs(model, fit.params, inputs)
    plain = select_held_out_outputs(outputs, fit.folds).argmax(-1)
    seen = [
        s._replace(values=own[None], is_hidden=[False])
        for s, own in zip(known, plain, strict=True)
    ]
    offset = torch.stack([s.make_offset(hidden_too=True) for s in seen]).float()
    targets = torch.stack([s.targets for s in seen])
    rows = Rows(inputs, targets, offset)
    few = state.beside[:, :BESIDE]
    params = train_members(model, few, rows, likelihood, descent, randomness).params
    params = params[:, torch.arange(fit.params.shape[1]) % params.shape[1]]
    is_found = state.found.bool()[:, None, None]
    return state._replace(beside=torch.where(is_found, fit.params, params))
