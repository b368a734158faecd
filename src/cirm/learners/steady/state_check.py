"""Checks of a state that was read from a file: do its tensors fit together?

A file may come from anywhere, and a learner assumes that its state is one of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from cirm.learners.state_check import describe_type_and_shape
from cirm.learners.steady.columns_explain_adaptation import (
    REFUSALS as COLUMN_REFUSALS,
)
from cirm.learners.steady.columns_state import (
    SteadyTableState,
    create_empty_columns_state,
)
from cirm.learners.steady.directions_adapt import REFUSALS
from cirm.learners.steady.directions_regression_state import (
    allocate_regression_state_tensors,
)
from cirm.learners.steady.directions_state import (
    MOST_FEATURES,
    MOST_PLACES,
    SteadyNetworkState,
    allocate_directions_state_tensors,
)
from cirm.learners.steady.directions_statistics import count_image_channels

MOST_ROWS = 1e15  # that an adaptation has used; whole numbers are exact up to it
SHORTER = (  # after earlier revisions
    "arrivals.slopes",
    "arrivals.slope_variances",
    "arrivals.frequency_misses",
)


def check_state_of_columns_engine(
    state: SteadyTableState,
    n_features: int,
    n_classes: int,
    added_later: Collection[str],
) -> None:
    """Raise an error unless a state of the columns engine is consistent.

    Args:
        state: The state of one replica.
        n_features: Number of input features.
        n_classes: Number of classes; 0 for regression.
        added_later: Paths of tensors that are empty in states of earlier revisions.
    """
    hinges, pairs, kept = map(
        len, (state.basis.knots, state.basis.pairs, state.without.unit)
    )
    p = n_features * (1 + hinges) + pairs + 1
    outputs, targets = 1 if n_classes <= 2 else n_classes, max(1, n_classes)
    wanted = create_empty_columns_state(
        n_features, p, outputs, targets, kept, hinges, pairs
    )
    sizes = {"places": len(state.places.rows), "arrivals": len(state.arrivals.losses)}
    # Before any data, tensors have the shapes that those added later have in states of
    # earlier revisions, apart from the number of places.
    earlier = _list_tensors_by_path(
        create_empty_columns_state(0, 0, outputs, targets, 0, 0, 0)
    )
    for name, tensor in _list_tensors_by_path(state).items():
        expected = _list_tensors_by_path(wanted)[name]
        shape = tuple(expected.shape)
        if (group := name.partition(".")[0]) in sizes:
            shape = (sizes[group], *shape[1:])
        if f"state.{name}" in added_later and not tensor.numel():
            first = tuple(tensor.shape[:1]) if group in sizes else ()
            shape = (*first, *earlier[name].shape[len(first) :])
        if name in SHORTER and len(tensor) < sizes["arrivals"]:
            shape = (len(tensor), *shape[1:])
        _check_shape_and_dtype_of_tensor(name, tensor, shape, expected.dtype)
    stored = _list_tensors_by_path(state)
    for name in ("simple", "cluster"):
        if state.weights.numel() and not stored[name].numel():
            raise ValueError(f"the stored tensor {name} is empty, but weights is not")
    for name in ("column", "unit", "cluster", "basis.pairs", "without.unit"):
        if bool(((stored[name] < 0) | (stored[name] >= n_features)).any()):
            raise ValueError(
                f"the stored tensor {name} has a feature number that is not from 0 to "
                f"{n_features - 1}"
            )
    for name in ("whole.precision", "stable.precision"):
        if bool(torch.linalg.cholesky_ex(stored[name]).info.any()):
            raise ValueError(f"the stored matrix {name} is not positive definite")
    reasons = state.adaptation.reasons
    if not bool(torch.isin(reasons, torch.tensor([0, *COLUMN_REFUSALS])).all()):
        raise ValueError("a stored reason not to adapt (adaptation.reasons) is unknown")
    if bool((state.places.rows < 1).any()):
        raise ValueError("a stored number of rows (places.rows) is not positive")
    if bool((state.ridge <= 0).any()):
        raise ValueError("a stored ridge penalty (ridge) is not positive")
    shown = state.unstable & state.needed
    if len(found := state.adaptation.found):
        shown = shown | (found & state.needed)
    if bool((state.basis.scale[shown] <= 0).any()):
        raise ValueError(
            "the stored scale (basis.scale) of an unstable feature is not positive"
        )
    if bool((state.noise < 0).any()):
        raise ValueError("a stored variance of the noise (noise) is negative")
    if int(state.looks) < 0:
        raise ValueError("the stored number of tests (looks) is negative")


def check_state_of_directions_engine(
    state: SteadyNetworkState,
    initial_state: SteadyNetworkState,
    shape: tuple[int, ...],
    n_classes: int,
    added_later: Collection[str],
) -> None:
    """Raise an error unless a state of the directions engine is consistent.

    Args:
        state: The state of one replica, with its axis.
        initial_state: The state before any data.
        shape: Shape of an input.
        n_classes: Number of classes; 0 for regression.
        added_later: Paths of tensors that are as before any data in states of earlier
            revisions.
    """
    wanted = (
        allocate_directions_state_tensors(initial_state, shape, n_classes)
        if n_classes
        else allocate_regression_state_tensors(initial_state, shape)
    )
    is_empty = not state.tables.numel() and not state.numbers.effects.numel()
    before = _list_tensors_by_path(initial_state)
    for name, tensor in _list_tensors_by_path(state).items():
        earlier, expected = before[name], _list_tensors_by_path(wanted)[name]
        sizes = tuple(expected.shape)
        if is_empty or (f"state.{name}" in added_later and not tensor.any()):
            is_earlier = tensor.shape == earlier.shape and tensor.dtype == earlier.dtype
            if is_earlier:
                continue
        if name == "adaptation.draws":
            sizes = (1, *tensor.shape[1:2], *sizes[2:])
        if name == "inputs.shift":
            sizes = (1, count_image_channels(shape) if tensor.numel() else 0)
        _check_shape_and_dtype_of_tensor(name, tensor, sizes, expected.dtype)
    rows, refused, *_ = state.adaptation.notes.unbind(-1)
    counts = {
        "features": (state.found, MOST_FEATURES),
        "places": (state.places, MOST_PLACES),
        "rows": (rows, MOST_ROWS),
        "reasons": (refused, len(REFUSALS) - 1),
        "tests": (state.looks, MOST_ROWS),
        "changes": (state.trend[:, 1], MOST_ROWS),
        "stages without an explanation": (state.unexplained, MOST_ROWS),
        "known features": (state.reference.views, MOST_FEATURES),
    }
    for name, (count, most) in counts.items():
        if bool(((count < 0) | (count > most)).any()):
            raise ValueError(f"the stored number of {name} is not from 0 to {most:g}")
    if bool((state.width < 0).any()):
        raise ValueError("the stored width of the kernel is negative")


def _check_shape_and_dtype_of_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"the stored tensor {name} is {describe_type_and_shape(tensor)}, but "
            f"should be {str(dtype).removeprefix('torch.')} {list(shape)}"
        )


def _list_tensors_by_path(state: Any, path: str = "") -> dict[str, Tensor]:  # noqa: ANN401  nested tuples of tensors
    """Return the tensors of nested named tuples by path, as basis.centre."""
    if isinstance(state, Tensor):
        return {path.removesuffix("."): state}
    return {
        name: tensor
        for field, own in state._asdict().items()
        for name, tensor in _list_tensors_by_path(own, f"{path}{field}.").items()
    }
