"""The state of a learner as tensors by path, and back."""

from __future__ import annotations

import typing
from typing import Any

from torch import Tensor

from cirm.learners.base import Learner
from cirm.model.container import REMEDY
from cirm.randomness import Randomness

OTHER_VERSION = "Another version of the learner may have written the file"


def flatten_state_to_tensors_by_path(
    state: Any,  # noqa: ANN401
    prefix: str = "state",
    copy: bool = True,
) -> dict[str, Tensor]:
    """Return the tensors of nested named tuples by path, as state.posterior.mean.

    They are copies, since safetensors refuses tensors that share memory, unless `copy`
    is false.
    """
    if isinstance(state, Tensor):
        return {prefix: state.detach().cpu().clone().contiguous() if copy else state}
    return {
        name: tensor
        for field, part in state._asdict().items()
        for name, tensor in flatten_state_to_tensors_by_path(
            part, f"{prefix}.{field}", copy
        ).items()
    }


def restore_state_from_tensors(
    learner: Learner[Any], tensors: dict[str, Tensor]
) -> Any:  # noqa: ANN401
    """Return the state of a learner from tensors by path, which must fit exactly.

    The structure is taken from the types of the learner, not from the file. If its
    state may be of several types, it is that of the state before any data.
    """
    removed = learner.removed_later
    rest = {name: tensor for name, tensor in tensors.items() if name not in removed}
    kind = get_type_of_learner_state(learner)
    if kind is Any:
        kind = learner.init(Randomness((0,)))
        empty = flatten_state_to_tensors_by_path(kind)
        # Another engine of the learner may not have such a tensor.
        later = {name: empty[name] for name in learner.added_later if name in empty}
        rest = later | rest
    state = _build_state_from_tensors(kind, "state", rest)
    if rest:
        raise ValueError(
            f"the file has a tensor {next(iter(rest))!r}, which the learner does not "
            f"use. {OTHER_VERSION}. {REMEDY}"
        )
    lengths = [(name, len(tensor)) for name, tensor in tensors.items()]
    name, length = max(lengths, key=lambda pair: abs(pair[1] - 1), default=("", 0))
    if length != 1:
        raise ValueError(
            f"the file is damaged: the first axis of the tensor {name!r} has the "
            f"length {length}, but must have the length 1. {REMEDY}"
        )
    return state


def _build_state_from_tensors(
    kind: Any,  # noqa: ANN401
    prefix: str,
    tensors: dict[str, Tensor],
) -> Any:  # noqa: ANN401
    """Return a state of a type, or of the same structure as another state."""
    if kind is Tensor or isinstance(kind, Tensor):
        if prefix not in tensors or tensors[prefix].ndim == 0:
            raise ValueError(
                f"the file lacks the tensor {prefix!r}, which the learner needs. "
                f"{OTHER_VERSION}. {REMEDY}"
            )
        return tensors.pop(prefix)
    is_type = isinstance(kind, type)
    parts = typing.get_type_hints(kind) if is_type else kind._asdict()
    cls = kind if is_type else type(kind)
    return cls(
        *(
            _build_state_from_tensors(k, f"{prefix}.{n}", tensors)
            for n, k in parts.items()
        )
    )


def get_type_of_learner_state(learner: Learner[Any]) -> Any:  # noqa: ANN401  a named tuple's class
    """Return the type of a learner's state, which its class names."""
    for base in type(learner).__orig_bases__:  # type: ignore[attr-defined]
        if typing.get_origin(base) is Learner:
            return typing.get_args(base)[0]
    raise ValueError(
        f"The learner {type(learner).__name__} does not declare the type of its "
        "state, so its models cannot be saved. Derive the class from Learner[State], "
        "with the NamedTuple of its state."
    )
