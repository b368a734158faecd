"""Encoded rows: in memory while they are few, then in a temporary file on disk."""

from __future__ import annotations

import math
import tempfile
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST = 2**28  # bytes of inputs that are held in memory


class Store:
    """Inputs [n, *shape] that arrive in portions.

    Up to 256 MiB they are kept in memory, beyond that in a file without a name, which
    goes with the process however it ends. What is taken from it is a copy.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = 0
        self._pieces: list[NDArray[np.float32]] = []
        self._file: IO[bytes] | None = None
        self._rows: Any = None

    def add(self, inputs: NDArray[np.float32]) -> None:
        """Append inputs [m, *shape]."""
        inputs = np.ascontiguousarray(inputs, np.float32)
        self.count += len(inputs)
        if self._file is not None:
            self._file.write(inputs.data)
            return
        self._pieces.append(inputs)
        if 4 * self.count * math.prod(self.shape) > MOST:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives on
            for piece in self._pieces:
                self._file.write(piece.data)
            self._pieces = []

    @property
    def on_disk(self) -> bool:
        """Whether the rows are too many for memory."""
        return self._file is not None

    def all(self) -> NDArray[np.float32]:
        """All inputs, [n, *shape]; on disk, a view of the file."""
        if self._rows is None:
            shape = (self.count, *self.shape)
            if self._file is None:
                self._rows = self._gathered(np.empty(shape, np.float32))
            else:
                self._file.flush()
                self._rows = np.memmap(self._file, np.float32, "r", shape=shape)
                self._file.close()  # the map keeps what it needs of it
        return self._rows

    def _gathered(self, whole: NDArray[np.float32]) -> NDArray[np.float32]:
        """All pieces in one array; each is let go as soon as it is copied."""
        end = self.count
        while self._pieces:
            piece = self._pieces.pop()
            whole[end - len(piece) : end] = piece
            end -= len(piece)
        return whole

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [m, *shape] of the rows [m]."""
        return torch.from_numpy(self.all()[rows.numpy()])


class Lazy:
    """Inputs [1, m, *shape] of chosen rows [m] of a store, made when asked for."""

    def __init__(self, store: Store, rows: Tensor) -> None:
        self.store, self.rows = store, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, m, *shape]."""
        return (1, len(self.rows), *self.store.shape)

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [1, k, *shape] of rows [1, k]."""
        return self.store.take(self.rows[rows[0]])[None]
