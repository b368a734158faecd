"""What the engine for directions keeps between stages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_features import Feature
from cirm.learners.steady.directions_search import RANK, Moments
from cirm.learners.steady.directions_statistics import (
    Scale,
    count_channels,
    count_statistics,
)
from cirm.learners.steady.directions_views import View
from cirm.memory import pick_replica

MOST_FEATURES = 4  # unstable features that are kept apart
MOST_PLACES = 32  # environments whose tables are kept apart


class EasiestPredictor(NamedTuple):
    """The easiest predictor: members [replica, member, p], and how often it is right.

    `tally` [replica, k, 3] has for each class the rows so far, the sum of the share of
    members that are right, and that of its square. `views` [replica] is the number of
    features that were known when it was trained.
    """

    params: Tensor
    tally: Tensor
    views: Tensor


class Adaptation(NamedTuple):
    """What was learned from rows without labels.

    `draws` [replica, draw, feature, class, value] are logarithms of tables, `tables`
    and `error` the estimate, and `notes` [replica, 4] the number of rows, the code of
    the refusal (0: none), and the mean log likelihood of a row before and after.
    """

    draws: Tensor
    tables: Tensor
    error: Tensor
    notes: Tensor


class State(NamedTuple):
    """The state; every tensor has a leading replica axis.

    Args:
        members: Networks of the stable model, [replica, member, p].
        beside: Networks that learned what the plain answers leave open, with which the
            stable model starts when these prove to be unstable.
        frame: Shift and scale of numbers to predict, [replica, 2].
        correction: What is subtracted from the stable logits for each value,
            [replica, feature, value, class].
        temperature: Factor of the stable logits, [replica].
        moments: Class means and scatter of inputs and statistics, without `traces`.
        scale: Of the statistics of images.
        features: The unstable features, [replica, feature, ...].
        views: How each is taken out of the inputs of the stable model.
        traces: Directions of the inputs that each moves, set aside in the search.
        taught: A network that reads a feature, [replica, member, p].
        found: Number of features, [replica].
        looks: Number of tests between environments, [replica].
        p_values: The p-value with which each feature was found, [replica, feature].
        unexplained: Number of stages with a change that no feature explains, [replica].
        tables: Counts by place, [replica, place, feature, class, value].
        places: Number of places with tables, [replica].
        gains: By place [replica, place, 5]: rows, log likelihood and accuracy of the
            stable model, and of the model adapted as if there were no labels.
        leak: Size of the leak before correction, its standard error, and the accuracy
            of the stable model on held-out rows, [replica, 3].
        reference: The easiest predictor.
        adaptation: What was learned from rows without labels.
    """

    members: Tensor
    beside: Tensor
    frame: Tensor
    correction: Tensor
    temperature: Tensor
    moments: Moments
    scale: Scale
    features: Feature
    views: View
    traces: Tensor
    taught: Tensor
    found: Tensor
    looks: Tensor
    p_values: Tensor
    unexplained: Tensor
    tables: Tensor
    places: Tensor
    gains: Tensor
    leak: Tensor
    reference: EasiestPredictor
    adaptation: Adaptation


class Known(NamedTuple):
    """A feature of one replica, its view, and its traces [k, d] in the inputs."""

    feature: Feature
    view: View
    traces: Tensor


def start_state(members: Tensor) -> State:
    """Return the state before any data, of networks [replica, member, p]."""
    replicas = len(members)
    empty, zero = torch.zeros(replicas, 0), torch.zeros(replicas)
    return State(
        members=members,
        beside=members,
        frame=torch.tensor([[0.0, 1.0]]).repeat(replicas, 1),
        correction=empty,
        temperature=torch.ones(replicas),
        moments=Moments(empty, empty, empty),
        scale=Scale(empty, empty),
        features=Feature(empty, empty, empty),
        views=View(empty, empty, empty, empty),
        traces=empty,
        taught=torch.zeros_like(members),
        found=zero,
        looks=zero,
        p_values=empty,
        unexplained=zero,
        tables=empty,
        places=zero,
        gains=empty,
        leak=torch.zeros(replicas, 3),
        reference=EasiestPredictor(members, empty, zero),
        adaptation=Adaptation(empty, empty, empty, torch.zeros(replicas, 4)),
    )


def allocate_state(state: State, shape: tuple[int, ...], classes: int) -> State:
    """Return the first state with room for what inputs of a shape need."""
    k, c, s = classes, count_channels(shape), count_statistics(shape)
    d = torch.Size(shape).numel() + s

    def room(*sizes: int) -> Tensor:
        return torch.zeros(len(state.members), *sizes)

    j = MOST_FEATURES
    factor = room(min(RANK, d), d).double()
    return state._replace(
        correction=room(j, k, k),
        moments=Moments(room(k).double(), room(k, d).double(), factor),
        scale=Scale(room(s).double(), room(s).double()),
        features=Feature(room(j, d, k), room(j, k, k), room(j)),
        views=View(room(j, k, c, c), room(j, k, c), room(j, k, d - s), room(j)),
        traces=room(j, k, d),
        p_values=room(j),
        tables=room(MOST_PLACES, j, k, k),
        gains=room(MOST_PLACES, 5),
        reference=state.reference._replace(tally=room(k, 3).double()),
        adaptation=Adaptation(room(1, j, k, k), room(j, k, k), room(j, k, k), room(4)),
    )


def forget_adaptation(state: State) -> State:
    """Return the state as if it had not been adapted."""
    kept = state.adaptation
    draws, notes = torch.zeros_like(kept.draws[:, :1]), torch.zeros_like(kept.notes)
    return state._replace(adaptation=kept._replace(draws=draws, notes=notes))


def list_features(state: State) -> list[Known]:
    """Return the features of one replica."""
    parts = state.features, state.views, state.traces
    return [
        Known(*(pick_replica(part, j) for part in parts))  # type: ignore[arg-type]
        for j in range(int(state.found))
    ]
