"""Data that come as batches: arrays, tensors or tables, too many for memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from cirm.data.row_store import Store
from cirm.data.sources import Chunk, Source

TARGET, ENVIRONMENT = "target", "environment"


@dataclass(eq=False)
class Batches(Source):
    """Batches (inputs, targets) or (inputs, targets, environment or environments).

    An iterable that can be iterated again, such as a list or a data loader, is read
    again when it is needed. A generator cannot: its batches are set aside as they
    come, on disk beyond 256 MiB, and must therefore be numbers; they are then held
    in single precision.
    """

    batches: Iterable[Any]
    name: str = "batches"
    where: str = "batches"
    target: str = TARGET
    named: bool = False
    _aside: tuple[Store, pd.DataFrame] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if iter(self.batches) is self.batches:
            self._aside = self._set_aside(iter(self.batches))
            first = self._aside[1]
            shape = self._aside[0].shape
        else:
            portion = self._portion(next(iter(self.batches), None))
            first = portion.frame
            shape = () if portion.inputs is None else portion.inputs.shape[1:]
        self.kind = "array" if len(shape) > 1 else "table"
        self.environment = ENVIRONMENT if ENVIRONMENT in first.columns else ""

    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """All rows in order."""
        if self._aside is None:
            yield from map(self._portion, self.batches)
            return
        store, beside = self._aside
        for start in range(0, store.count, 8192):
            rows = slice(start, start + 8192)
            inputs = np.array(store.all()[rows])
            yield self._joined(inputs, beside.iloc[rows].reset_index(drop=True))

    def _set_aside(self, batches: Iterator[Any]) -> tuple[Store, pd.DataFrame]:
        store: Store | None = None
        beside = []
        for batch in batches:
            inputs, frame = self._parts(batch)
            if isinstance(inputs, pd.DataFrame):
                raise ValueError(
                    f"{self.where}: tables must come in an iterable that can be read "
                    "again, such as a list; got a generator"
                )
            store = store or Store(inputs.shape[1:])
            if inputs.shape[1:] != store.shape:
                raise ValueError(
                    f"{self.where}: inputs must all be [n, *{list(store.shape)}]; "
                    f"got {list(inputs.shape)}"
                )
            store.add(np.asarray(inputs, np.float32))
            beside.append(frame)
        if store is None:
            raise ValueError(f"{self.where}: there must be batches; got none")
        return store, pd.concat(beside, ignore_index=True)

    def _portion(self, batch: Any) -> Chunk:  # noqa: ANN401  a user's batch
        inputs, beside = self._parts(batch)
        return self._joined(inputs, beside)

    def _joined(self, inputs: Any, beside: pd.DataFrame) -> Chunk:  # noqa: ANN401
        if isinstance(inputs, pd.DataFrame):
            frame = inputs.set_axis([str(n) for n in inputs.columns], axis=1)
            both = [frame.reset_index(drop=True), beside]
            return Chunk(pd.concat(both, axis=1))
        if inputs.ndim > 2:
            return Chunk(beside, inputs.astype(np.float32))
        frame = pd.DataFrame(inputs, columns=name_columns(inputs.shape[1]))
        return Chunk(pd.concat([frame, beside], axis=1))

    def _parts(self, batch: Any) -> tuple[Any, pd.DataFrame]:  # noqa: ANN401
        """Inputs, and a table of the targets and environments."""
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise ValueError(
                f"{self.where}: a batch must be (inputs, targets) or (inputs, targets, "
                f"environments); got {type(batch).__name__}"
            )
        inputs, targets = as_array(batch[0]), np.asarray(as_array(batch[1])).reshape(-1)
        if len(inputs) != len(targets) or not len(targets):
            raise ValueError(
                f"{self.where}: a batch must have as many inputs as targets, one or "
                f"more; got {len(inputs)} and {len(targets)}"
            )
        beside = pd.DataFrame({TARGET: targets})
        if len(batch) == 3:
            beside[ENVIRONMENT] = _names(batch[2], len(targets))
        return inputs, beside


def as_array(values: Any) -> Any:  # noqa: ANN401  an array or a table
    """A tensor or anything like an array as an array; a table as it is."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    return values if isinstance(values, pd.DataFrame) else np.asarray(values)


def name_columns(count: int) -> list[str]:
    """Names of the columns of an array, in an order that is also alphabetical."""
    width = len(str(max(count - 1, 0)))
    return [f"x{place:0{width}d}" for place in range(count)]


def _names(environments: Any, count: int) -> np.ndarray:  # noqa: ANN401
    if isinstance(environments, str):
        return np.full(count, environments, dtype=object)
    return np.asarray(as_array(environments)).astype(str).astype(object)
