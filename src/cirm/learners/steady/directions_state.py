"""What the engine for directions keeps between stages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady.directions_features import NearestCentreFeature
from cirm.learners.steady.directions_inputs import (
    InputScale,
    create_identity_input_scale,
)
from cirm.learners.steady.directions_kernel import FEATURES
from cirm.learners.steady.directions_regression_state import (
    UnstableNumbersState,
    create_empty_numbers_state,
)
from cirm.learners.steady.directions_search import RANK, ClassMeansAndScatter
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    count_image_channels,
    count_image_statistics,
)
from cirm.learners.steady.directions_tables import NOISE
from cirm.learners.steady.directions_views import FeatureHidingView
from cirm.memory import select_state_of_replica

MOST_FEATURES = 4  # unstable features that are kept apart
MOST_PLACES = 32  # environments whose tables are kept apart


class EasiestPredictorState(NamedTuple):
    """The easiest predictor: members [replica, member, p], and how often it is right.

    `tally` [replica, k, 3] has for each class the rows so far, the sum of the share of
    members that are right, and that of its square. `views` [replica] is the number of
    features that were known when it was trained.
    """

    params: Tensor
    tally: Tensor
    views: Tensor


class DirectionsAdaptation(NamedTuple):
    """What was learned from rows without labels.

    `draws` [replica, draw, feature, class, value] are logarithms of tables, `tables`
    and `error` the estimate, and `notes` [replica, 4] the number of rows, the code of
    the refusal (0: none), and the mean log likelihood of a row before and after. In a
    regression `draws` [replica, draw, number, 3] are slopes, levels and variances,
    `tables` [replica, number, 3] a slope and its interval, `error` [replica, 1] is the
    logarithm of the factor of residuals, and the last note the log likelihood gained.
    """

    draws: Tensor
    tables: Tensor
    error: Tensor
    notes: Tensor


class SteadyNetworkState(NamedTuple):
    """The state; every tensor has a leading replica axis.

    Args:
        members: Networks of the stable model, [replica, member, p].
        beside: Networks that learned what the plain answers leave open, with which the
            stable model starts when these prove to be unstable.
        frame: Shift and scale of numbers to predict, [replica, 2].
        inputs: Shift and factor of what networks see.
        correction: What is subtracted from the stable logits for each value,
            [replica, feature, value, class].
        temperature: Factor of the stable logits in earlier versions, [replica].
        calibration: Factors of the stable logits and their weights, for each share of
            labels that are noise, [replica, share, 2].
        moments: Class means and scatter of inputs and statistics, without `traces`.
        kernel: The same of random features of inputs, as the stable model sees them.
        width: Of the kernel, [replica].
        scale: Of the statistics of images.
        features: The unstable features, [replica, feature, ...].
        views: How each is taken out of the inputs of the stable model.
        traces: Directions of the inputs that each moves, set aside in the search.
        taught: A network that reads a feature, [replica, member, p].
        found: Number of features, [replica].
        looks: Number of tests between environments, [replica].
        trend: Sum of their changes since a feature was found, in standard errors, and
            their number, [replica, 2].
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
        numbers: The unstable numbers of a regression.
    """

    members: Tensor
    beside: Tensor
    frame: Tensor
    inputs: InputScale
    correction: Tensor
    temperature: Tensor
    calibration: Tensor
    moments: ClassMeansAndScatter
    kernel: ClassMeansAndScatter
    width: Tensor
    scale: ImageStatisticsScale
    features: NearestCentreFeature
    views: FeatureHidingView
    traces: Tensor
    taught: Tensor
    found: Tensor
    looks: Tensor
    trend: Tensor
    p_values: Tensor
    unexplained: Tensor
    tables: Tensor
    places: Tensor
    gains: Tensor
    leak: Tensor
    reference: EasiestPredictorState
    adaptation: DirectionsAdaptation
    numbers: UnstableNumbersState


class KnownUnstableFeature(NamedTuple):
    """A feature of one replica, its view, and its traces [k, d] in the inputs."""

    feature: NearestCentreFeature
    view: FeatureHidingView
    traces: Tensor


def create_initial_directions_state(members: Tensor) -> SteadyNetworkState:
    """Return the state before any data, of networks [replica, member, p]."""
    replicas = len(members)
    empty, zero = torch.zeros(replicas, 0), torch.zeros(replicas)
    return SteadyNetworkState(
        members=members,
        beside=members,
        frame=torch.tensor([[0.0, 1.0]]).repeat(replicas, 1),
        inputs=create_identity_input_scale(replicas),
        correction=empty,
        temperature=torch.ones(replicas),
        calibration=empty,
        moments=ClassMeansAndScatter(empty, empty, empty),
        kernel=ClassMeansAndScatter(empty, empty, empty),
        width=zero,
        scale=ImageStatisticsScale(empty, empty),
        features=NearestCentreFeature(empty, empty, empty),
        views=FeatureHidingView(
            empty, empty, empty, torch.zeros(replicas, MOST_FEATURES, 1), empty
        ),
        traces=empty,
        taught=torch.zeros_like(members),
        found=zero,
        looks=zero,
        trend=torch.zeros(replicas, 2),
        p_values=empty,
        unexplained=zero,
        tables=empty,
        places=zero,
        gains=empty,
        leak=torch.zeros(replicas, 3),
        reference=EasiestPredictorState(members, empty, zero),
        adaptation=DirectionsAdaptation(empty, empty, empty, torch.zeros(replicas, 4)),
        numbers=create_empty_numbers_state(replicas),
    )


def allocate_directions_state_tensors(
    state: SteadyNetworkState, shape: tuple[int, ...], n_classes: int
) -> SteadyNetworkState:
    """Return the first state with room for what inputs of a shape need."""
    k, c, s = n_classes, count_image_channels(shape), count_image_statistics(shape)
    d = torch.Size(shape).numel() + s

    def allocate_zeros_for_each_replica(*sizes: int) -> Tensor:
        return torch.zeros(len(state.members), *sizes)

    j = MOST_FEATURES

    def allocate_class_moments(size: int) -> ClassMeansAndScatter:
        parts = (k,), (k, size), (min(RANK, size), size)
        return ClassMeansAndScatter(
            *(allocate_zeros_for_each_replica(*part).double() for part in parts)
        )

    return state._replace(
        correction=allocate_zeros_for_each_replica(j, k, k),
        calibration=allocate_zeros_for_each_replica(len(NOISE), 2),
        moments=allocate_class_moments(d),
        kernel=allocate_class_moments(FEATURES),
        scale=ImageStatisticsScale(
            allocate_zeros_for_each_replica(s).double(),
            allocate_zeros_for_each_replica(s).double(),
        ),
        features=NearestCentreFeature(
            allocate_zeros_for_each_replica(j, d, k),
            allocate_zeros_for_each_replica(j, k, k),
            allocate_zeros_for_each_replica(j),
        ),
        views=FeatureHidingView(
            allocate_zeros_for_each_replica(j, k, c, c),
            allocate_zeros_for_each_replica(j, k, c),
            allocate_zeros_for_each_replica(j, k, d - s),
            allocate_zeros_for_each_replica(j, d - s),
            allocate_zeros_for_each_replica(j),
        ),
        traces=allocate_zeros_for_each_replica(j, k, d),
        p_values=allocate_zeros_for_each_replica(j),
        tables=allocate_zeros_for_each_replica(MOST_PLACES, j, k, k),
        gains=allocate_zeros_for_each_replica(MOST_PLACES, 5),
        reference=state.reference._replace(
            tally=allocate_zeros_for_each_replica(k, 3).double()
        ),
        adaptation=DirectionsAdaptation(
            allocate_zeros_for_each_replica(1, j, k, k),
            allocate_zeros_for_each_replica(j, k, k),
            allocate_zeros_for_each_replica(j, k, k),
            allocate_zeros_for_each_replica(4),
        ),
    )


def upgrade_state_of_earlier_version(state: SteadyNetworkState) -> SteadyNetworkState:
    """Return the state with room for erased entries, which earlier versions lack."""
    erased = state.views.erased.expand(-1, -1, state.views.pattern.shape[-1])
    return state._replace(views=state.views._replace(erased=erased))


def remove_adaptation_from_state(state: SteadyNetworkState) -> SteadyNetworkState:
    """Return the state as if it had not been adapted."""
    kept = state.adaptation
    draws, notes = torch.zeros_like(kept.draws[:, :1]), torch.zeros_like(kept.notes)
    return state._replace(adaptation=kept._replace(draws=draws, notes=notes))


def get_unstable_features_of_replica(
    state: SteadyNetworkState,
) -> list[KnownUnstableFeature]:
    """Return the features of one replica."""
    parts = state.features, state.views, state.traces
    return [
        KnownUnstableFeature(*(select_state_of_replica(part, j) for part in parts))  # type: ignore[arg-type]
        for j in range(int(state.found))
    ]
