"""Say what equations without a solution may come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.linalg import LinAlgError  # type: ignore[attr-defined]


@contextmanager
def explain_unsolvable_equations(where: str) -> Iterator[None]:
    """Say what a matrix that cannot be inverted may come from."""
    try:
        yield
    except LinAlgError as error:
        raise ValueError(
            f"{where}: the equations of the learner have no solution. Check the rows "
            "for extreme values; if there are none, the model file may be damaged: "
            "restore it from a backup, or fit the model again."
        ) from error
