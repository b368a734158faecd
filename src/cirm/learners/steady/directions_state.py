"""What the engine for directions keeps between stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cirm.learners.steady.directions_features import Feature
from cirm.learners.steady.directions_search import Moments
from cirm.learners.steady.directions_views import View

Part = TypeVar("Part")

MOST_FEATURES = 4  # unstable features that are kept apart
MOST_PLACES = 32  # environments whose tables are kept apart


class Reference(NamedTuple):
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
        frame: Shift and scale of numbers to predict, [replica, 2].
        correction: What is subtracted from the stable logits for each value,
            [replica, feature, value, class].
        temperature: Factor of the stable logits, [replica].
        moments: Class means and scatter, in the view without the features.
        features: The unstable features, [replica, feature, ...].
        views: How each is taken out of the inputs, [replica, feature, ...].
        found: Number of features, [replica].
        looks: Number of tests between environments, [replica].
        p_values: The p-value with which each feature was found, [replica, feature].
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
    frame: Tensor
    correction: Tensor
    temperature: Tensor
    moments: Moments
    features: Feature
    views: View
    found: Tensor
    looks: Tensor
    p_values: Tensor
    tables: Tensor
    places: Tensor
    gains: Tensor
    leak: Tensor
    reference: Reference
    adaptation: Adaptation


def count_channels(shape: tuple[int, ...]) -> int:
    """Return the number of channels of inputs: that of images, else one."""
    return shape[0] if len(shape) == 3 else 1


def pick_replica(part: Part, replica: int) -> Part:
    """Return the tensors of one replica."""
    if isinstance(part, Tensor):
        return part[replica]  # type: ignore[return-value]
    pieces: Any = part
    return type(part)(*(pick_replica(piece, replica) for piece in pieces))


def stack_replicas(parts: Sequence[Part]) -> Part:
    """Return one tuple of tensors with a leading replica axis."""
    pieces: Any = parts
    if isinstance(parts[0], Tensor):
        return torch.stack(pieces)  # type: ignore[return-value]
    return type(parts[0])(*(stack_replicas(p) for p in zip(*pieces, strict=True)))
