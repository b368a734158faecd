"""What a regression keeps of unstable numbers between stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_kernel import FEATURES
from cirm.learners.steady.directions_regression_slopes import SlopesOfHalves
from cirm.learners.steady.directions_regression_views import POWERS, NumberHidingView
from cirm.learners.steady.directions_search import RANK, ClassMeansAndScatter
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    count_image_channels,
    count_image_statistics,
)

if TYPE_CHECKING:
    from cirm.learners.steady.directions_state import SteadyNetworkState

MOST_NUMBERS = 4  # unstable numbers that are kept apart, as many as features of classes
PLACES = 32  # environments whose effects are kept apart


class NumberReader(NamedTuple):
    """A number as a linear function of inputs and statistics.

    It is rows [n, d] times `scores` [d] less `centre`, and `pattern` [d] is what it
    adds to the inputs: `scores` times `pattern` is one.
    """

    scores: Tensor
    pattern: Tensor
    centre: Tensor


class UnstableNumbersState(NamedTuple):
    """The unstable numbers of a regression; every tensor has a leading replica axis.

    Args:
        readers: How each is read, [replica, number, ...].
        views: How each is taken out of the inputs of the stable model.
        effects: By place [replica, place, number, 4]: slope on the target, its sampling
            variance, intercept, and variance given the target.
        halves: Slopes of the inputs in two halves of the rows of all places.
        stable: Centre of the outputs of the stable model, its slope, the mean target
            there, the variance of the target given these, and how they are correlated,
            [replica, 5].
    """

    readers: NumberReader
    views: NumberHidingView
    effects: Tensor
    halves: SlopesOfHalves
    stable: Tensor


def create_empty_numbers_state(n_replicas: int) -> UnstableNumbersState:
    """Return the part of a state before any data, and of classes."""
    empty = torch.zeros(n_replicas, 0)
    return UnstableNumbersState(
        NumberReader(empty, empty, empty),
        NumberHidingView(empty, empty),
        empty,
        SlopesOfHalves(empty, empty),
        empty,
    )


def allocate_regression_state_tensors(
    state: SteadyNetworkState, shape: tuple[int, ...]
) -> SteadyNetworkState:
    """Return the first state with room for what a regression on inputs needs."""
    c, s = count_image_channels(shape), count_image_statistics(shape)
    pixels, j = torch.Size(shape).numel(), MOST_NUMBERS
    d = pixels + s

    def allocate(*sizes: int) -> Tensor:
        return torch.zeros(len(state.members), *sizes)

    def allocate_moments(size: int) -> ClassMeansAndScatter:
        parts = (2,), (2, size), (min(RANK, size), size)
        return ClassMeansAndScatter(*(allocate(*part).double() for part in parts))

    return state._replace(
        moments=allocate_moments(d),
        kernel=allocate_moments(FEATURES),
        scale=ImageStatisticsScale(allocate(s).double(), allocate(s).double()),
        correction=allocate(j),
        p_values=allocate(j),
        gains=allocate(PLACES, 3),
        adaptation=state.adaptation._replace(
            draws=allocate(1, j, 3), tables=allocate(j, 3), error=allocate(1)
        ),
        numbers=UnstableNumbersState(
            NumberReader(allocate(j, d), allocate(j, d), allocate(j)),
            NumberHidingView(allocate(j, c, POWERS), allocate(j, pixels)),
            allocate(PLACES, j, 4).double(),
            SlopesOfHalves(allocate(2, d).double(), allocate(2).double()),
            allocate(5).double(),
        ),
    )
