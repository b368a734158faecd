"""A learner's state as tensors by name, and back."""

from __future__ import annotations

import typing
from typing import Any

from torch import Tensor

from cirm.learners.base import Learner


def named_tensors(state: Any, prefix: str = "state") -> dict[str, Tensor]:  # noqa: ANN401
    """The tensors of nested named tuples by path, such as state.posterior.mean."""
    if isinstance(state, Tensor):
        # A copy of its own: views of one tensor may not share their bytes in a file.
        return {prefix: state.detach().cpu().clone().contiguous()}
    return {
        name: tensor
        for field, part in state._asdict().items()
        for name, tensor in named_tensors(part, f"{prefix}.{field}").items()
    }


def doubled(state: Any) -> Any:  # noqa: ANN401  nested named tuples of tensors
    """The same state with its real numbers in double precision."""
    if isinstance(state, Tensor):
        return state.double() if state.is_floating_point() else state
    return type(state)(*(doubled(part) for part in state))


def state_of(learner: Learner[Any], tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """The learner's state made of named tensors; none may be lacking or left over.

    Its shape is read off the learner's types, so that nothing is made that the
    tensors do not hold.
    """
    left = dict(tensors)
    state = _filled(_state_type(learner), "state", left)
    if left:
        raise ValueError(f"its state must have no part {next(iter(left))!r}; got one")
    if {len(tensor) for tensor in tensors.values()} != {1}:
        raise ValueError("its state must be that of one replica; got several or none")
    return state


def _filled(kind: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    if kind is Tensor:
        if prefix not in tensors or tensors[prefix].ndim == 0:
            raise ValueError(f"its state must have a part {prefix!r}; got none")
        return tensors.pop(prefix)
    hints = typing.get_type_hints(kind)
    return kind(*(_filled(h, f"{prefix}.{n}", tensors) for n, h in hints.items()))


def _state_type(learner: Learner[Any]) -> Any:  # noqa: ANN401  a named tuple's class
    for base in type(learner).__orig_bases__:  # type: ignore[attr-defined]
        if typing.get_origin(base) is Learner:
            return typing.get_args(base)[0]
    raise ValueError(
        f"learner {type(learner).__name__}: it must name its state's type as "
        "Learner[State]; got none"
    )
