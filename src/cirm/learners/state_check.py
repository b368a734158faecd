"""Checks of a state that was read from a file: do its tensors fit together?

A file may come from anywhere, and a learner assumes that its state is one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cirm.environments import Examples
from cirm.likelihoods import CrossEntropy
from cirm.memory import PastExampleMemory
from cirm.randomness import Randomness

if TYPE_CHECKING:
    from cirm.learners.base import Learner

FREE = 0
"""Length, before any data, of an axis whose length depends on the data."""


def check_state_shapes(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  nested named tuples of tensors
    input_shape: tuple[int, ...],
) -> None:
    """Raise an error unless a state has the types and shapes of the learner's states.

    They are compared with those of the state before any data. An axis without entries
    may have grown since then, along with the other such axes and the examples of the
    same tuple; an empty vector, [1, 0], may have become anything. `start`, where the
    first stage starts from, is emptied after it. `past` of a game has as many players
    as the stage before had environments.

    Args:
        learner: A learner whose tensors keep their shapes, apart from such axes.
        state: The state of one replica.
        input_shape: Shape of an input.
    """
    _check_part_of_state(
        learner, state, learner.init(Randomness((0,))), input_shape, "state"
    )


def _check_part_of_state(
    learner: Learner[Any],
    part: Any,  # noqa: ANN401  nested named tuples of tensors
    initial_part: Any,  # noqa: ANN401  the same part before any data
    input_shape: tuple[int, ...],
    path: str,
) -> None:
    if isinstance(part, Examples):
        _check_stored_examples(learner, part, input_shape, path)
        return
    lengths = set()
    for name, tensor in part._asdict().items():
        start, own = getattr(initial_part, name), f"{path}.{name}"
        if not isinstance(tensor, Tensor):
            _check_part_of_state(learner, tensor, start, input_shape, own)
            if isinstance(tensor, Examples):
                lengths.add(tensor.y.shape[1])
            continue
        _check_tensor_of_state(tensor, start, own)
        if name == "seen" and bool((tensor < 0).any()):
            raise ValueError(f"the stored number of examples seen, {own}, is negative")
        if start.ndim > 2 and start.shape[1] == FREE:
            lengths.add(tensor.shape[1])
    if isinstance(part, PastExampleMemory):
        _check_environments_of_stored_examples(part, path)
    if len(lengths) > 1:
        raise ValueError(f"the tensors stored in {path} differ in length")


def _check_tensor_of_state(tensor: Tensor, initial_tensor: Tensor, path: str) -> None:
    is_unknown = tuple(initial_tensor.shape[1:]) == (FREE,)
    fits = tensor.ndim == initial_tensor.ndim and all(
        before in (FREE, now)
        for before, now in zip(initial_tensor.shape, tensor.shape, strict=True)
    )
    was_emptied = path.endswith(".start") and tuple(tensor.shape) == (1, 0)
    # Any number of players may be in the past.
    if ".past" in path and tensor.ndim == initial_tensor.ndim == 3:
        fits = tensor.shape[0] == 1 and tensor.shape[2] == initial_tensor.shape[2]
    if is_unknown or (tensor.dtype == initial_tensor.dtype and (fits or was_emptied)):
        return
    raise ValueError(
        f"the stored tensor {path} is {describe_type_and_shape(tensor)}, but should be "
        f"{describe_type_and_shape(initial_tensor)} (0: any length)"
    )


def describe_type_and_shape(tensor: Tensor) -> str:
    """Return the type and the shape of a tensor, such as float32 [1, 5]."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _check_stored_examples(
    learner: Learner[Any], examples: Examples, input_shape: tuple[int, ...], path: str
) -> None:
    """Raise an error unless examples are inputs of a shape with possible targets."""
    x, y = examples
    if not y.numel() and not x.numel():
        return  # before any data the shape is not known
    if x.dtype != torch.float32 or tuple(x.shape) != (1, y.shape[-1], *input_shape):
        raise ValueError(
            f"the inputs stored in {path} are {describe_type_and_shape(x)}, but should "
            f"be float32 {[1, y.shape[-1], *input_shape]}"
        )
    likelihood = learner.likelihood
    kind = torch.int64 if isinstance(likelihood, CrossEntropy) else torch.float32
    if y.dtype != kind or tuple(y.shape) != (1, x.shape[1]):
        raise ValueError(
            f"the targets stored in {path} are {describe_type_and_shape(y)}, but "
            f"should be {str(kind).removeprefix('torch.')} {[1, x.shape[1]]}"
        )
    classes = getattr(likelihood, "classes", 0)
    if classes and bool(((y < 0) | (y >= classes)).any()):
        raise ValueError(
            f"a target stored in {path} is not a class number from 0 to {classes - 1}"
        )


def _check_environments_of_stored_examples(
    memory: PastExampleMemory, path: str
) -> None:
    """Raise an error unless each example is of an environment, in their order."""
    owner = memory.owner
    if owner.dtype != torch.int64 or owner.shape != memory.kept.y.shape:
        raise ValueError(
            f"the examples stored in {path} do not each have the number of an "
            "environment"
        )
    if bool((owner < 0).any()):
        raise ValueError(
            f"an example stored in {path} has a negative environment number"
        )
    if bool((owner.diff() < 0).any()):
        raise ValueError(
            f"the examples stored in {path} are not sorted by the number of their "
            "environment"
        )
