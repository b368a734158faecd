"""A bounded draw of rows, by which the treatment of columns is decided."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cirm.randomness import Randomness


class Reservoir:
    """A uniform draw of rows as they come, with their places among all rows."""

    def __init__(self, size: int) -> None:
        self.size, self.seen, self.first = size, 0, ""
        self.frame, self.rows = pd.DataFrame(), np.zeros(0, np.int64)
        self._keys = np.zeros(0)
        self._draws = Randomness((0,), ("sample",)).start_draws()

    def offer(self, frame: pd.DataFrame, own: np.ndarray) -> np.ndarray:
        """Offer the rows of a table that `own` marks; gives back the marks."""
        keys = self._draws.uniform(len(frame))[0].double().numpy()
        rows = self.seen + np.flatnonzero(own)
        self.seen += len(frame)
        keys = np.concatenate([self._keys, keys[own]])
        kept = np.sort(np.argsort(keys, kind="stable")[: self.size])
        old, new = kept[kept < len(self._keys)], kept[kept >= len(self._keys)]
        chosen = frame.iloc[np.flatnonzero(own)[new - len(self._keys)]]
        if len(chosen):
            held = self.frame.iloc[old]
            self.frame = pd.concat([held, chosen]) if len(held) else chosen
        places = np.concatenate([self.rows, rows])
        self.rows, self._keys = places[kept], keys[kept]
        return own
